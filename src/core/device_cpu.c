/* The CPU as a device: a queue runs what is submitted at once, on the pool of its threads. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/status.h"
#include "core/cpu.h"
#include "core/record.h"
#include "sop/device.h"

struct cpu_device {
    sop_device base;
    sop_pool *pool;
};

struct cpu_queue {
    sop_queue base;
    sop_record *recording; /* NULL: run at once */
};

static const sop_device_ops cpu_ops;

static void cpu_destroy(sop_device *d)
{
    struct cpu_device *c = (struct cpu_device *)d;
    sop_pool_destroy(c->pool);
    free(c);
}

static int64_t cache_bytes(int name, int64_t otherwise)
{
    const long n = sysconf(name);
    return n > 0 ? n : otherwise;
}

static void cpu_facts(const sop_device *d, sop_facts *out)
{
    const struct cpu_device *c = (const struct cpu_device *)d;
    *out = (sop_facts){
        .size = sizeof *out,
        .kind = SOP_DEVICE_CPU,
        .features = sop_cpu_features(),
        .workers = sop_pool_threads(c->pool),
        .l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
        .l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 512 << 10),
        .l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 8 << 20),
    };
}

static sop_status cpu_reserve(sop_device *d, size_t bytes, void **out)
{
    (void)d;
    const size_t two = (size_t)2 << 20; /* a huge page */
    if (bytes == 0) bytes = 1;
    void *p = mmap(NULL, bytes + two, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        *out = NULL;
        return sop_fail(SOP_E_NOMEM, "cpu: %zu bytes could not be reserved", bytes);
    }
    /* Give back what stands before and after the aligned piece. */
    char *from = p, *at = from + (-(uintptr_t)p & (two - 1));
    if (at > from) (void)munmap(from, (size_t)(at - from));
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *end = at + ((bytes + page - 1) & ~(page - 1));
    if (from + bytes + two > end) (void)munmap(end, (size_t)(from + bytes + two - end));
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    /* All pages now: none is missing when a step runs, and what was predicted is what is held. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
    if (madvise(at, bytes, MADV_POPULATE_WRITE) != 0) memset(at, 0, bytes);
    *out = at;
    return SOP_OK;
}

static void cpu_release(sop_device *d, void *p, size_t bytes)
{
    (void)d;
    if (p) (void)munmap(p, bytes ? bytes : 1);
}

static int32_t cpu_sees_host(const sop_device *d)
{
    (void)d;
    return 1;
}

static sop_status cpu_queue_create(sop_device *d, sop_queue **out)
{
    struct cpu_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q) return sop_fail(SOP_E_NOMEM, "cpu: a queue");
    q->base.device = d;
    q->base.pool = ((struct cpu_device *)d)->pool;
    *out = &q->base;
    return SOP_OK;
}

static void cpu_queue_destroy(sop_queue *queue)
{
    struct cpu_queue *q = (struct cpu_queue *)queue;
    if (!q) return;
    sop_record_destroy(q->recording);
    free(q);
}

static sop_status cpu_submit(sop_queue *queue, const sop_row *row, const sop_call *call)
{
    struct cpu_queue *q = (struct cpu_queue *)queue;
    return q->recording ? sop_record_call(q->recording, row, call) : row->run(call);
}

static sop_status cpu_copy(sop_queue *queue, void *dst, const void *src, size_t bytes,
                           int32_t direction)
{
    struct cpu_queue *q = (struct cpu_queue *)queue;
    (void)direction;
    if (q->recording) return sop_record_copy(q->recording, dst, src, bytes, direction);
    memmove(dst, src, bytes);
    return SOP_OK;
}

static sop_status cpu_wait(sop_queue *queue)
{
    (void)queue;
    return SOP_OK;
}

static sop_status cpu_record_begin(sop_queue *queue)
{
    struct cpu_queue *q = (struct cpu_queue *)queue;
    if (q->recording) return sop_fail(SOP_E_ARG, "cpu: the queue records already");
    return sop_record_create(&q->recording);
}

static sop_status cpu_record_end(sop_queue *queue, sop_graph **out)
{
    struct cpu_queue *q = (struct cpu_queue *)queue;
    *out = NULL;
    if (!q->recording) return sop_fail(SOP_E_ARG, "cpu: the queue does not record");
    *out = (sop_graph *)q->recording;
    q->recording = NULL;
    return SOP_OK;
}

static sop_status cpu_replay(sop_queue *queue, sop_graph *g)
{
    return sop_record_run((sop_record *)g, queue);
}

static void cpu_graph_destroy(sop_graph *g)
{
    sop_record_destroy((sop_record *)g);
}

static const sop_device_ops cpu_ops = {
    .size = sizeof cpu_ops,
    .kind = SOP_DEVICE_CPU,
    .name = "cpu",
    .destroy = cpu_destroy,
    .facts = cpu_facts,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .sees_host = cpu_sees_host,
    .queue_create = cpu_queue_create,
    .queue_destroy = cpu_queue_destroy,
    .submit = cpu_submit,
    .copy = cpu_copy,
    .wait = cpu_wait,
    .record_begin = cpu_record_begin,
    .record_end = cpu_record_end,
    .replay = cpu_replay,
    .graph_destroy = cpu_graph_destroy,
};

static sop_status cpu_with(sop_pool *pool, sop_device **out)
{
    struct cpu_device *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) {
        sop_pool_destroy(pool);
        return sop_fail(SOP_E_NOMEM, "cpu: a device");
    }
    c->base.ops = &cpu_ops;
    c->pool = pool;
    *out = &c->base;
    return SOP_OK;
}

sop_status sop_device_cpu(int32_t threads, sop_device **out)
{
    sop_pool *pool;
    *out = NULL;
    SOP_TRY(sop_pool_create(threads ? threads : sop_cores(), &pool));
    return cpu_with(pool, out);
}

sop_status sop_device_cpu_on(int32_t threads, sop_parallel_for *run, void *ctx, sop_device **out)
{
    sop_pool *pool;
    *out = NULL;
    SOP_TRY(sop_pool_create_on(threads, run, ctx, &pool));
    return cpu_with(pool, out);
}

void sop_device_destroy(sop_device *d)
{
    if (d) d->ops->destroy(d);
}

void sop_parallel(sop_queue *queue, int64_t n, int64_t grain, sop_range_fn *fn, const void *arg)
{
    sop_pool_run(queue ? queue->pool : NULL, n, grain, fn, arg);
}

int32_t sop_workers(const sop_queue *queue)
{
    return queue && queue->pool ? sop_pool_threads(queue->pool) : 1;
}
