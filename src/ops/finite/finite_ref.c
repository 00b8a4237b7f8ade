/* The reference: element by element. */
#include <math.h>

#include "core/op.h"
#include "ops/finite/finite.h"

sop_status sop_finite_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_finite_desc *d = call->desc;
    const int64_t tokens = sop_live(call, SOP_FINITE_LIVE, d->tokens);
    int64_t count = 0;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double x =
                sop_load(call->args[SOP_FINITE_X].data, d->x_dtype, t * d->x_stride + i);
            count += !isfinite(x) && !(d->allow_neg_inf && x < 0);
        }
    sop_put(call, judge, SOP_FINITE_COUNT, SOP_I32, 0, 0,
            count < INT32_MAX ? (double)count : INT32_MAX, 0);
    return SOP_OK;
}

sop_status sop_finite_ref(const sop_call *call)
{
    return sop_finite_reference(call, NULL);
}
