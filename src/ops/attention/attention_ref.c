/* The reference: scores, their maximum, the weights, the sum; all in double. It also says how far a
 * right float32 variant may be. With u = 2^-24, for a query with weights p over n keys:
 *
 * - a score z = scale q.k is off by at most d = (k + 4) u |scale| sum |q||k|; tanh adds 8 u |z|
 * - a bias b, of alibi or of the mask, is a product and a sum, and scores are taken to powers of two: it
 *   adds 4 u (|z| + |b|); so is a sink, which adds 4 u |z|
 * - codes are multiplied by their scale, one rounding more: 2 u for each key and value; a row that
 *   rounds has the product in the type of the queries
 * - its weight exp(z - m): the subtraction rounds u |z - m|, exp 4 u; while tiles of 64 keys go by,
 *   each may raise the maximum and multiply by another exp: 6 u for each of t = n / 64 + 1
 * - where parts are merged by log-sum-exp, each of n / 128 + 1 merges rounds exponents of size |lse|
 *   and weighs anew: u (2 |lse| + 12)
 *
 * So weight j is off by a factor of at most exp(e_j), e_j the sum of these, in the numerator and in
 * the denominator. Their sums are of 64 terms a tile, then over tiles: (64 + 3 t) u. Hence
 *
 *   |o' - o| <= sum p_j (exp(e_j) - 1) (|v_j| + |o|) + (64 + 3 t) u (sum p |v| + |o|) + 4 u |o|
 *
 * where the first term is never more than the spread of the values, for what is computed is a mean of
 * them too. A row that rounds (SOP_ROW_ROUNDS) multiplies queries and weights of the keys' type, u' for
 * u: a float32 query is off by u' |q| more, a weight in the numerator by u' of itself; each also by 2^-25,
 * which float16 loses at its lower end. The sum in the denominator is of weights that are not rounded, so
 * that what the numerator is off by comes on top of the spread.
 * A sink is one more key whose value is 0, read by none: it counts in the sums, and in the spread.
 * The log-sum-exp is off by at most sum p_j (exp(e_j) - 1), and by max e_j. Weights under 2^-126 may be
 * taken as 0. */
#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/attention/attention.h"
#include "ops/f64.h"
#include "ops/kv_append/kv_append.h"

/* One channel of a result: the sum of weights and values, of their magnitudes, of what the weights are off
 * by and of what is rounded; the spread of the values. */
struct channel {
    double o, size, off, rounded, least, most;
};

/* One query and query head. */
struct row {
    const sop_call *call;
    const int32_t *table;
    int64_t q_at, g, h, token, pos;
    int64_t lo, hi;
    int rounds;
    double k_scale, v_scale; /* of codes; 1 without */
    double *p, *p_off; /* of the keys [lo, hi), then the sink: scores, then weights; their errors */
    int64_t *v_at;     /* where their values begin */
    double *q, *x;     /* the query; a key or value */
    struct channel *out; /* [v] */
    double l, lse, weights_off, largest_e, sums;
};

/* Doubles of scratch for one row. */
static int64_t row_doubles(const sop_attention_desc *d)
{
    return 3 * (d->max_kv + 1) + d->k + (d->k > d->v ? d->k : d->v) +
           d->v * (int64_t)(sizeof(struct channel) / sizeof(double));
}

static void row_place(struct row *r, double *scratch)
{
    const sop_attention_desc *d = r->call->desc;
    r->p = scratch;
    r->p_off = r->p + d->max_kv + 1;
    r->v_at = (int64_t *)(r->p_off + d->max_kv + 1);
    r->q = r->p_off + 2 * (d->max_kv + 1);
    r->x = r->q + d->k;
    r->out = (struct channel *)(r->x + (d->k > d->v ? d->k : d->v));
}

static int64_t place(const struct row *r, int64_t j, int64_t page, int64_t token, int64_t head)
{
    const sop_attention_desc *d = r->call->desc;
    return r->table[j / d->page] * page + j % d->page * token + r->g * head;
}

/* What is added to z of key j; -inf when the mask hides it. */
static double bias(const struct row *r, int64_t j)
{
    const sop_attention_desc *d = r->call->desc;
    double b = 0;
    if (d->alibi)
        b = -(double)((const float *)r->call->args[SOP_ATTENTION_SLOPES].data)[r->h] *
            fabs((double)(r->pos - j));
    if (!d->mask_heads) return b;
    const double mask =
        sop_load(r->call->args[SOP_ATTENTION_MASK].data, d->mask_dtype,
                 r->token * d->mask_stride + r->h / (d->heads / d->mask_heads) * d->mask_head + j);
    return d->mask_dtype != SOP_U8 ? b + mask : mask != 0 ? b : -HUGE_VAL;
}

/* How a row that rounds has a code times its scale: in the type of the queries. */
static double code_unit(const struct row *r)
{
    const sop_attention_desc *d = r->call->desc;
    return r->rounds && sop_is_code(d->kv_dtype) ? sop_unit(d->q_dtype) : 0;
}

/* z of key j, and d of the comment above. */
static double score(const struct row *r, int64_t j, double *off)
{
    const sop_attention_desc *d = r->call->desc;
    const int64_t k_at = place(r, j, d->kp_page, d->kp_token, d->kp_head);
    const double q_unit = r->rounds && d->q_dtype == SOP_F32 ? sop_unit(d->kv_dtype) : 0;
    const double k_unit = code_unit(r);
    double dot = 0, sum = 0, rounded = 0;
    sop_load_row(r->call->args[SOP_ATTENTION_K_POOL].data, d->kv_dtype, k_at, d->k, r->x);
    for (int64_t i = 0; i < d->k; i++) {
        const double q = r->q[i], k = r->x[i] * r->k_scale;
        dot += q * k;
        sum += fabs(q * k);
        if (q_unit > 0) rounded += (q_unit * fabs(q) + 0x1p-25) * fabs(k);
        if (k_unit > 0) rounded += (k_unit * fabs(k) + 0x1p-25) * fabs(q);
    }
    double z = (double)d->scale * dot;
    const double roundings = (double)d->k + (sop_is_code(d->kv_dtype) ? 6 : 4);
    *off = fabs((double)d->scale) * (roundings * SOP_U32 * sum + rounded);
    if (d->cap > 0) {
        z = (double)d->cap * tanh(z / (double)d->cap);
        *off += 8 * SOP_U32 * fabs(z);
    }
    const double b = bias(r, j);
    if (b != 0) *off += 4 * SOP_U32 * (fabs(z) + fabs(b));
    return z + b;
}

/* exp(a) (exp(e) - 1), where exp(a) may be nothing and exp(e) beyond all. */
static double grown(double a, double e)
{
    return e < 1 ? exp(a) * expm1(e) : exp(fmin(a + e, 700)) - exp(a);
}

/* The weights, and how far they and their sum may be off for a row of these traits. */
static void weigh(struct row *r, uint32_t traits)
{
    const sop_attention_desc *d = r->call->desc;
    const int64_t keys = r->hi - r->lo, all = keys + d->sinks;
    const double tiles = (double)keys / 64 + 1;
    double m = -INFINITY;
    sop_load_row(r->call->args[SOP_ATTENTION_Q].data, d->q_dtype, r->q_at, d->k, r->q);
    for (int64_t j = 0; j < keys; j++) {
        r->v_at[j] = place(r, r->lo + j, d->vp_page, d->vp_token, d->vp_head);
        r->p[j] = score(r, r->lo + j, &r->p_off[j]);
    }
    if (d->sinks) {
        r->p[keys] = (double)((const float *)r->call->args[SOP_ATTENTION_SINKS].data)[r->h];
        r->p_off[keys] = 4 * SOP_U32 * fabs(r->p[keys]);
    }
    for (int64_t j = 0; j < all; j++) m = fmax(m, r->p[j]);
    r->l = r->weights_off = r->largest_e = 0;
    r->sums = SOP_U32 * (64 + 3 * tiles + (sop_is_code(d->kv_dtype) ? 2 : 0));
    r->lse = m;
    if (isinf(m)) return; /* nothing is seen */
    for (int64_t j = 0; j < all; j++) r->l += exp(r->p[j] - m);
    r->lse = m + log(r->l);
    double fixed = SOP_U32 * (4 + 6 * tiles);
    if (traits & (SOP_ROW_TILED | SOP_ROW_RING))
        fixed += SOP_U32 * (2 * fabs(r->lse) + 12) * ((double)keys / 128 + 1);
    for (int64_t j = 0; j < all; j++) {
        if (isinf(r->p[j])) { /* hidden, or no sink */
            r->p[j] = r->p_off[j] = 0;
            continue;
        }
        const double a = r->p[j] - m, e = r->p_off[j] - SOP_U32 * a + fixed;
        r->p[j] = exp(a) / r->l;
        r->p_off[j] = grown(a, e) / r->l;
        r->weights_off += r->p_off[j];
        r->largest_e = fmax(r->largest_e, e);
    }
}

/* Weights and values, summed. */
static void mix(struct row *r, const sop_judge *judge)
{
    const sop_attention_desc *d = r->call->desc;
    const double v_unit = code_unit(r), p_unit = v_unit > 0  ? v_unit
                                                 : r->rounds ? sop_unit(d->kv_dtype)
                                                             : 0;
    for (int64_t i = 0; i < d->v; i++)
        r->out[i] =
            (struct channel){.least = d->sinks ? 0 : INFINITY, .most = d->sinks ? 0 : -INFINITY};
    for (int64_t j = 0; r->l > 0 && j < r->hi - r->lo; j++) {
        const double p = r->p[j], p_off = r->p_off[j] + 0x1p-120;
        if (r->p_off[j] == 0) continue; /* hidden */
        sop_load_row(r->call->args[SOP_ATTENTION_V_POOL].data, d->kv_dtype, r->v_at[j], d->v, r->x);
        for (int64_t i = 0; i < d->v; i++) {
            struct channel *c = &r->out[i];
            const double v = r->v_scale * r->x[i];
            c->o += p * v;
            if (!judge) continue;
            c->size += p * fabs(v);
            c->off += p_off * fabs(v);
            if (p_unit > 0) c->rounded += ((p_unit + v_unit) * p + 0x1p-25 / r->l) * fabs(v);
            if (v_unit > 0) c->rounded += 0x1p-25 * p;
            c->least = v < c->least ? v : c->least;
            c->most = v > c->most ? v : c->most;
        }
    }
}

static void put_row(struct row *r, const sop_judge *judge)
{
    const sop_attention_desc *d = r->call->desc;
    const int64_t at = r->token * d->heads + r->h;
    weigh(r, judge ? judge->traits : 0);
    mix(r, judge);
    for (int64_t i = 0; i < d->v; i++) {
        const struct channel *c = &r->out[i];
        const double off = fmin(c->off + r->weights_off * fabs(c->o), c->most - c->least) +
                           c->rounded + r->sums * (c->size + fabs(c->o)) + 4 * SOP_U32 * fabs(c->o);
        sop_put(r->call, judge, SOP_ATTENTION_O, d->o_dtype,
                r->token * d->o_stride + r->h * d->o_head + i, at * d->v + i, c->o,
                r->l > 0 ? off : 0);
    }
    if (r->call->args[SOP_ATTENTION_LSE].data) {
        const double off =
            fmin(r->weights_off, r->largest_e) + r->sums + 4 * SOP_U32 * (1 + fabs(r->lse));
        sop_put(r->call, judge, SOP_ATTENTION_LSE, sop_param_dtype(d->q_dtype), at, at, r->lse,
                r->l > 0 ? off : 0);
    }
}

/* The queries of one sequence. */
struct sequence {
    const sop_call *call;
    const sop_judge *judge;
    int64_t s;
};

/* Its queries and heads [begin, end). */
static void some_rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct sequence *job = arg;
    const sop_call *call = job->call;
    const sop_attention_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_Q_START].data;
    const int64_t s = job->s, first = q_start[s], length = q_start[s + 1] - first;
    const int64_t kv_len = ((const int32_t *)call->args[SOP_ATTENTION_KV_LEN].data)[s];
    for (int64_t at = begin; at < end; at++) {
        const int64_t i = at / d->heads, h = at % d->heads;
        struct row r = {
            .call = call,
            .table = (const int32_t *)call->args[SOP_ATTENTION_TABLE].data + s * d->table_stride,
            .q_at = (first + i) * d->q_stride + h * d->q_head,
            .g = h / (d->heads / d->kv_heads),
            .h = h,
            .token = first + i,
            .pos = i + kv_len - length,
            .k_scale = 1,
            .v_scale = 1,
            .rounds = job->judge && (job->judge->traits & SOP_ROW_ROUNDS),
        };
        row_place(&r, (double *)call->scratch + worker * row_doubles(d));
        if (sop_is_code(d->kv_dtype)) {
            r.k_scale = (double)((const float *)call->args[SOP_ATTENTION_K_SCALES].data)[r.g];
            r.v_scale = (double)((const float *)call->args[SOP_ATTENTION_V_SCALES].data)[r.g];
        }
        sop_attention_sees(d, kv_len, r.pos, &r.lo, &r.hi);
        put_row(&r, job->judge);
    }
}

sop_status sop_attention_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_attention_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_Q_START].data;
    struct sequence job = {.call = call, .judge = judge};
    for (; job.s < sop_live(call, SOP_ATTENTION_LIVE, d->seqs); job.s++) {
        const int64_t rows = (q_start[job.s + 1] - q_start[job.s]) * d->heads;
        if (call->split->word[0]) /* on all workers */
            sop_parallel(call->queue, rows, 1, some_rows, &job);
        else
            some_rows(&job, 0, rows, 0);
    }
    return SOP_OK;
}

sop_status sop_attention_plan_ref(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split)
{
    const sop_attention_desc *d = desc;
    const size_t row = (size_t)row_doubles(d) * sizeof(double), all = (size_t)facts->workers * row;
    const size_t bytes = all <= budget ? all : row; /* the last of a ladder takes little */
    (void)params;
    if (bytes > budget)
        return sop_fail(SOP_E_LIMIT, "attention: %zu bytes of scratch, %zu allowed", bytes, budget);
    *split = (sop_split){.word = {bytes == all}, .scratch_bytes = bytes};
    return SOP_OK;
}

sop_status sop_attention_ref(const sop_call *call)
{
    return sop_attention_reference(call, NULL);
}
