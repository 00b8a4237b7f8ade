/* One block a row, which stays in registers: it is read once, REP pieces of 16 bytes a thread. */
#ifndef OPS_SOFTMAX_GRAD_WIDE_CUH
#define OPS_SOFTMAX_GRAD_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/grad.h"

template <typename T, int REP>
static __global__ void sop_softmax_grad_wide(const sop_softmax_grad_desc d, const T *y, const T *dy,
                                             T *dx)
{
    enum { N = wide<T>::N };
    __shared__ float shared[32];
    const int64_t t = blockIdx.x;
    wide_raw<T, N> ys[REP], gs[REP];
    float sum = 0;
    sop_begin();
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i >= d.dim) continue;
        wide_fetch(y + t * d.y_stride + i, ys[k]);
        wide_fetch(dy + t * d.dy_stride + i, gs[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        float p[N], g[N];
        if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
        wide_floats(ys[k], p);
        wide_floats(gs[k], g);
#pragma unroll
        for (int e = 0; e < N; e++) sum = fmaf(p[e], g[e], sum);
    }
    sum = wide_sum(sum, shared);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        float p[N], g[N];
        if (i >= d.dim) continue;
        wide_floats(ys[k], p);
        wide_floats(gs[k], g);
#pragma unroll
        for (int e = 0; e < N; e++) g[e] = d.scale * p[e] * (g[e] - sum);
        wide_store(dx + t * d.dx_stride + i, g);
    }
}

#endif
