/* 8 floats a step, the tail scalar; a row is a task. The pairs are added in their order, the residual
 * last. */
#include <immintrin.h>
#include <math.h>

#include "core/op.h"
#include "ops/combine/combine.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_combine_desc *d = call->desc;
    const float *residual = call->args[SOP_COMBINE_R].data;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_COMBINE_X].data + t * d->top * d->x_stride;
        const float *w = (const float *)call->args[SOP_COMBINE_WEIGHTS].data + t * d->top;
        const float *r = residual ? residual + t * d->r_stride : NULL;
        float *y = (float *)call->args[SOP_COMBINE_Y].data + t * d->y_stride;
        int64_t i = 0;
        for (; i + 8 <= d->dim; i += 8) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t j = 0; j < d->top; j++)
                sum = _mm256_fmadd_ps(_mm256_broadcast_ss(w + j),
                                      _mm256_loadu_ps(x + j * d->x_stride + i), sum);
            if (r) sum = _mm256_add_ps(sum, _mm256_loadu_ps(r + i));
            _mm256_storeu_ps(y + i, sum);
        }
        for (; i < d->dim; i++) {
            float sum = 0;
            for (int64_t j = 0; j < d->top; j++) sum = fmaf(w[j], x[j * d->x_stride + i], sum);
            y[i] = r ? sum + r[i] : sum;
        }
    }
}

sop_status sop_combine_f32_avx2(const sop_call *call)
{
    const sop_combine_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_COMBINE_LIVE, d->tokens), 4, rows, call);
    return SOP_OK;
}
