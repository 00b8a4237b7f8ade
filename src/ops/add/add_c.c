/* Portable; a row is a task. */
#include "core/op.h"
#include "ops/add/add.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_add_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *a = (const float *)call->args[SOP_ADD_A].data + t * d->a_stride;
        const float *b = (const float *)call->args[SOP_ADD_B].data + t * d->b_stride;
        float *y = (float *)call->args[SOP_ADD_Y].data + t * d->y_stride;
        for (int64_t i = 0; i < d->dim; i++) y[i] = a[i] + b[i];
    }
}

sop_status sop_add_f32_c(const sop_call *call)
{
    const sop_add_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_ADD_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
