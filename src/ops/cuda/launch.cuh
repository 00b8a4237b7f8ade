/* ops/cuda/launch.cuh: how every launcher (.cu) launches, and hears how that ended. */
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

/* Launch a kernel that may begin while the one before it ends; it calls sop_begin(). In a cluster of
 * CTAs when cluster > 1. */
template <typename... P, typename... A>
static inline sop_status sop_launch_cluster(void (*kernel)(P...), dim3 grid, dim3 block,
                                            size_t shared, unsigned cluster, const sop_call *call,
                                            A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attrs[2];
    int n = 0;
    if (sop_cuda_early(call)) {
        attrs[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attrs[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attrs[n].id = cudaLaunchAttributeClusterDimension;
        attrs[n].val.clusterDim.x = cluster;
        attrs[n].val.clusterDim.y = attrs[n].val.clusterDim.z = 1;
        n++;
    }
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = sop_stream(call);
    config.attrs = attrs;
    config.numAttrs = (unsigned)n;
    if (shared) /* beside what the kernel has of its own */
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared);
    (void)cudaLaunchKernelEx(&config, kernel, args...);
    const cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? SOP_OK : sop_cuda_fail((int)e);
}
template <typename... P, typename... A>
static inline sop_status sop_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                    const sop_call *call, A... args)
{
    return sop_launch_cluster(kernel, grid, block, 0, 1, call, args...);
}

/* Whether what lies at p can be read in pieces of 16 bytes. */
static inline bool sop_aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

#endif
