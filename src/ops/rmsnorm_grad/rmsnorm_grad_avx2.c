/* 8 floats a step, a tail of single ones. Rows first, which leave their scale in scratch, then dw by some
 * columns of all rows at a time. */
#include <math.h>
#include <string.h>

#include "ops/rmsnorm_grad/rmsnorm_grad.h"
#include "ops/simd/avx2.h"

enum { COLUMNS = 64 };

static void row(const sop_rmsnorm_grad_desc *d, const float *w, const float *x, const float *dy,
                const float *dr, float *dx, double *kept)
{
    const __m256 offset = _mm256_set1_ps(d->offset);
    __m256 squares8 = _mm256_setzero_ps(), mean8 = squares8;
    float squares = 0, mean = 0;
    int64_t i = 0;
    for (; i + 8 <= d->dim; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        squares8 = _mm256_fmadd_ps(v, v, squares8);
    }
    for (; i < d->dim; i++) squares += x[i] * x[i];
    squares += sop_sum8(squares8);
    const float scale = 1 / sqrtf(squares / (float)d->dim + d->eps);
    const __m256 scale8 = _mm256_set1_ps(scale);
    for (i = 0; i + 8 <= d->dim; i += 8) {
        const __m256 g =
            _mm256_mul_ps(_mm256_add_ps(offset, _mm256_loadu_ps(w + i)), _mm256_loadu_ps(dy + i));
        mean8 = _mm256_fmadd_ps(g, _mm256_mul_ps(_mm256_loadu_ps(x + i), scale8), mean8);
    }
    for (; i < d->dim; i++) mean += (d->offset + w[i]) * dy[i] * (x[i] * scale);
    mean = (mean + sop_sum8(mean8)) / (float)d->dim;
    const __m256 less = _mm256_set1_ps(mean);
    for (i = 0; i + 8 <= d->dim; i += 8) {
        const __m256 g =
            _mm256_mul_ps(_mm256_add_ps(offset, _mm256_loadu_ps(w + i)), _mm256_loadu_ps(dy + i));
        const __m256 z = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale8);
        __m256 v = _mm256_mul_ps(scale8, _mm256_fnmadd_ps(z, less, g));
        if (dr) v = _mm256_add_ps(v, _mm256_loadu_ps(dr + i));
        _mm256_storeu_ps(dx + i, v);
    }
    for (; i < d->dim; i++) {
        const float v = scale * ((d->offset + w[i]) * dy[i] - x[i] * scale * mean);
        dx[i] = dr ? v + dr[i] : v;
    }
    *kept = (double)scale;
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_grad_desc *d = call->desc;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t t = k / d->heads, h = k % d->heads;
        const float *dr = call->args[SOP_RMSNORM_GRAD_DR].data;
        row(d, call->args[SOP_RMSNORM_GRAD_W].data,
            (const float *)call->args[SOP_RMSNORM_GRAD_X].data + t * d->x_stride + h * d->x_head,
            (const float *)call->args[SOP_RMSNORM_GRAD_DY].data + t * d->dy_stride + h * d->dy_head,
            dr ? dr + t * d->dr_stride + h * d->dr_head : NULL,
            (float *)call->args[SOP_RMSNORM_GRAD_DX].data + t * d->dx_stride + h * d->dx_head,
            (double *)call->scratch + k);
    }
}

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_grad_desc *d = call->desc;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        const int64_t from = c * COLUMNS, n = from + COLUMNS < d->dim ? COLUMNS : d->dim - from;
        float sum[COLUMNS] = {0};
        for (int64_t k = 0; k < d->tokens * d->heads; k++) {
            const int64_t t = k / d->heads, h = k % d->heads;
            const float *x = (const float *)call->args[SOP_RMSNORM_GRAD_X].data + t * d->x_stride +
                             h * d->x_head + from;
            const float *dy = (const float *)call->args[SOP_RMSNORM_GRAD_DY].data +
                              t * d->dy_stride + h * d->dy_head + from;
            const float scale = (float)((const double *)call->scratch)[k];
            const __m256 scale8 = _mm256_set1_ps(scale);
            int64_t i = 0;
            for (; i + 8 <= n; i += 8) {
                const __m256 z = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale8);
                _mm256_storeu_ps(
                    sum + i, _mm256_fmadd_ps(_mm256_loadu_ps(dy + i), z, _mm256_loadu_ps(sum + i)));
            }
            for (; i < n; i++) sum[i] += dy[i] * (x[i] * scale);
        }
        memcpy((float *)call->args[SOP_RMSNORM_GRAD_DW].data + from, sum, (size_t)n * sizeof *sum);
    }
}

sop_status sop_rmsnorm_grad_f32_avx2(const sop_call *call)
{
    const sop_rmsnorm_grad_desc *d = call->desc;
    sop_parallel(call->queue, d->tokens * d->heads, 8, rows, call);
    if (call->args[SOP_RMSNORM_GRAD_DW].data)
        sop_parallel(call->queue, (d->dim + COLUMNS - 1) / COLUMNS, 1, columns, call);
    return SOP_OK;
}
