extern "C" {
#include "ops/advance/advance.h"
}
#include "ops/advance/advance.cuh"
#include "ops/cuda/launch.cuh"

sop_status sop_advance_cuda(const sop_call *call)
{
    const sop_advance_desc *d = (const sop_advance_desc *)call->desc;
    const sop_operand *o = call->args;
    const advance_args a = {
        (const int32_t *)o[SOP_ADVANCE_NEXT].data,    (const int32_t *)o[SOP_ADVANCE_TABLE].data,
        (const int32_t *)o[SOP_ADVANCE_POS].data,     (const int32_t *)o[SOP_ADVANCE_KV_LEN].data,
        (const int32_t *)o[SOP_ADVANCE_COUNTER].data, (const int32_t *)o[SOP_ADVANCE_COUNT].data,
        (const int32_t *)o[SOP_ADVANCE_LIVE].data,    (int32_t *)o[SOP_ADVANCE_IDS_OUT].data,
        (int32_t *)o[SOP_ADVANCE_POS_OUT].data,       (int32_t *)o[SOP_ADVANCE_KV_LEN_OUT].data,
        (int32_t *)o[SOP_ADVANCE_COUNTER_OUT].data,   (int32_t *)o[SOP_ADVANCE_SLOTS_OUT].data,
        (int32_t *)o[SOP_ADVANCE_SAID_OUT].data,      (int32_t *)o[SOP_ADVANCE_COUNT_OUT].data};
    return sop_launch(sop_advance_any, 1, d->rows < 64 ? 64 : 256, call, *d, a);
}
