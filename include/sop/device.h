/* sop/device.h: what superop needs of a machine: memory in one piece, a queue in order, record and
 * replay. The CPU implements all of it, so that nothing above knows which device it is on. */
#ifndef SOP_DEVICE_H
#define SOP_DEVICE_H

#include "sop/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_graph sop_graph;

/** Directions of a copy. */
enum { SOP_COPY_IN, SOP_COPY_OUT, SOP_COPY_WITHIN };

typedef struct sop_device_ops {
    uint32_t size; /* sizeof(sop_device_ops) */
    int32_t kind;  /* sop_device_kind: which rows run here */
    const char *name;
    void (*destroy)(sop_device *d);
    void (*facts)(const sop_device *d, sop_facts *out);
    /** Memory of the device, 64-byte aligned, zeroed. Called while sizing, never while running. */
    sop_status (*reserve)(sop_device *d, size_t bytes, void **out);
    void (*release)(sop_device *d, void *p, size_t bytes);
    /** Whether kernels here may read host memory in place (a mapped weight file). */
    int32_t (*sees_host)(const sop_device *d);

    sop_status (*queue_create)(sop_device *d, sop_queue **out);
    void (*queue_destroy)(sop_queue *q);
    /** In order; return before the work is done or after, as the device likes. A failure of the
     * kernel is reported here or by wait. */
    sop_status (*submit)(sop_queue *q, const sop_row *row, const sop_call *call);
    sop_status (*copy)(sop_queue *q, void *dst, const void *src, size_t bytes, int32_t direction);
    sop_status (*wait)(sop_queue *q);

    /** Between begin and end, what is submitted is kept and not run. The call is copied; what it
     * points to (desc, args, split) belongs to a plan that outlives the graph. Replay runs it, with
     * whatever the operands hold by then. */
    sop_status (*record_begin)(sop_queue *q);
    sop_status (*record_end)(sop_queue *q, sop_graph **out);
    sop_status (*replay)(sop_queue *q, sop_graph *g);
    void (*graph_destroy)(sop_graph *g);

    /** Bytes that reserve() could still give, and that there are in all; NULL where nobody knows. */
    sop_status (*memory)(sop_device *d, size_t *free_bytes, size_t *all_bytes);
} sop_device_ops;

/** The first member of every device and queue. */
struct sop_device {
    const sop_device_ops *ops;
};
struct sop_queue {
    sop_device *device;
    struct sop_pool *pool; /* its CPU workers; NULL where there are none */
};

/** The CPU. threads: its workers, the caller being one; 0 takes one for each core this process may
 * use. out: free it with sop_device_destroy(). SOP_E_ARG, SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_device_cpu(int32_t threads, sop_device **out);
/** A CPU device whose parallel loops run on the caller's own threads (a framework's parallel-for):
 * run(ctx, n, fn, arg) calls fn(arg, i, i + 1, i) for each i < n <= threads and returns when all
 * are done. */
typedef void sop_parallel_for(void *ctx, int64_t n, sop_range_fn *fn, const void *arg);
SOP_API SOP_MUST_USE sop_status sop_device_cpu_on(int32_t threads, sop_parallel_for *run, void *ctx,
                                                  sop_device **out);
/** An NVIDIA GPU, by its number from 0; it does not see host memory. SOP_E_UNSUPPORTED when superop was
 * built without CUDA or the card is older than compute capability 8.0, SOP_E_NOT_FOUND when there is
 * no such card or no driver, with CUDA's words. */
SOP_API SOP_MUST_USE sop_status sop_device_cuda(int32_t index, sop_device **out);
SOP_API void sop_device_destroy(sop_device *d);

#ifdef __cplusplus
}
#endif

#endif
