/* One thread an element; a block is 256 of a row. Any types and strides. */
#ifndef OPS_GATED_CUH
#define OPS_GATED_CUH

#include "ops/gated/gated_act.cuh"

static __global__ void sop_gated_any(const sop_gated_desc d, const void *x, const int32_t *live,
                                     void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    const float g = sop_load_any(x, d.x_dtype, t * d.x_stride + i);
    const float up = sop_load_any(x, d.x_dtype, t * d.x_stride + d.up + i);
    sop_store_any(y, d.y_dtype, t * d.y_stride + i, g * sop_act_share(d.act, g) * up);
}

#endif
