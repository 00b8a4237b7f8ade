/* ops/simd/vmath_avx2.h: exp, tanh and the normal distribution on 8 floats, exp on 4 doubles; only
 * files built for AVX2 include it. NaN gives NaN, nothing overflows on the way. The largest errors over
 * every float, in units of the last place: exp 0.89, tanh 1.36, sigmoid 2.40, normal 6.34; of the
 * double exp, on a grid, 1.0 (SOP_TEST_STEP=1 vmath_test measures them again). The polynomials are
 * least-maximum fits made for these ranges, rounded one coefficient at a time. */
#ifndef OPS_SIMD_VMATH_AVX2_H
#define OPS_SIMD_VMATH_AVX2_H

#include <immintrin.h>

/* p * 2^n for whole |n| < 252: two factors, so that 2^n itself may be out of range. */
static inline __m256 sop_scale8(__m256 p, __m256i n)
{
    const __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}

/* exp(x): 2^n * p(r) with r in +-ln(2)/2; subnormal results are right too. */
static inline __m256 sop_exp8(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(104), x); /* in this order NaN stays */
    x = _mm256_max_ps(_mm256_set1_ps(-110), x);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p0f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x); /* exact: ln 2 in two parts */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 p = _mm256_set1_ps(0x1.6a4b38p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.12398ep-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558b2p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    return sop_scale8(p, _mm256_cvtps_epi32(n));
}

/* tanh(x): an odd polynomial under 0.625, above it 1 - 2 / (exp(2|x|) + 1). */
static inline __m256 sop_tanh8(__m256 x)
{
    const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f)), one = _mm256_set1_ps(1);
    const __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), s = _mm256_mul_ps(x, x);
    __m256 q = _mm256_set1_ps(-0x1.7574f8p-8f);
    q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(0x1.520c26p-6f));
    q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-0x1.b837e0p-5f));
    q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(0x1.1107p-3f));
    q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-0x1.555532p-2f));
    const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(q, s), x, x);
    const __m256 e = _mm256_add_ps(sop_exp8(_mm256_add_ps(a, a)), one);
    const __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), e));
    const __m256 y =
        _mm256_blendv_ps(large, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
    return _mm256_or_ps(y, sign);
}

/* 1 / (1 + exp(-x)), with full relative accuracy for large negative x. */
static inline __m256 sop_sigmoid8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1);
    const __m256 t = sop_exp8(_mm256_or_ps(x, _mm256_set1_ps(-0.0f))); /* exp(-|x|) */
    const __m256 top = _mm256_blendv_ps(one, t, x);                    /* by the sign of x */
    return _mm256_div_ps(top, _mm256_add_ps(one, t));
}

/* The normal distribution, erfc(-x / sqrt 2) / 2. With a = |x| its tail is exp(-a^2 / 2) R(t),
 * t = 1 / (1 + 0.3 a); a^2 is taken with its rounding error, or the exponential would lose it. */
static inline __m256 sop_normal8(__m256 x)
{
    const __m256 a = _mm256_min_ps(_mm256_set1_ps(15), _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
    const __m256 one = _mm256_set1_ps(1), half = _mm256_set1_ps(0.5f);
    const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(a, _mm256_set1_ps(0.3f), one));
    const __m256 s = _mm256_mul_ps(a, a), rest = _mm256_fmsub_ps(a, a, s);
    __m256 q = _mm256_set1_ps(-0x1.480248p-6f);
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.be0594p-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(-0x1.c0b346p-3f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.6d12e6p-3f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(-0x1.1105cep-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.6918p-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.4eda6cp-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.bfb30cp-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.ea6fe8p-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.ea2b6ep-4f));
    q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(0x1.7b50e4p-21f));
    q = _mm256_fnmadd_ps(_mm256_mul_ps(q, half), rest, q); /* exp(-rest / 2) */
    const __m256 tail = _mm256_mul_ps(q, sop_exp8(_mm256_mul_ps(s, _mm256_set1_ps(-0.5f))));
    return _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x);
}

/* exp(x) of 4 doubles, x <= 709; below -708 it is 0. Taylor to degree 13 on +-ln(2)/2. */
static inline __m256d sop_exp4d(__m256d x)
{
    const __m256d n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(0x1.71547652b82fep0)),
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.62e42fefa38p-1), x);
    r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.ef35793c7673p-45), r);
    __m256d p = _mm256_set1_pd(1.0 / 6227020800);
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 479001600));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 39916800));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 3628800));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 362880));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 40320));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 5040));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 720));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 120));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 24));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1.0 / 6));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(0.5));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1));
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(1));
    const __m256i e =
        _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n)), _mm256_set1_epi64x(1023));
    p = _mm256_mul_pd(p, _mm256_castsi256_pd(_mm256_slli_epi64(e, 52)));
    return _mm256_andnot_pd(_mm256_cmp_pd(x, _mm256_set1_pd(-708), _CMP_LT_OQ), p);
}

#endif
