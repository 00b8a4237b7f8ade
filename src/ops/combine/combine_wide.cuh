/* One piece of a row of y a thread, 16 bytes of x; those of four pairs are in flight together.
 * Neighbouring blocks have neighbouring pieces of a row. */
#ifndef OPS_COMBINE_WIDE_CUH
#define OPS_COMBINE_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename X, typename Y>
static __global__ __launch_bounds__(256) void sop_combine_wide(const sop_combine_desc d, int blocks,
                                                               const X *x, const Y *r,
                                                               const float *weights,
                                                               const int32_t *live, Y *y)
{
    enum { N = wide<X>::N, TOGETHER = 4 };
    sop_begin();
    const int64_t t = blockIdx.x / blocks;
    const int64_t i = ((int64_t)(blockIdx.x % blocks) * blockDim.x + threadIdx.x) * N;
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    float sum[N] = {}, v[N];
    x += t * d.top * d.x_stride + i;
    weights += t * d.top;
    for (int64_t j = 0; j < d.top; j += TOGETHER) {
        wide_raw<X, N> raw[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            if (j + k < d.top) wide_fetch(x + (j + k) * d.x_stride, raw[k]);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            if (j + k >= d.top) break;
            wide_floats(raw[k], v);
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] = fmaf(weights[j + k], v[e], sum[e]);
        }
    }
    if (r) {
        wide_load(r + t * d.r_stride + i, v);
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] += v[e];
    }
    wide_store(y + t * d.y_stride + i, sum);
}

#endif
