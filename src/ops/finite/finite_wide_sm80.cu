extern "C" {
#include "ops/finite/finite.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/finite/finite_wide.cuh"

extern "C" const char *sop_finite_wide_refuse(const void *desc)
{
    const sop_finite_desc *d = (const sop_finite_desc *)desc;
    return sop_wide_refuse(d->x_dtype, d->dim, &d->x_stride, 1);
}

/* Four blocks for each multiprocessor of an H200: 64 KB in flight each, and no more to meet. */
template <typename T> static sop_status run(const sop_call *call)
{
    const sop_finite_desc *d = (const sop_finite_desc *)call->desc;
    const int64_t blocks = (d->tokens * d->dim / wide<T>::N + 1023) / 1024;
    return sop_launch(sop_finite_wide<T>,
                      (unsigned)(blocks < 1     ? 1
                                 : blocks < 528 ? blocks
                                                : 528),
                      256, call, *d, (const T *)call->args[SOP_FINITE_X].data,
                      (const int32_t *)call->args[SOP_FINITE_LIVE].data,
                      (finite_meeting *)sop_cuda_counters(call),
                      (int32_t *)call->args[SOP_FINITE_COUNT].data);
}

extern "C" sop_status sop_finite_wide_sm80(const sop_call *call)
{
    const sop_finite_desc *d = (const sop_finite_desc *)call->desc;
    if (!sop_aligned16(call->args[SOP_FINITE_X].data)) return sop_finite_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
