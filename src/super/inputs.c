/* A step's inputs in one block, so that one copy brings them: what changes from step to step is data
 * here, never a plan. */
#include <string.h>

#include "base/status.h"
#include "super/state.h"

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

sop_status sop_inputs_layout(sop_super *s)
{
    size_t at = 0;
    s->live_at = at;
    at += 64; /* tokens, seqs, outs */
    s->count_at = at;
    at += 64; /* of the guard */
    for (int32_t k = 0; k < SOP_N_INPUTS; k++) {
        const bool grouped = k == SOP_INPUT_SLOTS || k == SOP_INPUT_TABLE;
        for (int32_t g = 0; g < (grouped ? sop_kv_n_groups(s->kv) : 1); g++) {
            s->input_at[k][g] = at;
            at += (input_bytes(s, k) + 63) & ~(size_t)63;
        }
    }
    s->step_at = at;
    s->sent_bytes = at + 64;
    s->said_at = s->sent_bytes;
    s->input_bytes =
        s->said_at + (((size_t)SOP_MOST_AHEAD * (size_t)s->facts.max_outs * 4 + 63) & ~(size_t)63);
    return SOP_OK;
}

sop_operand sop_input(const sop_super *s, int32_t kind, int32_t group)
{
    return (sop_operand){(char *)s->inputs + s->input_at[kind][group], input_bytes(s, kind)};
}

sop_operand sop_input_live(const sop_super *s, int32_t extent)
{
    return (sop_operand){(char *)s->inputs + s->live_at + 4 * (size_t)extent, 4};
}

void *sop_input_host(const sop_super *s, int32_t kind, int32_t group)
{
    return (char *)s->staging + s->input_at[kind][group];
}

sop_status sop_inputs_send(sop_super *s, const sop_step_item *items, int32_t n_items)
{
    int32_t *ids = sop_input_host(s, SOP_INPUT_IDS, 0), *pos = sop_input_host(s, SOP_INPUT_POS, 0);
    int32_t *q_start = sop_input_host(s, SOP_INPUT_Q_START, 0);
    int32_t *kv_len = sop_input_host(s, SOP_INPUT_KV_LEN, 0);
    int32_t *out_rows = sop_input_host(s, SOP_INPUT_OUT_ROWS, 0);
    sop_sampling *sampling = sop_input_host(s, SOP_INPUT_SAMPLING, 0);
    int32_t t = 0, o = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const sop_step_item *it = &items[i];
        const int64_t length = sop_kv_length(s->kv, it->seq);
        q_start[i] = t;
        kv_len[i] = (int32_t)(length + it->n_ids);
        for (int32_t g = 0; g < sop_kv_n_groups(s->kv); g++) {
            int32_t *slots = sop_input_host(s, SOP_INPUT_SLOTS, g);
            int32_t *table = sop_input_host(s, SOP_INPUT_TABLE, g);
            for (int32_t k = 0; k < it->n_ids; k++)
                slots[t + k] = sop_kv_slot(s->kv, g, it->seq, length + k);
            sop_kv_table(s->kv, g, it->seq, table + (size_t)i * (size_t)sop_kv_table_stride(s->kv));
        }
        for (int32_t k = 0; k < it->n_ids; k++, t++) {
            ids[t] = it->ids[k];
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
    return s->staging == s->inputs ? SOP_OK : sop_inputs_send_again(s);
}

/* Not on a device that sees the host: there steps ahead have written over them. */
sop_status sop_inputs_send_again(sop_super *s)
{
    return s->device->ops->copy(s->queue, s->inputs, s->staging, s->sent_bytes, SOP_COPY_IN);
}
