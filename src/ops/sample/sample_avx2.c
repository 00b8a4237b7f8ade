/* Vector kernels of ops/sample/sample_fast.c: 8 logits a step for the largest, 4 for the weights. */
#include <immintrin.h>
#include <string.h>

#include "ops/sample/sample.h"
#include "ops/simd/vmath_avx2.h"

/* The logits, with -inf for those that are not finite. */
static __m256 finite_or_low(__m256 z)
{
    const __m256 inf = _mm256_set1_ps(__builtin_inff());
    const __m256 good = _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), z), inf, _CMP_LT_OQ);
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), z, good);
}

static float largest(const float *z, int64_t n)
{
    __m256 a = _mm256_set1_ps(-__builtin_inff()), b = a;
    float lanes[8], max = -__builtin_inff();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_ps(a, finite_or_low(_mm256_loadu_ps(z + i)));
        b = _mm256_max_ps(b, finite_or_low(_mm256_loadu_ps(z + i + 8)));
    }
    for (; i < n; i++)
        if (z[i] > max && z[i] < __builtin_inff()) max = z[i];
    _mm256_storeu_ps(lanes, _mm256_max_ps(a, b));
    for (int k = 0; k < 8; k++) max = lanes[k] > max ? lanes[k] : max;
    return max;
}

static __m256d weights4(__m128 z, __m128 low, __m256d max, __m256d inv_temperature)
{
    const __m128 keep =
        _mm_and_ps(_mm_cmpge_ps(z, low), _mm_cmplt_ps(z, _mm_set1_ps(__builtin_inff())));
    if (!_mm_movemask_ps(keep)) return _mm256_setzero_pd();
    const __m256d x = _mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(z), max), inv_temperature);
    const __m256i wide = _mm256_cvtepi32_epi64(_mm_castps_si128(keep));
    return _mm256_and_pd(sop_exp4d(x), _mm256_castsi256_pd(wide));
}

static void weights(const float *z, int64_t n, float low, double max, double inv_temperature,
                    double *w)
{
    const __m256d vm = _mm256_set1_pd(max), vt = _mm256_set1_pd(inv_temperature);
    const __m128 vl = _mm_set1_ps(low);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) _mm256_storeu_pd(w + i, weights4(_mm_loadu_ps(z + i), vl, vm, vt));
    if (i == n) return;
    float in[4] = {0};
    double out[4];
    memcpy(in, z + i, (size_t)(n - i) * sizeof *z);
    _mm256_storeu_pd(out, weights4(_mm_loadu_ps(in), vl, vm, vt));
    memcpy(w + i, out, (size_t)(n - i) * sizeof *w);
}

sop_status sop_sample_f32_avx2(const sop_call *call)
{
    static const sop_sample_kernels kernels = {largest, weights};
    return sop_sample_fast(call, &kernels);
}
