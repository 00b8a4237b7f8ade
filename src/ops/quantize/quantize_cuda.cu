extern "C" {
#include "ops/quantize/quantize.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/quantize/quantize.cuh"

template <int THREADS> static sop_status launch(const sop_call *call)
{
    const sop_quantize_desc *d = (const sop_quantize_desc *)call->desc;
    return sop_launch(sop_quantize_any<THREADS>, (unsigned)d->tokens, THREADS, call, *d,
                      call->args[SOP_QUANTIZE_X].data,
                      (const int32_t *)call->args[SOP_QUANTIZE_LIVE].data,
                      (uint8_t *)call->args[SOP_QUANTIZE_CODES].data,
                      (float *)call->args[SOP_QUANTIZE_SCALE].data);
}

extern "C" sop_status sop_quantize_cuda(const sop_call *call)
{
    const sop_quantize_desc *d = (const sop_quantize_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    return d->dim <= 256 ? launch<64>(call) : launch<512>(call);
}
