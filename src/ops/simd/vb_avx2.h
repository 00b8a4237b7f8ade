/* ops/simd/vb_avx2.h: vectors of bytes that become floats: codes of quantised weights, 4 in each 32-bit
 * lane, as kernels read them that are written once for several widths (vf_avx2.h). */
#ifndef OPS_SIMD_VB_AVX2_H
#define OPS_SIMD_VB_AVX2_H

#include "ops/simd/vf_avx2.h"

typedef __m256i vb; /* a quad of 8 rows */

static inline vb vb_load(const void *p)
{
    return _mm256_loadu_si256((const vb *)p);
}

static inline vb vb_or(vb a, vb b)
{
    return _mm256_or_si256(a, b);
}

static inline vb vb_low4(vb a)
{
    return _mm256_and_si256(a, _mm256_set1_epi8(15));
}

static inline vb vb_high4(vb a)
{
    return vb_low4(_mm256_srli_epi16(a, 4));
}

static inline vb vb_bit4(vb a, int t) /* bit t of each byte, to bit 4 */
{
    const vb s = t < 4 ? _mm256_slli_epi16(a, 4 - t) : _mm256_srli_epi16(a, t - 4);
    return _mm256_and_si256(s, _mm256_set1_epi8(16));
}

static inline vb vb_bits45(vb a, int t) /* bits 2t, 2t + 1 of each byte, to bits 4, 5 */
{
    const vb s = t < 2 ? _mm256_slli_epi16(a, 4 - 2 * t) : _mm256_srli_epi16(a, 2 * t - 4);
    return _mm256_and_si256(s, _mm256_set1_epi8(0x30));
}

static inline vf vb_byte(vb a, int i) /* byte i of each row, unsigned */
{
    const vb s = _mm256_srli_epi32(a, 8 * i);
    return _mm256_cvtepi32_ps(i == 3 ? s : _mm256_and_si256(s, _mm256_set1_epi32(255)));
}

static inline vf vb_signed(vb a, int i)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(a, 24 - 8 * i), 24));
}

static inline vf vb_bf16(vb a, int i)
{
    return _mm256_castsi256_ps(i ? _mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000))
                                 : _mm256_slli_epi32(a, 16));
}

static inline vf vb_half(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vf vb_u8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline vf vb_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

#endif
