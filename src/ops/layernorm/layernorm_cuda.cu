extern "C" {
#include "ops/layernorm/layernorm.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/layernorm/layernorm.cuh"

template <int THREADS> static sop_status launch(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    const sop_operand *a = call->args;
    return sop_launch(
        sop_layernorm_any<THREADS>, (unsigned)d->tokens, THREADS, call, *d, a[SOP_LAYERNORM_X].data,
        a[SOP_LAYERNORM_R].data, (const float *)a[SOP_LAYERNORM_W].data,
        (const float *)a[SOP_LAYERNORM_B].data, (const int32_t *)a[SOP_LAYERNORM_LIVE].data,
        a[SOP_LAYERNORM_R_OUT].data, a[SOP_LAYERNORM_Y].data);
}

sop_status sop_layernorm_cuda(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    return d->dim <= 256 ? launch<64>(call) : launch<512>(call);
}
