/* The reference: one sum in double. */
#include "core/op.h"
#include "ops/add/add.h"

sop_status sop_add_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_add_desc *d = call->desc;
    const int64_t tokens = sop_live(call, SOP_ADD_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double y = sop_load(call->args[SOP_ADD_A].data, d->a_dtype, t * d->a_stride + i) +
                             sop_load(call->args[SOP_ADD_B].data, d->b_dtype, t * d->b_stride + i);
            /* the sum is rounded once to float32, then to the output */
            sop_put(call, judge, SOP_ADD_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y, 0);
        }
    return SOP_OK;
}

sop_status sop_add_ref(const sop_call *call)
{
    return sop_add_reference(call, NULL);
}
