extern "C" {
#include "ops/softmax/softmax.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/softmax/softmax.cuh"

sop_status sop_softmax_cuda(const sop_call *call)
{
    const sop_softmax_desc *d = (const sop_softmax_desc *)call->desc;
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(
        sop_softmax_any<512>, (unsigned)d->tokens, 512, call, *d, call->args[SOP_SOFTMAX_X].data,
        (const int32_t *)call->args[SOP_SOFTMAX_LIVE].data, call->args[SOP_SOFTMAX_Y].data);
}
