extern "C" {
#include "ops/gated_grad/gated_grad.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/gated_grad/gated_grad.cuh"

sop_status sop_gated_grad_cuda(const sop_call *call)
{
    const sop_gated_grad_desc *d = (const sop_gated_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_gated_grad_any, grid, 256, call, *d, a[SOP_GATED_GRAD_X].data,
                      a[SOP_GATED_GRAD_DY].data, a[SOP_GATED_GRAD_DGATE].data,
                      a[SOP_GATED_GRAD_DUP].data);
}
