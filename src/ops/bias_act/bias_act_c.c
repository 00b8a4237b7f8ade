/* Portable: libm's float functions. */
#include "core/op.h"
#include "ops/bias_act/bias_act.h"
#include "ops/gated/act.h"

static void blocks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_bias_act_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_BIAS_ACT_BLOCK - 1) / SOP_BIAS_ACT_BLOCK;
    const float *bias = call->args[SOP_BIAS_ACT_BIAS].data;
    const float *residual = call->args[SOP_BIAS_ACT_R].data;
    const int after = d->residual == SOP_RESIDUAL_AFTER;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        const int64_t t = b / per_row, from = b % per_row * SOP_BIAS_ACT_BLOCK;
        const int64_t to = from + SOP_BIAS_ACT_BLOCK < d->dim ? from + SOP_BIAS_ACT_BLOCK : d->dim;
        const float *x = (const float *)call->args[SOP_BIAS_ACT_X].data + t * d->x_stride;
        const float *r = residual ? residual + t * d->r_stride : NULL;
        float *y = (float *)call->args[SOP_BIAS_ACT_Y].data + t * d->y_stride;
        for (int64_t i = from; i < to; i++) {
            float v = x[i];
            if (bias) v += bias[i];
            if (r && !after) v += r[i];
            v = sop_act_f32(d->act, v);
            y[i] = r && after ? v + r[i] : v;
        }
    }
}

sop_status sop_bias_act_f32_c(const sop_call *call)
{
    const sop_bias_act_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_BIAS_ACT_BLOCK - 1) / SOP_BIAS_ACT_BLOCK;
    sop_parallel(call->queue, sop_live(call, SOP_BIAS_ACT_LIVE, d->tokens) * per_row, 2, blocks,
                 call);
    return SOP_OK;
}
