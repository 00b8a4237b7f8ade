/* ops/simd/avx2.h: pieces that several AVX2 kernels share; only files built for AVX2 include it. */
#ifndef OPS_SIMD_AVX2_H
#define OPS_SIMD_AVX2_H

#include <immintrin.h>

/* The sum of 8 floats. */
static inline float sop_sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
