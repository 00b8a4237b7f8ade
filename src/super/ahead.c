/* Steps ahead: behind the sampler stands a node that makes of a step's inputs those of the next, so that one
 * recording replayed n times decodes n tokens of each sequence without the host. */
#include <stddef.h>

#include "base/clock.h"
#include "base/status.h"
#include "ops/ops.h"
#include "super/state.h"

/* Elements from one KV group's part of an input to the next one's. */
static int64_t apart(const sop_super *s, int32_t kind, int32_t tokens)
{
    if (sop_kv_n_groups(s->kv) < 2) return 0;
    return ((char *)sop_input(s, kind, 1, tokens).data -
            (char *)sop_input(s, kind, 0, tokens).data) /
           4;
}

/* An input of all KV groups. */
static sop_operand input(const sop_super *s, int32_t kind, int32_t tokens)
{
    sop_operand x = sop_input(s, kind, 0, tokens);
    x.bytes += 4 * (size_t)apart(s, kind, tokens) * (size_t)(sop_kv_n_groups(s->kv) - 1);
    return x;
}

sop_status sop_ahead_plan(sop_super *s, sop_steps *steps)
{
    const int32_t groups = sop_kv_n_groups(s->kv), tokens = steps->class.tokens;
    sop_choice choice;
    if (steps->ahead.row) return SOP_OK;
    /* groups lie equally far apart */
    const sop_operand table = input(s, SOP_INPUT_TABLE, tokens),
                      slots = input(s, SOP_INPUT_SLOTS, tokens);
    sop_advance_desc d = {.rows = steps->class.outs,
                          .groups = groups,
                          .pages = sop_kv_table_stride(s->kv),
                          .page = SOP_KV_PAGE,
                          .steps = SOP_MOST_AHEAD,
                          .table_group = apart(s, SOP_INPUT_TABLE, tokens),
                          .slots_group = apart(s, SOP_INPUT_SLOTS, tokens),
                          .counter_stride = sizeof(sop_sampling) / 4,
                          .said_stride = s->facts.max_outs};
    sop_op_advance.complete(&d);
    SOP_TRY(sop_op_advance.check(&d));
    SOP_TRY(
        sop_planner_choose(s->planner, &sop_op_advance, &d, s->bound, s->scratch_bytes, &choice));
    const sop_operand ids = sop_input(s, SOP_INPUT_IDS, 0, tokens);
    const sop_operand pos = sop_input(s, SOP_INPUT_POS, 0, tokens);
    const sop_operand len = sop_input(s, SOP_INPUT_KV_LEN, 0, tokens);
    const sop_operand sampling = sop_input(s, SOP_INPUT_SAMPLING, 0, tokens);
    const sop_operand counter = {(char *)sampling.data + offsetof(sop_sampling, counter),
                                 sampling.bytes - offsetof(sop_sampling, counter)};
    const sop_operand count = {(char *)s->inputs + s->step_at, 4};
    const sop_operand said = {(char *)s->inputs + s->said_at, s->input_bytes - s->said_at};
    const sop_operand args[SOP_ADVANCE_ROLES] = {
        [SOP_ADVANCE_NEXT] = sop_input(s, SOP_INPUT_NEXT, 0, tokens),
        [SOP_ADVANCE_TABLE] = table,
        [SOP_ADVANCE_POS] = pos,
        [SOP_ADVANCE_KV_LEN] = len,
        [SOP_ADVANCE_COUNTER] = counter,
        [SOP_ADVANCE_COUNT] = count,
        [SOP_ADVANCE_LIVE] = sop_input_live(s, SOP_EXTENT_SEQS),
        [SOP_ADVANCE_IDS_OUT] = ids,
        [SOP_ADVANCE_POS_OUT] = pos,
        [SOP_ADVANCE_KV_LEN_OUT] = len,
        [SOP_ADVANCE_COUNTER_OUT] = counter,
        [SOP_ADVANCE_SLOTS_OUT] = slots,
        [SOP_ADVANCE_SAID_OUT] = said,
        [SOP_ADVANCE_COUNT_OUT] = count,
    };
    for (int i = 0; i < SOP_ADVANCE_ROLES; i++) steps->ahead.args[i] = args[i];
    steps->ahead.row = choice.row;
    steps->ahead.desc = d;
    steps->ahead.split = choice.split;
    steps->ahead.call = (sop_call){.size = sizeof(sop_call),
                                   .n_args = SOP_ADVANCE_ROLES,
                                   .desc = &steps->ahead.desc,
                                   .args = steps->ahead.args,
                                   .split = &steps->ahead.split,
                                   .prepared = choice.prepared,
                                   .scratch = s->scratch,
                                   .queue = s->queue};
    return SOP_OK;
}

static sop_status plan(sop_super *s, const sop_step_class *class, sop_steps **steps)
{
    SOP_TRY(sop_steps_get(s, class, steps));
    return sop_ahead_plan(s, *steps);
}

/* Each step for itself; again: with the ladder, after they failed in one go. */
static sop_status one_by_one(sop_super *s, const sop_step_class *class, int32_t n, bool again)
{
    for (int32_t k = 0; k < n; k++) {
        sop_steps *steps;
        SOP_TRY(plan(s, class, &steps));
        SOP_TRY(again ? sop_run_again(s, class) : sop_run_steps(s, steps));
        SOP_TRY(plan(s, class, &steps)); /* a row may have been replaced */
        SOP_TRY(s->device->ops->submit(s->queue, steps->ahead.row, &steps->ahead.call));
    }
    return s->device->ops->wait(s->queue);
}

/* What was sampled, to next; whether all of it is an id. */
static sop_status said(sop_super *s, int32_t n, int32_t *next, bool *all)
{
    const int32_t stride = s->facts.max_outs;
    int32_t *host = (int32_t *)((char *)s->staging + s->said_at);
    if (s->staging != s->inputs) {
        SOP_TRY(s->device->ops->copy(s->queue, host, (char *)s->inputs + s->said_at,
                                     (size_t)n * (size_t)stride * sizeof *host, SOP_COPY_OUT));
        SOP_TRY(s->device->ops->wait(s->queue));
    }
    *all = true;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < s->n_seqs; i++) {
            next[k * s->n_seqs + i] = host[k * stride + i];
            *all &= host[k * stride + i] >= 0;
        }
    return SOP_OK;
}

static sop_status run(sop_super *s, const sop_step_item *items, const sop_step_class *class,
                      int32_t n, int32_t *next)
{
    sop_steps *steps;
    bool all = false;
    SOP_TRY(plan(s, class, &steps));
    SOP_TRY(sop_inputs_send(s, items, s->n_seqs));
    sop_status status = sop_run_ahead(s, steps, n);
    const bool together = status != SOP_E_UNSUPPORTED;
    if (!together) status = one_by_one(s, class, n, false);
    if (status == SOP_OK) status = said(s, n, next, &all);
    if (status == SOP_OK && (all || s->config.guard == SOP_GUARD_OFF)) return SOP_OK;
    if (status != SOP_OK && (!s->config.fallback.enable || !together)) return status;
    /* the pages up to where the sequences stood are as they were: from there again */
    SOP_TRY(sop_inputs_send(s, items, s->n_seqs));
    SOP_TRY(one_by_one(s, class, n, true));
    return said(s, n, next, &all);
}

sop_status sop_super_ahead(sop_super *s, const sop_step_item *items, int32_t n_items,
                           int32_t n_steps, int32_t *next)
{
    sop_step_class class;
    const double t0 = sop_now_s();
    if (s->logits_only) return sop_fail(SOP_E_ARG, "ahead: here nothing is sampled");
    if (n_steps < 1 || n_steps > SOP_MOST_AHEAD || n_steps > s->facts.max_tokens)
        return sop_fail(SOP_E_LIMIT, "ahead: %d steps, must be 1 to %d", n_steps,
                        SOP_MOST_AHEAD < s->facts.max_tokens ? SOP_MOST_AHEAD
                                                             : s->facts.max_tokens);
    for (int32_t i = 0; i < n_items; i++)
        if (items[i].n_ids != 1 || items[i].want != SOP_WANT_LAST)
            return sop_fail(SOP_E_ARG,
                            "ahead: sequence %d brings %d tokens and wants %d, must be 1 and %d",
                            items[i].seq, items[i].n_ids, items[i].want, SOP_WANT_LAST);
    SOP_TRY(sop_super_sense(s, items, n_items, true, n_steps, &class));
    int32_t reserved = 0;
    sop_status status = SOP_OK;
    while (reserved < n_items && status == SOP_OK) {
        status = sop_super_reserve(s, items[reserved].seq, n_steps);
        if (status == SOP_OK) reserved++;
    }
    if (status == SOP_OK) status = run(s, items, &class, n_steps, next);
    for (int32_t i = 0; i < reserved; i++) {
        if (status == SOP_OK)
            sop_kv_commit(s->kv, items[i].seq, n_steps);
        else
            sop_kv_rollback(s->kv, items[i].seq);
    }
    s->counts.steps += (uint64_t)n_steps;
    s->counts.run_s += sop_now_s() - t0;
    return status;
}
