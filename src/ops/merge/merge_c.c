/* Portable: a token and head is a task; its parts are added one after another onto y. */
#include <math.h>

#include "core/op.h"
#include "ops/merge/merge.h"

static void row(const sop_merge_desc *d, const float *x, const float *lse, float *y, float *out)
{
    float m = -INFINITY, sum = 0;
    for (int64_t p = 0; p < d->parts; p++) m = fmaxf(m, lse[p * d->lse_part]);
    for (int64_t i = 0; i < d->v; i++) y[i] = 0;
    for (int64_t p = 0; p < d->parts; p++, x += d->x_part) {
        const float l = lse[p * d->lse_part];
        if (l == -INFINITY) continue;
        const float w = expf(l - m);
        sum += w;
        for (int64_t i = 0; i < d->v; i++) y[i] += w * x[i];
    }
    if (out) *out = sum == 0 ? -INFINITY : m + logf(sum);
    if (sum == 0) return;
    const float inverse = 1 / sum;
    for (int64_t i = 0; i < d->v; i++) y[i] *= inverse;
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_merge_desc *d = call->desc;
    float *out = call->args[SOP_MERGE_LSE_OUT].data;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t t = k / d->heads, h = k % d->heads;
        row(d, (const float *)call->args[SOP_MERGE_X].data + t * d->x_stride + h * d->x_head,
            (const float *)call->args[SOP_MERGE_LSE].data + t * d->lse_stride + h,
            (float *)call->args[SOP_MERGE_Y].data + t * d->y_stride + h * d->y_head,
            out ? out + k : NULL);
    }
}

sop_status sop_merge_f32_c(const sop_call *call)
{
    const sop_merge_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_MERGE_LIVE, d->tokens) * d->heads, 4, rows, call);
    return SOP_OK;
}
