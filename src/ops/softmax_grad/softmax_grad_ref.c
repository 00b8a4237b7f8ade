/* The reference: the formula in its own order, in double. A float32 sum of n products in several lanes is
 * off by 2 sqrt(n) + 3 roundings of their magnitudes, statistically; then come a difference and two
 * products. */
#include <math.h>

#include "core/op.h"
#include "ops/softmax_grad/softmax_grad.h"

sop_status sop_softmax_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_softmax_grad_desc *d = call->desc;
    const void *ys = call->args[SOP_SOFTMAX_GRAD_Y].data,
               *dys = call->args[SOP_SOFTMAX_GRAD_DY].data;
    const double scale = (double)d->scale, roundings = 2 * sqrt((double)d->dim) + 3;
    for (int64_t t = 0; t < d->tokens; t++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < d->dim; i++) {
            const double y = sop_load(ys, d->y_dtype, t * d->y_stride + i);
            const double term = y * sop_load(dys, d->dy_dtype, t * d->dy_stride + i);
            sum += term;
            size += fabs(term);
        }
        for (int64_t i = 0; i < d->dim; i++) {
            const double y = sop_load(ys, d->y_dtype, t * d->y_stride + i);
            const double dy = sop_load(dys, d->dy_dtype, t * d->dy_stride + i);
            const double dx = scale * y * (dy - sum);
            const double off = roundings * SOP_U32 * size + SOP_U32 * fabs(dy - sum);
            sop_put(call, judge, SOP_SOFTMAX_GRAD_DX, d->dx_dtype, t * d->dx_stride + i,
                    t * d->dim + i, dx,
                    fabs(scale * y) * off + 2 * SOP_U32 * fabs(dx) + 0x1p-149 * (1 + fabs(scale)));
        }
    }
    return SOP_OK;
}

sop_status sop_softmax_grad_ref(const sop_call *call)
{
    return sop_softmax_grad_reference(call, NULL);
}
