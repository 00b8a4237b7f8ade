/* One thread a pair of channels, for all heads of a token, so that cosine and sine are made once; the
 * channels behind rot are copied. Any types and strides. */
#ifndef OPS_ROPE_CUH
#define OPS_ROPE_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

static __global__ void sop_rope_any(const sop_rope_desc d, const void *x, const int32_t *pos,
                                    const float *freqs, const int32_t *live, void *y)
{
    sop_begin();
    const int64_t t = blockIdx.x, half = d.rot / 2, i = (int64_t)blockIdx.y * 32 + threadIdx.x;
    if (t >= sop_live_rows(live, d.tokens)) return;
    if (i < half) {
        float sine, cosine;
        sincosf(__fmul_rn((float)pos[t], freqs[i]), &sine, &cosine);
        sine *= d.mscale;
        cosine *= d.mscale;
        const int64_t a = d.interleaved ? 2 * i : i, b = d.interleaved ? a + 1 : i + half;
        for (int64_t h = threadIdx.y; h < d.heads; h += blockDim.y) {
            const int64_t xa = t * d.x_stride + h * d.x_head, ya = t * d.y_stride + h * d.y_head;
            const float p = sop_load_any(x, d.x_dtype, xa + a);
            const float q = sop_load_any(x, d.x_dtype, xa + b);
            sop_store_any(y, d.y_dtype, ya + a, p * cosine - q * sine);
            sop_store_any(y, d.y_dtype, ya + b, q * cosine + p * sine);
        }
    } else if (d.rot + i - half < d.k) {
        const int64_t c = d.rot + i - half;
        for (int64_t h = threadIdx.y; h < d.heads; h += blockDim.y)
            sop_store_any(y, d.y_dtype, t * d.y_stride + h * d.y_head + c,
                          sop_load_any(x, d.x_dtype, t * d.x_stride + h * d.x_head + c));
    }
}

#endif
