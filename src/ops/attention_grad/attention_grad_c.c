/* Portable: dq first, a query and head a task, which leaves its sum of do * o in scratch; then dk and dv, a
 * key and KV head a task. Scores are computed in both. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "ops/attention_grad/attention_grad.h"

static const float *row_of(const sop_call *call, int32_t role, int64_t t, int64_t stride, int64_t h,
                           int64_t head)
{
    return (const float *)call->args[role].data + t * stride + h * head;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int64_t j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void add(float *to, float w, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += w * from[i];
}

/* The last sequence that starts at or before i, of those that are not empty there. */
static int64_t sequence_of(const int32_t *start, int64_t seqs, int64_t i)
{
    int64_t lo = 0, hi = seqs;
    while (hi - lo > 1) {
        const int64_t mid = (lo + hi) / 2;
        if (start[mid] > i)
            hi = mid;
        else
            lo = mid;
    }
    return lo;
}

/* p of query row q and key row k; *e: the score's gradient over what is do . v - delta. */
static float weigh(const sop_attention_grad_desc *d, const float *q, const float *k, float lse,
                   float *e)
{
    float z = d->scale * dot(q, k, d->k);
    *e = 1;
    if (d->cap > 0) {
        const float t = tanhf(z / d->cap);
        z = d->cap * t;
        *e = 1 - t * t;
    }
    const float p = expf(z - lse);
    *e *= p;
    return p;
}

static void queries(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_attention_grad_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_GRAD_Q_START].data;
    const int32_t *k_start = call->args[SOP_ATTENTION_GRAD_K_START].data;
    const float *lse = call->args[SOP_ATTENTION_GRAD_LSE].data;
    float *delta = call->scratch;
    (void)worker;
    for (int64_t task = begin; task < end; task++) {
        const int64_t t = task / d->heads, h = task % d->heads, g = h / (d->heads / d->kv_heads);
        const int64_t s = sequence_of(q_start, d->seqs, t), n = k_start[s + 1] - k_start[s];
        const float *q = row_of(call, SOP_ATTENTION_GRAD_Q, t, d->q_stride, h, d->q_head);
        const float *go = row_of(call, SOP_ATTENTION_GRAD_DO, t, d->do_stride, h, d->do_head);
        float *dq =
            (float *)call->args[SOP_ATTENTION_GRAD_DQ].data + t * d->dq_stride + h * d->dq_head;
        int64_t lo, hi;
        sop_attention_grad_sees(d, n, t + n - q_start[s + 1], &lo, &hi);
        delta[task] =
            dot(go, row_of(call, SOP_ATTENTION_GRAD_O, t, d->o_stride, h, d->o_head), d->v);
        memset(dq, 0, (size_t)d->k * sizeof *dq);
        for (int64_t key = k_start[s] + lo; key < k_start[s] + hi; key++) {
            const float *k = row_of(call, SOP_ATTENTION_GRAD_K, key, d->k_stride, g, d->k_head);
            const float *v = row_of(call, SOP_ATTENTION_GRAD_V, key, d->v_stride, g, d->v_head);
            float e;
            (void)weigh(d, q, k, lse[task], &e);
            add(dq, d->scale * (e * (dot(go, v, d->v) - delta[task])), k, d->k);
        }
    }
}

static void keys(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_attention_grad_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_GRAD_Q_START].data;
    const int32_t *k_start = call->args[SOP_ATTENTION_GRAD_K_START].data;
    const float *lse = call->args[SOP_ATTENTION_GRAD_LSE].data, *delta = call->scratch;
    const int64_t group = d->heads / d->kv_heads;
    (void)worker;
    for (int64_t task = begin; task < end; task++) {
        const int64_t key = task / d->kv_heads, g = task % d->kv_heads;
        const int64_t s = sequence_of(k_start, d->seqs, key), n = k_start[s + 1] - k_start[s];
        const int64_t length = q_start[s + 1] - q_start[s];
        const float *k = row_of(call, SOP_ATTENTION_GRAD_K, key, d->k_stride, g, d->k_head);
        const float *v = row_of(call, SOP_ATTENTION_GRAD_V, key, d->v_stride, g, d->v_head);
        float *dk =
            (float *)call->args[SOP_ATTENTION_GRAD_DK].data + key * d->dk_stride + g * d->dk_head;
        float *dv =
            (float *)call->args[SOP_ATTENTION_GRAD_DV].data + key * d->dv_stride + g * d->dv_head;
        int64_t lo, hi;
        sop_attention_grad_seen_by(d, length, n - length, key - k_start[s], &lo, &hi);
        memset(dk, 0, (size_t)d->k * sizeof *dk);
        memset(dv, 0, (size_t)d->v * sizeof *dv);
        for (int64_t row = lo * group; row < hi * group; row++) {
            const int64_t t = q_start[s] + row / group, h = g * group + row % group;
            const int64_t at = t * d->heads + h;
            const float *q = row_of(call, SOP_ATTENTION_GRAD_Q, t, d->q_stride, h, d->q_head);
            const float *go = row_of(call, SOP_ATTENTION_GRAD_DO, t, d->do_stride, h, d->do_head);
            float e;
            add(dv, weigh(d, q, k, lse[at], &e), go, d->v);
            add(dk, d->scale * (e * (dot(go, v, d->v) - delta[at])), q, d->k);
        }
    }
}

sop_status sop_attention_grad_f32_plan(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split)
{
    const sop_attention_grad_desc *d = desc;
    (void)params, (void)facts;
    *split = (sop_split){.scratch_bytes = (size_t)(d->tokens * d->heads) * sizeof(float)};
    if (split->scratch_bytes <= budget) return SOP_OK;
    return sop_fail(SOP_E_LIMIT, "attention_grad: %zu bytes of scratch, %zu allowed",
                    split->scratch_bytes, budget);
}

sop_status sop_attention_grad_f32_c(const sop_call *call)
{
    const sop_attention_grad_desc *d = call->desc;
    sop_parallel(call->queue, d->tokens * d->heads, 4, queries, call);
    sop_parallel(call->queue, d->keys * d->kv_heads, 4, keys, call);
    return SOP_OK;
}
