/* 8 floats a step: the maximum, the exponentials with their sum in double, the division. A tail is
 * padded with -inf, which adds nothing. NaN is left out of the maximum and comes in again with its
 * exponential, and so into the sum and the whole row. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/simd/vmath_avx2.h"
#include "ops/softmax/softmax.h"

static __m256 load(const float *x, int64_t n)
{
    float pad[8];
    if (n >= 8) return _mm256_loadu_ps(x);
    _mm256_storeu_ps(pad, _mm256_set1_ps(-__builtin_inff()));
    memcpy(pad, x, (size_t)n * sizeof *x);
    return _mm256_loadu_ps(pad);
}

static void store(float *y, int64_t n, __m256 v)
{
    float pad[8];
    if (n >= 8) {
        _mm256_storeu_ps(y, v);
        return;
    }
    _mm256_storeu_ps(pad, v);
    memcpy(y, pad, (size_t)n * sizeof *y);
}

/* scale * x, where the padding of a tail stays -inf whatever the sign of scale. */
static __m256 scaled(const float *x, int64_t n, __m256 scale)
{
    const __m256 v = load(x, n), lane = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 z = _mm256_mul_ps(v, scale);
    if (n >= 8) return z;
    const __m256 in = _mm256_cmp_ps(lane, _mm256_set1_ps((float)n), _CMP_LT_OQ);
    return _mm256_blendv_ps(v, z, in);
}

static void row(const float *x, float *y, int64_t n, float factor)
{
    const __m256 scale = _mm256_set1_ps(factor), low = _mm256_set1_ps(-__builtin_inff());
    __m256 top = low, odd = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 z = scaled(x + i, n - i, scale);
        top = _mm256_max_ps(z, top); /* top where z is NaN */
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(z, z, _CMP_UNORD_Q));
    }
    float lanes[8], max = -__builtin_inff();
    _mm256_storeu_ps(lanes, top);
    for (int k = 0; k < 8; k++) max = lanes[k] > max ? lanes[k] : max;
    if (max == -__builtin_inff() && !_mm256_movemask_ps(odd)) {
        memset(y, 0, (size_t)n * sizeof *y);
        return;
    }
    const __m256 most = _mm256_set1_ps(max);
    __m256d s0 = _mm256_setzero_pd(), s1 = s0;
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 e = sop_exp8(_mm256_sub_ps(scaled(x + i, n - i, scale), most));
        s0 = _mm256_add_pd(s0, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
        s1 = _mm256_add_pd(s1, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
        store(y + i, n - i, e);
    }
    double parts[4];
    _mm256_storeu_pd(parts, _mm256_add_pd(s0, s1));
    const double sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    const __m256 inverse = _mm256_set1_ps((float)(1 / sum));
    for (int64_t i = 0; i < n; i += 8)
        store(y + i, n - i, _mm256_mul_ps(load(y + i, n - i), inverse));
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_softmax_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        row((const float *)call->args[SOP_SOFTMAX_X].data + t * d->x_stride,
            (float *)call->args[SOP_SOFTMAX_Y].data + t * d->y_stride, d->dim, d->scale);
}

sop_status sop_softmax_f32_avx2(const sop_call *call)
{
    const sop_softmax_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_SOFTMAX_LIVE, d->tokens), 1, rows, call);
    return SOP_OK;
}
