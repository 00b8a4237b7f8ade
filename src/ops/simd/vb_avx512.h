/* ops/simd/vb_avx512.h: vb_avx2.h at twice the width; what each function is stands there. */
#ifndef OPS_SIMD_VB_AVX512_H
#define OPS_SIMD_VB_AVX512_H

#include "ops/simd/vf_avx512.h"

typedef __m512i vb; /* a quad of 16 rows */

static inline vb vb_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline vb vb_or(vb a, vb b)
{
    return _mm512_or_si512(a, b);
}

static inline vb vb_low4(vb a)
{
    return _mm512_and_si512(a, _mm512_set1_epi8(15));
}

static inline vb vb_high4(vb a)
{
    return vb_low4(_mm512_srli_epi16(a, 4));
}

static inline vb vb_bit4(vb a, int t) /* bit t of each byte, to bit 4 */
{
    const vb s =
        t < 4 ? _mm512_slli_epi16(a, (unsigned)(4 - t)) : _mm512_srli_epi16(a, (unsigned)(t - 4));
    return _mm512_and_si512(s, _mm512_set1_epi8(16));
}

static inline vb vb_bits45(vb a, int t) /* bits 2t, 2t + 1 of each byte, to bits 4, 5 */
{
    const vb s = t < 2 ? _mm512_slli_epi16(a, (unsigned)(4 - 2 * t))
                       : _mm512_srli_epi16(a, (unsigned)(2 * t - 4));
    return _mm512_and_si512(s, _mm512_set1_epi8(0x30));
}

static inline vf vb_byte(vb a, int i) /* byte i of each row, unsigned */
{
    const vb s = _mm512_srli_epi32(a, (unsigned)(8 * i));
    return _mm512_cvtepi32_ps(i == 3 ? s : _mm512_and_si512(s, _mm512_set1_epi32(255)));
}

static inline vf vb_signed(vb a, int i)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(a, (unsigned)(24 - 8 * i)), 24));
}

static inline vf vb_bf16(vb a, int i)
{
    return _mm512_castsi512_ps(i ? _mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000))
                                 : _mm512_slli_epi32(a, 16));
}

static inline vf vb_half(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vf vb_u8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vf vb_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#endif
