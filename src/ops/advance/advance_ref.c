/* The reference, and the only row of the CPU: some hundred integers at most. */
#include "core/op.h"
#include "ops/advance/advance.h"

sop_status sop_advance_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_advance_desc *d = call->desc;
    const sop_operand *a = call->args;
    const int64_t live = sop_live(call, SOP_ADVANCE_LIVE, d->rows);
    const int32_t count = *(const int32_t *)a[SOP_ADVANCE_COUNT].data;
    const int32_t *table = a[SOP_ADVANCE_TABLE].data;
#define PUT(role, at, index, value) \
    sop_put(call, judge, SOP_ADVANCE_##role, SOP_I32, at, index, (double)(value), 0)
    for (int64_t i = 0; i < live; i++) {
        const int32_t next = ((const int32_t *)a[SOP_ADVANCE_NEXT].data)[i];
        const int32_t pos = ((const int32_t *)a[SOP_ADVANCE_POS].data)[i] + 1;
        const int32_t length = ((const int32_t *)a[SOP_ADVANCE_KV_LEN].data)[i] + 1;
        const int32_t *c = (const int32_t *)a[SOP_ADVANCE_COUNTER].data + i * d->counter_stride;
        const int32_t low = (int32_t)((uint32_t)c[0] + 1), high = c[1] + (low == 0);
        PUT(IDS_OUT, i, i, next);
        PUT(POS_OUT, i, i, pos);
        PUT(KV_LEN_OUT, i, i, length);
        PUT(COUNTER_OUT, i * d->counter_stride, 2 * i, low);
        PUT(COUNTER_OUT, i * d->counter_stride + 1, 2 * i + 1, high);
        for (int64_t g = 0; g < d->groups; g++) {
            const int64_t p = pos / d->page;
            const int32_t page =
                p < d->pages ? table[i * d->table_stride + g * d->table_group + p] : -1;
            PUT(SLOTS_OUT, i + g * d->slots_group, i * d->groups + g,
                page < 0 ? -1 : page * d->page + pos % d->page);
        }
        if (count >= 0 && count < d->steps)
            PUT(SAID_OUT, count * d->said_stride + i, count * d->rows + i, next);
    }
    PUT(COUNT_OUT, 0, 0, count + 1);
#undef PUT
    return SOP_OK;
}

sop_status sop_advance_ref(const sop_call *call)
{
    return sop_advance_reference(call, NULL);
}
