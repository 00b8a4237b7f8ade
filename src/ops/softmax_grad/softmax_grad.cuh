/* One block a row, read twice: the sum, the result. Any types and strides. */
#ifndef OPS_SOFTMAX_GRAD_CUH
#define OPS_SOFTMAX_GRAD_CUH

#include "ops/cuda/elements.cuh"
#include "sop/grad.h"

template <int THREADS>
static __global__ void sop_softmax_grad_any(const sop_softmax_grad_desc d, const void *y,
                                            const void *dy, void *dx)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, ya = t * d.y_stride, ga = t * d.dy_stride;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        sum = fmaf(sop_load_any(y, d.y_dtype, ya + i), sop_load_any(dy, d.dy_dtype, ga + i), sum);
    sum = sop_block_sum<THREADS>(sum, shared);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        sop_store_any(dx, d.dx_dtype, t * d.dx_stride + i,
                      d.scale * sop_load_any(y, d.y_dtype, ya + i) *
                          (sop_load_any(dy, d.dy_dtype, ga + i) - sum));
}

#endif
