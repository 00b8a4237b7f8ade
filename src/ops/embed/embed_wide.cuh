/* Pieces of 16 bytes of the wider type, four in flight a thread; short rows share a block. */
#ifndef OPS_EMBED_WIDE_CUH
#define OPS_EMBED_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename W, typename Y>
static __global__ __launch_bounds__(256) void sop_embed_wide(const sop_embed_desc d,
                                                             const int32_t *ids, const W *table,
                                                             const int32_t *live, Y *y)
{
    enum { N = wide_both<W, Y>::N, REP = 4 };
    sop_begin();
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int64_t first = ((int64_t)blockIdx.y * REP * blockDim.x + threadIdx.x) * N;
    const int64_t id = ids[t], step = blockDim.x * N;
    const bool inside = id >= 0 && id < d.rows;
    wide_raw<W, N> raw[REP] = {};
#pragma unroll
    for (int k = 0; k < REP; k++)
        if (inside && first + k * step < d.dim)
            wide_fetch(table + id * d.table_stride + first + k * step, raw[k]);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        float w[N];
        if (first + k * step >= d.dim) continue;
        wide_floats(raw[k], w);
#pragma unroll
        for (int e = 0; e < N; e++) w[e] *= d.scale;
        wide_store(y + t * d.y_stride + first + k * step, w);
    }
}

#endif
