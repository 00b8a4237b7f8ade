/* One block: all of it is some kilobytes, and the next step's first kernel waits for it. */
#ifndef OPS_ADVANCE_CUH
#define OPS_ADVANCE_CUH

#include "ops/cuda/elements.cuh"

struct advance_args {
    const int32_t *next, *table, *pos, *kv_len, *counter, *count, *live;
    int32_t *ids_out, *pos_out, *kv_len_out, *counter_out, *slots_out, *said_out, *count_out;
};

static __global__ void sop_advance_any(const sop_advance_desc d, const advance_args a)
{
    sop_begin();
    const int64_t live = sop_live_rows(a.live, d.rows);
    const int32_t count = *a.count;
    for (int64_t i = threadIdx.x; i < live; i += blockDim.x) {
        const int32_t next = a.next[i], pos = a.pos[i] + 1;
        const int32_t low = (int32_t)((uint32_t)a.counter[i * d.counter_stride] + 1);
        a.counter_out[i * d.counter_stride + 1] = a.counter[i * d.counter_stride + 1] + (low == 0);
        a.counter_out[i * d.counter_stride] = low;
        a.ids_out[i] = next;
        a.pos_out[i] = pos;
        a.kv_len_out[i] = a.kv_len[i] + 1;
        const int64_t p = pos / d.page;
        for (int64_t g = 0; g < d.groups; g++) {
            const int32_t page =
                p < d.pages ? a.table[i * d.table_stride + g * d.table_group + p] : -1;
            a.slots_out[i + g * d.slots_group] =
                page < 0 ? -1 : (int32_t)(page * d.page + pos % d.page);
        }
        if (count >= 0 && count < d.steps) a.said_out[count * d.said_stride + i] = next;
    }
    __syncthreads(); /* all have read the count */
    if (threadIdx.x == 0) *a.count_out = count + 1;
}

#endif
