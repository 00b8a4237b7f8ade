/* core/device_cuda.h: what the launchers of CUDA kernels (ops/.../....cu) need of the device. No CUDA
 * header here: a stream is a pointer. */
#ifndef CORE_DEVICE_CUDA_H
#define CORE_DEVICE_CUDA_H

#include "sop/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A queue of a CUDA device. */
typedef struct sop_cuda_queue {
    sop_queue base;
    void *stream;  /* cudaStream_t */
    int *counters; /* on the device */
    int32_t early; /* a kernel may begin while the one before it ends */
} sop_cuda_queue;

/* Counters by which the blocks of a kernel meet: this many ints, zero before and after every kernel. A
 * queue's kernels run one after another, so one set serves them all. */
enum { SOP_CUDA_COUNTERS = 1 << 18 };

static inline void *sop_cuda_stream(const sop_call *call)
{
    return ((const sop_cuda_queue *)call->queue)->stream;
}

static inline int *sop_cuda_counters(const sop_call *call)
{
    return ((const sop_cuda_queue *)call->queue)->counters;
}

static inline int32_t sop_cuda_early(const sop_call *call)
{
    return ((const sop_cuda_queue *)call->queue)->early;
}

/* Make a CUDA device this thread's, for what is prepared; index: its number among CUDA's. */
sop_status sop_cuda_enter(const sop_device *d, int32_t *index);

/* SOP_E_DEVICE with the sentence of a cudaError_t. */
sop_status sop_cuda_fail(int error);

#ifdef __cplusplus
}
#endif

#endif
