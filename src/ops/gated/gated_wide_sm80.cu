extern "C" {
#include "ops/gated/gated.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/gated/gated_wide.cuh"

extern "C" const char *sop_gated_wide_refuse(const void *desc)
{
    const sop_gated_desc *d = (const sop_gated_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->y_stride, d->up};
    if (d->x_dtype != d->y_dtype) return "types differ";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 3);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_gated_desc *d = (const sop_gated_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    return sop_launch(sop_gated_wide<T>, dim3((unsigned)d->tokens, sop_blocks(pieces, 128)), 128,
                      call, *d, (const T *)call->args[SOP_GATED_X].data,
                      (const int32_t *)call->args[SOP_GATED_LIVE].data,
                      (T *)call->args[SOP_GATED_Y].data);
}

extern "C" sop_status sop_gated_wide_sm80(const sop_call *call)
{
    const sop_gated_desc *d = (const sop_gated_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_GATED_X].data) ||
        !sop_aligned16(call->args[SOP_GATED_Y].data))
        return sop_gated_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
