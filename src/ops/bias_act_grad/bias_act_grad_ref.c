/* The reference: the formulas in double. How far a slope may be off stands in ops/gated/act_grad.h; a sum
 * of n float32 terms by min(n, 8 sqrt(n)) + 8 roundings of their magnitudes, as in linear. */
#include <math.h>

#include "ops/bias_act_grad/bias_act_grad.h"
#include "ops/f64.h"
#include "ops/gated/act_grad.h"

sop_status sop_bias_act_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_bias_act_grad_desc *d = call->desc;
    const void *x = call->args[SOP_BIAS_ACT_GRAD_X].data;
    const void *r = call->args[SOP_BIAS_ACT_GRAD_R].data;
    const void *bias = call->args[SOP_BIAS_ACT_GRAD_BIAS].data;
    const void *dy = call->args[SOP_BIAS_ACT_GRAD_DY].data;
    const int32_t param = sop_param_dtype(d->x_dtype);
    const double n = (double)d->tokens, roundings = fmin(n, 8 * sqrt(n)) + 8;
    for (int64_t i = 0; i < d->dim; i++) {
        const double b = bias ? sop_load(bias, param, i) : 0;
        double sum = 0, size = 0, off = 0;
        for (int64_t t = 0; t < d->tokens; t++) {
            const double xi = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double ri = r ? sop_load(r, d->r_dtype, t * d->r_stride + i) : 0;
            const double g = sop_load(dy, d->dy_dtype, t * d->dy_stride + i);
            const double sums = (bias ? 1 : 0) + (r ? 1 : 0);
            const sop_act_point p =
                sop_act_at(d->act, xi + b + ri, sums * SOP_U32 * (fabs(xi) + fabs(b) + fabs(ri)));
            const double dx = p.slope * g;
            const double bound = p.slope_off * fabs(g) + SOP_U32 * fabs(dx) + 0x1p-149;
            sop_put(call, judge, SOP_BIAS_ACT_GRAD_DX, d->dx_dtype, t * d->dx_stride + i,
                    t * d->dim + i, dx, bound);
            sum += dx;
            size += fabs(dx);
            off += bound;
        }
        if (call->args[SOP_BIAS_ACT_GRAD_DBIAS].data)
            sop_put(call, judge, SOP_BIAS_ACT_GRAD_DBIAS, param, i, i, sum,
                    off + roundings * SOP_U32 * size);
    }
    return SOP_OK;
}

sop_status sop_bias_act_grad_ref(const sop_call *call)
{
    return sop_bias_act_grad_reference(call, NULL);
}
