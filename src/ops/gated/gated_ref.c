/* The reference: the formulas in double. Both sides of a cancelling 1 + tanh or 1 + erf are written
 * so that large negative inputs keep their relative accuracy. */
#include <math.h>

#include "core/op.h"
#include "ops/gated/gated.h"

/* act(g) = g * share; *sensitive: by how many u share moves when each step that leads to its
 * argument rounds once. */
static double share_of(int32_t act, double g, double *sensitive)
{
    switch (act) {
    case SOP_ACT_SILU: *sensitive = 0; return 1 / (1 + exp(-g));
    case SOP_ACT_GELU_TANH: { /* (1 + tanh v) / 2 is the logistic of 2v */
        const double v = 0.7978845608028654 * (g + 0.044715 * g * g * g);
        const double s = 1 / (1 + exp(-2 * v));
        *sensitive = s > 0 ? 12 * fabs(v) * (1 - s) : 0; /* 6 roundings in 2v */
        return s;
    }
    default: {
        const double s = 0.5 * erfc(-g / 1.4142135623730951);
        *sensitive = s > 0 ? 2 * g * g * (1 - s) : 0; /* 1 rounding in g / sqrt(2), squared */
        return s;
    }
    }
}

sop_status sop_gated_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_gated_desc *d = call->desc;
    const void *x = call->args[SOP_GATED_X].data;
    const int64_t tokens = sop_live(call, SOP_GATED_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = sop_load(x, d->x_dtype, t * d->x_stride + i);
            const double up = sop_load(x, d->x_dtype, t * d->x_stride + d->up + i);
            double sensitive;
            const double y = g * share_of(d->act, g, &sensitive) * up;
            /* 13 u: a vector function of 6.4 ulp; two products. Shares under 2^-126 lose up to 2^-149 */
            const double bound = (15 + sensitive) * SOP_U32 * fabs(y) +
                                 0x1p-149 * (fabs(g * up) + fabs(up) + fabs(g));
            sop_put(call, judge, SOP_GATED_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i, y,
                    bound);
        }
    return SOP_OK;
}

sop_status sop_gated_ref(const sop_call *call)
{
    return sop_gated_reference(call, NULL);
}
