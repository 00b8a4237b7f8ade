extern "C" {
#include "ops/moe_gate/moe_gate.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/moe_gate/moe_gate.cuh"

sop_status sop_moe_gate_cuda(const sop_call *call)
{
    const sop_moe_gate_desc *d = (const sop_moe_gate_desc *)call->desc;
    const int32_t *live = (const int32_t *)call->args[SOP_MOE_GATE_LIVE].data;
    int32_t *ids = (int32_t *)call->args[SOP_MOE_GATE_IDS].data;
    if (d->tokens > 0) {
        const sop_status s = sop_launch(sop_moe_gate_choose, sop_blocks(d->tokens, 4), 128, call,
                                        *d, call->args[SOP_MOE_GATE_X].data, live, ids,
                                        (float *)call->args[SOP_MOE_GATE_WEIGHTS].data);
        if (s != SOP_OK) return s;
    }
    return sop_launch(sop_moe_gate_order, (unsigned)d->experts, SOP_MOE_GATE_THREADS, call, *d,
                      (const int32_t *)ids, live, (int32_t *)call->args[SOP_MOE_GATE_COUNTS].data,
                      (int32_t *)call->args[SOP_MOE_GATE_PERM].data);
}
