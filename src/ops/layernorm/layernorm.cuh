/* One block a row, read three times. The mean is a float and so off by its rounding; the mean of what is
 * left beside it comes out of the second pass with the variance, and is taken off too. Any types and
 * strides. x is read before y is written, r before r_out, each by the thread that writes it. */
#ifndef OPS_LAYERNORM_CUH
#define OPS_LAYERNORM_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

template <int THREADS>
static __global__ void sop_layernorm_any(const sop_layernorm_desc d, const void *x, const void *r,
                                         const float *w, const float *b, const int32_t *live,
                                         void *r_out, void *y)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, xa = t * d.x_stride, ra = t * d.r_stride, ya = t * d.y_stride;
    if (t >= sop_live_rows(live, d.tokens)) return;
    auto value = [&](int64_t i) {
        const float s = sop_load_any(x, d.x_dtype, xa + i);
        return r ? s + sop_load_any(r, d.r_dtype, ra + i) : s;
    };
    const float n = (float)d.dim;
    float by = 1, mean, rest, variance;
    for (;;) {
        float sum = 0, apart = 0, square = 0, top = 1;
        for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) sum += value(i) * by;
        mean = sop_block_sum<THREADS>(sum, shared) / n;
        for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
            const float v = value(i) * by;
            apart += v - mean;
            square += (v - mean) * (v - mean);
            top = fmaxf(top, fabsf(v));
        }
        rest = sop_block_sum<THREADS>(apart, shared) / n;
        variance = sop_block_sum<THREADS>(square, shared) / n - rest * rest;
        if (isfinite(variance) || by != 1) break;
        /* Sums past float32: once more, divided by a power of two. Without numbers it stays NaN. */
        by = ldexpf(1, -ilogbf(sop_block_max<THREADS>(top, shared)));
        if (by == 1) break;
    }
    const float eps = fmaxf(d.eps * by * by, 1e-37f);
    const float scale = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float s = value(i);
        if (r) sop_store_any(r_out, d.r_dtype, ra + i, s);
        const float z = (s * by - mean - rest) * scale;
        sop_store_any(y, d.y_dtype, ya + i, (w ? z * w[i] : z) + (b ? b[i] : 0));
    }
}

#endif
