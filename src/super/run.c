/* A planned step, run. Without faults that is one submit a node, or one replay. A fault steps down the
 * ladder, module by module: the module is tried again as often as the configuration says, then its
 * row goes into quarantine, the rest of the step is planned anew (every other module keeps its row)
 * and goes on from that module. Nothing sleeps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "super/state.h"

enum { ALONE_STEPS = 1000 };

/* Some faults take the device with them: nothing runs there until the process ends. What was under way
 * alone is never used again; of several rows, the next start runs each alone until it knows which. */
static void blame(sop_super *s, const char *row, sop_status status)
{
    char why[256];
    if (status != SOP_E_DEVICE || s->blamed) return;
    (void)snprintf(why, sizeof why, "%s", sop_last_error());
    (void)!s->device->ops->wait(s->queue); /* may be the one that finds out */
    s->blamed = s->device->ops->wait(s->queue) == SOP_E_INTERNAL;
    if (s->blamed) {
        (void)!sop_planner_quarantine(s->planner, row, why);
        if (strcmp(row, SOP_RUN_TOGETHER) != 0)
            (void)!sop_planner_release(s->planner, SOP_RUN_TOGETHER);
        s->counts.quarantines++;
    }
    (void)sop_fail(status, "%s", why);
}

static sop_status submit(sop_super *s, const sop_node *node)
{
    const sop_device_ops *ops = s->device->ops;
    if (!node->mark) return ops->submit(s->queue, node->row, &node->call);
    SOP_TRY(ops->wait(s->queue)); /* the mark, and a fault, is this row's alone */
    sop_mark_set(s->mark, node->mark);
    sop_status status = ops->submit(s->queue, node->row, &node->call);
    if (status == SOP_OK) status = ops->wait(s->queue);
    sop_mark_clear(s->mark);
    blame(s, node->row->name, status);
    return status;
}

/* Are the values of a node's guarded outputs finite? A span is judged by its last module's. A guard
 * that cannot look is not the row's fault: SOP_E_INTERNAL. */
static sop_status guard(sop_super *s, const sop_steps *steps, const sop_node *node)
{
    const int32_t last = node->module + node->n_modules - 1;
    const sop_module *m = &s->program->modules[last];
    if (m->guard < 0) return SOP_OK;
    int32_t arg = node->first_arg + m->guard;
    for (int32_t i = node->module; i < last; i++) arg += s->program->modules[i].op->n_roles;
    sop_tensor v;
    m->op->view(&steps->descs[last], m->guard, &v);
    if (v.dtype < 0 || !steps->args[arg].data) return SOP_OK;
    int64_t row = 1;
    for (int32_t i = 1; i < v.ndim; i++) row *= v.shape[i];
    sop_finite_desc d = {.tokens = v.shape[0],
                         .dim = row,
                         .x_stride = v.stride[0],
                         .x_dtype = v.dtype,
                         .allow_neg_inf = 0};
    sop_op_finite.complete(&d);
    sop_choice c;
    if (sop_planner_choose(s->planner, &sop_op_finite, &d, 0, s->scratch_bytes, &c) != SOP_OK)
        return SOP_E_INTERNAL;
    const sop_operand args[SOP_FINITE_ROLES] = {
        [SOP_FINITE_X] = steps->args[arg],
        [SOP_FINITE_LIVE] = sop_input_live(s, m->extent),
        [SOP_FINITE_COUNT] = {(char *)s->inputs + s->count_at, 4},
    };
    const sop_call call = {.size = sizeof call,
                           .n_args = SOP_FINITE_ROLES,
                           .desc = &d,
                           .args = args,
                           .split = &c.split,
                           .scratch = s->scratch,
                           .queue = s->queue};
    int32_t count = 0;
    s->counts.guard_checks++;
    SOP_TRY(s->device->ops->submit(s->queue, c.row, &call));
    SOP_TRY(
        s->device->ops->copy(s->queue, &count, (char *)s->inputs + s->count_at, 4, SOP_COPY_OUT));
    SOP_TRY(s->device->ops->wait(s->queue));
    if (count == 0) return SOP_OK;
    s->counts.guard_trips++;
    return sop_fail(SOP_E_NUMERIC, "%s: %d values of the %s of layer %d are not finite",
                    node->row->name, count, m->kind, m->layer);
}

/* Outputs that are also inputs of this node: a retry must find them as they were. */
static sop_status copy_in_place(sop_super *s, const sop_node *node, bool save)
{
    size_t at = s->save_at;
    int32_t arg = 0;
    for (int32_t i = node->module; i < node->module + node->n_modules; i++) {
        const sop_op *op = s->program->modules[i].op;
        for (int32_t a = 0; a < op->n_roles; a++, arg++) {
            const sop_operand *x = &node->call.args[arg];
            if (!x->data || !(op->roles[a].flags & SOP_ROLE_OUT) ||
                (op->roles[a].flags & SOP_ROLE_PARTIAL))
                continue;
            bool read = false;
            int32_t k = 0, left = s->program->modules[node->module].op->n_roles;
            for (int32_t b = 0; b < (int32_t)node->call.n_args; b++) {
                const sop_op *of = s->program->modules[node->module + k].op;
                read |= !(of->roles[of->n_roles - left].flags & SOP_ROLE_OUT) &&
                        node->call.args[b].data == x->data;
                if (--left == 0 && ++k < node->n_modules)
                    left = s->program->modules[node->module + k].op->n_roles;
            }
            if (!read) continue;
            if (at + x->bytes > s->save_at + s->save_bytes)
                return sop_fail(SOP_E_INTERNAL, "%s: no room to save %zu bytes", node->row->name,
                                x->bytes);
            void *kept = (char *)s->arena + at;
            SOP_TRY(s->device->ops->copy(s->queue, save ? kept : x->data, save ? x->data : kept,
                                         x->bytes, SOP_COPY_WITHIN));
            at += (x->bytes + 63) & ~(size_t)63;
        }
    }
    return SOP_OK;
}

static bool guard_due(const sop_super *s, int32_t node)
{
    if (s->config.guard == SOP_GUARD_OFF) return false;
    return s->config.guard == SOP_GUARD_ALWAYS || s->counts.steps < s->watch_until ||
           node == s->guard_turn;
}

static void fault(sop_super *s, const sop_node *node, sop_status status, int32_t attempt)
{
    /* Watched for longer after each fault: 16 steps, times the backoff factor each time. */
    const double steps =
        16 * pow(s->config.fallback.backoff_factor, s->faults < 32 ? s->faults : 32);
    s->faults++;
    s->watch_until = s->counts.steps + 1 + (uint64_t)fmin(steps, 1e9);
    sop_log_once(SOP_LOG_WARN, "super", node->row->name,
                 "fault row=%s module=\"%s\" layer=%d attempt=%d status=%d why=\"%s\"",
                 node->row->name, s->program->modules[node->module].kind,
                 s->program->modules[node->module].layer, attempt, (int)status, sop_last_error());
}

/* One node, retried. careful: every node is waited for. */
static sop_status run_node(sop_super *s, const sop_steps *steps, const sop_node *node, bool check)
{
    const int32_t retries = s->config.fallback.enable ? s->config.fallback.max_retries : 0;
    SOP_TRY(copy_in_place(s, node, true));
    for (int32_t attempt = 1;; attempt++) {
        sop_status status = submit(s, node);
        if (status == SOP_OK) status = s->device->ops->wait(s->queue);
        if (!node->mark) blame(s, node->row->name, status);
        if (status == SOP_OK && check) status = guard(s, steps, node);
        if (status == SOP_OK || status == SOP_E_INTERNAL) return status;
        fault(s, node, status, attempt);
        if (attempt > retries) return status;
        s->counts.retries++;
        SOP_TRY(copy_in_place(s, node, false));
    }
}

/* From a module on, each node alone, with the ladder. all: guard every node. */
static sop_status run_carefully(sop_super *s, sop_steps *steps, bool all)
{
    int32_t i = 0;
    while (i < steps->n_nodes) {
        const sop_node *node = &steps->nodes[i];
        const bool check = s->config.guard != SOP_GUARD_OFF && (all || guard_due(s, i));
        const sop_status status = run_node(s, steps, node, check);
        if (status == SOP_OK) {
            i++;
            continue;
        }
        if (!s->config.fallback.enable || (node->row->traits & SOP_ROW_REFERENCE) ||
            status == SOP_E_INTERNAL)
            return status;
        char why[256];
        (void)snprintf(why, sizeof why, "%s", sop_last_error());
        const int32_t module = node->module;
        const sop_step_class class = steps->class;
        SOP_TRY(sop_planner_quarantine(s->planner, node->row->name, why));
        s->counts.quarantines++;
        s->counts.step_downs++;
        SOP_TRY(copy_in_place(s, node, false));
        SOP_TRY(sop_steps_get(s, &class, &steps)); /* the one in hand is gone from here on */
        for (i = 0; i < steps->n_nodes && steps->nodes[i].module < module;) i++;
    }
    return SOP_OK;
}

static bool has_marks(const sop_steps *steps)
{
    for (int32_t i = 0; i < steps->n_nodes; i++)
        if (steps->nodes[i].mark) return true;
    return false;
}

static bool is_recorded(const sop_super *s, const sop_steps *steps)
{
    return s->use_graphs && steps->class.tokens < SOP_RUN_PLAINLY && !has_marks(steps);
}

static sop_status keep(const sop_super *s, const sop_row *row, const sop_call *call)
{
    sop_call kept = *call;
    kept.queue = s->own;
    return s->device->ops->submit(s->own, row, &kept);
}

static sop_status record(sop_super *s, const sop_steps *steps, bool ahead, sop_graph **out)
{
    const sop_device_ops *ops = s->device->ops;
    SOP_TRY(ops->record_begin(s->own));
    sop_status status = SOP_OK;
    for (int32_t i = 0; i < steps->n_nodes && status == SOP_OK; i++)
        status = keep(s, steps->nodes[i].row, &steps->nodes[i].call);
    if (status == SOP_OK && ahead) status = keep(s, steps->ahead.row, &steps->ahead.call);
    sop_graph *g = NULL;
    const sop_status ended = ops->record_end(s->own, &g);
    if (status == SOP_OK) status = ended;
    if (status != SOP_OK) {
        if (g) ops->graph_destroy(g);
        return status;
    }
    *out = g;
    return SOP_OK;
}

sop_status sop_run_record(sop_super *s, sop_steps *steps)
{
    if (!is_recorded(s, steps)) return SOP_OK;
    if (!steps->graph) {
        SOP_TRY(record(s, steps, false, &steps->graph));
        s->counts.graphs++;
    }
    if (steps->ahead.row && !steps->ahead.graph)
        SOP_TRY(record(s, steps, true, &steps->ahead.graph));
    return SOP_OK;
}

/* Whether a node stands for another of the same row: what differs are addresses. */
static bool is_like(const sop_super *s, const sop_steps *steps, const sop_node *a,
                    const sop_node *b)
{
    return a->row == b->row && a->n_modules == b->n_modules &&
           memcmp(&steps->descs[a->module], &steps->descs[b->module],
                  s->program->modules[a->module].op->desc_bytes) == 0;
}

sop_status sop_run_touch(sop_super *s, const sop_steps *steps)
{
    enum { MOST_KINDS = 64 };
    const sop_node *kinds[MOST_KINDS];
    const sop_device_ops *ops = s->device->ops;
    int32_t n = 0;
    SOP_TRY(ops->record_begin(s->own));
    sop_status status = SOP_OK;
    for (int32_t i = 0; i < steps->n_nodes && status == SOP_OK; i++) {
        const sop_node *node = &steps->nodes[i];
        int32_t k = 0;
        while (k < n && !is_like(s, steps, kinds[k], node)) k++;
        if (k < n || node->mark) continue; /* what has a mark may fail, and runs alone */
        if (n < MOST_KINDS) kinds[n++] = node;
        status = keep(s, node->row, &node->call);
    }
    sop_graph *g = NULL;
    const sop_status ended = ops->record_end(s->own, &g);
    if (g) ops->graph_destroy(g);
    return status == SOP_OK ? ended : status;
}

static sop_status run_recorded(sop_super *s, sop_steps *steps)
{
    SOP_TRY(sop_run_record(s, steps));
    s->counts.replays++;
    return s->device->ops->replay(s->queue, steps->graph);
}

sop_status sop_run_ahead(sop_super *s, sop_steps *steps, int32_t n)
{
    sop_status status = SOP_OK;
    if (!is_recorded(s, steps) || s->alone || s->config.guard == SOP_GUARD_ALWAYS ||
        (s->config.guard != SOP_GUARD_OFF && s->counts.steps < s->watch_until))
        return SOP_E_UNSUPPORTED;
    status = sop_run_record(s, steps);
    for (int32_t k = 0; k < n && status == SOP_OK; k++) {
        s->counts.replays++;
        status = s->device->ops->replay(s->queue, steps->ahead.graph);
    }
    if (status == SOP_OK) status = s->device->ops->wait(s->queue);
    blame(s, SOP_RUN_TOGETHER, status);
    return status;
}

/* All nodes behind each other. The one whose turn it is is guarded on its way. */
static sop_status run_plainly(sop_super *s, const sop_steps *steps)
{
    for (int32_t i = 0; i < steps->n_nodes; i++) {
        const sop_node *node = &steps->nodes[i];
        if (!guard_due(s, i)) {
            SOP_TRY(submit(s, node));
            continue;
        }
        SOP_TRY(s->device->ops->wait(s->queue)); /* what fails from here on is this row */
        SOP_TRY(run_node(s, steps, node, true));
    }
    return s->device->ops->wait(s->queue);
}

sop_status sop_run_again(sop_super *s, const sop_step_class *class)
{
    sop_steps *steps;
    /* The step's inputs, and the caches below its slots, are as they were: from the start again. */
    SOP_TRY(sop_steps_get(s, class, &steps));
    s->counts.retries++;
    return run_carefully(s, steps, true);
}

sop_status sop_run_failed(sop_super *s, const sop_step_class *class, sop_status status)
{
    blame(s, SOP_RUN_TOGETHER, status);
    return s->config.fallback.enable ? sop_run_again(s, class) : status;
}

sop_status sop_run_steps(sop_super *s, sop_steps *steps)
{
    const sop_step_class class = steps->class;
    const bool all = s->config.guard == SOP_GUARD_ALWAYS || s->counts.steps < s->watch_until;
    if (s->alone && s->counts.steps >= ALONE_STEPS) { /* it was none of them */
        s->alone = false;
        (void)!sop_planner_release(s->planner, SOP_RUN_TOGETHER);
    }
    if (++s->guard_turn >= steps->n_nodes) s->guard_turn = 0;
    if (s->alone || (all && s->config.guard != SOP_GUARD_OFF)) return run_carefully(s, steps, all);
    const sop_status status =
        is_recorded(s, steps) ? run_recorded(s, steps) : run_plainly(s, steps);
    return status == SOP_OK ? status : sop_run_failed(s, &class, status);
}
