/* One block a row, which stays in registers: it is read once, REP pieces a thread, of 16 bytes of the
 * narrowest type. What the float of the mean leaves is taken off, and what is past float32 done again, as
 * in layernorm.cuh. */
#ifndef OPS_LAYERNORM_WIDE_CUH
#define OPS_LAYERNORM_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename X, typename R, typename Y, int REP>
static __global__ __launch_bounds__(1024) void sop_layernorm_wide(const sop_layernorm_desc d,
                                                                  const X *x, const R *r,
                                                                  const float *w, const float *b,
                                                                  const int32_t *live, R *r_out,
                                                                  Y *y)
{
    enum { N = wide<Y>::N }; /* y is never the wider one */
    __shared__ float shared[32];
    const int64_t t = blockIdx.x;
    const int dim = (int)d.dim;
    const float n = (float)dim;
    auto at = [](int k) { return (int)(k * blockDim.x + threadIdx.x) * N; };
    float s[REP][N];
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = at(k);
        if (i >= dim) continue;
        wide_load(x + i, s[k]);
        if (r) {
            float more[N];
            wide_load(r + t * d.r_stride + i, more);
#pragma unroll
            for (int e = 0; e < N; e++) s[k][e] += more[e];
        }
    }
    float by = 1, mean, rest, variance;
    for (;;) {
        float sum = 0, apart = 0, square = 0;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if (at(k) >= dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) sum += s[k][e] * by;
        }
        mean = wide_sum(sum, shared) / n;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if (at(k) >= dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float v = s[k][e] * by;
                apart += v - mean;
                square += (v - mean) * (v - mean);
            }
        }
        rest = wide_sum(apart, shared) / n;
        variance = wide_sum(square, shared) / n - rest * rest;
        if (isfinite(variance) || by != 1) break;
        float top = 1;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if (at(k) >= dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) top = fmaxf(top, fabsf(s[k][e]));
        }
        by = ldexpf(1, -ilogbf(wide_max(top, shared)));
        if (by == 1) break;
    }
    const float eps = fmaxf(d.eps * by * by, 1e-37f);
    const float scale = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = at(k);
        if (i >= dim) continue;
        if (r) wide_store(r_out + t * d.r_stride + i, s[k]);
#pragma unroll
        for (int e = 0; e < N; e++) s[k][e] = (s[k][e] * by - mean - rest) * scale;
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            const float4 f = w ? *(const float4 *)(w + i + e) : make_float4(1, 1, 1, 1);
            const float4 g = b ? *(const float4 *)(b + i + e) : make_float4(0, 0, 0, 0);
            s[k][e] = s[k][e] * f.x + g.x;
            s[k][e + 1] = s[k][e + 1] * f.y + g.y;
            s[k][e + 2] = s[k][e + 2] * f.z + g.z;
            s[k][e + 3] = s[k][e + 3] * f.w + g.w;
        }
        wide_store(y + t * d.y_stride + i, s[k]);
    }
}

#endif
