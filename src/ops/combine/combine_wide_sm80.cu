extern "C" {
#include "ops/combine/combine.h"
}
#include "ops/combine/combine_wide.cuh"
#include "ops/cuda/wide_launch.cuh"

extern "C" const char *sop_combine_wide_refuse(const void *desc)
{
    const sop_combine_desc *d = (const sop_combine_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->r_stride, d->y_stride};
    if (d->y_dtype != d->x_dtype && d->y_dtype != SOP_F32)
        return "y is neither of x's type nor f32";
    if (d->r_dtype != d->y_dtype) return "types of r and y differ";
    if (d->tokens > INT32_MAX / (d->dim / 1024 + 1)) return "too many blocks";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 3);
}

template <typename X, typename Y> static sop_status run(const sop_call *call)
{
    const sop_combine_desc *d = (const sop_combine_desc *)call->desc;
    const sop_operand *a = call->args;
    const int64_t pieces = d->dim * (int64_t)sizeof(X) / 16;
    const unsigned blocks = sop_blocks(pieces, 256); /* a row */
    const unsigned threads = sop_wide_threads(pieces, blocks);
    return sop_launch(sop_combine_wide<X, Y>, (unsigned)d->tokens * blocks, threads, call, *d,
                      (int)blocks, (const X *)a[SOP_COMBINE_X].data,
                      (const Y *)a[SOP_COMBINE_R].data, (const float *)a[SOP_COMBINE_WEIGHTS].data,
                      (const int32_t *)a[SOP_COMBINE_LIVE].data, (Y *)a[SOP_COMBINE_Y].data);
}

template <typename X> static sop_status run_x(const sop_call *call)
{
    const sop_combine_desc *d = (const sop_combine_desc *)call->desc;
    return d->y_dtype == SOP_F32 ? run<X, float>(call) : run<X, X>(call);
}

extern "C" sop_status sop_combine_wide_sm80(const sop_call *call)
{
    const sop_combine_desc *d = (const sop_combine_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_COMBINE_X].data) ||
        !sop_aligned16(call->args[SOP_COMBINE_R].data) ||
        !sop_aligned16(call->args[SOP_COMBINE_Y].data))
        return sop_combine_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run_x, call);
}
