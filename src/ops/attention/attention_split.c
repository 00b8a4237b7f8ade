/* How the work of a call is cut into blocks for the core, and parts of a softmax put together.
 *
 *     scratch: first unit of each sequence [seqs + 1] | the core's, for each worker
 *              | o [wave, tokens, h, v] | lse [wave, tokens, h] | lse [tokens, h]   (tiled, ring)
 *
 * A unit is up to `queries` queries of one sequence; unit x KV head x block of keys is a task. The
 * blocks of keys are merged in their order, whatever the waves: so the bits depend neither on the
 * threads nor on the scratch there was. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/attention/attention.h"

/* Most bytes of parts that wait to be merged: they should not drive the keys out of the cache. */
enum { PART_BYTES = 16 << 20 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static size_t starts_bytes(const sop_attention_desc *d)
{
    return (size_t)round_up((d->seqs + 1) * (int64_t)sizeof(int64_t), 64);
}

/* What attention_kernel.h draws; attention_c.c needs less. */
static int64_t core_floats(const sop_attention_desc *d, int64_t queries)
{
    const int64_t rows = queries * (d->heads / d->kv_heads), tile = SOP_ATTENTION_TILE;
    const int64_t k = round_up(d->k, 16), v = round_up(d->v, 16);
    return round_up(rows * (k + v + 17), 16) + tile * (k + v);
}

static sop_status plan(const sop_attention_desc *d, const sop_facts *facts, size_t budget,
                       sop_split *split, int64_t queries, int64_t keys, int64_t most_wave)
{
    if (queries < 1) queries = 1;
    const int64_t floats = core_floats(d, queries);
    const size_t fixed = starts_bytes(d) + (size_t)(facts->workers * floats) * sizeof(float);
    const size_t rows = (size_t)(d->tokens * d->heads);
    const size_t part = rows * (size_t)(d->v + 1) * sizeof(float);
    int64_t wave = 0;
    size_t bytes = fixed;
    if (keys) {
        wave = round_up(d->max_kv, keys) / keys;
        if (wave > most_wave) wave = most_wave;
        if (part && wave > PART_BYTES / (int64_t)part) wave = PART_BYTES / (int64_t)part;
        if (wave < 1) wave = 1;
        bytes += rows * sizeof(float);
        while (wave > 1 && bytes + (size_t)wave * part > budget) wave /= 2;
        bytes += (size_t)wave * part;
    }
    if (bytes > budget)
        return sop_fail(SOP_E_LIMIT, "attention: %zu bytes of scratch, %zu allowed", bytes, budget);
    *split = (sop_split){.word = {[SOP_ATTENTION_QUERIES] = queries,
                                  [SOP_ATTENTION_KEYS] = keys,
                                  [SOP_ATTENTION_WAVE] = wave,
                                  [SOP_ATTENTION_CORE_FLOATS] = floats},
                         .scratch_bytes = bytes};
    return SOP_OK;
}

sop_status sop_attention_plan_flash(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split)
{
    const sop_attention_desc *d = desc;
    const int64_t rows = params ? params[0] : 192;
    return plan(d, facts, budget, split, rows / (d->heads / d->kv_heads), 0, 0);
}

sop_status sop_attention_plan_tiled(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split)
{
    const sop_attention_desc *d = desc;
    const int64_t queries = 192 / (d->heads / d->kv_heads);
    return plan(d, facts, budget, split, queries < 16 ? queries : 16,
                round_up(params ? params[0] : 256, SOP_ATTENTION_TILE), INT64_MAX);
}

sop_status sop_attention_plan_ring(const void *desc, const int32_t *params, const sop_facts *facts,
                                   size_t budget, sop_split *split)
{
    const sop_attention_desc *d = desc;
    /* 8 blocks at a time keep 8 workers busy in a decode step */
    return plan(d, facts, budget, split, 192 / (d->heads / d->kv_heads),
                round_up(params ? params[0] : 4096, SOP_ATTENTION_TILE), 8);
}

/* ---- the bias ---- */

/* One element of a mask as what is added. */
static float mask_at(const void *mask, int32_t dtype, int64_t at)
{
    switch (dtype) {
    case SOP_F32: return ((const float *)mask)[at];
    case SOP_F16: return sop_f16_to_f32(((const uint16_t *)mask)[at]);
    case SOP_BF16: return sop_bf16_to_f32(((const uint16_t *)mask)[at]);
    default: return ((const uint8_t *)mask)[at] ? 0 : -INFINITY;
    }
}

void sop_attention_bias(const sop_attention_block *b, int64_t i, int64_t h, int64_t at, int64_t lo,
                        int64_t hi, float *z)
{
    const sop_attention_desc *d = b->call->desc;
    const int64_t head = b->g * (d->heads / d->kv_heads) + h;
    if (d->alibi) {
        const float slope = ((const float *)b->call->args[SOP_ATTENTION_SLOPES].data)[head];
        for (int64_t j = lo; j < hi; j++) z[j] -= slope * (float)llabs(b->at + i - at - j);
    }
    if (d->mask_heads) {
        const int64_t row =
            (b->q0 + i) * d->mask_stride + head / (d->heads / d->mask_heads) * d->mask_head + at;
        for (int64_t j = lo; j < hi; j++)
            z[j] += mask_at(b->call->args[SOP_ATTENTION_MASK].data, d->mask_dtype, row + j);
    }
}

/* ---- running ---- */

struct run {
    const sop_call *call;
    sop_attention_core *core;
    int64_t *starts; /* first unit of each sequence */
    int64_t seqs, units, queries, keys, core_floats;
    int64_t first, n; /* blocks of keys of this wave */
    float *core_scratch, *part_o, *part_lse, *lse;
};

/* The unit's queries and all keys that any of them sees. */
static sop_attention_block block_of(const struct run *r, int64_t unit, int64_t g)
{
    const sop_attention_desc *d = r->call->desc;
    const int32_t *q_start = r->call->args[SOP_ATTENTION_Q_START].data;
    const int32_t *kv_len = r->call->args[SOP_ATTENTION_KV_LEN].data;
    int64_t s = 0, end = r->seqs; /* starts[s] <= unit < starts[end] */
    while (end - s > 1) {
        const int64_t middle = s + (end - s) / 2;
        if (r->starts[middle] <= unit)
            s = middle;
        else
            end = middle;
    }
    const int64_t i = (unit - r->starts[s]) * r->queries, length = q_start[s + 1] - q_start[s];
    sop_attention_block b = {
        .call = r->call,
        .table = (const int32_t *)r->call->args[SOP_ATTENTION_TABLE].data + s * d->table_stride,
        .q0 = q_start[s] + i,
        .n = length - i < r->queries ? length - i : r->queries,
        .at = i + kv_len[s] - length,
        .keys = kv_len[s],
        .g = g,
    };
    int64_t other;
    sop_attention_sees(d, b.keys, b.at, &b.from, &other);
    sop_attention_sees(d, b.keys, b.at + b.n - 1, &other, &b.to);
    if (b.from > b.to) b.from = b.to;
    return b;
}

static void whole(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct run *r = arg;
    const sop_attention_desc *d = r->call->desc;
    const int64_t tasks = r->units * d->kv_heads, group = d->heads / d->kv_heads;
    const float *sinks = d->sinks ? r->call->args[SOP_ATTENTION_SINKS].data : NULL;
    for (int64_t t = begin; t < end; t++) {
        const int64_t from_end = tasks - 1 - t; /* the last queries see most: they go first */
        sop_attention_block b = block_of(r, from_end / d->kv_heads, from_end % d->kv_heads);
        b.o = (float *)r->call->args[SOP_ATTENTION_O].data + b.q0 * d->o_stride +
              b.g * group * d->o_head;
        b.o_stride = d->o_stride;
        b.o_head = d->o_head;
        b.lse = r->call->args[SOP_ATTENTION_LSE].data;
        if (b.lse) b.lse += b.q0 * d->heads + b.g * group;
        b.lse_stride = d->heads;
        if (sinks) b.sinks = sinks + b.g * group;
        b.scratch = r->core_scratch + worker * r->core_floats;
        r->core(&b);
    }
}

static void parts(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct run *r = arg;
    const sop_attention_desc *d = r->call->desc;
    const int64_t group = d->heads / d->kv_heads, rows = d->tokens * d->heads;
    for (int64_t t = begin; t < end; t++) {
        /* all units of a block of keys follow each other: it is in the cache then */
        const int64_t block = t / (r->units * d->kv_heads), rest = t % (r->units * d->kv_heads);
        const int64_t from = (r->first + block) * r->keys;
        sop_attention_block b = block_of(r, rest / d->kv_heads, rest % d->kv_heads);
        if (b.from < from) b.from = from;
        if (b.to > from + r->keys) b.to = from + r->keys;
        if (b.from >= b.to) continue;
        const int64_t row = block * rows + b.q0 * d->heads + b.g * group;
        b.o = r->part_o + row * d->v;
        b.o_stride = d->heads * d->v;
        b.o_head = d->v;
        b.lse = r->part_lse + row;
        b.lse_stride = d->heads;
        b.scratch = r->core_scratch + worker * r->core_floats;
        r->core(&b);
    }
}

void sop_attention_merge(float *o, float *lse, const float *o2, float lse2, int64_t v)
{
    if (lse2 == -INFINITY) return;
    if (*lse == -INFINITY) {
        *lse = lse2;
        memcpy(o, o2, (size_t)v * sizeof *o);
        return;
    }
    const float m = *lse > lse2 ? *lse : lse2;
    const float a = expf(*lse - m), b = expf(lse2 - m), sum = a + b;
    const float wa = a / sum, wb = b / sum;
    int64_t i = 0;
    for (; i + 8 <= v; i += 8) /* eight: a compiler makes vectors of it at -O2 */
        for (int64_t j = i; j < i + 8; j++) o[j] = o[j] * wa + o2[j] * wb;
    for (; i < v; i++) o[i] = o[i] * wa + o2[i] * wb;
    *lse = m + logf(sum);
}

static void merge(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct run *r = arg;
    const sop_attention_desc *d = r->call->desc;
    const int64_t group = d->heads / d->kv_heads, rows = d->tokens * d->heads;
    const float *sinks = d->sinks ? r->call->args[SOP_ATTENTION_SINKS].data : NULL;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const sop_attention_block b = block_of(r, t / d->kv_heads, t % d->kv_heads);
        for (int64_t i = 0; i < b.n * group; i++) {
            const int64_t token = b.q0 + i / group, h = b.g * group + i % group;
            const int64_t row = token * d->heads + h;
            float *o =
                (float *)r->call->args[SOP_ATTENTION_O].data + token * d->o_stride + h * d->o_head;
            int64_t lo, hi;
            sop_attention_sees(d, b.keys, b.at + i / group, &lo, &hi);
            if (r->first == 0) {
                memset(o, 0, (size_t)d->v * sizeof *o);
                r->lse[row] = sinks ? sinks[h] : -INFINITY; /* a part of value 0 */
            }
            for (int64_t k = 0; k < r->n; k++)
                if ((r->first + k) * r->keys < hi && (r->first + k + 1) * r->keys > lo)
                    sop_attention_merge(o, &r->lse[row], r->part_o + (k * rows + row) * d->v,
                                        r->part_lse[k * rows + row], d->v);
        }
    }
}

sop_status sop_attention_run(const sop_call *call, sop_attention_core *core)
{
    const sop_attention_desc *d = call->desc;
    const int32_t *q_start = call->args[SOP_ATTENTION_Q_START].data;
    const int32_t *kv_len = call->args[SOP_ATTENTION_KV_LEN].data;
    const int64_t *word = call->split->word, wave = word[SOP_ATTENTION_WAVE];
    struct run r = {
        .call = call,
        .core = core,
        .starts = call->scratch,
        .seqs = sop_live(call, SOP_ATTENTION_LIVE, d->seqs),
        .queries = word[SOP_ATTENTION_QUERIES],
        .keys = word[SOP_ATTENTION_KEYS],
        .core_floats = word[SOP_ATTENTION_CORE_FLOATS],
        .core_scratch = (float *)(void *)((char *)call->scratch + starts_bytes(d)),
    };
    int64_t most = 0;
    for (int64_t s = 0; s < r.seqs; s++) {
        const int64_t length = q_start[s + 1] - q_start[s];
        r.starts[s] = r.units;
        r.units += round_up(length, r.queries) / r.queries;
        if (length > 0 && kv_len[s] > most) most = kv_len[s];
    }
    r.starts[r.seqs] = r.units;
    if (r.keys == 0) {
        sop_parallel(call->queue, r.units * d->kv_heads, 1, whole, &r);
        return SOP_OK;
    }
    /* what stands behind the core's scratch is found from the end: it does not depend on workers */
    const int64_t rows = d->tokens * d->heads;
    r.lse = (float *)(void *)((char *)call->scratch + call->split->scratch_bytes) - rows;
    r.part_lse = r.lse - wave * rows;
    r.part_o = r.part_lse - wave * rows * d->v;
    if (call->args[SOP_ATTENTION_LSE].data) r.lse = call->args[SOP_ATTENTION_LSE].data;
    const int64_t blocks = round_up(most, r.keys) / r.keys;
    do {
        r.n = blocks - r.first < wave ? blocks - r.first : wave;
        sop_parallel(call->queue, r.units * d->kv_heads * r.n, 1, parts, &r);
        sop_parallel(call->queue, r.units * d->kv_heads, 1, merge, &r);
        r.first += wave;
    } while (r.first < blocks);
    return SOP_OK;
}
