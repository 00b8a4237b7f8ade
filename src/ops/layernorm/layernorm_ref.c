/* The reference: the formula in its own order, sums in double. Read this first.
 *
 * How far a right float32 row may be off, u = 2^-24, for a row s of n with mean m and d = s - m:
 *
 * - s itself by u |s| where it is a sum of two
 * - a first mean by e = (N + 2) u mean|s|: N = 2 sqrt(n) stands for the roundings of a sum, statistically,
 *   at most n. A row takes the mean of s less that first mean as well, and takes it off: what is left is
 *   (N + 3) u (mean|d| + e), or rows far from zero would lose their variance
 * - s - m by its two roundings, u (2 |d| + e)
 * - the variance by (N + 6) u of itself and of e^2, and twice u sqrt(mean s^2) sqrt(variance) where s is a
 *   sum; halved by the root; then the root, the division, three products
 * - the last sum by u (|b| + the rest) */
#include <math.h>

#include "core/op.h"
#include "ops/f64.h"
#include "ops/layernorm/layernorm.h"

/* One row, and its sums. */
struct row {
    const sop_layernorm_desc *d;
    const void *x, *r;
    int64_t xa, ra;
    double mean, scale;         /* scale: 1 / sqrt(variance + eps) */
    double size, square, apart; /* means of |s|, s^2, |s - mean| */
};

static double s_at(const struct row *w, int64_t i)
{
    const double x = sop_load(w->x, w->d->x_dtype, w->xa + i);
    return w->r ? x + sop_load(w->r, w->d->r_dtype, w->ra + i) : x;
}

static void sums(struct row *w)
{
    const double n = (double)w->d->dim;
    double variance = 0;
    w->mean = w->size = w->square = w->apart = 0;
    for (int64_t i = 0; i < w->d->dim; i++) {
        const double s = s_at(w, i);
        w->mean += s;
        w->size += fabs(s) / n;
        w->square += s * s / n;
    }
    w->mean /= n;
    for (int64_t i = 0; i < w->d->dim; i++) {
        const double apart = s_at(w, i) - w->mean;
        variance += apart * apart;
        w->apart += fabs(apart) / n;
    }
    w->scale = 1 / sqrt(variance / n + (double)w->d->eps);
}

sop_status sop_layernorm_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_layernorm_desc *d = call->desc;
    const void *w = call->args[SOP_LAYERNORM_W].data, *b = call->args[SOP_LAYERNORM_B].data;
    const int32_t param = sop_param_dtype(d->x_dtype);
    const int64_t tokens = sop_live(call, SOP_LAYERNORM_LIVE, d->tokens);
    const double n = (double)d->dim, lanes = fmin(n, 2 * sqrt(n));
    for (int64_t t = 0; t < tokens; t++) {
        struct row row = {.d = d,
                          .x = call->args[SOP_LAYERNORM_X].data,
                          .r = call->args[SOP_LAYERNORM_R].data,
                          .xa = t * d->x_stride,
                          .ra = t * d->r_stride};
        sums(&row);
        const double u = SOP_U32, added = row.r ? u : 0;
        const double first = (lanes + 2) * u * row.size + added * row.size;
        const double mean_off = (lanes + 3) * u * (row.apart + first) + added * row.size;
        const double lost = first * row.scale;
        const double scale_off =
            (lanes / 2 + 3) * u * (1 + lost * lost) + added * sqrt(row.square) * row.scale + 5 * u;
        for (int64_t i = 0; i < d->dim; i++) {
            const double s = s_at(&row, i), apart = s - row.mean;
            const double wi = w ? sop_load(w, param, i) : 1, bi = b ? sop_load(b, param, i) : 0;
            const double y = wi * apart * row.scale;
            const double off = added * fabs(s) + mean_off + u * (2 * fabs(apart) + first);
            /* after x is read: y may be x, r_out may be r */
            if (row.r)
                sop_put(call, judge, SOP_LAYERNORM_R_OUT, d->r_dtype, row.ra + i, t * d->dim + i, s,
                        0);
            sop_put(call, judge, SOP_LAYERNORM_Y, d->y_dtype, t * d->y_stride + i, t * d->dim + i,
                    y + bi,
                    fabs(wi) * off * row.scale + scale_off * fabs(y) + u * (fabs(y) + fabs(bi)));
        }
    }
    return SOP_OK;
}

sop_status sop_layernorm_ref(const sop_call *call)
{
    return sop_layernorm_reference(call, NULL);
}
