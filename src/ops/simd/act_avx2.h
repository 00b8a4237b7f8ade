/* ops/simd/act_avx2.h: the activations on 8 floats; only files built for AVX2 include it. */
#ifndef OPS_SIMD_ACT_AVX2_H
#define OPS_SIMD_ACT_AVX2_H

#include "ops/simd/vmath_avx2.h"

typedef __m256 sop_act8(__m256 g);

static inline __m256 sop_silu8(__m256 g)
{
    return _mm256_mul_ps(g, sop_sigmoid8(g));
}

static inline __m256 sop_quick_gelu8(__m256 g)
{
    return _mm256_mul_ps(g, sop_sigmoid8(_mm256_mul_ps(g, _mm256_set1_ps(1.702f))));
}

/* g (1 + tanh v) / 2 with v = sqrt(2/pi) (g + 0.044715 g^3) is g times the logistic of 2v. */
static inline __m256 sop_gelu_tanh8(__m256 g)
{
    const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(g, g), _mm256_set1_ps(0.071354816f),
                                         _mm256_set1_ps(1.5957691f));
    return _mm256_mul_ps(g, sop_sigmoid8(_mm256_mul_ps(g, cubic)));
}

static inline __m256 sop_gelu8(__m256 g)
{
    return _mm256_mul_ps(g, sop_normal8(g));
}

static inline __m256 sop_relu8(__m256 g)
{
    return _mm256_max_ps(_mm256_setzero_ps(), g); /* in this order NaN stays */
}

#endif
