#include "sop/super.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "super/state.h"

static void release(sop_super *s, void *p, size_t bytes)
{
    if (p) s->device->ops->release(s->device, p, bytes);
}

void sop_super_destroy(sop_super *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n_classes; i++) sop_steps_destroy(s, s->classes[i]);
    if (s->staging != s->inputs) free(s->staging);
    release(s, s->inputs, s->input_bytes);
    release(s, s->scratch, s->scratch_bytes);
    release(s, s->arena, s->arena_bytes);
    sop_kv_destroy(s->kv);
    if (s->mark && s->mark != &s->no_mark) sop_planner_unmark(s->planner, s->mark);
    if (s->own) s->device->ops->queue_destroy(s->own);
    free(s->table_row);
    free(s->seen);
    free(s->buffer_at);
    free(s);
}

/* The largest scratch of any class that steps can be of. */
static sop_status size_scratch(sop_super *s)
{
    static const uint32_t paths[] = {SOP_ROW_REFERENCE, SOP_ROW_FLASH,
                                     SOP_ROW_FLASH | SOP_ROW_TILED, SOP_ROW_FLASH | SOP_ROW_RING,
                                     SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_RING};
    const sop_super_facts *f = &s->facts;
    for (int32_t tokens = 1;; tokens = 2 * tokens < f->max_tokens ? 2 * tokens : f->max_tokens) {
        const int32_t most = tokens < f->max_seqs ? tokens : f->max_seqs;
        for (int32_t seqs = 1; seqs <= most; seqs = seqs == most ? most + 1 : most)
            for (size_t k = 0; k < 2 * (sizeof paths / sizeof *paths); k++) {
                const sop_step_class c =
                    sop_steps_class(s, tokens, seqs, f->max_outs, paths[k / 2], k % 2 ? f->ctx : 1);
                sop_steps *steps;
                SOP_TRY(sop_steps_make(s, &c, SIZE_MAX, &steps));
                for (int32_t i = 0; i < steps->n_nodes; i++)
                    if (steps->nodes[i].split.scratch_bytes > s->scratch_bytes)
                        s->scratch_bytes = steps->nodes[i].split.scratch_bytes;
                sop_steps_destroy(s, steps);
            }
        if (tokens == f->max_tokens) break;
    }
    s->scratch_bytes = (s->scratch_bytes + 63) & ~(size_t)63;
    return SOP_OK;
}

/* What the pools may take: the configuration's word, or all that there is. */
static sop_status size_budget(sop_super *s)
{
    const sop_device_ops *ops = s->device->ops;
    size_t free_bytes, all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (ops->memory) SOP_TRY(ops->memory(s->device, &free_bytes, &all));
    s->budget_bytes =
        s->config.memory_limit_gb > 0 ? s->config.memory_limit_gb * 0x1p30 : (double)all;
    return SOP_OK;
}

/* Everything but the memory itself. */
static sop_status layout(sop_super *s, const sop_super_spec *spec, bool dry)
{
    const sop_program *p = spec->program;
    const sop_kv_spec kv = {.layers = p->layers,
                            .n_layers = p->n_layers,
                            .dtype = p->kv_dtype,
                            .max_seqs = spec->max_seqs,
                            .max_step = spec->max_tokens,
                            .ctx = spec->ctx,
                            .tokens = spec->kv_tokens,
                            .host_bytes = (size_t)(spec->config->kv_host_gb * 0x1p30)};
    s->program = p;
    s->planner = spec->planner;
    s->device = sop_planner_device(spec->planner);
    s->config = *spec->config;
    s->facts = (sop_super_facts){.max_tokens = spec->max_tokens,
                                 .max_seqs = spec->max_seqs,
                                 .max_outs = spec->max_outs,
                                 .ctx = spec->ctx,
                                 .vocab = p->vocab,
                                 .n_modules = p->n_modules};
    s->bound = s->config.numerics == SOP_NUMERICS_INVARIANT ? SOP_CHOOSE_INVARIANT : 0;
    s->bound |= SOP_CHOOSE_PREPARE; /* until create() ends: no step waits for a library */
    s->mark = &s->no_mark;
    s->use_graphs = s->device->ops->kind != SOP_DEVICE_CPU;
    s->alone = sop_planner_quarantined(s->planner, SOP_RUN_TOGETHER) != NULL;
    s->buffer_at = calloc((size_t)p->n_buffers + 1, sizeof *s->buffer_at);
    s->seen = calloc((size_t)spec->max_seqs, sizeof *s->seen);
    if (!s->buffer_at || !s->seen)
        return sop_fail(SOP_E_NOMEM, "super: %d buffers, %d sequences", p->n_buffers,
                        spec->max_seqs);
    SOP_TRY(sop_kv_bytes(&kv, &s->memory.kv, &s->memory.host));
    SOP_TRY(s->device->ops->queue_create(s->device, &s->own));
    s->queue = spec->queue ? spec->queue : s->own;
    s->logits_only = spec->logits_only;
    SOP_TRY(sop_kv_create(s->device, &kv, dry, &s->kv));
    SOP_TRY(sop_place_buffers(p, &s->facts, s->buffer_at, &s->save_at, &s->save_bytes));
    s->arena_bytes = s->save_at + s->save_bytes;
    SOP_TRY(sop_inputs_layout(s));
    SOP_TRY(size_scratch(s));
    for (int32_t i = 0; i < p->n_weights; i++)
        if (p->weights[i].keep_plain && !p->weights[i].own &&
            p->weights[i].plain.data == p->weights[i].file)
            s->memory.mapped += p->weights[i].file_bytes;
    sop_memory *m = &s->memory;
    m->weights = p->placed_bytes;
    m->buffers = s->arena_bytes;
    m->scratch = s->scratch_bytes;
    m->inputs = s->device->ops->sees_host(s->device) ? s->input_bytes : 2 * s->input_bytes;
    m->pools = m->weights + m->kv + m->buffers + m->scratch + m->inputs;
    m->process = m->pools + m->mapped + m->host + spec->base_bytes;
    return size_budget(s);
}

static sop_status reserve(sop_super *s)
{
    const sop_device_ops *ops = s->device->ops;
    if ((double)s->memory.pools > s->budget_bytes)
        return sop_fail(
            SOP_E_LIMIT,
            "memory: %.3f GB wanted (weights %.3f, kv %.3f, buffers %.3f, scratch %.3f), "
            "the limit is %.3f GB",
            (double)s->memory.pools * 0x1p-30, (double)s->memory.weights * 0x1p-30,
            (double)s->memory.kv * 0x1p-30, (double)s->memory.buffers * 0x1p-30,
            (double)s->memory.scratch * 0x1p-30, s->budget_bytes * 0x1p-30);
    SOP_TRY(ops->reserve(s->device, s->arena_bytes, &s->arena));
    SOP_TRY(ops->reserve(s->device, s->scratch_bytes, &s->scratch));
    SOP_TRY(ops->reserve(s->device, s->input_bytes, &s->inputs));
    s->staging = ops->sees_host(s->device) ? s->inputs : calloc(1, s->input_bytes);
    if (!s->staging) return sop_fail(SOP_E_NOMEM, "super: %zu bytes of inputs", s->input_bytes);
    return SOP_OK;
}

/* Plans and records one class, or touches what does not run from recordings. A row that fails here does so in
 * the first step too, where the ladder is. */
static sop_status warm_class(sop_super *s, const sop_step_class *c)
{
    const bool plainly = c->tokens >= SOP_RUN_PLAINLY;
    sop_steps *steps;
    if (plainly) s->bound &= ~(uint32_t)SOP_CHOOSE_PREPARE; /* size_scratch() did that */
    SOP_TRY(plainly ? sop_steps_make(s, c, s->scratch_bytes, &steps) : sop_steps_get(s, c, &steps));
    if (!plainly && c->tokens == c->seqs && c->seqs == c->outs && !s->logits_only)
        SOP_TRY(sop_ahead_plan(s, steps));
    if ((plainly ? sop_run_touch(s, steps) : sop_run_record(s, steps)) != SOP_OK)
        sop_log(SOP_LOG_WARN, "super", "record tokens=%d seqs=%d why=\"%s\"", c->tokens, c->seqs,
                sop_last_error());
    if (plainly) sop_steps_destroy(s, steps);
    return SOP_OK;
}

/* Before the first request, all kinds of steps, on whatever paths of attention they can come to, each sequence
 * with a row of output. */
static sop_status warm(sop_super *s)
{
    const sop_super_facts *f = &s->facts;
    for (int32_t t = 1; t <= f->max_tokens;) {
        const int32_t most = f->max_seqs < t ? f->max_seqs : t;
        for (int32_t n = 1; n <= most;) {
            for (int k = 0; k < 4; k++) {
                const int32_t fewest = (t / 2 + n) / n; /* of the longest share, and the most */
                const uint32_t paths =
                    sop_steps_paths(s, n, k & 1 ? fewest : t - n + 1, k & 2 ? f->ctx : 1);
                const sop_step_class c = sop_steps_class(s, t, n, n < f->max_outs ? n : f->max_outs,
                                                         paths, k & 2 ? f->ctx : 1);
                SOP_TRY(warm_class(s, &c));
            }
            n = n == most ? n + 1 : 2 * n < most ? 2 * n : most;
        }
        t = t == f->max_tokens ? t + 1 : 2 * t < f->max_tokens ? 2 * t : f->max_tokens;
    }
    return SOP_OK;
}

static sop_status create(const sop_super_spec *spec, bool dry, sop_super **out)
{
    *out = NULL;
    if (spec->ctx < 1 || spec->max_seqs < 1 || spec->max_tokens < 1 || spec->max_outs < 1 ||
        spec->kv_tokens < 1 || spec->ctx > INT32_MAX)
        return sop_fail(SOP_E_ARG,
                        "super: ctx=%lld max_seqs=%d max_tokens=%d max_outs=%d kv_tokens=%lld, all "
                        "must be >= 1",
                        (long long)spec->ctx, spec->max_seqs, spec->max_tokens, spec->max_outs,
                        (long long)spec->kv_tokens);
    sop_super *s = calloc(1, sizeof *s);
    if (!s) return sop_fail(SOP_E_NOMEM, "super: %zu bytes", sizeof *s);
    sop_status status = layout(s, spec, dry);
    if (status == SOP_OK && !dry) status = reserve(s);
    if (status == SOP_OK && !dry) status = sop_scales_measure(s);
    if (status == SOP_OK && !dry && s->use_graphs) status = warm(s);
    s->bound &= ~(uint32_t)SOP_CHOOSE_PREPARE;
    if (status != SOP_OK) {
        sop_super_destroy(s);
        return status;
    }
    *out = s;
    return SOP_OK;
}

sop_status sop_super_create(const sop_super_spec *spec, sop_super **out)
{
    return create(spec, false, out);
}

sop_status sop_super_predict(const sop_super_spec *spec, sop_memory *out)
{
    sop_super *s;
    SOP_TRY(create(spec, true, &s));
    *out = s->memory;
    sop_super_destroy(s);
    return SOP_OK;
}

void sop_super_set_budget(sop_super *s, double bytes)
{
    s->budget_bytes = bytes;
}

void sop_super_set_graphs(sop_super *s, bool on)
{
    s->use_graphs = on;
}

sop_status sop_super_open(sop_super *s, int32_t *seq)
{
    return sop_kv_open(s->kv, seq);
}

void sop_super_close(sop_super *s, int32_t seq)
{
    sop_kv_close(s->kv, seq);
}

sop_status sop_super_fork(sop_super *s, int32_t seq, int32_t *out)
{
    return sop_kv_fork(s->kv, seq, out);
}

int64_t sop_super_length(const sop_super *s, int32_t seq)
{
    return sop_kv_length(s->kv, seq);
}

sop_status sop_super_truncate(sop_super *s, int32_t seq, int64_t length)
{
    return sop_kv_truncate(s->kv, seq, length);
}

sop_status sop_super_offload(sop_super *s, int32_t seq)
{
    return sop_kv_offload(s->kv, seq);
}

sop_status sop_super_restore(sop_super *s, int32_t seq)
{
    return sop_kv_restore(s->kv, seq);
}

void sop_super_facts_of(const sop_super *s, sop_super_facts *out)
{
    *out = s->facts;
}

void sop_super_memory(const sop_super *s, sop_memory *out)
{
    *out = s->memory;
}

void sop_super_counts_of(const sop_super *s, sop_super_counts *out)
{
    *out = s->counts;
    sop_kv_moved(s->kv, &out->pages_out, &out->pages_in);
}

/* Whether all ids are from 0 to last. Two at a time, with no branch for any: a difference that is negative has
 * its top bit set, and what it borrows from the other only comes with that bit. */
static bool are_known(const int32_t *ids, int32_t n, uint32_t last)
{
    const uint64_t most = (uint64_t)last << 32 | last;
    uint64_t bits = 0;
    int32_t k = 0;
    for (uint64_t two; k + 2 <= n; k += 2) {
        memcpy(&two, ids + k, sizeof two);
        bits |= two | (most - two);
    }
    if (k < n) bits |= (uint32_t)ids[k] | (last - (uint32_t)ids[k]);
    return (bits & 0x8000000080000000u) == 0;
}

sop_status sop_super_sense(sop_super *s, const sop_step_item *items, int32_t n_items, bool has_ids,
                           int32_t steps, sop_step_class *class)
{
    const sop_super_facts *f = &s->facts;
    int64_t tokens = 0, outs = 0, longest = 0, most = 0;
    s->senses++;
    if (n_items < 1 || n_items > f->max_seqs)
        return sop_fail(SOP_E_LIMIT, "step: %d sequences, must be 1 to %d", n_items, f->max_seqs);
    for (int32_t i = 0; i < n_items; i++) {
        const sop_step_item *it = &items[i];
        if (!sop_kv_is_open(s->kv, it->seq))
            return sop_fail(SOP_E_ARG, "step: sequence %d is not open", it->seq);
        if (s->seen[it->seq] == s->senses)
            return sop_fail(SOP_E_ARG, "step: sequence %d stands in it twice", it->seq);
        s->seen[it->seq] = s->senses;
        if (it->n_ids < 1 || (has_ids && !it->ids))
            return sop_fail(SOP_E_ARG, "step: sequence %d brings %d tokens, must be >= 1", it->seq,
                            it->n_ids);
        const bool known = !has_ids || are_known(it->ids, it->n_ids, (uint32_t)f->vocab - 1);
        for (int32_t k = 0; k < it->n_ids && !known; k++)
            if (it->ids[k] < 0 || it->ids[k] >= f->vocab)
                return sop_fail(SOP_E_ARG,
                                "step: token %d of sequence %d is id %d, must be 0 to %lld", k,
                                it->seq, it->ids[k], (long long)f->vocab - 1);
        const int64_t length = sop_kv_length(s->kv, it->seq) + it->n_ids;
        tokens += it->n_ids;
        outs += it->want == SOP_WANT_ALL ? it->n_ids : it->want == SOP_WANT_LAST;
        if (length > longest) longest = length;
        if (it->n_ids > most) most = it->n_ids;
    }
    if (tokens > f->max_tokens)
        return sop_fail(SOP_E_LIMIT, "step: %lld tokens, at most %d fit", (long long)tokens,
                        f->max_tokens);
    if (outs > f->max_outs)
        return sop_fail(SOP_E_LIMIT, "step: %lld rows of output, at most %d fit", (long long)outs,
                        f->max_outs);
    s->n_tokens = (int32_t)tokens;
    s->n_seqs = n_items;
    s->n_outs = (int32_t)outs;
    longest += steps - 1;
    *class = sop_steps_class(s, (int32_t)tokens, n_items, (int32_t)outs,
                             sop_steps_paths(s, n_items, most, longest), longest);
    return SOP_OK;
}

static sop_status results(sop_super *s, int32_t *next, float *logits)
{
    const sop_device_ops *ops = s->device->ops;
    if (next && s->n_outs)
        SOP_TRY(ops->copy(s->queue, next, sop_input(s, SOP_INPUT_NEXT, 0, s->n_tokens).data,
                          (size_t)s->n_outs * sizeof *next, SOP_COPY_OUT));
    if (logits && s->n_outs)
        SOP_TRY(ops->copy(s->queue, logits, (char *)s->arena + s->buffer_at[s->program->logits],
                          (size_t)s->n_outs * (size_t)s->facts.vocab * sizeof *logits,
                          SOP_COPY_OUT));
    return ops->wait(s->queue);
}

/* Whether a row of output has nothing finite in it: what is not finite in any module of a token spreads
 * to all of its logits. This is what a recorded step, which stops for no guard, is judged by. */
static bool is_lost(const sop_super *s, const int32_t *next, const float *logits)
{
    for (int32_t i = 0; i < s->n_outs; i++)
        if (next ? next[i] < 0 : logits && !isfinite(logits[(int64_t)i * s->facts.vocab]))
            return true;
    return false;
}

sop_status sop_super_reserve(sop_super *s, int32_t seq, int64_t n)
{
    while (s->memory.host && !sop_kv_fits(s->kv, seq, n)) {
        int32_t coldest = -1;
        for (int32_t i = 0; i < s->facts.max_seqs; i++)
            if (sop_kv_length(s->kv, i) && !sop_kv_is_away(s->kv, i) && s->seen[i] < s->senses &&
                (coldest < 0 || s->seen[i] < s->seen[coldest]))
                coldest = i;
        if (coldest < 0 || sop_kv_offload(s->kv, coldest) != SOP_OK) break;
    }
    return sop_kv_reserve(s->kv, s->queue, seq, n);
}

/* Pages for all items of a step; those that got some are counted, for done(). */
static sop_status reserve_all(sop_super *s, const sop_step_item *items, int32_t n,
                              int32_t *reserved)
{
    for (*reserved = 0; *reserved < n; ++*reserved)
        SOP_TRY(sop_super_reserve(s, items[*reserved].seq, items[*reserved].n_ids));
    return SOP_OK;
}

static void done(sop_super *s, const sop_step_item *items, int32_t reserved, sop_status status)
{
    for (int32_t i = 0; i < reserved; i++)
        if (status == SOP_OK)
            sop_kv_commit(s->kv, items[i].seq, items[i].n_ids);
        else
            sop_kv_rollback(s->kv, items[i].seq);
    s->counts.steps++;
}

sop_status sop_super_step(sop_super *s, const sop_step_item *items, int32_t n_items, int32_t *next,
                          float *logits)
{
    sop_step_class class;
    sop_steps *steps;
    const double t0 = sop_now_s();
    if (s->logits_only && next) return sop_fail(SOP_E_ARG, "step: here nothing is sampled");
    SOP_TRY(sop_super_sense(s, items, n_items, true, 1, &class));
    if (s->mark == &s->no_mark) { /* a row from outside may have come since */
        sop_mark *mark = sop_planner_mark(s->planner);
        if (mark) s->mark = mark;
    }
    SOP_TRY(sop_steps_get(s, &class, &steps));
    const double t1 = sop_now_s();
    s->counts.plan_s += t1 - t0;
    int32_t reserved;
    sop_status status = reserve_all(s, items, n_items, &reserved);
    if (status == SOP_OK) status = sop_inputs_send(s, items, n_items);
    if (status == SOP_OK) status = sop_run_steps(s, steps);
    if (status == SOP_OK) {
        status = results(s, next, logits); /* waits for all of it */
        if (status != SOP_OK) {
            status = sop_run_failed(s, &class, status);
            if (status == SOP_OK) status = results(s, next, logits);
        }
    }
    if (status == SOP_OK && s->config.guard != SOP_GUARD_OFF && is_lost(s, next, logits)) {
        status = sop_run_again(s, &class);
        if (status == SOP_OK) status = results(s, next, logits);
    }
    done(s, items, reserved, status);
    s->counts.run_s += sop_now_s() - t1;
    return status;
}

sop_status sop_super_put(sop_super *s, const sop_step_item *items, int32_t n_items,
                         const int32_t *ids, const int32_t *pos, float *logits)
{
    const sop_device_ops *ops = s->device->ops;
    sop_step_class class;
    sop_steps *steps;
    int32_t reserved;
    SOP_TRY(sop_super_sense(s, items, n_items, !ids, 1, &class));
    SOP_TRY(sop_steps_get(s, &class, &steps));
    sop_status status = reserve_all(s, items, n_items, &reserved);
    if (status == SOP_OK) status = sop_inputs_send(s, items, n_items);
    if (status == SOP_OK) status = sop_inputs_take(s, ids, pos);
    if (status == SOP_OK) status = sop_run_steps(s, steps);
    if (status == SOP_OK && logits && s->n_outs)
        status =
            ops->copy(s->queue, logits, (char *)s->arena + s->buffer_at[s->program->logits],
                      (size_t)s->n_outs * (size_t)s->facts.vocab * sizeof *logits, SOP_COPY_WITHIN);
    /* the next step's inputs are written where this one reads its own */
    if (status == SOP_OK && s->staging == s->inputs) status = ops->wait(s->queue);
    done(s, items, reserved, status);
    return status;
}

sop_status sop_super_extend(sop_super *s, int32_t seq, int64_t n)
{
    if (!sop_kv_is_open(s->kv, seq) || n < 0)
        return sop_fail(SOP_E_ARG, "extend: %lld tokens of sequence %d, which is %sopen",
                        (long long)n, seq, sop_kv_is_open(s->kv, seq) ? "" : "not ");
    SOP_TRY(sop_super_reserve(s, seq, n));
    sop_kv_commit(s->kv, seq, n);
    return SOP_OK;
}

void sop_super_pool(const sop_super *s, int32_t layer, int32_t which, sop_tensor *out)
{
    const sop_operand pool = sop_kv_pool(s->kv, layer, which);
    const sop_kv_layer *y = &s->program->layers[layer];
    const int64_t k = which ? y->v : y->k;
    *out = (sop_tensor){
        .data = pool.data,
        .bytes = pool.bytes,
        .dtype = s->program->kv_dtype,
        .ndim = 4,
        .shape = {sop_kv_pages(s->kv, sop_kv_group(s->kv, layer)), y->heads, SOP_KV_PAGE, k},
        .stride = {y->heads * SOP_KV_PAGE * k, SOP_KV_PAGE * k, k, 1}};
}

int64_t sop_super_pages(const sop_super *s, int32_t seq, int32_t layer, int32_t *pages, int64_t cap)
{
    const int64_t n = (sop_kv_length(s->kv, seq) + SOP_KV_PAGE - 1) / SOP_KV_PAGE;
    sop_kv_table(s->kv, sop_kv_group(s->kv, layer), seq, s->table_row);
    for (int64_t i = 0; i < n && i < cap; i++) pages[i] = s->table_row[i];
    return n;
}
