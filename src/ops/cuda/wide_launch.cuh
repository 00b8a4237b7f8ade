/* ops/cuda/wide_launch.cuh: what launchers of wide rows share. */
#ifndef OPS_CUDA_WIDE_LAUNCH_CUH
#define OPS_CUDA_WIDE_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.cuh"

/* Why rows of dim elements, and these strides, do not go in pieces of 16 bytes; or NULL. */
static inline const char *sop_wide_refuse(int32_t dtype, int64_t dim, const int64_t *strides, int n)
{
    const int64_t each = dtype == SOP_F32 ? 4 : 8;
    if (dim % each || dim == 0) return "rows are no multiple of 16 bytes";
    for (int i = 0; i < n; i++)
        if (strides[i] % each) return "a stride is no multiple of 16 bytes";
    return NULL;
}

/* Threads of a block for a row of `pieces` of 16 bytes, `most` a thread: whole warps. */
static inline unsigned sop_wide_threads(int64_t pieces, int64_t most)
{
    const int64_t n = (pieces + most - 1) / most;
    return (unsigned)((n + 31) / 32 * 32);
}

/* Threads of a block of 256 that go along a row of `pieces`, a power of 2; the others take more rows. */
static inline unsigned sop_wide_across(int64_t pieces)
{
    unsigned n = 1;
    while (n < 256 && (int64_t)n < pieces) n *= 2;
    return n;
}

/* Call fn<T>(args) with the type of a dtype. */
#define SOP_WIDE_TYPE(dtype, fn, ...) \
    ((dtype) == SOP_F32   ? fn<float>(__VA_ARGS__) \
     : (dtype) == SOP_F16 ? fn<__half>(__VA_ARGS__) \
                          : fn<__nv_bfloat16>(__VA_ARGS__))
/* Call fn<X, T>(args). */
#define SOP_WIDE_TYPE2(X, dtype, fn, ...) \
    ((dtype) == SOP_F32   ? fn<X, float>(__VA_ARGS__) \
     : (dtype) == SOP_F16 ? fn<X, __half>(__VA_ARGS__) \
                          : fn<X, __nv_bfloat16>(__VA_ARGS__))

#endif
