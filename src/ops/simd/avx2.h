/* ops/simd/avx2.h: pieces that several AVX2 kernels share; only files built for AVX2 include it. */
#ifndef OPS_SIMD_AVX2_H
#define OPS_SIMD_AVX2_H

#include <immintrin.h>

#include "sop/types.h"

/* The sum of 8 floats. */
static inline float sop_sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* 8 elements of a type: f32, f16 or bf16. */
static inline __m256 sop_decode8(const void *p, int32_t dtype)
{
    switch (dtype) {
    case SOP_F32: return _mm256_loadu_ps(p);
    case SOP_F16: return _mm256_cvtph_ps(_mm_loadu_si128(p));
    default:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
    }
}

#endif
