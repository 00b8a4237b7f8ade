/* The reference: the formulas in double. */
#include <math.h>

#include "core/op.h"
#include "ops/gated/act.h"
#include "ops/gated/gated.h"

sop_status sop_gated_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_gated_desc *d = call->desc;
    const void *x = call->args[SOP_GATED_X].data;
    const int64_t tokens = sop_live(call, SOP_GATED_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double up = sop_load(x, d->x_dtype, t * d->x_stride + d->up + i);
            double sensitive;
            const double y = g * sop_act_share(d->act, g, &sensitive) * up;
            /* 13 u: a vector function of 6.4 ulp; two products. Shares under 2^-126 lose up to 2^-149 */
            const double bound = (15 + sensitive) * SOP_U32 * fabs(y) +
                                 0x1p-149 * (fabs(g * up) + fabs(up) + fabs(g));
            sop_put(call, judge, SOP_GATED_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y,
                    bound);
        }
    return SOP_OK;
}

sop_status sop_gated_ref(const sop_call *call)
{
    return sop_gated_reference(call, NULL);
}
