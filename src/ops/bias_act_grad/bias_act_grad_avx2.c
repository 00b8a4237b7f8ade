/* 64 columns of all rows at a time, 8 floats a step, with their sums; a tail goes through the same lanes by way
 * of small buffers. */
#include <string.h>

#include "ops/bias_act_grad/bias_act_grad.h"
#include "ops/simd/act_grad_avx2.h"

/* 8 elements; bias, r NULL: absent. */
static inline __m256 step(int32_t act, const float *x, const float *r, const float *bias,
                          const float *dy)
{
    __m256 v = _mm256_loadu_ps(x), slope;
    if (bias) v = _mm256_add_ps(v, _mm256_loadu_ps(bias));
    if (r) v = _mm256_add_ps(v, _mm256_loadu_ps(r));
    (void)sop_act_grad8(act, v, &slope);
    return _mm256_mul_ps(slope, _mm256_loadu_ps(dy));
}

/* n columns of a row, added to sum. */
static inline void row(int32_t act, const float *x, const float *r, const float *bias,
                       const float *dy, float *dx, float *sum, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = step(act, x + i, r ? r + i : NULL, bias ? bias + i : NULL, dy + i);
        _mm256_storeu_ps(dx + i, v);
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), v));
    }
    if (i == n) return;
    float pad[4][8] = {{0}};
    const size_t bytes = (size_t)(n - i) * sizeof *dx;
    memcpy(pad[0], x + i, bytes);
    if (r) memcpy(pad[1], r + i, bytes);
    if (bias) memcpy(pad[2], bias + i, bytes);
    memcpy(pad[3], dy + i, bytes);
    const __m256 v = step(act, pad[0], r ? pad[1] : NULL, bias ? pad[2] : NULL, pad[3]);
    _mm256_storeu_ps(pad[0], v);
    memcpy(dx + i, pad[0], bytes);
    _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), v));
}

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    enum { COLUMNS = SOP_BIAS_ACT_GRAD_COLUMNS };
    const sop_call *call = arg;
    const sop_bias_act_grad_desc *d = call->desc;
    const float *bias = call->args[SOP_BIAS_ACT_GRAD_BIAS].data;
    const float *r = call->args[SOP_BIAS_ACT_GRAD_R].data;
    float *dbias = call->args[SOP_BIAS_ACT_GRAD_DBIAS].data;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t from = k * COLUMNS;
        const int64_t n = from + COLUMNS < d->dim ? COLUMNS : d->dim - from;
        const float *x = (const float *)call->args[SOP_BIAS_ACT_GRAD_X].data + from;
        const float *dy = (const float *)call->args[SOP_BIAS_ACT_GRAD_DY].data + from;
        float *dx = (float *)call->args[SOP_BIAS_ACT_GRAD_DX].data + from;
        float sum[COLUMNS] = {0};
        for (int64_t t = 0; t < d->tokens; t++)
            row(d->act, x + t * d->x_stride, r ? r + t * d->r_stride + from : NULL,
                bias ? bias + from : NULL, dy + t * d->dy_stride, dx + t * d->dx_stride, sum, n);
        if (dbias) memcpy(dbias + from, sum, (size_t)n * sizeof *sum);
    }
}

sop_status sop_bias_act_grad_f32_avx2(const sop_call *call)
{
    const sop_bias_act_grad_desc *d = call->desc;
    const int64_t each = SOP_BIAS_ACT_GRAD_COLUMNS;
    sop_parallel(call->queue, (d->dim + each - 1) / each, 1, columns, call);
    return SOP_OK;
}
