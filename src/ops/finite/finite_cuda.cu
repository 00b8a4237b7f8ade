extern "C" {
#include "ops/finite/finite.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/finite/finite.cuh"

sop_status sop_finite_cuda(const sop_call *call)
{
    const sop_finite_desc *d = (const sop_finite_desc *)call->desc;
    int32_t *count = (int32_t *)call->args[SOP_FINITE_COUNT].data;
    const int64_t n = d->tokens * d->dim, blocks = (n + 255) / 256;
    const sop_status s = sop_launch(sop_finite_zero, 1, 1, call, count);
    if (s != SOP_OK || n == 0) return s;
    return sop_launch(sop_finite_any, (unsigned)(blocks < 1024 ? blocks : 1024), 256, call, *d,
                      call->args[SOP_FINITE_X].data,
                      (const int32_t *)call->args[SOP_FINITE_LIVE].data, count);
}
