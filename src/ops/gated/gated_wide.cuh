/* 16 bytes of a row a thread. */
#ifndef OPS_GATED_WIDE_CUH
#define OPS_GATED_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

template <typename T>
static __global__ void sop_gated_wide(const sop_gated_desc d, const T *x, const int32_t *live, T *y)
{
    enum { N = wide<T>::N };
    const int64_t t = blockIdx.x, i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    float g[N], up[N];
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    wide_load(x + t * d.x_stride + i, g);
    wide_load(x + t * d.x_stride + d.up + i, up);
#pragma unroll
    for (int e = 0; e < N; e++) g[e] *= sop_act_share(d.act, g[e]) * up[e];
    wide_store(y + t * d.y_stride + i, g);
}

#endif
