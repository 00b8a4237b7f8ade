/* One block a row, which is read twice, the second time from a cache. Any type and strides. */
#ifndef OPS_QUANTIZE_CUH
#define OPS_QUANTIZE_CUH

#include "ops/cuda/elements.cuh"
#include "ops/quantize/quantize.h"
#include "sop/desc.h"

/* |x|; 0 where it is not finite. */
SOP_DEV float quantize_size(float x)
{
    const float size = fabsf(x);
    return size < INFINITY ? size : 0;
}

/* x / scale; NaN where it is not finite. */
SOP_DEV float quantize_quotient(float x, float inverse)
{
    return fmaf(x, 0, x * inverse);
}

SOP_DEV float quantize_scale(float most)
{
    return fmaxf(__fdiv_rn(most, SOP_QUANTIZE_MOST), SOP_QUANTIZE_LEAST);
}

template <int THREADS>
static __global__ void sop_quantize_any(const sop_quantize_desc d, const void *x,
                                        const int32_t *live, uint8_t *codes, float *scales)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x;
    if (t >= sop_live_rows(live, d.tokens)) return;
    float most = 0;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        most = fmaxf(most, quantize_size(sop_load_any(x, d.x_dtype, t * d.x_stride + i)));
    const float scale = quantize_scale(sop_block_max<THREADS>(most, shared));
    const float inverse = __fdiv_rn(1, scale);
    if (threadIdx.x == 0) scales[t] = scale;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        codes[t * d.codes_stride + i] = sop_float_to_f8(
            quantize_quotient(sop_load_any(x, d.x_dtype, t * d.x_stride + i), inverse));
}

#endif
