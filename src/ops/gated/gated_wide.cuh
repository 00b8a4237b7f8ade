/* 16 bytes of a row at a time, two a thread whose loads are in flight together. Neighbouring blocks have
 * neighbouring pieces of a row: those of one column, a row apart, meet in the same banks of memory. */
#ifndef OPS_GATED_WIDE_CUH
#define OPS_GATED_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

template <typename T, int ACT>
static __global__ __launch_bounds__(256) void sop_gated_wide(const sop_gated_desc d, int blocks,
                                                             const T *x, const int32_t *live, T *y)
{
    enum { N = wide<T>::N, REP = 2 };
    sop_begin();
    const int64_t t = blockIdx.x / blocks, step = blockDim.x * N;
    const int64_t first = (int64_t)(blockIdx.x % blocks) * REP * step + threadIdx.x * N;
    if (t >= sop_live_rows(live, d.tokens)) return;
    wide_raw<T, N> gates[REP], ups[REP];
    x += t * d.x_stride;
    y += t * d.y_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        if (i >= d.dim) break;
        wide_fetch(x + i, gates[k]);
        wide_fetch(x + d.up + i, ups[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        float g[N], up[N];
        if (i >= d.dim) break;
        wide_floats(gates[k], g);
        wide_floats(ups[k], up);
#pragma unroll
        for (int e = 0; e < N; e++) g[e] *= sop_act_share(ACT, g[e]) * up[e];
        wide_store(y + i, g);
    }
}

#endif
