/* One block a row, which stays in registers: it is read once, REP pieces of 16 bytes a thread. */
#ifndef OPS_SOFTMAX_WIDE_CUH
#define OPS_SOFTMAX_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename T, int REP>
static __global__ void sop_softmax_wide(const sop_softmax_desc d, const T *x, const int32_t *live,
                                        T *y)
{
    enum { N = wide<T>::N };
    __shared__ float shared[32];
    const int64_t t = blockIdx.x;
    float z[REP][N], max = -INFINITY, sum = 0;
    bool nan = false;
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride;
    y += t * d.y_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i < d.dim) wide_load(x + i, z[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
        for (int e = 0; e < N; e++) {
            z[k][e] *= d.scale;
            nan |= isnan(z[k][e]) || z[k][e] == INFINITY;
            max = fmaxf(max, z[k][e]);
        }
    }
    nan = __syncthreads_or(nan);
    max = wide_max(max, shared);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        if ((k * blockDim.x + threadIdx.x) * N >= d.dim || max == -INFINITY) continue;
#pragma unroll
        for (int e = 0; e < N; e++) sum += z[k][e] = expf(z[k][e] - max);
    }
    const float share = 1 / wide_sum(sum, shared);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i >= d.dim) continue;
#pragma unroll
        for (int e = 0; e < N; e++) z[k][e] = nan ? NAN : max == -INFINITY ? 0 : z[k][e] * share;
        wide_store(y + i, z[k]);
    }
}

#endif
