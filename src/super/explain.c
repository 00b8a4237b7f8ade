/* What a step would run, module by module. Layers that are planned alike are one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "super/state.h"

struct said {
    const sop_module *module;
    const sop_node *node;
    int32_t repeats;
};

struct skips {
    sop_explain_fn *fn;
    void *ctx;
    const sop_module *module;
};

static void say_skip(void *ctx, const sop_row *row, const char *why)
{
    const struct skips *k = ctx;
    const sop_explain_line line = {
        .module = k->module->kind, .layer = k->module->layer, .skipped = row, .why = why};
    k->fn(k->ctx, &line);
}

/* Seconds of one run with the numbers of this step in place of the bounds: measured, or the larger of
 * its bytes and its arithmetic at the ceilings. */
static double predict(const sop_super *s, const sop_module *m, const sop_row *row,
                      const sop_any_desc *desc, int32_t seqs, int64_t tokens, int64_t length)
{
    const sop_facts *f = sop_planner_facts(s->planner);
    const double ns = sop_planner_time_ns(s->planner, m->op, desc, row->name);
    if (ns > 0) return ns * 1e-9;
    sop_any_desc real = *desc;
    sop_cost c;
    real.extent = m->extent == SOP_EXTENT_TOKENS ? seqs * tokens : seqs;
    if (m->op == &sop_op_attention) {
        real.attention.seqs = seqs;
        real.attention.max_kv = length;
    }
    m->op->cost(&real, &c);
    const double peak = row->traits & SOP_ROW_QUANT_X ? f->i8_ops_s : f->f32_flops_s;
    const double memory =
        f->read_bytes_s > 0 ? (c.read_bytes + c.write_bytes) / f->read_bytes_s : 0;
    const double math = peak > 0 ? c.flops / peak : 0;
    return memory > math ? memory : math;
}

static void say_paths(sop_super *s, int32_t seqs, int64_t tokens, int64_t length, char *out,
                      size_t cap)
{
    const sop_config *c = &s->config;
    const double free_gb = sop_super_free_bytes(s) * 0x1p-30;
    const uint32_t paths = sop_steps_paths(s, seqs, tokens, length);
    (void)snprintf(
        out, cap,
        "candidates:%s%s%s; ring asks for a sequence of %lld tokens (longest %lld) and %.2f GB free "
        "(%.2f)%s, tiled for at most %lld sequences (%d) of at most 16 new tokens (%lld)%s",
        paths & SOP_ROW_RING ? " ring" : "", paths & SOP_ROW_TILED ? " tiled" : "",
        paths & SOP_ROW_FLASH ? " flash" : "", (long long)c->thresholds.min_seq_for_ring,
        (long long)length, c->thresholds.min_free_mem_for_ring_gb, free_gb,
        c->modules.ring_attn ? "" : " and is off (ring_attn)",
        (long long)c->thresholds.max_batch_for_tiled, seqs, (long long)tokens,
        c->modules.flash_attn ? "" : "; flash is off (flash_attn)");
}

/* The first of the modules planned alike, and how many there are. */
static int32_t gather(const sop_super *s, const sop_steps *steps, struct said *said)
{
    int32_t n_said = 0;
    for (int32_t n = 0; n < steps->n_nodes; n++) {
        const sop_node *node = &steps->nodes[n];
        const sop_module *m = &s->program->modules[node->module];
        struct said *k = said;
        while (k < said + n_said &&
               !(k->node->row == node->row && strcmp(k->module->kind, m->kind) == 0 &&
                 memcmp(steps->desc_of[k->node->module], steps->desc_of[node->module],
                        m->op->desc_bytes) == 0))
            k++;
        if (k == said + n_said++)
            *k = (struct said){m, node, 0};
        else
            n_said--;
        k->repeats++;
    }
    return n_said;
}

static void say(sop_super *s, const sop_steps *steps, const struct said *k, int32_t seqs,
                int64_t tokens, int64_t length, sop_explain_fn *fn, void *ctx)
{
    const sop_program *p = s->program;
    const sop_module *m = k->module;
    const sop_node *node = k->node;
    char note[1024];
    if (m->folded) {
        const sop_explain_line folded = {
            .module = m->folded, .layer = m->layer, .repeats = k->repeats, .note = m->note};
        fn(ctx, &folded);
    }
    sop_explain_line line = {.module = m->kind,
                             .layer = m->layer,
                             .repeats = k->repeats,
                             .variant = node->row->name,
                             .note = note,
                             .scratch_bytes = node->split.scratch_bytes};
    for (int32_t i = 0; i < node->n_modules; i++)
        line.predicted_s += predict(s, &p->modules[node->module + i], node->row,
                                    &steps->descs[node->module + i], seqs, tokens, length);
    if (node->n_modules > 1)
        (void)snprintf(note, sizeof note, "a span over %d modules, to the %s of layer %d",
                       node->n_modules, p->modules[node->module + node->n_modules - 1].kind,
                       p->modules[node->module + node->n_modules - 1].layer);
    else
        sop_desc_print(m->op, &steps->descs[node->module], note, sizeof note);
    fn(ctx, &line);
    if (m->op == &sop_op_attention) {
        const sop_explain_line paths = {.module = m->kind, .layer = m->layer, .note = note};
        say_paths(s, seqs, tokens, length, note, sizeof note);
        fn(ctx, &paths);
    }
    if (node->n_modules > 1) return;
    /* why spans that start here were passed over, then why rows were */
    int32_t covered;
    struct skips skips = {fn, ctx, m};
    sop_choice choice;
    const uint32_t bound = sop_steps_bound(s, m);
    (void)sop_planner_span(s->planner, &steps->op_of[node->module], &steps->desc_of[node->module],
                           p->n_modules - node->module, bound, s->scratch_bytes, say_skip, &skips,
                           &choice, &covered);
    (void)!sop_planner_explain(s->planner, m->op, &steps->descs[node->module],
                               bound | SOP_CHOOSE_PREPARE, s->scratch_bytes, say_skip, &skips,
                               &choice);
}

/* Whether a node writes operand a of its call. */
static bool writes(const sop_super *s, const sop_node *node, int32_t a)
{
    int32_t i = node->module;
    while (a >= s->program->modules[i].op->n_roles) a -= s->program->modules[i++].op->n_roles;
    return (s->program->modules[i].op->roles[a].flags & SOP_ROLE_OUT) != 0;
}

/* Whether two nodes touch the same bytes and one of them writes there. */
static bool depend(const sop_super *s, const sop_node *x, const sop_node *y)
{
    for (int32_t a = 0; a < (int32_t)x->call.n_args; a++)
        for (int32_t b = 0; b < (int32_t)y->call.n_args; b++) {
            const sop_operand *p = &x->call.args[a], *q = &y->call.args[b];
            if (p->data && q->data && (char *)p->data < (char *)q->data + q->bytes &&
                (char *)q->data < (char *)p->data + p->bytes &&
                (writes(s, x, a) || writes(s, y, b)))
                return true;
        }
    return false;
}

/* The longest chain of nodes that need each other: what a device could not run beside each other. */
static sop_status say_flow(const sop_super *s, const sop_steps *steps, char *out, size_t cap)
{
    int32_t *depth = calloc((size_t)steps->n_nodes + 1, sizeof *depth), longest = 0;
    if (!depth) return sop_fail(SOP_E_NOMEM, "explain: %d nodes", steps->n_nodes);
    for (int32_t i = 0; i < steps->n_nodes; i++) {
        for (int32_t k = 0; k < i; k++)
            if (depth[k] > depth[i] && depend(s, &steps->nodes[k], &steps->nodes[i]))
                depth[i] = depth[k];
        depth[i]++;
        if (depth[i] > longest) longest = depth[i];
    }
    free(depth);
    (void)snprintf(
        out, cap,
        "%d nodes one behind the other, %d of them in a chain of which each needs the one before",
        steps->n_nodes, longest);
    return SOP_OK;
}

sop_status sop_super_explain(sop_super *s, int32_t seqs, int64_t tokens, int64_t length,
                             sop_explain_fn *fn, void *ctx)
{
    const sop_super_facts *f = &s->facts;
    const sop_config *c = &s->config;
    if (seqs < 1 || tokens < 1 || length < tokens || length > f->ctx || seqs > f->max_seqs)
        return sop_fail(
            SOP_E_ARG,
            "explain: %d sequences of %lld new tokens, %lld long; at most %d of %lld fit", seqs,
            (long long)tokens, (long long)length, f->max_seqs, (long long)f->ctx);
    /* a longer prompt runs in several steps of max_tokens */
    const int64_t step = seqs * tokens < f->max_tokens ? seqs * tokens : f->max_tokens;
    const sop_step_class class =
        sop_steps_class(s, (int32_t)step, seqs, seqs < f->max_outs ? seqs : f->max_outs,
                        sop_steps_paths(s, seqs, tokens, length), length);
    struct said *said = calloc((size_t)f->n_modules + 1, sizeof *said);
    if (!said) return sop_fail(SOP_E_NOMEM, "explain: %d modules", f->n_modules);
    sop_steps *steps;
    const sop_status status = sop_steps_make(s, &class, s->scratch_bytes, &steps);
    if (status != SOP_OK) {
        free(said);
        return status;
    }
    const int32_t n = gather(s, steps, said);
    for (int32_t i = 0; i < n; i++) say(s, steps, &said[i], seqs, tokens, length, fn, ctx);
    static const char *const guards[] = {"off", "sample", "always"};
    char note[512];
    (void)snprintf(note, sizeof note,
                   c->fallback.enable
                       ? "guard %s; a module that fails is tried %d more times, then its row is "
                         "quarantined and the next one takes over; after the n-th fault the next "
                         "16 x %.3g^n steps are guarded whole"
                       : "guard %s; fallback is off: a module that fails fails the step",
                   guards[c->guard], c->fallback.max_retries, c->fallback.backoff_factor);
    const sop_explain_line ladder = {.module = "ladder", .layer = -1, .note = note};
    fn(ctx, &ladder);
    const sop_explain_line flow = {.module = "flow", .layer = -1, .note = note};
    const sop_status flowed = say_flow(s, steps, note, sizeof note);
    if (flowed == SOP_OK) fn(ctx, &flow);
    sop_steps_destroy(s, steps);
    free(said);
    return flowed;
}
