/* Portable: some columns of all rows at a time, with their sums. */
#include <string.h>

#include "ops/bias_act_grad/bias_act_grad.h"
#include "ops/gated/act_grad.h"

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    enum { COLUMNS = SOP_BIAS_ACT_GRAD_COLUMNS };
    const sop_call *call = arg;
    const sop_bias_act_grad_desc *d = call->desc;
    const float *bias = call->args[SOP_BIAS_ACT_GRAD_BIAS].data;
    const float *residual = call->args[SOP_BIAS_ACT_GRAD_R].data;
    float *dbias = call->args[SOP_BIAS_ACT_GRAD_DBIAS].data;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t from = k * COLUMNS;
        const int64_t to = from + COLUMNS < d->dim ? from + COLUMNS : d->dim;
        float sum[COLUMNS] = {0};
        for (int64_t t = 0; t < d->tokens; t++) {
            const float *x = (const float *)call->args[SOP_BIAS_ACT_GRAD_X].data + t * d->x_stride;
            const float *dy =
                (const float *)call->args[SOP_BIAS_ACT_GRAD_DY].data + t * d->dy_stride;
            const float *r = residual ? residual + t * d->r_stride : NULL;
            float *dx = (float *)call->args[SOP_BIAS_ACT_GRAD_DX].data + t * d->dx_stride;
            for (int64_t i = from; i < to; i++) {
                float v = x[i], slope;
                if (bias) v += bias[i];
                if (r) v += r[i];
                (void)sop_act_grad_f32(d->act, v, &slope);
                dx[i] = slope * dy[i];
                sum[i - from] += dx[i];
            }
        }
        if (dbias) memcpy(dbias + from, sum, (size_t)(to - from) * sizeof *sum);
    }
}

sop_status sop_bias_act_grad_f32_c(const sop_call *call)
{
    const sop_bias_act_grad_desc *d = call->desc;
    const int64_t each = SOP_BIAS_ACT_GRAD_COLUMNS;
    sop_parallel(call->queue, (d->dim + each - 1) / each, 1, columns, call);
    return SOP_OK;
}
