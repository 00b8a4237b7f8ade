/* 16 floats a step in two accumulators, to cover the FMA's latency; the tail is scalar. */
#include <immintrin.h>
#include <math.h>

#include "core/op.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/simd/avx2.h"

/* When the squares pass float32 the sum is taken again, in double. */
static float scale_of_huge(const sop_rmsnorm_desc *d, const float *x)
{
    double sum = 0;
    for (int64_t i = 0; i < d->dim; i++) sum += (double)x[i] * (double)x[i];
    return (float)(1 / sqrt(sum / (double)d->dim + (double)d->eps));
}

static void norm(const sop_rmsnorm_desc *d, const float *x, const float *r, float *s,
                 const float *w, float *y)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    float sum = 0;
    int64_t i = 0;
    for (; i + 16 <= d->dim; i += 16) {
        __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);
        if (r) {
            v0 = _mm256_add_ps(v0, _mm256_loadu_ps(r + i));
            v1 = _mm256_add_ps(v1, _mm256_loadu_ps(r + i + 8));
            _mm256_storeu_ps(s + i, v0);
            _mm256_storeu_ps(s + i + 8, v1);
        }
        a = _mm256_fmadd_ps(v0, v0, a);
        b = _mm256_fmadd_ps(v1, v1, b);
    }
    for (; i < d->dim; i++) {
        float v = x[i];
        if (r) s[i] = v += r[i];
        sum += v * v;
    }
    if (r) x = s;
    sum += sop_sum8(_mm256_add_ps(a, b));
    float scale = 1.0f / sqrtf(sum / (float)d->dim + d->eps);
    if (isinf(sum)) scale = scale_of_huge(d, x);
    const __m256 vs = _mm256_set1_ps(scale), vo = _mm256_set1_ps(d->offset);
    for (i = 0; i + 8 <= d->dim; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), vs);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_add_ps(vo, _mm256_loadu_ps(w + i))));
    }
    for (; i < d->dim; i++) y[i] = x[i] * scale * (d->offset + w[i]);
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t ra = t * d->r_stride + h * d->r_head;
            const float *r = call->args[SOP_RMSNORM_R].data;
            float *s = call->args[SOP_RMSNORM_R_OUT].data;
            norm(d, (const float *)call->args[SOP_RMSNORM_X].data + t * d->x_stride + h * d->x_head,
                 r ? r + ra : NULL, r ? s + ra : NULL, call->args[SOP_RMSNORM_W].data,
                 (float *)call->args[SOP_RMSNORM_Y].data + t * d->y_stride + h * d->y_head);
        }
}

sop_status sop_rmsnorm_f32_avx2(const sop_call *call)
{
    const sop_rmsnorm_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_RMSNORM_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
