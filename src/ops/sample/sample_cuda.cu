extern "C" {
#include "ops/sample/sample.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/sample/sample.cuh"

sop_status sop_sample_cuda(const sop_call *call)
{
    const sop_sample_desc *d = (const sop_sample_desc *)call->desc;
    if (d->rows == 0) return SOP_OK;
    return sop_launch(sop_sample_any, (unsigned)d->rows, SOP_SAMPLE_THREADS, call, *d,
                      call->args[SOP_SAMPLE_LOGITS].data,
                      (const sop_sampling *)call->args[SOP_SAMPLE_PARAMS].data,
                      (const int32_t *)call->args[SOP_SAMPLE_LIVE].data,
                      (int32_t *)call->args[SOP_SAMPLE_IDS].data);
}
