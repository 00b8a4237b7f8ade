extern "C" {
#include "ops/softmax/softmax.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/softmax/softmax_wide.cuh"

extern "C" const char *sop_softmax_wide_refuse(const void *desc)
{
    const sop_softmax_desc *d = (const sop_softmax_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->y_stride};
    if (d->x_dtype != d->y_dtype) return "types differ";
    if (d->dim > 16384) return "rows are over 16384 long";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 2);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_softmax_desc *d = (const sop_softmax_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    const T *x = (const T *)call->args[SOP_SOFTMAX_X].data;
    const int32_t *live = (const int32_t *)call->args[SOP_SOFTMAX_LIVE].data;
    T *y = (T *)call->args[SOP_SOFTMAX_Y].data;
    const unsigned threads = sop_wide_threads(pieces, pieces <= 256 ? 1 : 4);
    if (pieces <= 256)
        return sop_launch(sop_softmax_wide<T, 1, false>, (unsigned)d->tokens, threads, call, *d, x,
                          live, y);
    if (pieces == 4 * threads && threads <= SOP_SOFTMAX_FULL)
        return sop_launch(sop_softmax_wide<T, 4, true>, (unsigned)d->tokens, threads, call, *d, x,
                          live, y);
    return sop_launch(sop_softmax_wide<T, 4, false>, (unsigned)d->tokens, threads, call, *d, x,
                      live, y);
}

extern "C" sop_status sop_softmax_wide_sm80(const sop_call *call)
{
    const sop_softmax_desc *d = (const sop_softmax_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_SOFTMAX_X].data) ||
        !sop_aligned16(call->args[SOP_SOFTMAX_Y].data))
        return sop_softmax_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
