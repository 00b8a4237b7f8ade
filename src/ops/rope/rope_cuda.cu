extern "C" {
#include "ops/rope/rope.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/rope/rope.cuh"

sop_status sop_rope_cuda(const sop_call *call)
{
    const sop_rope_desc *d = (const sop_rope_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->k - d->rot / 2, 32));
    if (d->tokens == 0) return SOP_OK;
    return sop_launch(sop_rope_any, grid, dim3(32, 8), call, *d, call->args[SOP_ROPE_X].data,
                      (const int32_t *)call->args[SOP_ROPE_POS].data,
                      (const float *)call->args[SOP_ROPE_FREQS].data,
                      (const int32_t *)call->args[SOP_ROPE_LIVE].data, call->args[SOP_ROPE_Y].data);
}
