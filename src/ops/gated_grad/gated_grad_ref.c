/* The reference: the formulas in double; how far an activation and its slope may be off stands in
 * ops/gated/act_grad.h, and two products come after it. */
#include <math.h>

#include "ops/gated/act_grad.h"
#include "ops/gated_grad/gated_grad.h"

sop_status sop_gated_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_gated_grad_desc *d = call->desc;
    const void *x = call->args[SOP_GATED_GRAD_X].data, *dys = call->args[SOP_GATED_GRAD_DY].data;
    for (int64_t t = 0; t < d->tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double up = sop_load(x, d->x_dtype, t * d->x_stride + d->up + i);
            const double dy = sop_load(dys, d->dy_dtype, t * d->dy_stride + i);
            const sop_act_point p = sop_act_at(d->act, g, 0);
            const double dgate = p.slope * up * dy, dup = p.y * dy;
            sop_put(call, judge, SOP_GATED_GRAD_DGATE, d->dx_dtype, t * d->dgate_stride + i,
                    t * d->dim + i, dgate,
                    p.slope_off * fabs(up * dy) + 2 * SOP_U32 * fabs(dgate) +
                        0x1p-149 * (1 + fabs(up) + fabs(dy)));
            sop_put(call, judge, SOP_GATED_GRAD_DUP, d->dx_dtype, t * d->dup_stride + i,
                    t * d->dim + i, dup, p.y_off * fabs(dy) + SOP_U32 * fabs(dup) + 0x1p-149);
        }
    return SOP_OK;
}

sop_status sop_gated_grad_ref(const sop_call *call)
{
    return sop_gated_grad_reference(call, NULL);
}
