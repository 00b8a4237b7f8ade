/* The reference: the scale of a row, then one element after another, rounded once. A row may make the scale
 * by a product with 1/448 and a code by one with the scale's inverse: four roundings of float32 in all, for
 * which there are six. A code may be the neighbour where that crosses the middle of two. */
#include <math.h>

#include "core/op.h"
#include "ops/quantize/quantize.h"

static double code_of(double q)
{
    return (double)sop_f8_to_f32(sop_f32_to_f8((float)q));
}

sop_status sop_quantize_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_quantize_desc *d = call->desc;
    const void *x = call->args[SOP_QUANTIZE_X].data;
    const int64_t tokens = sop_live(call, SOP_QUANTIZE_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++) {
        double most = 0;
        for (int64_t i = 0; i < d->dim; i++) {
            const double v = fabs(sop_load(x, d->x_dtype, t * d->x_stride + i));
            if (isfinite(v)) most = fmax(most, v);
        }
        const double scale = fmax(most / (double)SOP_QUANTIZE_MOST, (double)SOP_QUANTIZE_LEAST);
        sop_put(call, judge, SOP_QUANTIZE_SCALE, SOP_F32, t, t, scale, 2 * SOP_U32 * scale);
        for (int64_t i = 0; i < d->dim; i++) {
            const double v = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double q = v / scale, u = 6 * SOP_U32 * fabs(q);
            const double code = isfinite(v) ? code_of(q) : (double)NAN;
            const double off = isfinite(v) ? fmax(code_of(q + u) - code, code - code_of(q - u)) : 0;
            sop_put(call, judge, SOP_QUANTIZE_CODES, SOP_F8, t * d->codes_stride + i,
                    t * d->dim + i, code, off);
        }
    }
    return SOP_OK;
}

sop_status sop_quantize_ref(const sop_call *call)
{
    return sop_quantize_reference(call, NULL);
}
