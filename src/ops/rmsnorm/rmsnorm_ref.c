/* The reference: the formula in its own order, sums in double. Read this first. */
#include <math.h>

#include "core/op.h"
#include "ops/f64.h"
#include "ops/rmsnorm/rmsnorm.h"

sop_status sop_rmsnorm_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_rmsnorm_desc *d = call->desc;
    const void *x = call->args[SOP_RMSNORM_X].data, *r = call->args[SOP_RMSNORM_R].data;
    const void *w = call->args[SOP_RMSNORM_W].data;
    const int64_t tokens = sop_live(call, SOP_RMSNORM_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t xa = t * d->x_stride + h * d->x_head;
            const int64_t ra = t * d->r_stride + h * d->r_head;
            const int64_t ya = t * d->y_stride + h * d->y_head;
            const int64_t dense = (t * d->heads + h) * d->dim;
            double sum = 0;
            for (int64_t i = 0; i < d->dim; i++) {
                double s = sop_load(x, d->x_dtype, xa + i);
                if (r) s += sop_load(r, d->r_dtype, ra + i);
                sum += s * s;
            }
            const double scale = 1 / sqrt(sum / (double)d->dim + (double)d->eps);
            /* the sum's relative error, statistically under 2 sqrt(dim) u, halved by the root; then s,
             * the root, the division and two products */
            const double rounding = (sqrt((double)d->dim) + 8) * SOP_U32;
            for (int64_t i = 0; i < d->dim; i++) {
                double s = sop_load(x, d->x_dtype, xa + i);
                if (r) s += sop_load(r, d->r_dtype, ra + i);
                const double y =
                    ((double)d->offset + sop_load(w, sop_param_dtype(d->x_dtype), i)) * s * scale;
                /* after x is read: y may be x, r_out may be r */
                if (r) sop_put(call, judge, SOP_RMSNORM_R_OUT, d->r_dtype, ra + i, dense + i, s, 0);
                sop_put(call, judge, SOP_RMSNORM_Y, d->y_dtype, ya + i, dense + i, y,
                        rounding * fabs(y));
            }
        }
    return SOP_OK;
}

sop_status sop_rmsnorm_ref(const sop_call *call)
{
    return sop_rmsnorm_reference(call, NULL);
}
