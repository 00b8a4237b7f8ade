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
    if (d->tokens > INT32_MAX / (d->dim / 2048 + 1)) return "too many blocks";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 3);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_gated_desc *d = (const sop_gated_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    const unsigned blocks = sop_blocks(pieces, 512); /* a row */
    const unsigned threads = sop_wide_threads(pieces, 2 * blocks);
    return sop_launch(d->act == SOP_ACT_SILU        ? sop_gated_wide<T, SOP_ACT_SILU>
                      : d->act == SOP_ACT_GELU_TANH ? sop_gated_wide<T, SOP_ACT_GELU_TANH>
                                                    : sop_gated_wide<T, SOP_ACT_GELU>,
                      (unsigned)d->tokens * blocks, threads, call, *d, (int)blocks,
                      (const T *)call->args[SOP_GATED_X].data,
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
