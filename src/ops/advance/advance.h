/* ops/advance: a decode step's inputs become those of the next one, on the device. It belongs to the super
 * operator, so its desc stands here and not in sop/desc.h.
 *
 *     ids'[i] = next[i]    pos'[i] = pos[i] + 1    kv_len'[i] = kv_len[i] + 1    counter'[i] = counter[i] + 1
 *     slots'[i,g] = table[i,g, pos'[i] / page] page + pos'[i] mod page, -1 where the table ends
 *     said'[count,i] = next[i]    count' = count + 1
 *
 * next, pos, kv_len, ids' [rows] i32; counter [rows, 2] i32, the lower word first: counter_stride apart
 * table  [rows, groups, pages] i32: table_stride, table_group apart; slots' [rows, groups]: 1, slots_group
 * said'  [steps, rows] i32: said_stride apart; nothing is written once count is steps
 * Each output but ids', slots' and said' may be its input. */
#ifndef OPS_ADVANCE_H
#define OPS_ADVANCE_H

#include "sop/variant.h"

typedef struct sop_advance_desc {
    int64_t rows, groups, pages, page, steps;
    int64_t table_stride, table_group, slots_group, counter_stride, said_stride;
} sop_advance_desc;
enum {
    SOP_ADVANCE_NEXT,
    SOP_ADVANCE_TABLE,
    SOP_ADVANCE_POS,
    SOP_ADVANCE_KV_LEN,
    SOP_ADVANCE_COUNTER,
    SOP_ADVANCE_COUNT,
    SOP_ADVANCE_LIVE,
    SOP_ADVANCE_IDS_OUT,
    SOP_ADVANCE_POS_OUT,
    SOP_ADVANCE_KV_LEN_OUT,
    SOP_ADVANCE_COUNTER_OUT,
    SOP_ADVANCE_SLOTS_OUT,
    SOP_ADVANCE_SAID_OUT,
    SOP_ADVANCE_COUNT_OUT,
    SOP_ADVANCE_ROLES
};

sop_status sop_advance_reference(const sop_call *call, const sop_judge *judge); /* advance_ref.c */
sop_status sop_advance_ref(const sop_call *call);
sop_status sop_advance_cuda(const sop_call *call);

#endif
