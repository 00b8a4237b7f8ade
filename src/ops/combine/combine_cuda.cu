extern "C" {
#include "ops/combine/combine.h"
}
#include "ops/combine/combine.cuh"
#include "ops/cuda/launch.cuh"

sop_status sop_combine_cuda(const sop_call *call)
{
    const sop_combine_desc *d = (const sop_combine_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_combine_any, grid, 256, call, *d, a[SOP_COMBINE_X].data,
                      a[SOP_COMBINE_R].data, (const float *)a[SOP_COMBINE_WEIGHTS].data,
                      (const int32_t *)a[SOP_COMBINE_LIVE].data, a[SOP_COMBINE_Y].data);
}
