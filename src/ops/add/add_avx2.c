/* 8 floats a step, the tail scalar; a row is a task. */
#include <immintrin.h>

#include "core/op.h"
#include "ops/add/add.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_add_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *a = (const float *)call->args[SOP_ADD_A].data + t * d->a_stride;
        const float *b = (const float *)call->args[SOP_ADD_B].data + t * d->b_stride;
        float *y = (float *)call->args[SOP_ADD_Y].data + t * d->y_stride;
        int64_t i = 0;
        for (; i + 8 <= d->dim; i += 8)
            _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
        for (; i < d->dim; i++) y[i] = a[i] + b[i];
    }
}

sop_status sop_add_f32_avx2(const sop_call *call)
{
    const sop_add_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_ADD_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
