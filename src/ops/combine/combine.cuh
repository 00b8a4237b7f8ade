/* One thread an element; a block is 256 of a row. Any types and strides. */
#ifndef OPS_COMBINE_CUH
#define OPS_COMBINE_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

static __global__ void sop_combine_any(const sop_combine_desc d, const void *x, const void *r,
                                       const float *weights, const int32_t *live, void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    float sum = 0;
    for (int64_t pair = t * d.top; pair < (t + 1) * d.top; pair++)
        sum = fmaf(weights[pair], sop_load_any(x, d.x_dtype, pair * d.x_stride + i), sum);
    if (r) sum += sop_load_any(r, d.r_dtype, t * d.r_stride + i);
    sop_store_any(y, d.y_dtype, t * d.y_stride + i, sum);
}

#endif
