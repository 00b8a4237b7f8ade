extern "C" {
#include "ops/add/add.h"
}
#include "ops/add/add_wide.cuh"
#include "ops/cuda/wide_launch.cuh"

extern "C" const char *sop_add_wide_refuse(const void *desc)
{
    const sop_add_desc *d = (const sop_add_desc *)desc;
    const int64_t strides[] = {d->a_stride, d->b_stride, d->y_stride};
    if (d->a_dtype != d->b_dtype || d->a_dtype != d->y_dtype) return "types differ";
    return sop_wide_refuse(d->a_dtype, d->dim, strides, 3);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_add_desc *d = (const sop_add_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    return sop_launch(
        sop_add_wide<T>, dim3((unsigned)d->tokens, sop_blocks(pieces, 128)), 128, call, *d,
        (const T *)call->args[SOP_ADD_A].data, (const T *)call->args[SOP_ADD_B].data,
        (const int32_t *)call->args[SOP_ADD_LIVE].data, (T *)call->args[SOP_ADD_Y].data);
}

extern "C" sop_status sop_add_wide_sm80(const sop_call *call)
{
    const sop_add_desc *d = (const sop_add_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_ADD_ROLES; i++)
        if (i != SOP_ADD_LIVE && !sop_aligned16(call->args[i].data)) return sop_add_cuda(call);
    return SOP_WIDE_TYPE(d->a_dtype, run, call);
}
