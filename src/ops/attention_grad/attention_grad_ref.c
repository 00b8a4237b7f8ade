/* The reference: queries one by one; what they add to dk and dv is gathered in scratch; all in double.
 *
 * How far a right float32 row may be off, u = 2^-24:
 *
 * - a score z by d = (k + 4) u |scale| sum |q||k|; tanh adds 8 u |z|; its power by what z - lse is, of which
 *   each, in powers of two, adds 2 u, and by 4 u: p = exp(z - lse) by a factor of at most exp(f), f the sum;
 *   powers below 2^-126 may be 0
 * - do . v by (v + 2) u sum |do||v|; the sum of do o by as much of its own
 * - with t = tanh(z / cap), 1 - t^2 by 2 |t| (8 u |t| + d / cap) + 2 u
 * - e by what its three factors are off, and 4 roundings
 * - a sum of n terms by what each is off, and by min(n, 8 sqrt(n)) + 8 roundings of their magnitudes
 *
 * A row that rounds (SOP_ROW_ROUNDS) multiplies p and e of the keys' type: a term is off by u' of itself
 * more, and by 2^-25, which float16 loses at its lower end. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/attention_grad/attention_grad.h"
#include "ops/f64.h"

/* One query and query head. */
struct row {
    const sop_call *call;
    const sop_attention_grad_desc *d;
    int64_t t, h, g, k0; /* k0: the first key of its sequence */
    double lse, delta, delta_off;
    double unit; /* of a row that rounds; 0 */
};

/* One of its keys. */
struct pair {
    double p, p_off, e, e_off;
};

/* Scratch: sums of dk and dv over queries, and how far they may be off; then those of one row's dq. */
struct sums {
    double *dk, *dk_off, *dv, *dv_off, *dq, *dq_off;
};

static double element(const sop_operand *args, int32_t role, int32_t dtype, int64_t t,
                      int64_t stride, int64_t h, int64_t head, int64_t i)
{
    return sop_load(args[role].data, dtype, t * stride + h * head + i);
}
static double q_at(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t, int64_t h,
                   int64_t i)
{
    return element(args, SOP_ATTENTION_GRAD_Q, d->q_dtype, t, d->q_stride, h, d->q_head, i);
}
static double k_at(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t, int64_t g,
                   int64_t i)
{
    return element(args, SOP_ATTENTION_GRAD_K, d->q_dtype, t, d->k_stride, g, d->k_head, i);
}
static double v_at(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t, int64_t g,
                   int64_t i)
{
    return element(args, SOP_ATTENTION_GRAD_V, d->q_dtype, t, d->v_stride, g, d->v_head, i);
}
static double do_at(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t, int64_t h,
                    int64_t i)
{
    return element(args, SOP_ATTENTION_GRAD_DO, d->o_dtype, t, d->do_stride, h, d->do_head, i);
}

/* scale * q . k, before the cap; *off: how far it may be off. */
static double product(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t,
                      int64_t h, int64_t key, double *off)
{
    double dot = 0, size = 0;
    for (int64_t i = 0; i < d->k; i++) {
        const double term =
            q_at(d, args, t, h, i) * k_at(d, args, key, h / (d->heads / d->kv_heads), i);
        dot += term;
        size += fabs(term);
    }
    *off = ((double)d->k + 4) * SOP_U32 * fabs((double)d->scale) * size;
    return (double)d->scale * dot;
}

double sop_attention_grad_lse(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t,
                              int64_t h, int64_t k0, int64_t n, int64_t pos)
{
    int64_t lo, hi;
    double lse = -HUGE_VAL, off;
    sop_attention_grad_sees(d, n, pos, &lo, &hi);
    for (int64_t j = lo; j < hi; j++) {
        double z = product(d, args, t, h, k0 + j, &off);
        if (d->cap > 0) z = (double)d->cap * tanh(z / (double)d->cap);
        const double most = fmax(lse, z), least = fmin(lse, z);
        lse = most + log1p(exp(least - most));
    }
    return lse;
}

/* exp(a) (exp(f) - 1), where exp(a) may be nothing and exp(f) beyond all. */
static double grown(double a, double f)
{
    return f < 1 ? exp(a) * expm1(f) : exp(fmin(a + f, 700)) - exp(a);
}

static struct pair pair_of(const struct row *r, int64_t key)
{
    const sop_attention_grad_desc *d = r->d;
    const sop_operand *args = r->call->args;
    const double u = SOP_U32, cap = (double)d->cap;
    double off, slope = 1, slope_off = 0, dot = 0, size = 0;
    double z = product(d, args, r->t, r->h, key, &off);
    if (d->cap > 0) {
        const double t = tanh(z / cap);
        slope = 1 - t * t;
        slope_off = fmin(1, 2 * fabs(t) * (8 * u * fabs(t) + off / cap) + 2 * u);
        z = cap * t;
        off += 8 * u * fabs(z);
    }
    for (int64_t i = 0; i < d->v; i++) {
        const double term = do_at(d, args, r->t, r->h, i) * v_at(d, args, key, r->g, i);
        dot += term;
        size += fabs(term);
    }
    struct pair p = {.p = exp(z - r->lse)};
    p.p_off = grown(z - r->lse, off + u * (fabs(z - r->lse) + 2 * (fabs(z) + fabs(r->lse)) + 4)) +
              0x1p-126;
    const double rest = dot - r->delta;
    const double rest_off = ((double)d->v + 2) * u * size + r->delta_off + u * fabs(rest);
    p.e = p.p * rest * slope;
    p.e_off = p.p_off * (fabs(rest) + rest_off) * (slope + slope_off) +
              p.p * (rest_off * (slope + slope_off) + fabs(rest) * slope_off) + 4 * u * fabs(p.e);
    if (r->unit > 0) {
        p.p_off += r->unit * (p.p + p.p_off) + 0x1p-25;
        p.e_off += r->unit * (fabs(p.e) + p.e_off) + 0x1p-25;
    }
    return p;
}

/* All that one query and head give: a row of dq, and its part of dk and dv. gamma: of sums over queries. */
static void one_row(struct row *r, const sop_judge *judge, const struct sums *s, int64_t lo,
                    int64_t hi, double gamma)
{
    const sop_attention_grad_desc *d = r->d;
    const sop_operand *args = r->call->args;
    const double n = (double)(hi - lo), scale = (double)d->scale;
    const double own = (fmin(n, 8 * sqrt(n)) + 8) * SOP_U32;
    double size = 0;
    r->delta = 0;
    for (int64_t i = 0; i < d->v; i++) {
        const double term =
            do_at(d, args, r->t, r->h, i) *
            element(args, SOP_ATTENTION_GRAD_O, d->o_dtype, r->t, d->o_stride, r->h, d->o_head, i);
        r->delta += term;
        size += fabs(term);
    }
    r->delta_off = ((double)d->v + 2) * SOP_U32 * size;
    memset(s->dq, 0, 2 * (size_t)d->k * sizeof *s->dq);
    for (int64_t j = lo; j < hi; j++) {
        const int64_t key = r->k0 + j, at = key * d->kv_heads + r->g;
        const struct pair p = pair_of(r, key);
        for (int64_t i = 0; i < d->k; i++) {
            const double k = scale * k_at(d, args, key, r->g, i);
            const double q = scale * q_at(d, args, r->t, r->h, i);
            s->dq[i] += p.e * k;
            s->dq_off[i] += (p.e_off + own * fabs(p.e)) * fabs(k);
            s->dk[at * d->k + i] += p.e * q;
            s->dk_off[at * d->k + i] += (p.e_off + gamma * fabs(p.e)) * fabs(q);
        }
        for (int64_t i = 0; i < d->v; i++) {
            const double g = do_at(d, args, r->t, r->h, i);
            s->dv[at * d->v + i] += p.p * g;
            s->dv_off[at * d->v + i] += (p.p_off + gamma * p.p) * fabs(g);
        }
    }
    for (int64_t i = 0; i < d->k; i++)
        sop_put(r->call, judge, SOP_ATTENTION_GRAD_DQ, d->dq_dtype,
                r->t * d->dq_stride + r->h * d->dq_head + i, (r->t * d->heads + r->h) * d->k + i,
                s->dq[i], s->dq_off[i]);
}

static void put_keys(const sop_call *call, const sop_judge *judge, const struct sums *s)
{
    const sop_attention_grad_desc *d = call->desc;
    for (int64_t key = 0; key < d->keys; key++)
        for (int64_t g = 0; g < d->kv_heads; g++) {
            const int64_t at = key * d->kv_heads + g;
            for (int64_t i = 0; i < d->k; i++)
                sop_put(call, judge, SOP_ATTENTION_GRAD_DK, d->dq_dtype,
                        key * d->dk_stride + g * d->dk_head + i, at * d->k + i,
                        s->dk[at * d->k + i], s->dk_off[at * d->k + i]);
            for (int64_t i = 0; i < d->v; i++)
                sop_put(call, judge, SOP_ATTENTION_GRAD_DV, d->dq_dtype,
                        key * d->dv_stride + g * d->dv_head + i, at * d->v + i,
                        s->dv[at * d->v + i], s->dv_off[at * d->v + i]);
        }
}

sop_status sop_attention_grad_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_attention_grad_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_GRAD_Q_START].data;
    const int32_t *k_start = call->args[SOP_ATTENTION_GRAD_K_START].data;
    const int64_t all = d->keys * d->kv_heads, group = d->heads / d->kv_heads;
    struct sums s = {.dk = call->scratch};
    s.dk_off = s.dk + all * d->k;
    s.dv = s.dk_off + all * d->k;
    s.dv_off = s.dv + all * d->v;
    s.dq = s.dv_off + all * d->v;
    s.dq_off = s.dq + d->k;
    memset(call->scratch, 0, 2 * (size_t)(all * (d->k + d->v)) * sizeof *s.dk);
    for (int64_t q = 0; q < d->seqs; q++) {
        const int64_t length = q_start[q + 1] - q_start[q], keys = k_start[q + 1] - k_start[q];
        const double n = (double)(length * group);
        for (int64_t i = 0; i < length; i++)
            for (int64_t h = 0; h < d->heads; h++) {
                struct row r = {.call = call,
                                .d = d,
                                .t = q_start[q] + i,
                                .h = h,
                                .g = h / group,
                                .k0 = k_start[q]};
                int64_t lo, hi;
                r.lse = sop_load(call->args[SOP_ATTENTION_GRAD_LSE].data,
                                 sop_param_dtype(d->q_dtype), r.t * d->heads + h);
                r.unit = judge && (judge->traits & SOP_ROW_ROUNDS) ? sop_unit(d->q_dtype) : 0;
                sop_attention_grad_sees(d, keys, i + keys - length, &lo, &hi);
                one_row(&r, judge, &s, lo, hi, (fmin(n, 8 * sqrt(n)) + 8) * SOP_U32);
            }
    }
    put_keys(call, judge, &s);
    return SOP_OK;
}

sop_status sop_attention_grad_plan_ref(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split)
{
    const sop_attention_grad_desc *d = desc;
    const int64_t n = 2 * (d->keys * d->kv_heads * (d->k + d->v) + d->k);
    (void)params, (void)facts;
    *split = (sop_split){.scratch_bytes = (size_t)n * sizeof(double)};
    if (split->scratch_bytes <= budget) return SOP_OK;
    return sop_fail(SOP_E_LIMIT, "attention_grad: %zu bytes of scratch, %zu allowed",
                    split->scratch_bytes, budget);
}

sop_status sop_attention_grad_ref(const sop_call *call)
{
    return sop_attention_grad_reference(call, NULL);
}
