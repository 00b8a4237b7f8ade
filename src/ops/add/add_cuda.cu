extern "C" {
#include "ops/add/add.h"
}
#include "ops/add/add.cuh"
#include "ops/cuda/launch.cuh"

sop_status sop_add_cuda(const sop_call *call)
{
    const sop_add_desc *d = (const sop_add_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_add_any, grid, 256, call, *d, call->args[SOP_ADD_A].data,
                      call->args[SOP_ADD_B].data, (const int32_t *)call->args[SOP_ADD_LIVE].data,
                      call->args[SOP_ADD_Y].data);
}
