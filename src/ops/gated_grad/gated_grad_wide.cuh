/* 16 bytes of a row at a time, two a thread whose loads are in flight together. */
#ifndef OPS_GATED_GRAD_WIDE_CUH
#define OPS_GATED_GRAD_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/act_grad.cuh"
#include "sop/grad.h"

template <typename T, int ACT>
static __global__ __launch_bounds__(256) void sop_gated_grad_wide(const sop_gated_grad_desc d,
                                                                  int blocks, const T *x,
                                                                  const T *dy, T *dgate, T *dup)
{
    enum { N = wide<T>::N, REP = 2 };
    sop_begin();
    const int64_t t = blockIdx.x / blocks, step = blockDim.x * N;
    const int64_t first = (int64_t)(blockIdx.x % blocks) * REP * step + threadIdx.x * N;
    wide_raw<T, N> gates[REP], ups[REP], gs[REP];
    x += t * d.x_stride;
    dy += t * d.dy_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        if (i >= d.dim) break;
        wide_fetch(x + i, gates[k]);
        wide_fetch(x + d.up + i, ups[k]);
        wide_fetch(dy + i, gs[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        float gate[N], up[N], g[N];
        if (i >= d.dim) break;
        wide_floats(gates[k], gate);
        wide_floats(ups[k], up);
        wide_floats(gs[k], g);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float slope;
            const float y = sop_act_grad_of<ACT, T>(gate[e], slope);
            gate[e] = slope * up[e] * g[e];
            up[e] = y * g[e];
        }
        wide_store(dgate + t * d.dgate_stride + i, gate);
        wide_store(dup + t * d.dup_stride + i, up);
    }
}

#endif
