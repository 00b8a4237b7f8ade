/* The reference: the formula in double. Of the terms that a float32 row adds up, in any order, each is
 * rounded once as a product and at most once for each sum that it is part of. */
#include <math.h>

#include "core/op.h"
#include "ops/combine/combine.h"

sop_status sop_combine_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_combine_desc *d = call->desc;
    const void *x = call->args[SOP_COMBINE_X].data, *r = call->args[SOP_COMBINE_R].data;
    const float *weights = call->args[SOP_COMBINE_WEIGHTS].data;
    const int64_t tokens = sop_live(call, SOP_COMBINE_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double first = r ? sop_load(r, d->r_dtype, t * d->r_stride + i) : 0;
            double y = first, size = fabs(first);
            for (int64_t j = 0; j < d->top; j++) {
                const int64_t pair = t * d->top + j;
                const double term =
                    (double)weights[pair] * sop_load(x, d->x_dtype, pair * d->x_stride + i);
                y += term;
                size += fabs(term);
            }
            sop_put(call, judge, SOP_COMBINE_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y,
                    (double)(d->top + 1) * SOP_U32 * size);
        }
    return SOP_OK;
}

sop_status sop_combine_ref(const sop_call *call)
{
    return sop_combine_reference(call, NULL);
}
