/* The reference: the maximum, the weights, the sums, all in double. Read this first.
 *
 * How far a right float32 row may be off, u = 2^-24: weight p by a share e_p = (|lse_p - m| + 4) u, of the
 * subtraction and the exponential; under 2^-126 also by 2^-149. Each sum of n terms by (n + 1) u of its
 * magnitudes, statistically 2 sqrt(n). So with shares s_p = w_p / sum, N the lesser of these:
 *
 *   |y' - y| <= sum of s_p (e_p + N u) |x_p| + (sum of s_p e_p + (N + 3) u) |y|
 *   |lse' - lse| <= sum of s_p e_p + (N + 4) u + 4 u |lse - m| + u |lse| */
#include <math.h>

#include "core/op.h"
#include "ops/merge/merge.h"

/* One token and head. */
struct row {
    const sop_call *call;
    const float *lse;   /* of its part 0 */
    int64_t x_at;       /* of its part 0 */
    double m, sum, off; /* off: sum of s_p e_p */
    double sums;        /* N u */
};

static double weight(const struct row *r, int64_t p)
{
    const sop_merge_desc *d = r->call->desc;
    const double l = (double)r->lse[p * d->lse_part];
    return l == -HUGE_VAL ? 0 : exp(l - r->m);
}

static double share_off(const struct row *r, int64_t p)
{
    const sop_merge_desc *d = r->call->desc;
    return (fabs((double)r->lse[p * d->lse_part] - r->m) + 4) * SOP_U32;
}

static void weigh(struct row *r)
{
    const sop_merge_desc *d = r->call->desc;
    const double n = (double)d->parts;
    r->m = -HUGE_VAL;
    r->sum = r->off = 0;
    r->sums = (fmin(n, 2 * sqrt(n)) + 1) * SOP_U32;
    for (int64_t p = 0; p < d->parts; p++) r->m = fmax(r->m, (double)r->lse[p * d->lse_part]);
    for (int64_t p = 0; p < d->parts; p++) {
        const double w = weight(r, p);
        r->sum += w;
        if (w > 0) r->off += w * share_off(r, p);
    }
    r->off /= r->sum;
}

static void put_channel(const struct row *r, const sop_judge *judge, int64_t i, int64_t at,
                        int64_t dense)
{
    const sop_merge_desc *d = r->call->desc;
    double y = 0, bound = 0;
    for (int64_t p = 0; p < d->parts; p++) {
        if ((double)r->lse[p * d->lse_part] == -HUGE_VAL) continue;
        const double s = weight(r, p) / r->sum;
        const double x =
            sop_load(r->call->args[SOP_MERGE_X].data, d->x_dtype, r->x_at + p * d->x_part + i);
        y += s * x;
        bound += (s * (share_off(r, p) + r->sums) + 0x1p-149) * fabs(x);
    }
    if (r->sum != 0) bound += (r->off + r->sums + 3 * SOP_U32) * fabs(y);
    sop_put(r->call, judge, SOP_MERGE_Y, d->y_dtype, at, dense, y, bound);
}

sop_status sop_merge_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_merge_desc *d = call->desc;
    const int64_t tokens = sop_live(call, SOP_MERGE_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = t * d->heads + h;
            struct row r = {.call = call,
                            .lse = (const float *)call->args[SOP_MERGE_LSE].data +
                                   t * d->lse_stride + h,
                            .x_at = t * d->x_stride + h * d->x_head};
            weigh(&r);
            for (int64_t i = 0; i < d->v; i++)
                put_channel(&r, judge, i, t * d->y_stride + h * d->y_head + i, at * d->v + i);
            if (!call->args[SOP_MERGE_LSE_OUT].data) continue;
            const double lse = r.sum == 0 ? -HUGE_VAL : r.m + log(r.sum);
            sop_put(call, judge, SOP_MERGE_LSE_OUT, SOP_F32, at, at, lse,
                    r.sum == 0 ? 0 : r.off + r.sums + (3 + 4 * log(r.sum) + fabs(lse)) * SOP_U32);
        }
    return SOP_OK;
}

sop_status sop_merge_ref(const sop_call *call)
{
    return sop_merge_reference(call, NULL);
}
