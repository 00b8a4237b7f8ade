extern "C" {
#include "ops/experts/experts.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/experts/experts.cuh"

sop_status sop_experts_cuda(const sop_call *call)
{
    enum { TOKENS = 8 };
    const sop_experts_desc *d = (const sop_experts_desc *)call->desc;
    if (d->rows == 0 || d->n == 0) return SOP_OK;
    const unsigned tiles = sop_blocks(d->rows, TOKENS); /* of one expert, at most */
    const dim3 grid(sop_blocks(d->n, 8), (unsigned)d->experts, tiles < 16 ? tiles : 16);
    return sop_launch(
        sop_experts_any<TOKENS>, grid, dim3(32, 8), call, *d, call->args[SOP_EXPERTS_X].data,
        (const uint8_t *)call->args[SOP_EXPERTS_W].data,
        (const int32_t *)call->args[SOP_EXPERTS_COUNTS].data,
        (const int32_t *)call->args[SOP_EXPERTS_PERM].data, call->args[SOP_EXPERTS_Y].data);
}
