/* 32 columns of a chunk of rows a block, with their sums; see ops/cuda/columns.cuh. Any types and strides. */
#ifndef OPS_BIAS_ACT_GRAD_CUH
#define OPS_BIAS_ACT_GRAD_CUH

#include "ops/cuda/columns.cuh"
#include "ops/gated/act_grad.cuh"
#include "sop/grad.h"

static __global__ void sop_bias_act_grad_any(const sop_bias_act_grad_desc d, int64_t chunk,
                                             const void *x, const void *r, const float *bias,
                                             const void *dy, void *dx, float *part)
{
    sop_begin();
    sop_columns<1>(d.tokens, d.dim, chunk, part, [&](int64_t t, int64_t i, float(&term)[1]) {
        float v = sop_load_any(x, d.x_dtype, t * d.x_stride + i), slope;
        if (bias) v += bias[i];
        if (r) v += sop_load_any(r, d.r_dtype, t * d.r_stride + i);
        (void)sop_act_grad(d.act, v, slope);
        term[0] = slope * sop_load_any(dy, d.dy_dtype, t * d.dy_stride + i);
        sop_store_any(dx, d.dx_dtype, t * d.dx_stride + i, term[0]);
    });
}

#endif
