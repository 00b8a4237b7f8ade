extern "C" {
#include "ops/sample/sample.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/sample/sample.cuh"

sop_status sop_sample_cuda(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    if (d->rows == 0) return SOP_OK;
    sop_sample_any<<<(unsigned)d->rows, SOP_SAMPLE_THREADS, 0, sop_stream(call)>>>(
        *d, call->args[SOP_SAMPLE_LOGITS].data,
        (const sop_sampling *)call->args[SOP_SAMPLE_PARAMS].data,
        (const int32_t *)call->args[SOP_SAMPLE_LIVE].data,
        (int32_t *)call->args[SOP_SAMPLE_IDS].data);
    return sop_launched();
}
