/* Portable: by the bits; a row is a task. */
#include <string.h>

#include "core/op.h"
#include "ops/finite/finite.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_finite_desc *d = call->desc;
    int64_t n = 0;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_FINITE_X].data + t * d->x_stride;
        for (int64_t i = 0; i < d->dim; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            n += (bits & 0x7f800000u) == 0x7f800000u && !(d->allow_neg_inf && bits == 0xff800000u);
        }
    }
    sop_finite_add(call->args[SOP_FINITE_COUNT].data, n);
}

sop_status sop_finite_f32_c(const sop_call *call)
{
    const sop_finite_desc *d = call->desc;
    *(int32_t *)call->args[SOP_FINITE_COUNT].data = 0;
    sop_parallel(call->queue, sop_live(call, SOP_FINITE_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
