/* The reference: the formulas in double. A float32 row adds x, bias and r in any order, so what it
 * activates, v, is off by at most `off`, u of the magnitudes for each sum; act moves with it by its slope,
 * and by off^2, since no activation curves more than 2. A kink, relu's, counts as a slope of 1. */
#include <math.h>

#include "core/op.h"
#include "ops/bias_act/bias_act.h"
#include "ops/f64.h"
#include "ops/gated/act.h"

/* act(v), and how far a right row may be from it. */
static double act(int32_t kind, double v, double off, double *bound)
{
    double sensitive;
    const double share = sop_act_share(kind, v, &sensitive);
    const double y = kind == SOP_ACT_RELU && v < 0 ? 0 : v * share;
    const double slope = kind == SOP_ACT_RELU ? v > -off : fabs(sop_act_slope(kind, v, share));
    /* 13 u: a vector function of 6.4 ulp; the product. Shares under 2^-126 lose up to 2^-149 */
    *bound =
        slope * off + off * off + (14 + sensitive) * SOP_U32 * fabs(y) + 0x1p-149 * (fabs(v) + 1);
    return y;
}

sop_status sop_bias_act_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_bias_act_desc *d = call->desc;
    const void *x = call->args[SOP_BIAS_ACT_X].data, *r = call->args[SOP_BIAS_ACT_R].data;
    const void *bias = call->args[SOP_BIAS_ACT_BIAS].data;
    const int64_t tokens = sop_live(call, SOP_BIAS_ACT_LIVE, d->tokens);
    const int after = r && d->residual == SOP_RESIDUAL_AFTER;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double xi = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double b = bias ? sop_load(bias, sop_param_dtype(d->x_dtype), i) : 0;
            const double ri = r ? sop_load(r, d->r_dtype, t * d->r_stride + i) : 0;
            const double in = after ? 0 : ri, sums = (bias ? 1 : 0) + (r && !after ? 1 : 0);
            double bound;
            const double y =
                act(d->act, xi + b + in, sums * SOP_U32 * (fabs(xi) + fabs(b) + fabs(in)), &bound) +
                (after ? ri : 0);
            sop_put(call, judge, SOP_BIAS_ACT_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y,
                    bound + (after ? SOP_U32 * fabs(y) : 0));
        }
    return SOP_OK;
}

sop_status sop_bias_act_ref(const sop_call *call)
{
    return sop_bias_act_reference(call, NULL);
}
