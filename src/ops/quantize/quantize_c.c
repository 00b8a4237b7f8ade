/* Portable: one pass for the largest, one for the codes; a row is a task. */
#include <math.h>

#include "core/op.h"
#include "ops/quantize/quantize.h"

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_quantize_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_QUANTIZE_X].data + t * d->x_stride;
        uint8_t *codes = (uint8_t *)call->args[SOP_QUANTIZE_CODES].data + t * d->codes_stride;
        float most = 0;
        for (int64_t i = 0; i < d->dim; i++) {
            const float v = fabsf(x[i]);
            if (v < INFINITY && v > most) most = v;
        }
        const float scale = fmaxf(most / SOP_QUANTIZE_MOST, SOP_QUANTIZE_LEAST);
        const float inverse = 1 / scale;
        ((float *)call->args[SOP_QUANTIZE_SCALE].data)[t] = scale;
        for (int64_t i = 0; i < d->dim; i++)
            codes[i] = sop_f32_to_f8(isfinite(x[i]) ? x[i] * inverse : NAN);
    }
}

sop_status sop_quantize_f32_c(const sop_call *call)
{
    const sop_quantize_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_QUANTIZE_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
