/* One thread an element; a block is 256 of a row. Any types and strides. */
#ifndef OPS_GATED_GRAD_CUH
#define OPS_GATED_GRAD_CUH

#include "ops/gated/act_grad.cuh"
#include "sop/grad.h"

static __global__ void sop_gated_grad_any(const sop_gated_grad_desc d, const void *x,
                                          const void *dy, void *dgate, void *dup)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= d.dim) return;
    const float g = sop_load_any(x, d.x_dtype, t * d.x_stride + i);
    const float up = sop_load_any(x, d.x_dtype, t * d.x_stride + d.up + i);
    const float arrives = sop_load_any(dy, d.dy_dtype, t * d.dy_stride + i);
    float slope;
    const float y = sop_act_grad(d.act, g, slope);
    sop_store_any(dgate, d.dx_dtype, t * d.dgate_stride + i, slope * up * arrives);
    sop_store_any(dup, d.dx_dtype, t * d.dup_stride + i, y * arrives);
}

#endif
