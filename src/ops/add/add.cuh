/* One thread an element; a block is 256 of a row. Any types and strides. */
#ifndef OPS_ADD_CUH
#define OPS_ADD_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

static __global__ void sop_add_any(const sop_add_desc d, const void *a, const void *b,
                                   const int32_t *live, void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    sop_store_any(y, d.y_dtype, t * d.y_stride + i,
                  sop_load_any(a, d.a_dtype, t * d.a_stride + i) +
                      sop_load_any(b, d.b_dtype, t * d.b_stride + i));
}

#endif
