/* An NVIDIA GPU as a device: a queue is a stream, a recording is a CUDA graph.
 *
 * CUDA's errors are sticky: after a kernel has faulted every call fails until the process ends. So the
 * first failure is reported as SOP_E_DEVICE with the rows that were under way, every later one as
 * SOP_E_INTERNAL: nobody may take it for a fault of the row it happens to meet. */
#include "core/device_cuda.h"
#include "sop/cuda.h"

#include "base/status.h"
#include "core/host.h"

#ifndef SOP_CUDA

sop_status sop_queue_on(sop_device *device, void *stream, sop_queue **out, int32_t *recording)
{
    (void)device, (void)stream;
    *out = NULL;
    if (recording) *recording = 0;
    return sop_fail(SOP_E_UNSUPPORTED, "a queue on a stream: superop was built without CUDA");
}

void *sop_queue_stream(const sop_queue *queue)
{
    (void)queue;
    return NULL;
}

sop_status sop_device_cuda(int32_t index, sop_device **out)
{
    *out = NULL;
    return sop_fail(SOP_E_UNSUPPORTED, "cuda device %d: superop was built without CUDA", index);
}

sop_status sop_cuda_host_reserve(sop_device *d, size_t bytes, void **out)
{
    (void)d;
    *out = NULL;
    return sop_fail(SOP_E_UNSUPPORTED, "host: %zu bytes for a GPU, without CUDA", bytes);
}

void sop_cuda_host_release(sop_device *d, void *p)
{
    (void)d;
    (void)p;
}

#else

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A queue on a stream that the device does not own. */
struct lent {
    void *stream;
    unsigned long long recording; /* the number of the recording it is of; 0: of none */
    struct cuda_queue *queue;
};
/* Recordings that have counters of their own at one time; the next takes those of the oldest. */
enum { RECORDINGS = 16 };

struct cuda_device {
    sop_device base;
    sop_device_ops ops; /* of its own, for the name */
    int index;
    sop_facts facts;
    char name[128];
    char lost[256];       /* why nothing works any more, or "" */
    pthread_mutex_t lock; /* of what follows */
    struct lent *lent;    /* [n_lent] */
    int32_t n_lent;
    struct lent recorded[RECORDINGS];
    int64_t n_recorded; /* all that there ever were; number i is at i % RECORDINGS */
};

/* Rows since the last wait: as many as a sentence can name. */
enum { NAMED = 4 };

struct cuda_queue {
    sop_cuda_queue cuda;
    bool recording;
    bool lent;              /* its stream is the caller's */
    int64_t n_rows;         /* submitted since the last wait */
    const char *row[NAMED]; /* the last of them, row i at i % NAMED */
};

struct sop_graph {
    cudaGraphExec_t exec;
};

sop_status sop_cuda_fail(int error)
{
    return sop_fail(SOP_E_DEVICE, "cuda: %s (%s)", cudaGetErrorString((cudaError_t)error),
                    cudaGetErrorName((cudaError_t)error));
}

static struct cuda_device *device_of(const sop_queue *q)
{
    return (struct cuda_device *)q->device;
}

/* Every call comes through here: the device of this thread, and whether there still is one. */
static sop_status enter(const struct cuda_device *c)
{
    if (c->lost[0]) return sop_fail(SOP_E_INTERNAL, "%s is lost: %s", c->name, c->lost);
    const cudaError_t e = cudaSetDevice(c->index);
    return e == cudaSuccess ? SOP_OK : sop_cuda_fail((int)e);
}

sop_status sop_cuda_enter(const sop_device *d, int32_t *index)
{
    const struct cuda_device *c = (const struct cuda_device *)d;
    *index = c->index;
    return enter(c);
}

/* Whether the error stays for the rest of the process. */
static bool is_sticky(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown: return true;
    default: return false;
    }
}

/* The rows since the last wait, as words. */
static void rows_text(const struct cuda_queue *q, char *out, size_t cap)
{
    const int64_t shown = q->n_rows < NAMED ? q->n_rows : NAMED;
    size_t n = 0;
    out[0] = 0;
    for (int64_t i = q->n_rows - shown; i < q->n_rows && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", q->row[i % NAMED]);
    if (q->n_rows > shown && n < cap)
        (void)snprintf(out + n, cap - n, " and %lld before them", (long long)(q->n_rows - shown));
}

/* The status of what the queue did last. */
static sop_status outcome(struct cuda_queue *q, cudaError_t e)
{
    struct cuda_device *c = device_of(&q->cuda.base);
    char rows[160];
    if (e == cudaSuccess) return SOP_OK;
    (void)cudaGetLastError(); /* forget it, unless it is sticky */
    rows_text(q, rows, sizeof rows);
    const sop_status status = sop_fail(SOP_E_DEVICE, "%s%s%s (%s)", rows, rows[0] ? ": " : "",
                                       cudaGetErrorString(e), cudaGetErrorName(e));
    if (is_sticky(e)) (void)snprintf(c->lost, sizeof c->lost, "%s", sop_last_error());
    return status;
}

static void cuda_queue_destroy(sop_queue *queue);

static void cuda_destroy(sop_device *d)
{
    struct cuda_device *c = (struct cuda_device *)d;
    for (int32_t i = 0; i < c->n_lent; i++) cuda_queue_destroy(&c->lent[i].queue->cuda.base);
    for (int32_t i = 0; i < RECORDINGS; i++)
        if (c->recorded[i].queue) cuda_queue_destroy(&c->recorded[i].queue->cuda.base);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->lent);
    free(c);
}

static void cuda_facts(const sop_device *d, sop_facts *out)
{
    *out = ((const struct cuda_device *)d)->facts;
}

static sop_status cuda_reserve(sop_device *d, size_t bytes, void **out)
{
    struct cuda_device *c = (struct cuda_device *)d;
    size_t free_bytes = 0, all = 0;
    *out = NULL;
    SOP_TRY(enter(c));
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &all);
        return sop_fail(SOP_E_NOMEM, "%s: %zu bytes, %zu of %zu are free", c->name, bytes,
                        free_bytes, all);
    }
    if (e == cudaSuccess) e = cudaMemset(*out, 0, bytes ? bytes : 1);
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (e == cudaSuccess) return SOP_OK;
    if (*out) (void)cudaFree(*out);
    *out = NULL;
    return sop_cuda_fail((int)e);
}

static void cuda_release(sop_device *d, void *p, size_t bytes)
{
    (void)bytes;
    if (p && enter((struct cuda_device *)d) == SOP_OK) (void)cudaFree(p);
}

sop_status sop_cuda_host_reserve(sop_device *d, size_t bytes, void **out)
{
    *out = NULL;
    SOP_TRY(enter((struct cuda_device *)d));
    const cudaError_t e = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess) return SOP_OK;
    (void)cudaGetLastError();
    return e == cudaErrorMemoryAllocation
               ? sop_fail(SOP_E_NOMEM, "host: %zu bytes cannot be pinned", bytes)
               : sop_cuda_fail((int)e);
}

void sop_cuda_host_release(sop_device *d, void *p)
{
    if (p && enter((struct cuda_device *)d) == SOP_OK) (void)cudaFreeHost(p);
}

static sop_status cuda_memory(sop_device *d, size_t *free_bytes, size_t *all_bytes)
{
    SOP_TRY(enter((struct cuda_device *)d));
    const cudaError_t e = cudaMemGetInfo(free_bytes, all_bytes);
    return e == cudaSuccess ? SOP_OK : sop_cuda_fail((int)e);
}

static int32_t cuda_sees_host(const sop_device *d)
{
    (void)d;
    return 0;
}

static sop_status cuda_queue_create(sop_device *d, sop_queue **out)
{
    void *counters;
    cudaStream_t stream;
    const size_t bytes = SOP_CUDA_COUNTERS * sizeof(int);
    *out = NULL;
    SOP_TRY(cuda_reserve(d, bytes, &counters));
    struct cuda_queue *q = calloc(1, sizeof *q);
    const cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!q || e != cudaSuccess) {
        cuda_release(d, counters, bytes);
        if (e == cudaSuccess) (void)cudaStreamDestroy(stream);
        free(q);
        return e == cudaSuccess ? sop_fail(SOP_E_NOMEM, "cuda: a queue") : sop_cuda_fail((int)e);
    }
    q->cuda.base.device = d;
    q->cuda.stream = stream;
    q->cuda.counters = counters;
    q->cuda.early = (((struct cuda_device *)d)->facts.features & SOP_CUDA_SM90) != 0;
    *out = &q->cuda.base;
    return SOP_OK;
}

static void cuda_queue_destroy(sop_queue *queue)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    if (!q) return;
    if (enter(device_of(queue)) == SOP_OK) {
        if (!q->lent) (void)cudaStreamDestroy(q->cuda.stream);
        (void)cudaFree(q->cuda.counters);
    }
    free(q);
}

/* Counters, zero, made while any stream may be recording: under the relaxed mode of this thread, and on
 * a stream of their own. */
static cudaError_t lent_counters(void **out)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const size_t bytes = SOP_CUDA_COUNTERS * sizeof(int);
    cudaStream_t side = NULL;
    cudaError_t e = cudaThreadExchangeStreamCaptureMode(&mode);
    if (e != cudaSuccess) return e;
    e = cudaMalloc(out, bytes);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaMemsetAsync(*out, 0, bytes, side);
    if (e == cudaSuccess) e = cudaStreamSynchronize(side);
    if (side) (void)cudaStreamDestroy(side);
    if (e != cudaSuccess && *out) (void)cudaFree(*out);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return e;
}

static sop_status lend(struct cuda_device *c, void *stream, struct cuda_queue **out)
{
    void *counters = NULL;
    const cudaError_t e = lent_counters(&counters);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return sop_cuda_fail((int)e);
    }
    struct cuda_queue *q = calloc(1, sizeof *q);
    if (!q) {
        (void)cudaFree(counters);
        return sop_fail(SOP_E_NOMEM, "cuda: a queue");
    }
    q->cuda.base.device = &c->base;
    q->cuda.stream = stream;
    q->cuda.counters = counters;
    q->cuda.early = (c->facts.features & SOP_CUDA_SM90) != 0;
    q->lent = true;
    *out = q;
    return SOP_OK;
}

/* Under the lock. */
static sop_status queue_on(struct cuda_device *c, void *stream, unsigned long long recording,
                           struct cuda_queue **out)
{
    if (recording) {
        for (int32_t i = 0; i < RECORDINGS; i++)
            if (c->recorded[i].recording == recording && c->recorded[i].stream == stream) {
                *out = c->recorded[i].queue;
                return SOP_OK;
            }
        struct lent *at = &c->recorded[c->n_recorded % RECORDINGS];
        if (!at->queue) SOP_TRY(lend(c, stream, &at->queue));
        at->recording = recording;
        at->stream = at->queue->cuda.stream = stream;
        c->n_recorded++;
        *out = at->queue;
        return SOP_OK;
    }
    for (int32_t i = 0; i < c->n_lent; i++)
        if (c->lent[i].stream == stream) {
            *out = c->lent[i].queue;
            return SOP_OK;
        }
    struct lent *grown = realloc(c->lent, (size_t)(c->n_lent + 1) * sizeof *grown);
    if (!grown) return sop_fail(SOP_E_NOMEM, "cuda: a list of %d queues", c->n_lent + 1);
    c->lent = grown;
    SOP_TRY(lend(c, stream, out));
    c->lent[c->n_lent++] = (struct lent){.stream = stream, .queue = *out};
    return SOP_OK;
}

sop_status sop_queue_on(sop_device *device, void *stream, sop_queue **out, int32_t *recording)
{
    struct cuda_device *c = (struct cuda_device *)device;
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    struct cuda_queue *q = NULL;
    *out = NULL;
    if (device->ops->kind != SOP_DEVICE_CUDA)
        return sop_fail(SOP_E_UNSUPPORTED, "%s has no streams", device->ops->name);
    SOP_TRY(enter(c));
    /* The default stream cannot record, and may not be asked while another one does. */
    if (stream) {
        const cudaError_t e = cudaStreamGetCaptureInfo(stream, &state, &id, NULL, NULL, NULL, NULL);
        if (e != cudaSuccess) return sop_cuda_fail((int)e);
    }
    if (state != cudaStreamCaptureStatusActive) id = 0;
    (void)pthread_mutex_lock(&c->lock);
    const sop_status status = queue_on(c, stream, id, &q);
    (void)pthread_mutex_unlock(&c->lock);
    if (status != SOP_OK) return status;
    if (recording) *recording = id != 0;
    *out = &q->cuda.base;
    return SOP_OK;
}

void *sop_queue_stream(const sop_queue *queue)
{
    return ((const sop_cuda_queue *)queue)->stream;
}

static sop_status cuda_submit(sop_queue *queue, const sop_row *row, const sop_call *call)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    char why[200];
    SOP_TRY(enter(device_of(queue)));
    (void)cudaGetLastError(); /* what others in this process left is not the row's fault */
    q->row[q->n_rows++ % NAMED] = row->name;
    const sop_status status = row->run(call);
    if (status != SOP_E_DEVICE) return status;
    (void)snprintf(why, sizeof why, "%s", sop_last_error());
    return sop_fail(status, "%s: %s", row->name, why);
}

static sop_status cuda_copy(sop_queue *queue, void *dst, const void *src, size_t bytes,
                            int32_t direction)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    const enum cudaMemcpyKind kind = direction == SOP_COPY_IN    ? cudaMemcpyHostToDevice
                                     : direction == SOP_COPY_OUT ? cudaMemcpyDeviceToHost
                                                                 : cudaMemcpyDeviceToDevice;
    SOP_TRY(enter(device_of(queue)));
    return bytes ? outcome(q, cudaMemcpyAsync(dst, src, bytes, kind, q->cuda.stream)) : SOP_OK;
}

static sop_status cuda_wait(sop_queue *queue)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    SOP_TRY(enter(device_of(queue)));
    const sop_status status = outcome(q, cudaStreamSynchronize(q->cuda.stream));
    q->n_rows = 0;
    return status;
}

static sop_status cuda_record_begin(sop_queue *queue)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    SOP_TRY(enter(device_of(queue)));
    if (q->recording) return sop_fail(SOP_E_ARG, "cuda: the queue records already");
    SOP_TRY(outcome(q, cudaStreamBeginCapture(q->cuda.stream, cudaStreamCaptureModeThreadLocal)));
    q->recording = true;
    q->n_rows = 0;
    return SOP_OK;
}

static sop_status cuda_record_end(sop_queue *queue, sop_graph **out)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    cudaGraph_t graph = NULL;
    *out = NULL;
    SOP_TRY(enter(device_of(queue)));
    if (!q->recording) return sop_fail(SOP_E_ARG, "cuda: the queue does not record");
    q->recording = false;
    SOP_TRY(outcome(q, cudaStreamEndCapture(q->cuda.stream, &graph)));
    sop_graph *g = calloc(1, sizeof *g);
    sop_status status = g ? SOP_OK : sop_fail(SOP_E_NOMEM, "cuda: a graph");
    if (status == SOP_OK) status = outcome(q, cudaGraphInstantiate(&g->exec, graph, 0));
    if (status == SOP_OK) status = outcome(q, cudaGraphUpload(g->exec, q->cuda.stream));
    (void)cudaGraphDestroy(graph);
    if (status != SOP_OK) {
        if (g && g->exec) (void)cudaGraphExecDestroy(g->exec);
        free(g);
        return status;
    }
    q->n_rows = 0;
    *out = g;
    return SOP_OK;
}

static sop_status cuda_replay(sop_queue *queue, sop_graph *g)
{
    struct cuda_queue *q = (struct cuda_queue *)queue;
    SOP_TRY(enter(device_of(queue)));
    q->row[q->n_rows++ % NAMED] = "a recorded step";
    return outcome(q, cudaGraphLaunch(g->exec, q->cuda.stream));
}

static void cuda_graph_destroy(sop_graph *g)
{
    if (!g) return;
    (void)cudaGraphExecDestroy(g->exec);
    free(g);
}

static const sop_device_ops cuda_ops = {
    .size = sizeof cuda_ops,
    .kind = SOP_DEVICE_CUDA,
    .destroy = cuda_destroy,
    .facts = cuda_facts,
    .reserve = cuda_reserve,
    .release = cuda_release,
    .sees_host = cuda_sees_host,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .submit = cuda_submit,
    .copy = cuda_copy,
    .wait = cuda_wait,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .replay = cuda_replay,
    .graph_destroy = cuda_graph_destroy,
    .memory = cuda_memory,
};

/* What a card of this compute capability runs, as far as the environment lets it. */
static uint32_t features_of(int major, int minor)
{
    const int capability = 10 * major + minor;
    const char *mask = getenv("SOP_CUDA_MASK");
    uint32_t f = 0;
    if (capability >= 80) f |= SOP_CUDA_SM80;
    if (capability >= 89) f |= SOP_CUDA_SM89;
    if (capability >= 90) f |= SOP_CUDA_SM90;
    if (capability == 90) f |= SOP_CUDA_SM90A;
    if (mask) f &= (uint32_t)strtoul(mask, NULL, 0);
    return f;
}

/* There is no driver, or one from before this runtime. */
static sop_status driver_fail(int32_t index)
{
    int has = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&has);
    if (!has) return sop_fail(SOP_E_NOT_FOUND, "cuda device %d: there is no NVIDIA driver", index);
    return sop_fail(SOP_E_NOT_FOUND,
                    "cuda device %d: the driver is for CUDA %d.%d, superop needs %d.%d", index,
                    has / 1000, has % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

sop_status sop_device_cuda(int32_t index, sop_device **out)
{
    struct cudaDeviceProp p;
    int n = 0;
    *out = NULL;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && (index < 0 || index >= n)) {
        return sop_fail(SOP_E_NOT_FOUND, "cuda device %d: there are %d", index, n);
    }
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, index);
    if (e == cudaErrorInsufficientDriver) return driver_fail(index);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return sop_fail(SOP_E_NOT_FOUND, "cuda device %d: %s (%s)", index, cudaGetErrorString(e),
                        cudaGetErrorName(e));
    }
    if (p.major < 8)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "cuda device %d: %s has compute capability %d.%d, superop needs 8.0", index,
                        p.name, p.major, p.minor);
    struct cuda_device *c = calloc(1, sizeof *c);
    if (!c) return sop_fail(SOP_E_NOMEM, "cuda: a device");
    c->index = index;
    (void)snprintf(c->name, sizeof c->name, "cuda %.100s", p.name);
    c->ops = cuda_ops;
    c->ops.name = c->name;
    c->base.ops = &c->ops;
    c->facts = (sop_facts){.size = sizeof c->facts,
                           .kind = SOP_DEVICE_CUDA,
                           .features = features_of(p.major, p.minor),
                           .workers = p.multiProcessorCount,
                           .l1_bytes = (int64_t)p.sharedMemPerMultiprocessor,
                           .l2_bytes = p.l2CacheSize};
    (void)pthread_mutex_init(&c->lock, NULL);
    const sop_status status = enter(c);
    if (status != SOP_OK) {
        cuda_destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return SOP_OK;
}

#endif
