/* 16 floats a step in two accumulators. The mean is a float and so off by its rounding; the mean of what
 * is left beside it comes out of the second pass with the variance, and is taken off too. */
#include <immintrin.h>
#include <math.h>

#include "core/op.h"
#include "ops/layernorm/layernorm.h"
#include "ops/simd/avx2.h"

/* Sum of x + r, which goes to s; r NULL: of x. */
static float sum_of(const float *x, const float *r, float *s, int64_t n)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    float sum = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);
        if (r) {
            v0 = _mm256_add_ps(v0, _mm256_loadu_ps(r + i));
            v1 = _mm256_add_ps(v1, _mm256_loadu_ps(r + i + 8));
            _mm256_storeu_ps(s + i, v0);
            _mm256_storeu_ps(s + i + 8, v1);
        }
        a = _mm256_add_ps(a, v0);
        b = _mm256_add_ps(b, v1);
    }
    for (; i < n; i++) {
        float v = x[i];
        if (r) s[i] = v += r[i];
        sum += v;
    }
    return sum + sop_sum8(_mm256_add_ps(a, b));
}

/* Means of v - mean and of its square. */
static float means_of(const float *v, float mean, int64_t n, float *square)
{
    const __m256 m = _mm256_set1_ps(mean);
    __m256 a = _mm256_setzero_ps(), b = a, aa = a, bb = a;
    float rest = 0, squares = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 v0 = _mm256_sub_ps(_mm256_loadu_ps(v + i), m);
        const __m256 v1 = _mm256_sub_ps(_mm256_loadu_ps(v + i + 8), m);
        a = _mm256_add_ps(a, v0);
        b = _mm256_add_ps(b, v1);
        aa = _mm256_fmadd_ps(v0, v0, aa);
        bb = _mm256_fmadd_ps(v1, v1, bb);
    }
    for (; i < n; i++) {
        rest += v[i] - mean;
        squares += (v[i] - mean) * (v[i] - mean);
    }
    *square = (squares + sop_sum8(_mm256_add_ps(aa, bb))) / (float)n;
    return (rest + sop_sum8(_mm256_add_ps(a, b))) / (float)n;
}

static void norm(const sop_layernorm_desc *d, const float *x, const float *r, float *s,
                 const float *w, const float *b, float *y)
{
    const float mean = sum_of(x, r, s, d->dim) / (float)d->dim;
    const float *v = r ? s : x;
    float square;
    const float rest = means_of(v, mean, d->dim, &square), variance = square - rest * rest;
    if (!isfinite(variance)) { /* sums past float32, or no numbers */
        sop_layernorm_row(v, w, b, y, d->dim, d->eps);
        return;
    }
    const float scale = 1.0f / sqrtf((variance < 0 ? 0 : variance) + d->eps);
    const __m256 vm = _mm256_set1_ps(mean), vr = _mm256_set1_ps(rest), vs = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 8 <= d->dim; i += 8) {
        __m256 z = _mm256_sub_ps(_mm256_sub_ps(_mm256_loadu_ps(v + i), vm), vr);
        z = _mm256_mul_ps(z, vs);
        if (w) z = _mm256_mul_ps(z, _mm256_loadu_ps(w + i));
        if (b) z = _mm256_add_ps(z, _mm256_loadu_ps(b + i));
        _mm256_storeu_ps(y + i, z);
    }
    for (; i < d->dim; i++) y[i] = (v[i] - mean - rest) * scale * (w ? w[i] : 1) + (b ? b[i] : 0);
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_layernorm_desc *d = call->desc;
    const float *r = call->args[SOP_LAYERNORM_R].data;
    float *s = call->args[SOP_LAYERNORM_R_OUT].data;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        norm(d, (const float *)call->args[SOP_LAYERNORM_X].data + t * d->x_stride,
             r ? r + t * d->r_stride : NULL, r ? s + t * d->r_stride : NULL,
             call->args[SOP_LAYERNORM_W].data, call->args[SOP_LAYERNORM_B].data,
             (float *)call->args[SOP_LAYERNORM_Y].data + t * d->y_stride);
}

sop_status sop_layernorm_f32_avx2(const sop_call *call)
{
    const sop_layernorm_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_LAYERNORM_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
