/* From a class of steps to rows and calls. Spans are tried before single rows. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "super/state.h"

double sop_super_free_bytes(const sop_super *s)
{
    double free_bytes = s->budget_bytes - (double)s->memory.pools;
    for (int32_t g = 0; g < sop_kv_n_groups(s->kv); g++) {
        int64_t free_pages, pages;
        sop_kv_page_counts(s->kv, g, &free_pages, &pages);
        for (int32_t l = 0; l < s->program->n_layers && pages; l++)
            if (sop_kv_group(s->kv, l) == g)
                free_bytes +=
                    (double)(sop_kv_pool(s->kv, l, 0).bytes + sop_kv_pool(s->kv, l, 1).bytes) *
                    (double)free_pages / (double)pages;
    }
    return free_bytes;
}

uint32_t sop_steps_paths(const sop_super *s, int32_t seqs, int64_t most_queries, int64_t longest)
{
    const sop_config *c = &s->config;
    uint32_t paths = 0;
    if (c->modules.flash_attn) paths |= SOP_ROW_FLASH;
    /* One path for all batches, or the bits of a row would follow its neighbours. */
    if (c->numerics == SOP_NUMERICS_INVARIANT && paths) return paths;
    if (seqs <= c->thresholds.max_batch_for_tiled && most_queries <= 16) paths |= SOP_ROW_TILED;
    if (c->modules.ring_attn && longest >= c->thresholds.min_seq_for_ring &&
        sop_super_free_bytes(s) >= c->thresholds.min_free_mem_for_ring_gb * 0x1p30)
        paths |= SOP_ROW_RING;
    /* No bit at all would be filled to all of them. */
    return paths ? paths : SOP_ROW_REFERENCE;
}

/* The next power of two, at most most. */
static int32_t rung(int32_t n, int32_t most)
{
    int32_t r = 1;
    while (r < n) r *= 2;
    return r < most ? r : most;
}

/* Keys of a sequence, of a step of one token and of two, up to which few multiprocessors read them as fast as
 * all: such steps are classes of their own, whatever context the pages have room for. */
enum { FEW_TOKENS = 2 };
static const int32_t few_keys[FEW_TOKENS] = {14336, 4096};

sop_step_class sop_steps_class(const sop_super *s, int32_t tokens, int32_t seqs, int32_t outs,
                               uint32_t paths, int64_t longest)
{
    sop_step_class c = {rung(tokens, s->facts.max_tokens), rung(seqs, s->facts.max_seqs),
                        outs ? rung(outs, s->facts.max_outs) : 0, paths, (int32_t)s->facts.ctx};
    const int32_t few = c.tokens <= FEW_TOKENS ? few_keys[c.tokens - 1] : 0;
    if (longest <= few && few < c.keys &&
        s->config.numerics != SOP_NUMERICS_INVARIANT) /* whose bits follow no length */
        c.keys = few;
    return c;
}

void sop_steps_desc(const sop_super *s, const sop_module *m, const sop_step_class *c,
                    sop_any_desc *out)
{
    *out = m->desc;
    out->extent = sop_extent_of(c, m->extent);
    if (m->op == &sop_op_linear || m->op == &sop_op_attention) {
        int32_t *numerics =
            m->op == &sop_op_linear ? &out->linear.numerics : &out->attention.numerics;
        *numerics = s->config.numerics;
    }
    if (m->op == &sop_op_embed && m->args[SOP_EMBED_TABLE].kind == SOP_ARG_BUFFER)
        out->embed.rows =
            sop_extent_of(c, s->program->buffers[m->args[SOP_EMBED_TABLE].index].extent);
    if (m->op == &sop_op_kv_append || m->op == &sop_op_attention) {
        const int64_t pages = sop_kv_pages(s->kv, sop_kv_group(s->kv, m->layer));
        if (m->op == &sop_op_kv_append) {
            out->kv_append.pages = pages;
        } else {
            out->attention.pages = pages;
            out->attention.seqs = c->seqs;
            out->attention.max_kv = c->keys;
            out->attention.table_stride = sop_kv_table_stride(s->kv);
            out->attention.paths = c->paths;
        }
    }
    m->op->complete(out);
}

uint32_t sop_steps_bound(const sop_super *s, const sop_module *m)
{
    const bool portable = ((m->switches & SOP_MODULE_ROPE) && !s->config.modules.rope) ||
                          ((m->switches & SOP_MODULE_KV) && !s->config.modules.kv_cache_opt);
    return s->bound | (portable ? SOP_CHOOSE_PORTABLE : 0u);
}

void sop_steps_destroy(sop_super *s, sop_steps *steps)
{
    if (!steps) return;
    if (steps->graph) s->device->ops->graph_destroy(steps->graph);
    if (steps->ahead.graph) s->device->ops->graph_destroy(steps->ahead.graph);
    free(steps->nodes);
    free(steps->args);
    free(steps->descs);
    free(steps->desc_of);
    free(steps->op_of);
    free(steps);
}

/* Whether a module copies rows that are wanted, out of a buffer. */
static bool is_copy(const sop_module *m)
{
    return m->op == &sop_op_embed && m->args[SOP_EMBED_TABLE].kind == SOP_ARG_BUFFER &&
           m->desc.embed.w_dtype == m->desc.embed.y_dtype && m->desc.embed.scale == 0;
}

/* A step of one token has its wanted row where it is: the buffer that is read instead of b. */
static int32_t stands_for(const sop_program *p, int32_t b, const sop_step_class *c)
{
    for (int32_t i = 0; i < p->n_modules && c->tokens == 1; i++)
        if (is_copy(&p->modules[i]) && p->modules[i].args[SOP_EMBED_Y].index == b)
            return p->modules[i].args[SOP_EMBED_TABLE].index;
    return b;
}

static sop_operand bind(const sop_super *s, const sop_module *m, int32_t role, const sop_row *row,
                        const sop_step_class *c)
{
    const sop_arg *a = &m->args[role];
    const sop_program *p = s->program;
    switch (a->kind) {
    case SOP_ARG_BUFFER: {
        const int32_t at = stands_for(p, a->index, c);
        const sop_buffer *b = &p->buffers[at];
        const size_t rows = (size_t)sop_extent_of(c, b->extent);
        const size_t bytes = rows * b->row_bytes;
        return (sop_operand){(char *)s->arena + s->buffer_at[at] + a->offset,
                             bytes > (size_t)a->offset ? bytes - (size_t)a->offset : 0};
    }
    case SOP_ARG_WEIGHT: {
        const sop_weight *w = &p->weights[a->index];
        const bool packed = row && row->layout == SOP_LAYOUT_PANEL16 &&
                            (m->op->roles[role].flags & SOP_ROLE_WEIGHT);
        return packed ? w->packed : w->plain;
    }
    case SOP_ARG_INPUT: {
        const bool grouped = a->index == SOP_INPUT_SLOTS || a->index == SOP_INPUT_TABLE;
        return sop_input(s, a->index, grouped ? sop_kv_group(s->kv, (int32_t)a->offset) : 0,
                         c->tokens);
    }
    case SOP_ARG_POOL: return sop_kv_pool(s->kv, a->index, (int32_t)a->offset);
    case SOP_ARG_SCALES: return sop_kv_scales(s->kv, a->index, (int32_t)a->offset);
    case SOP_ARG_LIVE: return sop_input_live(s, a->index ? a->index - 1 : m->extent);
    default: return (sop_operand){NULL, 0};
    }
}

/* A span may cover a module whose row would be asked for something the others are not. */
static int32_t span_end(const sop_super *s, int32_t from)
{
    const sop_program *p = s->program;
    const uint32_t bound = sop_steps_bound(s, &p->modules[from]);
    int32_t i = from;
    while (i < p->n_modules && sop_steps_bound(s, &p->modules[i]) == bound) i++;
    return i;
}

sop_status sop_steps_make(sop_super *s, const sop_step_class *c, size_t budget, sop_steps **out)
{
    const sop_program *p = s->program;
    const size_t n = (size_t)p->n_modules;
    sop_status status = SOP_OK;
    *out = NULL;
    sop_steps *steps = calloc(1, sizeof *steps);
    if (!steps) return sop_fail(SOP_E_NOMEM, "super: a step plan");
    steps->class = *c;
    steps->epoch = sop_planner_epoch(s->planner);
    steps->nodes = calloc(n + 1, sizeof *steps->nodes);
    steps->args = calloc(n * SOP_MAX_ARGS + 1, sizeof *steps->args);
    steps->descs = calloc(n + 1, sizeof *steps->descs);
    steps->desc_of = calloc(n + 1, sizeof *steps->desc_of);
    steps->op_of = calloc(n + 1, sizeof *steps->op_of); /* NOLINT(bugprone-sizeof-expression) */
    if (!steps->nodes || !steps->args || !steps->descs || !steps->desc_of || !steps->op_of)
        status = sop_fail(SOP_E_NOMEM, "super: a step plan of %zu modules", n);
    for (size_t i = 0; i < n && status == SOP_OK; i++) {
        steps->desc_of[i] = &steps->descs[i];
        steps->op_of[i] = p->modules[i].op;
        sop_steps_desc(s, &p->modules[i], c, &steps->descs[i]);
    }
    int32_t n_args = 0, end = 0;
    for (int32_t i = 0; i < p->n_modules && status == SOP_OK;) {
        const sop_module *m = &p->modules[i];
        sop_node *node = &steps->nodes[steps->n_nodes];
        sop_choice choice;
        int32_t covered = 1;
        /* no output is wanted, or not this one, or it is where it would be copied to */
        if (sop_extent_of(c, m->extent) == 0 || (s->logits_only && m->op == &sop_op_sample) ||
            (c->tokens == 1 && is_copy(m))) {
            i++;
            continue;
        }
        const uint32_t bound = sop_steps_bound(s, m);
        if (i >= end) end = span_end(s, i);
        const bool span = sop_planner_span(s->planner, &steps->op_of[i], &steps->desc_of[i],
                                           end - i, bound, budget, NULL, NULL, &choice, &covered);
        if (!span)
            status =
                sop_planner_choose(s->planner, m->op, &steps->descs[i], bound, budget, &choice);
        if (status != SOP_OK) break;
        *node = (sop_node){.row = choice.row,
                           .module = i,
                           .n_modules = covered,
                           .mark = choice.mark,
                           .first_arg = n_args,
                           .split = choice.split};
        for (int32_t k = i; k < i + covered; k++)
            for (int32_t a = 0; a < p->modules[k].op->n_roles; a++)
                steps->args[n_args++] = bind(s, &p->modules[k], a, choice.row, c);
        node->call = (sop_call){.size = sizeof(sop_call),
                                .n_args = (uint32_t)(n_args - node->first_arg),
                                .desc = span ? (const void *)&steps->desc_of[i]
                                             : (const void *)&steps->descs[i],
                                .args = steps->args + node->first_arg,
                                .prepared = choice.prepared,
                                .scratch = s->scratch,
                                .queue = s->queue};
        node->call.split = &node->split;
        steps->n_nodes++;
        i += covered;
    }
    if (status != SOP_OK) {
        sop_steps_destroy(s, steps);
        return status;
    }
    *out = steps;
    return SOP_OK;
}

static bool same_class(const sop_step_class *a, const sop_step_class *b)
{
    return a->tokens == b->tokens && a->seqs == b->seqs && a->outs == b->outs &&
           a->paths == b->paths && a->keys == b->keys;
}

sop_status sop_steps_get(sop_super *s, const sop_step_class *c, sop_steps **out)
{
    const uint64_t epoch = sop_planner_epoch(s->planner);
    int32_t at = s->last; /* a decode step is mostly of the class of the step before */
    if (at >= s->n_classes || !same_class(&s->classes[at]->class, c))
        for (at = 0; at < s->n_classes && !same_class(&s->classes[at]->class, c);) at++;
    if (at < s->n_classes && s->classes[at]->epoch == epoch) {
        s->counts.plan_hits++;
        s->last = at;
        *out = s->classes[at];
        return SOP_OK;
    }
    s->counts.plan_misses++;
    sop_steps *made;
    SOP_TRY(sop_steps_make(s, c, s->scratch_bytes, &made));
    if (at == s->n_classes && s->n_classes == SOP_MAX_CLASSES) at = 0; /* ladders never get here */
    if (at < s->n_classes)
        sop_steps_destroy(s, s->classes[at]);
    else
        s->n_classes++;
    s->classes[at] = made;
    s->last = at;
    *out = made;
    return SOP_OK;
}
