/* Portable: libm's float functions. */
#include "core/op.h"
#include "ops/gated/act.h"
#include "ops/gated/gated.h"

static void blocks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_gated_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_GATED_BLOCK - 1) / SOP_GATED_BLOCK;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        const int64_t t = b / per_row, from = b % per_row * SOP_GATED_BLOCK;
        const int64_t to = from + SOP_GATED_BLOCK < d->dim ? from + SOP_GATED_BLOCK : d->dim;
        const float *x = (const float *)call->args[SOP_GATED_X].data + t * d->x_stride;
        float *y = (float *)call->args[SOP_GATED_Y].data + t * d->y_stride;
        for (int64_t i = from; i < to; i++) y[i] = sop_act_f32(d->act, x[i]) * x[d->up + i];
    }
}

sop_status sop_gated_f32_c(const sop_call *call)
{
    const sop_gated_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_GATED_BLOCK - 1) / SOP_GATED_BLOCK;
    sop_parallel(call->queue, sop_live(call, SOP_GATED_LIVE, d->tokens) * per_row, 2, blocks, call);
    return SOP_OK;
}
