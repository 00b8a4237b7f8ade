/* Portable: libm's float functions; a row is a task. */
#include "ops/gated/act_grad.h"
#include "ops/gated_grad/gated_grad.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_gated_grad_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_GATED_GRAD_X].data + t * d->x_stride;
        const float *dy = (const float *)call->args[SOP_GATED_GRAD_DY].data + t * d->dy_stride;
        float *dgate = (float *)call->args[SOP_GATED_GRAD_DGATE].data + t * d->dgate_stride;
        float *dup = (float *)call->args[SOP_GATED_GRAD_DUP].data + t * d->dup_stride;
        for (int64_t i = 0; i < d->dim; i++) {
            float slope;
            dup[i] = sop_act_grad_f32(d->act, x[i], &slope) * dy[i];
            dgate[i] = slope * x[d->up + i] * dy[i];
        }
    }
}

sop_status sop_gated_grad_f32_c(const sop_call *call)
{
    sop_parallel(call->queue, ((const sop_gated_grad_desc *)call->desc)->tokens, 2, rows, call);
    return SOP_OK;
}
