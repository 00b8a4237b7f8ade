/* The reference: the formulas in their own order, sums in double. Read this first.
 *
 * How far a right float32 row may be off, u = 2^-24, for a row of n, of which layernorm's own reference
 * says why mean, x - m and c are off:
 *
 * - z by what x - m is off, times c, and what c is off of itself
 * - the mean of g by (2 sqrt(n) + 5) u of the mean of |g|; that of g z by as much of |g z|, and by what z is
 *   off
 * - dx by what its three terms are off, c and the four roundings of each of them; then dr is added
 * - dw by what z is off in each term, and by min(N, 8 sqrt(N)) + 8 roundings of a sum of N, as in linear */
#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/layernorm_grad/layernorm_grad.h"

/* What a row's z follows from, and what it is off; scratch keeps it of every row. */
struct kept {
    double mean, scale, mean_off, first, scale_off;
};

/* One row, and its sums. */
struct row {
    const sop_call *call;
    const sop_layernorm_grad_desc *d;
    int64_t t;
    struct kept s;
    double g, gz, g_size, gz_off; /* means of g, g z, |g|, and how far that of g z is off */
};

static double x_at(const struct row *r, int64_t i)
{
    return sop_load(r->call->args[SOP_LAYERNORM_GRAD_X].data, r->d->x_dtype,
                    r->t * r->d->x_stride + i);
}

static double dy_at(const struct row *r, int64_t i)
{
    return sop_load(r->call->args[SOP_LAYERNORM_GRAD_DY].data, r->d->dy_dtype,
                    r->t * r->d->dy_stride + i);
}

static double g_at(const struct row *r, int64_t i)
{
    const void *w = r->call->args[SOP_LAYERNORM_GRAD_W].data;
    return w ? sop_load(w, sop_param_dtype(r->d->x_dtype), i) * dy_at(r, i) : dy_at(r, i);
}

static double z_at(const struct row *r, int64_t i, double *off)
{
    const double apart = x_at(r, i) - r->s.mean;
    *off = r->s.scale * (r->s.mean_off + SOP_U32 * (3 * fabs(apart) + r->s.first)) +
           r->s.scale_off * fabs(apart * r->s.scale);
    return apart * r->s.scale;
}

static void statistics(struct row *r)
{
    const double n = (double)r->d->dim, lanes = fmin(n, 2 * sqrt(n)), u = SOP_U32;
    double size = 0, variance = 0, spread = 0;
    r->s.mean = 0;
    for (int64_t i = 0; i < r->d->dim; i++) {
        r->s.mean += x_at(r, i) / n;
        size += fabs(x_at(r, i)) / n;
    }
    for (int64_t i = 0; i < r->d->dim; i++) {
        const double apart = x_at(r, i) - r->s.mean;
        variance += apart * apart / n;
        spread += fabs(apart) / n;
    }
    r->s.scale = 1 / sqrt(variance + (double)r->d->eps);
    r->s.first = (lanes + 2) * u * size;
    r->s.mean_off = (lanes + 3) * u * (spread + r->s.first);
    const double lost = r->s.first * r->s.scale;
    r->s.scale_off = (lanes / 2 + 3) * u * (1 + lost * lost) + 5 * u;
}

static void means(struct row *r)
{
    const double n = (double)r->d->dim, adds = (2 * sqrt(n) + 5) * SOP_U32;
    double off;
    r->g = r->gz = r->g_size = r->gz_off = 0;
    for (int64_t i = 0; i < r->d->dim; i++) {
        const double g = g_at(r, i), z = z_at(r, i, &off);
        r->g += g / n;
        r->g_size += fabs(g) / n;
        r->gz += g * z / n;
        r->gz_off += fabs(g) * (off + adds * fabs(z)) / n;
    }
}

static void put_row(const struct row *r, const sop_judge *judge)
{
    const sop_layernorm_grad_desc *d = r->d;
    const void *dr = r->call->args[SOP_LAYERNORM_GRAD_DR].data;
    const double g_off = (2 * sqrt((double)d->dim) + 5) * SOP_U32 * r->g_size;
    for (int64_t i = 0; i < d->dim; i++) {
        double off;
        const double g = g_at(r, i), z = z_at(r, i, &off);
        const double more = dr ? sop_load(dr, d->dr_dtype, r->t * d->dr_stride + i) : 0;
        const double dx = r->s.scale * (g - r->g - z * r->gz) + more;
        off = (r->s.scale_off + 5 * SOP_U32) * (fabs(g) + fabs(r->g) + fabs(z * r->gz)) + g_off +
              off * fabs(r->gz) + fabs(z) * r->gz_off;
        sop_put(r->call, judge, SOP_LAYERNORM_GRAD_DX, d->dx_dtype, r->t * d->dx_stride + i,
                r->t * d->dim + i, dx, r->s.scale * off + SOP_U32 * (fabs(dx) + fabs(more)));
    }
}

/* dw and db of channel i; row has what all rows share. */
static void put_channel(struct row *r, const sop_judge *judge, int64_t i)
{
    const sop_layernorm_grad_desc *d = r->d;
    const int32_t param = sop_param_dtype(d->x_dtype);
    const double n = (double)d->tokens, adds = (fmin(n, 8 * sqrt(n)) + 8) * SOP_U32;
    double dw = 0, db = 0, dw_off = 0, db_off = 0, off;
    for (r->t = 0; r->t < d->tokens; r->t++) {
        r->s = ((const struct kept *)r->call->scratch)[r->t];
        const double dy = dy_at(r, i), z = z_at(r, i, &off);
        dw += dy * z;
        db += dy;
        dw_off += fabs(dy) * (off + adds * fabs(z));
        db_off += adds * fabs(dy);
    }
    if (r->call->args[SOP_LAYERNORM_GRAD_DW].data)
        sop_put(r->call, judge, SOP_LAYERNORM_GRAD_DW, param, i, i, dw, dw_off);
    if (r->call->args[SOP_LAYERNORM_GRAD_DB].data)
        sop_put(r->call, judge, SOP_LAYERNORM_GRAD_DB, param, i, i, db, db_off);
}

sop_status sop_layernorm_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_layernorm_grad_desc *d = call->desc;
    struct kept *kept = call->scratch;
    struct row r = {.call = call, .d = d};
    for (r.t = 0; r.t < d->tokens; r.t++) {
        statistics(&r);
        means(&r);
        put_row(&r, judge);
        kept[r.t] = r.s;
    }
    for (int64_t i = 0; i < d->dim; i++) put_channel(&r, judge, i);
    return SOP_OK;
}

sop_status sop_layernorm_grad_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                   size_t budget, sop_split *split)
{
    const sop_layernorm_grad_desc *d = desc;
    (void)params, (void)facts;
    *split = (sop_split){.scratch_bytes = (size_t)d->tokens * sizeof(struct kept)};
    if (split->scratch_bytes <= budget) return SOP_OK;
    return sop_fail(SOP_E_LIMIT, "layernorm_grad: %zu bytes of scratch, %zu allowed",
                    split->scratch_bytes, budget);
}

sop_status sop_layernorm_grad_ref(const sop_call *call)
{
    return sop_layernorm_grad_reference(call, NULL);
}
