/* Portable: one pass for the sum, one for the result; a row is a task. */
#include "ops/softmax_grad/softmax_grad.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_softmax_grad_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *y = (const float *)call->args[SOP_SOFTMAX_GRAD_Y].data + t * d->y_stride;
        const float *dy = (const float *)call->args[SOP_SOFTMAX_GRAD_DY].data + t * d->dy_stride;
        float *dx = (float *)call->args[SOP_SOFTMAX_GRAD_DX].data + t * d->dx_stride;
        double sum = 0;
        for (int64_t i = 0; i < d->dim; i++) sum += (double)y[i] * (double)dy[i];
        for (int64_t i = 0; i < d->dim; i++) dx[i] = d->scale * y[i] * (float)((double)dy[i] - sum);
    }
}

sop_status sop_softmax_grad_f32_c(const sop_call *call)
{
    sop_parallel(call->queue, ((const sop_softmax_grad_desc *)call->desc)->tokens, 8, rows, call);
    return SOP_OK;
}
