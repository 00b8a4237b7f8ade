/* Portable: one pass for the sum, one for the result; a row is a task. */
#include <math.h>

#include "core/op.h"
#include "ops/rmsnorm/rmsnorm.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_desc *d = call->desc;
    const float *w = call->args[SOP_RMSNORM_W].data;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            const float *x =
                (const float *)call->args[SOP_RMSNORM_X].data + t * d->x_stride + h * d->x_head;
            float *y = (float *)call->args[SOP_RMSNORM_Y].data + t * d->y_stride + h * d->y_head;
            const int64_t ra = t * d->r_stride + h * d->r_head;
            double sum = 0;
            if (call->args[SOP_RMSNORM_R].data) {
                const float *r = (const float *)call->args[SOP_RMSNORM_R].data + ra;
                float *s = (float *)call->args[SOP_RMSNORM_R_OUT].data + ra;
                for (int64_t i = 0; i < d->dim; i++) s[i] = x[i] + r[i];
                x = s;
            }
            for (int64_t i = 0; i < d->dim; i++) sum += (double)x[i] * (double)x[i];
            const float scale = (float)(1 / sqrt(sum / (double)d->dim + (double)d->eps));
            for (int64_t i = 0; i < d->dim; i++) y[i] = x[i] * scale * (d->offset + w[i]);
        }
}

sop_status sop_rmsnorm_f32_c(const sop_call *call)
{
    const sop_rmsnorm_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_RMSNORM_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
