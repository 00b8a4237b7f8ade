/* The reference: scores, their maximum, the weights, the sum; all in double. It also says how far a
 * right float32 variant may be. With u = 2^-24, for a query with weights p over n keys:
 *
 * - a score z = scale q.k is off by at most d = (k + 4) u |scale| sum |q||k|; tanh adds 8 u |z|
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
 * and never more than the spread of the values, for what is computed is a mean of them too. The
 * log-sum-exp is off by at most sum p_j (exp(e_j) - 1), and by max e_j. Weights under 2^-126 may be
 * taken as 0. */
#include <math.h>

#include "core/op.h"
#include "ops/attention/attention.h"

/* One query and query head. */
struct row {
    const sop_call *call;
    const int32_t *table;
    int64_t q_at, g;
    int64_t lo, hi;
    double m, l, lse; /* largest score; sum of exp(z - m); m + log l */
    double fixed;     /* the part of e_j that is the same for all keys */
    double weights_off, largest_e;
};

static int64_t place(const struct row *r, int64_t j, int64_t page, int64_t token, int64_t head)
{
    const sop_attention_desc *d = r->call->desc;
    return r->table[j / d->page] * page + j % d->page * token + r->g * head;
}

/* z of key j, and d of the comment above. */
static double score(const struct row *r, int64_t j, double *off)
{
    const sop_attention_desc *d = r->call->desc;
    const int64_t k_at = place(r, j, d->kp_page, d->kp_token, d->kp_head);
    double dot = 0, sum = 0;
    for (int64_t i = 0; i < d->k; i++) {
        const double t = sop_load(r->call->args[SOP_ATTENTION_Q].data, d->q_dtype, r->q_at + i) *
                         sop_load(r->call->args[SOP_ATTENTION_K_POOL].data, d->kv_dtype, k_at + i);
        dot += t;
        sum += fabs(t);
    }
    double z = (double)d->scale * dot;
    *off = (double)(d->k + 4) * SOP_U32 * fabs((double)d->scale) * sum;
    if (d->cap > 0) {
        z = (double)d->cap * tanh(z / (double)d->cap);
        *off += 8 * SOP_U32 * fabs(z);
    }
    return z;
}

/* exp(a) (exp(e) - 1), where exp(a) may be nothing and exp(e) beyond all. */
static double grown(double a, double e)
{
    return e < 1 ? exp(a) * expm1(e) : exp(fmin(a + e, 700)) - exp(a);
}

static void sense(struct row *r, const sop_judge *judge)
{
    const double n = (double)(r->hi - r->lo);
    double off;
    r->m = -INFINITY;
    r->l = r->weights_off = r->largest_e = 0;
    for (int64_t j = r->lo; j < r->hi; j++) r->m = fmax(r->m, score(r, j, &off));
    for (int64_t j = r->lo; j < r->hi; j++) r->l += exp(score(r, j, &off) - r->m);
    r->lse = r->m + log(r->l);
    if (!judge) return;
    r->fixed = SOP_U32 * (4 + 6 * (n / 64 + 1));
    if (judge->traits & (SOP_ROW_TILED | SOP_ROW_RING))
        r->fixed += SOP_U32 * (2 * fabs(r->lse) + 12) * (n / 128 + 1);
    for (int64_t j = r->lo; j < r->hi; j++) {
        const double a = score(r, j, &off) - r->m, e = off - SOP_U32 * a + r->fixed;
        r->weights_off += grown(a, e) / r->l;
        r->largest_e = fmax(r->largest_e, e);
    }
}

/* Channels [c, c + n) of the result. */
enum { CHANNELS = 256 };
static void put_channels(const struct row *r, const sop_judge *judge, int64_t o_at, int64_t dense,
                         int64_t c, int64_t n)
{
    const sop_attention_desc *d = r->call->desc;
    double o[CHANNELS] = {0}, size[CHANNELS] = {0}, off[CHANNELS] = {0};
    double least[CHANNELS], most[CHANNELS];
    for (int64_t i = 0; i < n; i++) least[i] = INFINITY, most[i] = -INFINITY;
    for (int64_t j = r->lo; j < r->hi; j++) {
        const int64_t v_at = place(r, j, d->vp_page, d->vp_token, d->vp_head) + c;
        double z_off;
        const double a = score(r, j, &z_off) - r->m, p = exp(a) / r->l;
        const double p_off = judge ? grown(a, z_off - SOP_U32 * a + r->fixed) / r->l : 0;
        for (int64_t i = 0; i < n; i++) {
            const double v =
                sop_load(r->call->args[SOP_ATTENTION_V_POOL].data, d->kv_dtype, v_at + i);
            o[i] += p * v;
            size[i] += p * fabs(v);
            off[i] += (p_off + 0x1p-120) * fabs(v);
            least[i] = fmin(least[i], v);
            most[i] = fmax(most[i], v);
        }
    }
    const double sums = SOP_U32 * (64 + 3 * ((double)(r->hi - r->lo) / 64 + 1));
    for (int64_t i = 0; i < n; i++) {
        const double rounding = sums * (size[i] + fabs(o[i])) + (4 * SOP_U32) * fabs(o[i]);
        const double spread = most[i] - least[i];
        sop_put(r->call, judge, SOP_ATTENTION_O, d->o_dtype, o_at + c + i, dense + c + i, o[i],
                r->hi > r->lo ? fmin(off[i] + r->weights_off * fabs(o[i]), spread) + rounding : 0);
    }
}

static void put_row(struct row *r, const sop_judge *judge, int64_t token, int64_t h)
{
    const sop_attention_desc *d = r->call->desc;
    const int64_t at = token * d->heads + h;
    sense(r, judge);
    for (int64_t c = 0; c < d->v; c += CHANNELS)
        put_channels(r, judge, token * d->o_stride + h * d->o_head, at * d->v, c,
                     d->v - c < CHANNELS ? d->v - c : CHANNELS);
    if (r->call->args[SOP_ATTENTION_LSE].data) {
        const double sums = SOP_U32 * (64 + 3 * ((double)(r->hi - r->lo) / 64 + 1));
        const double bound =
            fmin(r->weights_off, r->largest_e) + sums + 4 * SOP_U32 * (1 + fabs(r->lse));
        sop_put(r->call, judge, SOP_ATTENTION_LSE, SOP_F32, at, at, r->lse,
                r->hi > r->lo ? bound : 0);
    }
}

sop_status sop_attention_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_attention_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_Q_START].data;
    const int32_t *kv_len = call->args[SOP_ATTENTION_KV_LEN].data;
    const int64_t seqs = sop_live(call, SOP_ATTENTION_LIVE, d->seqs);
    for (int64_t s = 0; s < seqs; s++) {
        const int64_t first = q_start[s], length = q_start[s + 1] - first;
        for (int64_t i = 0; i < length; i++)
            for (int64_t h = 0; h < d->heads; h++) {
                struct row r = {
                    .call = call,
                    .table =
                        (const int32_t *)call->args[SOP_ATTENTION_TABLE].data + s * d->table_stride,
                    .q_at = (first + i) * d->q_stride + h * d->q_head,
                    .g = h / (d->heads / d->kv_heads),
                };
                sop_attention_sees(d, kv_len[s], i + kv_len[s] - length, &r.lo, &r.hi);
                put_row(&r, judge, first + i, h);
            }
    }
    return SOP_OK;
}

sop_status sop_attention_ref(const sop_call *call)
{
    return sop_attention_reference(call, NULL);
}
