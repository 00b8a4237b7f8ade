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

/* Round to nearest even, as core/f16.h; NaN stays NaN. */
static inline __m128i sop_bf16_of8(__m256 v)
{
    const __m256i x = _mm256_castps_si256(v), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), one);
    const __m256i r = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

/* 8 floats into elements of a type: f32, f16 or bf16. */
static inline void sop_encode8(void *p, int32_t dtype, __m256 v)
{
    switch (dtype) {
    case SOP_F32: _mm256_storeu_ps(p, v); break;
    case SOP_F16: _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); break;
    default: _mm_storeu_si128(p, sop_bf16_of8(v)); break;
    }
}

#endif
