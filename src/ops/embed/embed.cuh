/* One thread an element; a block is 256 of a row. All formats of weights. */
#ifndef OPS_EMBED_CUH
#define OPS_EMBED_CUH

#include "ops/linear/dequant.cuh"
#include "sop/desc.h"

static __global__ void sop_embed_any(const sop_embed_desc d, const int32_t *ids,
                                     const uint8_t *table, const int32_t *live, void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    const int64_t id = ids[t];
    float w = 0;
    if (id >= 0 && id < d.rows)
        w = sop_weight_at(d.w_dtype, table + id * d.table_stride * sop_block_bytes(d.w_dtype), i);
    sop_store_any(y, d.y_dtype, t * d.y_stride + i, d.scale * w);
}

#endif
