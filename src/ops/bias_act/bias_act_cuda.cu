extern "C" {
#include "ops/bias_act/bias_act.h"
}
#include "ops/bias_act/bias_act.cuh"
#include "ops/cuda/launch.cuh"

sop_status sop_bias_act_cuda(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    return sop_launch(sop_bias_act_any, grid, 256, call, *d, a[SOP_BIAS_ACT_X].data,
                      a[SOP_BIAS_ACT_R].data, (const float *)a[SOP_BIAS_ACT_BIAS].data,
                      (const int32_t *)a[SOP_BIAS_ACT_LIVE].data, a[SOP_BIAS_ACT_Y].data);
}
