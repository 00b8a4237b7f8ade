/* The reference: the formulas in their own order, sums in double. Read this first.
 *
 * How far a right float32 row may be off, u = 2^-24, for a group of n:
 *
 * - c by e = (sqrt(n) + 5) u of itself: half of the 2 sqrt(n) u of its sum, statistically; the root and
 *   the division
 * - a mean of n products of g, x and c by (2 sqrt(n) + 5) u of the mean of their magnitudes, and by e
 * - dx by what its two terms are off, c and the three roundings of each of them; then dr is added
 * - dw by (e + 2 u) of each term, and by min(N, 8 sqrt(N)) + 8 roundings of a sum of N, as in linear */
#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/rmsnorm_grad/rmsnorm_grad.h"

/* One group of a token, and its sums. */
struct group {
    const sop_call *call;
    const sop_rmsnorm_grad_desc *d;
    int64_t t, h;
    double scale, mean, size; /* size: mean of |g x c| */
};

static double x_at(const struct group *g, int64_t i)
{
    return sop_load(g->call->args[SOP_RMSNORM_GRAD_X].data, g->d->x_dtype,
                    g->t * g->d->x_stride + g->h * g->d->x_head + i);
}

static double dy_at(const struct group *g, int64_t i)
{
    return sop_load(g->call->args[SOP_RMSNORM_GRAD_DY].data, g->d->dy_dtype,
                    g->t * g->d->dy_stride + g->h * g->d->dy_head + i);
}

static double g_at(const struct group *g, int64_t i)
{
    const double w =
        sop_load(g->call->args[SOP_RMSNORM_GRAD_W].data, sop_param_dtype(g->d->x_dtype), i);
    return ((double)g->d->offset + w) * dy_at(g, i);
}

static void sums(struct group *g)
{
    const double n = (double)g->d->dim;
    double squares = 0;
    for (int64_t i = 0; i < g->d->dim; i++) squares += x_at(g, i) * x_at(g, i);
    g->scale = 1 / sqrt(squares / n + (double)g->d->eps);
    g->mean = g->size = 0;
    for (int64_t i = 0; i < g->d->dim; i++) {
        const double term = g_at(g, i) * (x_at(g, i) * g->scale);
        g->mean += term / n;
        g->size += fabs(term) / n;
    }
}

sop_status sop_rmsnorm_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_rmsnorm_grad_desc *d = call->desc;
    const void *dr = call->args[SOP_RMSNORM_GRAD_DR].data;
    const double n = (double)d->dim, groups = (double)d->tokens * (double)d->heads, u = SOP_U32;
    const double e = (sqrt(n) + 5) * u, adds = (fmin(groups, 8 * sqrt(groups)) + 8) * u;
    const int32_t param = sop_param_dtype(d->x_dtype);
    double *scales = call->scratch;
    for (int64_t t = 0; t < d->tokens; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            struct group g = {.call = call, .d = d, .t = t, .h = h};
            sums(&g);
            scales[t * d->heads + h] = g.scale;
            const double mean_off = (2 * sqrt(n) + 5) * u * g.size + e * fabs(g.mean);
            for (int64_t i = 0; i < d->dim; i++) {
                const double z = x_at(&g, i) * g.scale, gi = g_at(&g, i);
                const double r =
                    dr ? sop_load(dr, d->dr_dtype, t * d->dr_stride + h * d->dr_head + i) : 0;
                const double dx = g.scale * (gi - z * g.mean) + r;
                const double off =
                    (e + 5 * u) * (fabs(gi) + 2 * fabs(z * g.mean)) + fabs(z) * mean_off;
                sop_put(call, judge, SOP_RMSNORM_GRAD_DX, d->dx_dtype,
                        t * d->dx_stride + h * d->dx_head + i, (t * d->heads + h) * d->dim + i, dx,
                        g.scale * off + u * (fabs(dx) + fabs(r)));
            }
        }
    for (int64_t i = 0; i < d->dim && call->args[SOP_RMSNORM_GRAD_DW].data; i++) {
        double sum = 0, size = 0;
        for (int64_t t = 0; t < d->tokens; t++)
            for (int64_t h = 0; h < d->heads; h++) {
                const struct group g = {
                    .call = call, .d = d, .t = t, .h = h, .scale = scales[t * d->heads + h]};
                const double term = dy_at(&g, i) * (x_at(&g, i) * g.scale);
                sum += term;
                size += fabs(term);
            }
        sop_put(call, judge, SOP_RMSNORM_GRAD_DW, param, i, i, sum, (adds + e + 2 * u) * size);
    }
    return SOP_OK;
}

sop_status sop_rmsnorm_grad_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split)
{
    const sop_rmsnorm_grad_desc *d = desc;
    (void)params, (void)facts;
    *split = (sop_split){.scratch_bytes = (size_t)(d->tokens * d->heads) * sizeof(double)};
    if (split->scratch_bytes <= budget) return SOP_OK;
    return sop_fail(SOP_E_LIMIT, "rmsnorm_grad: %zu bytes of scratch, %zu allowed",
                    split->scratch_bytes, budget);
}

sop_status sop_rmsnorm_grad_ref(const sop_call *call)
{
    return sop_rmsnorm_grad_reference(call, NULL);
}
