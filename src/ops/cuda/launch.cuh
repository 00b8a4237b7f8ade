/* ops/cuda/launch.cuh: what every launcher (.cu) uses: the stream of a call, how a launch ended. */
#ifndef OPS_CUDA_LAUNCH_CUH
#define OPS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "core/device_cuda.h"
#include "sop/desc.h"

/* Blocks of `each` that hold n; as a grid's extent. */
static inline unsigned sop_blocks(int64_t n, int64_t each)
{
    return (unsigned)((n + each - 1) / each);
}

static inline cudaStream_t sop_stream(const sop_call *call)
{
    return (cudaStream_t)sop_cuda_stream(call);
}

/* The last word of a launcher. */
static inline sop_status sop_launched(void)
{
    const cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? SOP_OK : sop_cuda_fail((int)e);
}

/* Launch a kernel that may begin while the one before it ends: it calls grid_wait() before it touches
 * what another kernel may have written or may still read. */
template <typename... P, typename... A>
static inline sop_status sop_launch_early(void (*kernel)(P...), dim3 grid, unsigned threads,
                                          size_t shared, const sop_call *call, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = sop_stream(call);
    config.attrs = early;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, args...);
    return sop_launched();
}

/* Whether p and n elements from it on can be read in pieces of 16 bytes. */
static inline bool sop_aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

#endif
