/* The reference: the formula in its own order, in double. */
#include <math.h>

#include "core/op.h"
#include "ops/softmax/softmax.h"

static double z_at(const sop_softmax_desc *d, const sop_call *call, int64_t t, int64_t i)
{
    const double x = sop_load(call->args[SOP_SOFTMAX_X].data, d->x_dtype, t * d->x_stride + i);
    return (double)d->scale * x;
}

/* Relative error of exp(z - max) in float32: the rounding of z and of the maximum (none when scale is
 * 1), of their difference, 4 u of the exponential. */
static double error_of(const sop_softmax_desc *d, double z, double max)
{
    const double scaled = d->scale == 1 ? 0 : fabs(z) + fabs(max);
    return (scaled + fabs(z - max) + 4) * SOP_U32;
}

sop_status sop_softmax_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_softmax_desc *d = call->desc;
    const int64_t tokens = sop_live(call, SOP_SOFTMAX_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++) {
        double max = -HUGE_VAL, sum = 0, error = 0;
        int nan = 0;
        for (int64_t i = 0; i < d->dim; i++) {
            const double z = z_at(d, call, t, i);
            nan |= isnan(z) || z == HUGE_VAL;
            max = fmax(max, z);
        }
        for (int64_t i = 0; i < d->dim && max > -HUGE_VAL; i++) {
            const double z = z_at(d, call, t, i), e = exp(z - max);
            sum += e;
            if (e > 0) error += e * error_of(d, z, max);
        }
        /* the sum of n terms in several lanes: statistically under 2 sqrt(n) u; then one division */
        error = error / sum + (2 * sqrt((double)d->dim) + 4) * SOP_U32;
        for (int64_t i = 0; i < d->dim; i++) {
            const double z = z_at(d, call, t, i);
            const double y = nan ? (double)NAN : max == -HUGE_VAL ? 0 : exp(z - max) / sum;
            const double bound = y > 0 ? y * (error_of(d, z, max) + error) : 0;
            sop_put(call, judge, SOP_SOFTMAX_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y,
                    bound + 0x1p-149);
        }
    }
    return SOP_OK;
}

sop_status sop_softmax_ref(const sop_call *call)
{
    return sop_softmax_reference(call, NULL);
}
