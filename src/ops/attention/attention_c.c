/* Portable: the core in plain C. A tile of keys and values is decoded once for all query heads of the
 * group; each row takes it with an online softmax. */
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/attention/attention.h"
#include "ops/kv_append/kv_append.h"

enum { TILE = SOP_ATTENTION_TILE };

/* A row of a pool as floats: n channels from element `at`; codes by their scale. */
static void decode(const void *pool, int32_t dtype, const float *scale, int64_t at, int64_t n,
                   float *out)
{
    const uint16_t *half = (const uint16_t *)pool + at;
    switch (dtype) {
    case SOP_F32: memcpy(out, (const float *)pool + at, (size_t)n * sizeof *out); break;
    case SOP_F16:
        for (int64_t i = 0; i < n; i++) out[i] = sop_f16_to_f32(half[i]);
        break;
    case SOP_I8:
        for (int64_t i = 0; i < n; i++) out[i] = *scale * (float)((const int8_t *)pool)[at + i];
        break;
    case SOP_F8:
        for (int64_t i = 0; i < n; i++)
            out[i] = *scale * sop_f8_to_f32(((const uint8_t *)pool)[at + i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) out[i] = sop_bf16_to_f32(half[i]);
    }
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

/* Keys [lo, hi) of the tile at key `at` into row r: z and p [TILE], o [v], m and l so far. */
static void take(const sop_attention_block *b, int64_t r, const float *q, const float *k,
                 const float *v, int64_t at, int64_t lo, int64_t hi, float *p, float *o, float *m,
                 float *l)
{
    const sop_attention_desc *d = b->call->desc;
    const int64_t group = d->heads / d->kv_heads;
    float most = *m;
    for (int64_t j = lo; j < hi; j++) {
        p[j] = d->scale * dot(q, k + j * d->k, d->k);
        if (d->cap > 0) p[j] = d->cap * tanhf(p[j] / d->cap);
    }
    if (sop_attention_biased(d)) sop_attention_bias(b, r / group, r % group, at, lo, hi, p);
    for (int64_t j = lo; j < hi; j++)
        if (!(p[j] <= most)) most = p[j];
    if (most == -INFINITY) return; /* the mask hides them all */
    const float keep = expf(*m - most);
    *m = most;
    *l *= keep;
    for (int64_t i = 0; i < d->v; i++) o[i] *= keep;
    for (int64_t j = lo; j < hi; j++) {
        const float w = expf(p[j] - most);
        *l += w;
        for (int64_t i = 0; i < d->v; i++) o[i] += w * v[j * d->v + i];
    }
}

static void attend(const sop_attention_block *b)
{
    const sop_attention_desc *d = b->call->desc;
    const int64_t group = d->heads / d->kv_heads, rows = b->n * group;
    const int codes = sop_is_code(d->kv_dtype);
    const sop_operand *args = b->call->args;
    const float *k_scale = codes ? (const float *)args[SOP_ATTENTION_K_SCALES].data + b->g : NULL;
    const float *v_scale = codes ? (const float *)args[SOP_ATTENTION_V_SCALES].data + b->g : NULL;
    float *k = b->scratch, *v = k + TILE * d->k, *o = v + TILE * d->v;
    float *m = o + rows * d->v, *l = m + rows, *p = l + rows;
    memset(o, 0, (size_t)(rows * d->v) * sizeof *o);
    for (int64_t r = 0; r < rows; r++) {
        m[r] = b->sinks ? b->sinks[r % group] : -INFINITY; /* a key whose value is 0 */
        l[r] = m[r] > -INFINITY;
    }
    for (int64_t tile = b->from / TILE * TILE; tile < b->to; tile += TILE) {
        const int64_t first = tile > b->from ? tile : b->from;
        const int64_t end = tile + TILE < b->to ? tile + TILE : b->to;
        for (int64_t j = first; j < end; j++) {
            const int64_t page = b->table[j / d->page], at = j % d->page;
            decode(b->call->args[SOP_ATTENTION_K_POOL].data, d->kv_dtype, k_scale,
                   page * d->kp_page + at * d->kp_token + b->g * d->kp_head, d->k,
                   k + (j - tile) * d->k);
            decode(b->call->args[SOP_ATTENTION_V_POOL].data, d->kv_dtype, v_scale,
                   page * d->vp_page + at * d->vp_token + b->g * d->vp_head, d->v,
                   v + (j - tile) * d->v);
        }
        for (int64_t r = 0; r < rows; r++) {
            const float *q = (const float *)b->call->args[SOP_ATTENTION_Q].data +
                             (b->q0 + r / group) * d->q_stride +
                             (b->g * group + r % group) * d->q_head;
            int64_t lo, hi;
            sop_attention_sees(d, b->keys, b->at + r / group, &lo, &hi);
            if (lo < first) lo = first;
            if (hi > end) hi = end;
            if (lo < hi)
                take(b, r, q, k, v, tile, lo - tile, hi - tile, p, o + r * d->v, m + r, l + r);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float *out = b->o + r / group * b->o_stride + r % group * b->o_head;
        const float scale = m[r] == -INFINITY ? 0 : 1 / l[r];
        for (int64_t i = 0; i < d->v; i++) out[i] = o[r * d->v + i] * scale;
        if (b->lse) b->lse[r / group * b->lse_stride + r % group] = m[r] + logf(l[r]);
    }
}

sop_status sop_attention_f32_c(const sop_call *call)
{
    return sop_attention_run(call, attend);
}
