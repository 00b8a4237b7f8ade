/* ops/simd/act_grad_avx2.h: the activations with their slopes on 8 floats, as in ops/gated/act_grad.h; only
 * files built for AVX2 include it. */
#ifndef OPS_SIMD_ACT_GRAD_AVX2_H
#define OPS_SIMD_ACT_GRAD_AVX2_H

#include "ops/simd/act_avx2.h"
#include "sop/desc.h"

/* share + g * t * inner where t, at least 0, is more. */
static inline __m256 sop_slope8(__m256 share, __m256 g, __m256 t, __m256 inner)
{
    const __m256 slope = _mm256_fmadd_ps(_mm256_mul_ps(g, t), inner, share);
    return _mm256_blendv_ps(share, slope, _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_GT_OQ));
}

/* act(g), and its slope. act is the same for all calls of a loop. */
static inline __m256 sop_act_grad8(int32_t act, __m256 g, __m256 *slope)
{
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1);
    __m256 a = g, inner = one;
    switch (act) {
    case SOP_ACT_SILU: break;
    case SOP_ACT_QUICK_GELU:
        inner = _mm256_set1_ps(1.702f);
        a = _mm256_mul_ps(g, inner);
        break;
    case SOP_ACT_GELU_TANH: {
        const __m256 by = _mm256_set1_ps(1.5957691f), s = _mm256_mul_ps(g, g);
        inner = _mm256_fmadd_ps(s, _mm256_set1_ps(0.21406445f), by);
        a = _mm256_mul_ps(g, _mm256_fmadd_ps(s, _mm256_set1_ps(0.071354816f), by));
        break;
    }
    case SOP_ACT_RELU:
        /* in this order NaN stays */
        *slope = _mm256_blendv_ps(g, _mm256_and_ps(one, _mm256_cmp_ps(g, zero, _CMP_GT_OQ)),
                                  _mm256_cmp_ps(g, g, _CMP_ORD_Q));
        return sop_relu8(g);
    default: {
        const __m256 share = sop_normal8(g);
        const __m256 density = sop_exp8(_mm256_mul_ps(_mm256_mul_ps(g, g), _mm256_set1_ps(-0.5f)));
        *slope = sop_slope8(share, g, density, _mm256_set1_ps(0.39894228f));
        return _mm256_mul_ps(g, share);
    }
    }
    const __m256 e = sop_exp8(_mm256_or_ps(a, _mm256_set1_ps(-0.0f)));
    const __m256 r = _mm256_div_ps(one, _mm256_add_ps(one, e)), low = _mm256_mul_ps(e, r);
    const __m256 share = _mm256_blendv_ps(r, low, a);
    *slope = sop_slope8(share, g, _mm256_mul_ps(low, r), inner);
    return _mm256_mul_ps(g, share);
}

#endif
