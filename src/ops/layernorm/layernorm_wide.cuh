/* One block a row, which stays in registers: it is read once, REP pieces a thread, of 16 bytes of the
 * narrowest type. What the float of the mean leaves is taken off, and what is past float32 done again, as
 * in layernorm.cuh. */
#ifndef OPS_LAYERNORM_WIDE_CUH
#define OPS_LAYERNORM_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename X, typename R, typename Y, int REP>
static __global__ void sop_layernorm_wide(const sop_layernorm_desc d, const X *x, const R *r,
                                          const float *w, const float *b, const int32_t *live,
                                          R *r_out, Y *y)
{
    enum { N = wide<Y>::N }; /* y is never the wider one */
    __shared__ float shared[32];
    const int64_t t = blockIdx.x, ra = t * d.r_stride;
    const float n = (float)d.dim;
    float s[REP][N];
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride;
    y += t * d.y_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i >= d.dim) continue;
        wide_load(x + i, s[k]);
        if (r) {
            float more[N];
            wide_load(r + ra + i, more);
#pragma unroll
            for (int e = 0; e < N; e++) s[k][e] += more[e];
        }
    }
    float by = 1, mean, rest, variance;
    for (;;) {
        float sum = 0, apart = 0, square = 0, top = 1;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) sum += s[k][e] * by;
        }
        mean = wide_sum(sum, shared) / n;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float v = s[k][e] * by;
                apart += v - mean;
                square += (v - mean) * (v - mean);
                top = fmaxf(top, fabsf(v));
            }
        }
        rest = wide_sum(apart, shared) / n;
        variance = wide_sum(square, shared) / n - rest * rest;
        if (isfinite(variance) || by != 1) break;
        by = ldexpf(1, -ilogbf(wide_max(top, shared)));
        if (by == 1) break;
    }
    const float eps = fmaxf(d.eps * by * by, 1e-37f);
    const float scale = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        float more[N];
        if (i >= d.dim) continue;
        if (r) wide_store(r_out + ra + i, s[k]);
#pragma unroll
        for (int e = 0; e < N; e++) s[k][e] = (s[k][e] * by - mean - rest) * scale;
        if (w) {
            wide_load(w + i, more);
#pragma unroll
            for (int e = 0; e < N; e++) s[k][e] *= more[e];
        }
        if (b) {
            wide_load(b + i, more);
#pragma unroll
            for (int e = 0; e < N; e++) s[k][e] += more[e];
        }
        wide_store(y + i, s[k]);
    }
}

#endif
