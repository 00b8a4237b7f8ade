/* ops/simd/vf_avx512.h: vf_avx2.h at twice the width; what each function is stands there. */
#ifndef OPS_SIMD_VF_AVX512_H
#define OPS_SIMD_VF_AVX512_H

#include <immintrin.h>
#include <math.h>

#include "ops/simd/avx2.h"
#include "ops/simd/vmath_avx2.h"

enum { VF = 16 };
typedef __m512 vf;

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_decode(const void *p, int32_t dtype)
{
    switch (dtype) {
    case SOP_F32: return _mm512_loadu_ps(p);
    case SOP_F16: return _mm512_cvtph_ps(_mm256_loadu_si256(p));
    default:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
    }
}

static inline vf vf_tanh(vf a)
{
    const __m256 lo = sop_tanh8(_mm512_castps512_ps256(a));
    const __m256 hi = sop_tanh8(_mm512_extractf32x8_ps(a, 1));
    return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
}

static inline vf vf_within(vf a, int32_t lo, int32_t hi)
{
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 outside = _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(lo)) |
                              _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(hi));
    return _mm512_mask_mov_ps(a, outside, vf_set(-INFINITY));
}

static inline vf vf_exp_negative(vf x)
{
    const vf magic = vf_set(0x1.8p23f + 127);
    const vf t = vf_fma(x, vf_set(0x1.715476p0f), magic), n = vf_sub(t, magic);
    vf r = _mm512_fnmadd_ps(n, vf_set(0x1.62e43p-1f), x);
    r = _mm512_fnmadd_ps(n, vf_set(-0x1.05c61p-29f), r);
    vf p = vf_set(0x1.6a23dp-10f);
    p = vf_fma(p, r, vf_set(0x1.123a2p-7f));
    p = vf_fma(p, r, vf_set(0x1.5558f2p-5f));
    p = vf_fma(p, r, vf_set(0x1.555492p-3f));
    p = vf_fma(p, r, vf_set(0x1.fffffcp-2f));
    p = vf_fma(p, r, vf_set(1));
    p = vf_fma(p, r, vf_set(1));
    const vf power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, vf_set(-87.3f), _CMP_NLT_UQ), p, power);
}

static inline float vf_max16(const vf a[1])
{
    return _mm512_reduce_max_ps(a[0]);
}

static inline float vf_sum16(const vf a[1])
{
    return sop_sum8(_mm256_add_ps(_mm512_castps512_ps256(a[0]), _mm512_extractf32x8_ps(a[0], 1)));
}

typedef __m512i vh;

static inline vh vh_rows(const char *const *row, int64_t at)
{
    vh a = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(row[0] + at)));
    a = _mm512_mask_broadcast_i32x4(a, 0x00f0,
                                    _mm_loadu_si128((const __m128i *)(const void *)(row[8] + at)));
    a = _mm512_mask_broadcast_i32x4(a, 0x0f00,
                                    _mm_loadu_si128((const __m128i *)(const void *)(row[16] + at)));
    return _mm512_mask_broadcast_i32x4(
        a, 0xf000, _mm_loadu_si128((const __m128i *)(const void *)(row[24] + at)));
}

static inline void vh_store(uint16_t *p, vh a)
{
    _mm512_storeu_si512(p, a);
}

static inline vh vh_low16(vh a, vh b)
{
    return _mm512_unpacklo_epi16(a, b);
}

static inline vh vh_high16(vh a, vh b)
{
    return _mm512_unpackhi_epi16(a, b);
}

static inline vh vh_low32(vh a, vh b)
{
    return _mm512_unpacklo_epi32(a, b);
}

static inline vh vh_high32(vh a, vh b)
{
    return _mm512_unpackhi_epi32(a, b);
}

static inline vh vh_low64(vh a, vh b)
{
    return _mm512_unpacklo_epi64(a, b);
}

static inline vh vh_high64(vh a, vh b)
{
    return _mm512_unpackhi_epi64(a, b);
}

#endif
