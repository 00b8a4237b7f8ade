extern "C" {
#include "ops/rmsnorm/rmsnorm.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/rmsnorm/rmsnorm.cuh"

template <int THREADS> static sop_status launch(const sop_call *call)
{
    const sop_rmsnorm_desc *d = (const sop_rmsnorm_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, (unsigned)d->heads);
    return sop_launch(sop_rmsnorm_any<THREADS>, grid, THREADS, call, *d,
                      call->args[SOP_RMSNORM_X].data, call->args[SOP_RMSNORM_R].data,
                      (const float *)call->args[SOP_RMSNORM_W].data,
                      (const int32_t *)call->args[SOP_RMSNORM_LIVE].data,
                      call->args[SOP_RMSNORM_R_OUT].data, call->args[SOP_RMSNORM_Y].data);
}

sop_status sop_rmsnorm_cuda(const sop_call *call)
{
    const sop_rmsnorm_desc *d = (const sop_rmsnorm_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    return d->dim <= 256 ? launch<64>(call) : launch<512>(call);
}
