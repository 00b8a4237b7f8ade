extern "C" {
#include "ops/merge/merge.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/merge/merge.cuh"

sop_status sop_merge_cuda(const sop_call *call)
{
    const sop_merge_desc *d = (const sop_merge_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid((unsigned)d->tokens, (unsigned)d->heads);
    if (d->tokens == 0) return SOP_OK;
    return sop_launch(sop_merge_any, grid, 128, call, *d, a[SOP_MERGE_X].data,
                      (const float *)a[SOP_MERGE_LSE].data, (const int32_t *)a[SOP_MERGE_LIVE].data,
                      a[SOP_MERGE_Y].data, (float *)a[SOP_MERGE_LSE_OUT].data);
}
