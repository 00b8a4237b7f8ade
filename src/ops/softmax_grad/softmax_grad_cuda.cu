extern "C" {
#include "ops/softmax_grad/softmax_grad.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/softmax_grad/softmax_grad.cuh"

sop_status sop_softmax_grad_cuda(const sop_call *call)
{
    const sop_softmax_grad_desc *d = (const sop_softmax_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_softmax_grad_any<256>, (unsigned)d->tokens, 256, call, *d,
                      a[SOP_SOFTMAX_GRAD_Y].data, a[SOP_SOFTMAX_GRAD_DY].data,
                      a[SOP_SOFTMAX_GRAD_DX].data);
}
