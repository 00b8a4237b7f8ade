/* ops/simd/vf_avx2.h: vectors of floats for kernels that are written once for several widths; the
 * other width is in vf_avx512.h. Where an order of sums shows, both give the same bits. */
#ifndef OPS_SIMD_VF_AVX2_H
#define OPS_SIMD_VF_AVX2_H

#include <immintrin.h>
#include <math.h>

#include "ops/simd/avx2.h"
#include "ops/simd/vmath_avx2.h"

enum { VF = 8 }; /* floats of a vector */
typedef __m256 vf;

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c) /* a * b + c */
{
    return _mm256_fmadd_ps(a, b, c);
}

/* VF elements of a type: f32, f16 or bf16; as a constant it costs nothing. */
static inline vf vf_decode(const void *p, int32_t dtype)
{
    return sop_decode8(p, dtype);
}

static inline vf vf_tanh(vf a)
{
    return sop_tanh8(a);
}

/* Lanes lo <= i < hi of a, -inf in the others. */
static inline vf vf_within(vf a, int32_t lo, int32_t hi)
{
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i),
                                            _mm256_cmpgt_epi32(i, _mm256_set1_epi32(hi - 1)));
    return _mm256_blendv_ps(a, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(outside));
}

/* exp(x) for x <= 0, 0 below -87.3: x = n ln 2 + r, a polynomial of r with relative error 2^-28,
 * times 2^n. Adding 1.5 * 2^23 rounds n to a whole number and leaves n + 127 in the lowest bits, from
 * where a shift makes it an exponent. exp(0) is 1; NaN stays NaN. */
static inline vf vf_exp_negative(vf x)
{
    const vf magic = vf_set(0x1.8p23f + 127);
    const vf t = vf_fma(x, vf_set(0x1.715476p0f), magic), n = vf_sub(t, magic);
    vf r = _mm256_fnmadd_ps(n, vf_set(0x1.62e43p-1f), x);
    r = _mm256_fnmadd_ps(n, vf_set(-0x1.05c61p-29f), r);
    vf p = vf_set(0x1.6a23dp-10f);
    p = vf_fma(p, r, vf_set(0x1.123a2p-7f));
    p = vf_fma(p, r, vf_set(0x1.5558f2p-5f));
    p = vf_fma(p, r, vf_set(0x1.555492p-3f));
    p = vf_fma(p, r, vf_set(0x1.fffffcp-2f));
    p = vf_fma(p, r, vf_set(1));
    p = vf_fma(p, r, vf_set(1));
    const vf power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_and_ps(vf_mul(p, power), _mm256_cmp_ps(x, vf_set(-87.3f), _CMP_NLT_UQ));
}

/* The largest and the sum of 16 floats in 16 / VF vectors. */
static inline float vf_max16(const vf a[2])
{
    const vf m = vf_max(a[0], a[1]);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline float vf_sum16(const vf a[2])
{
    return sop_sum8(vf_add(a[0], a[1]));
}

/* ---- 16-bit elements, turned in lanes of 8 ---- */

typedef __m256i vh;

/* Lane l: 8 elements from byte `at` of row[8 * l] on. */
static inline vh vh_rows(const char *const *row, int64_t at)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(row[0] + at));
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(row[8] + at));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static inline void vh_store(uint16_t *p, vh a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

/* The elements of 16, 32 and 64 bits of the low or the high half of each lane, in turns. */
static inline vh vh_low16(vh a, vh b)
{
    return _mm256_unpacklo_epi16(a, b);
}

static inline vh vh_high16(vh a, vh b)
{
    return _mm256_unpackhi_epi16(a, b);
}

static inline vh vh_low32(vh a, vh b)
{
    return _mm256_unpacklo_epi32(a, b);
}

static inline vh vh_high32(vh a, vh b)
{
    return _mm256_unpackhi_epi32(a, b);
}

static inline vh vh_low64(vh a, vh b)
{
    return _mm256_unpacklo_epi64(a, b);
}

static inline vh vh_high64(vh a, vh b)
{
    return _mm256_unpackhi_epi64(a, b);
}

#endif
