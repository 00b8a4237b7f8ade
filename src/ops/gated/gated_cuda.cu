extern "C" {
#include "ops/gated/gated.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/gated/gated.cuh"

sop_status sop_gated_cuda(const sop_call *call)
{
    const sop_gated_desc *d = (const sop_gated_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_gated_any, grid, 256, call, *d, call->args[SOP_GATED_X].data,
                      (const int32_t *)call->args[SOP_GATED_LIVE].data,
                      call->args[SOP_GATED_Y].data);
}
