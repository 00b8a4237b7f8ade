/* One thread an element; a block is 256 of a row. Any types and strides. */
#ifndef OPS_BIAS_ACT_CUH
#define OPS_BIAS_ACT_CUH

#include "ops/gated/gated_act.cuh"

static __global__ void sop_bias_act_any(const sop_bias_act_desc d, const void *x, const void *r,
                                        const float *bias, const int32_t *live, void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    const float more = r ? sop_load_any(r, d.r_dtype, t * d.r_stride + i) : 0;
    float v = sop_load_any(x, d.x_dtype, t * d.x_stride + i);
    if (bias) v += bias[i];
    if (d.residual == SOP_RESIDUAL_AFTER)
        v = sop_act_of(d.act, v) + more;
    else
        v = sop_act_of(d.act, v + more);
    sop_store_any(y, d.y_dtype, t * d.y_stride + i, v);
}

#endif
