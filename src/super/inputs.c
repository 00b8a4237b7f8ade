/* A step's inputs in one block: what changes from step to step is data here, never a plan.
 *
 *     counts | by sequence and row of output | by token, for few tokens | by token, for many | tables | said
 *     [ ----------------- head: sent whole, in one copy -------------- ]  [ live ones ]  [ changed rows ]
 *
 * So a decode step sends some kilobytes, however long a prompt or a sequence may be. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "super/state.h"

enum { FEW = 256 }; /* a rung of the classes */

static bool is_by_token(int32_t kind)
{
    return kind == SOP_INPUT_IDS || kind == SOP_INPUT_POS || kind == SOP_INPUT_SLOTS;
}

static size_t input_bytes(const sop_super *s, int32_t kind)
{
    const sop_super_facts *f = &s->facts;
    switch (kind) {
    case SOP_INPUT_Q_START: return ((size_t)f->max_seqs + 1) * 4;
    case SOP_INPUT_KV_LEN: return (size_t)f->max_seqs * 4;
    case SOP_INPUT_TABLE: return (size_t)f->max_seqs * (size_t)sop_kv_table_stride(s->kv) * 4;
    case SOP_INPUT_SAMPLING: return (size_t)f->max_outs * sizeof(sop_sampling);
    case SOP_INPUT_OUT_ROWS:
    case SOP_INPUT_NEXT: return (size_t)f->max_outs * 4;
    default: return (size_t)f->max_tokens * 4;
    }
}

/* Lays down the inputs that are by token or not, or the tables. */
static size_t lay(sop_super *s, size_t at, bool by_token, bool tables, bool few)
{
    for (int32_t k = 0; k < SOP_N_INPUTS; k++) {
        const bool grouped = k == SOP_INPUT_SLOTS || k == SOP_INPUT_TABLE;
        if (is_by_token(k) != by_token || (k == SOP_INPUT_TABLE) != tables) continue;
        for (int32_t g = 0; g < (grouped ? sop_kv_n_groups(s->kv) : 1); g++) {
            (few ? s->few_at : s->input_at)[k][g] = at;
            at += ((few ? (size_t)FEW * 4 : input_bytes(s, k)) + 63) & ~(size_t)63;
        }
    }
    return at;
}

sop_status sop_inputs_layout(sop_super *s)
{
    s->live_at = 0;   /* tokens, seqs, outs */
    s->count_at = 64; /* of the guard */
    s->step_at = 128; /* of steps ahead */
    const size_t few_from = lay(s, 192, false, false, false);
    s->head_bytes = lay(s, few_from, true, false, true);
    size_t at = s->head_bytes;
    if (s->facts.max_tokens > FEW) at = lay(s, at, true, false, false);
    s->said_at = lay(s, at, false, true, false);
    s->input_bytes =
        s->said_at + (((size_t)SOP_MOST_AHEAD * (size_t)s->facts.max_outs * 4 + 63) & ~(size_t)63);
    s->table_row = calloc((size_t)sop_kv_table_stride(s->kv) + 1, sizeof *s->table_row);
    return s->table_row ? SOP_OK : sop_fail(SOP_E_NOMEM, "super: a page table");
}

/* Where an input of a step of so many tokens lies. */
static size_t place_of(const sop_super *s, int32_t kind, int32_t group, int32_t tokens)
{
    return (is_by_token(kind) && tokens <= FEW ? s->few_at : s->input_at)[kind][group];
}

sop_operand sop_input(const sop_super *s, int32_t kind, int32_t group, int32_t tokens)
{
    const bool few = is_by_token(kind) && tokens <= FEW;
    return (sop_operand){(char *)s->inputs + place_of(s, kind, group, tokens),
                         few ? (size_t)FEW * 4 : input_bytes(s, kind)};
}

sop_operand sop_input_live(const sop_super *s, int32_t extent)
{
    return (sop_operand){(char *)s->inputs + s->live_at + 4 * (size_t)extent, 4};
}

static void *host_of(const sop_super *s, int32_t kind, int32_t group)
{
    return (char *)s->staging + place_of(s, kind, group, s->n_tokens);
}

/* The tables of a step's sequences; what is on the device already is not sent again. */
static sop_status send_tables(sop_super *s, const sop_step_item *items, int32_t n_items)
{
    const size_t stride = (size_t)sop_kv_table_stride(s->kv), bytes = stride * sizeof(int32_t);
    for (int32_t g = 0; g < sop_kv_n_groups(s->kv); g++) {
        int32_t *table = host_of(s, SOP_INPUT_TABLE, g), first = n_items, last = -1;
        for (int32_t i = 0; i < n_items; i++) {
            int32_t *row = table + (size_t)i * stride;
            if (s->staging == s->inputs) {
                sop_kv_table(s->kv, g, items[i].seq, row);
                continue;
            }
            memcpy(s->table_row, row, bytes);
            sop_kv_table(s->kv, g, items[i].seq, s->table_row);
            if (!s->tables_lost && memcmp(s->table_row, row, bytes) == 0) continue;
            memcpy(row, s->table_row, bytes);
            if (i < first) first = i;
            last = i;
        }
        if (last < 0) continue;
        const size_t at = s->input_at[SOP_INPUT_TABLE][g] + (size_t)first * bytes;
        const sop_status status =
            s->device->ops->copy(s->queue, (char *)s->inputs + at, (char *)s->staging + at,
                                 (size_t)(last - first + 1) * bytes, SOP_COPY_IN);
        if (status != SOP_OK) {
            s->tables_lost = true;
            return status;
        }
    }
    s->tables_lost = false;
    return SOP_OK;
}

sop_status sop_inputs_send(sop_super *s, const sop_step_item *items, int32_t n_items)
{
    int32_t *ids = host_of(s, SOP_INPUT_IDS, 0), *pos = host_of(s, SOP_INPUT_POS, 0);
    int32_t *q_start = host_of(s, SOP_INPUT_Q_START, 0);
    int32_t *kv_len = host_of(s, SOP_INPUT_KV_LEN, 0);
    int32_t *out_rows = host_of(s, SOP_INPUT_OUT_ROWS, 0);
    sop_sampling *sampling = host_of(s, SOP_INPUT_SAMPLING, 0);
    int32_t t = 0, o = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const sop_step_item *it = &items[i];
        const int64_t length = sop_kv_length(s->kv, it->seq);
        q_start[i] = t;
        kv_len[i] = (int32_t)(length + it->n_ids);
        for (int32_t g = 0; g < sop_kv_n_groups(s->kv); g++) {
            int32_t *slots = host_of(s, SOP_INPUT_SLOTS, g);
            for (int32_t k = 0; k < it->n_ids; k++)
                slots[t + k] = sop_kv_slot(s->kv, g, it->seq, length + k);
        }
        for (int32_t k = 0; k < it->n_ids; k++, t++) {
            ids[t] = it->ids ? it->ids[k] : 0;
            pos[t] = (int32_t)(length + k);
            if (it->want == SOP_WANT_ALL || (it->want == SOP_WANT_LAST && k == it->n_ids - 1)) {
                sampling[o] = it->sampling;
                sampling[o].counter = it->sampling.counter + (uint64_t)k;
                if (it->want == SOP_WANT_LAST) sampling[o].counter = it->sampling.counter;
                out_rows[o++] = t;
            }
        }
    }
    q_start[n_items] = t;
    int32_t *live = (int32_t *)((char *)s->staging + s->live_at);
    live[SOP_EXTENT_TOKENS] = t;
    live[SOP_EXTENT_SEQS] = n_items;
    live[SOP_EXTENT_OUTS] = o;
    *(int32_t *)((char *)s->staging + s->step_at) = 0;
    SOP_TRY(send_tables(s, items, n_items));
    if (s->staging == s->inputs) return SOP_OK;
    const sop_device_ops *ops = s->device->ops;
    if (t > FEW)
        for (int32_t k = 0; k < SOP_N_INPUTS; k++)
            for (int32_t g = 0;
                 is_by_token(k) && g < (k == SOP_INPUT_SLOTS ? sop_kv_n_groups(s->kv) : 1); g++)
                SOP_TRY(ops->copy(s->queue, sop_input(s, k, g, t).data, host_of(s, k, g),
                                  (size_t)t * 4, SOP_COPY_IN));
    return ops->copy(s->queue, s->inputs, s->staging, s->head_bytes, SOP_COPY_IN);
}

static sop_status take(const sop_super *s, int32_t kind, const int32_t *from)
{
    if (!from) return SOP_OK;
    return s->device->ops->copy(s->queue, sop_input(s, kind, 0, s->n_tokens).data, from,
                                (size_t)s->n_tokens * sizeof *from, SOP_COPY_WITHIN);
}

sop_status sop_inputs_take(sop_super *s, const int32_t *ids, const int32_t *pos)
{
    SOP_TRY(take(s, SOP_INPUT_IDS, ids));
    return take(s, SOP_INPUT_POS, pos);
}
