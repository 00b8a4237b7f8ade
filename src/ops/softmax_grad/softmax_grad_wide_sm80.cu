extern "C" {
#include "ops/softmax_grad/softmax_grad.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/softmax_grad/softmax_grad_wide.cuh"

extern "C" const char *sop_softmax_grad_wide_refuse(const void *desc)
{
    const sop_softmax_grad_desc *d = (const sop_softmax_grad_desc *)desc;
    const int64_t strides[] = {d->y_stride, d->dy_stride, d->dx_stride};
    if (d->dy_dtype != d->y_dtype || d->dx_dtype != d->y_dtype) return "types differ";
    if (d->y_dtype == SOP_F64) return "f64 is for the reference";
    if (d->dim > 16384) return "rows are over 16384 long";
    return sop_wide_refuse(d->y_dtype, d->dim, strides, 3);
}

template <typename T, int REP> static sop_status launch(const sop_call *call, int64_t pieces)
{
    const sop_softmax_grad_desc *d = (const sop_softmax_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    return sop_launch(sop_softmax_grad_wide<T, REP>, (unsigned)d->tokens,
                      sop_wide_threads(pieces, REP), call, *d,
                      (const T *)a[SOP_SOFTMAX_GRAD_Y].data, (const T *)a[SOP_SOFTMAX_GRAD_DY].data,
                      (T *)a[SOP_SOFTMAX_GRAD_DX].data);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_softmax_grad_desc *d = (const sop_softmax_grad_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    return pieces <= 512 ? launch<T, 1>(call, pieces) : launch<T, 4>(call, pieces);
}

extern "C" sop_status sop_softmax_grad_wide_sm80(const sop_call *call)
{
    const sop_softmax_grad_desc *d = (const sop_softmax_grad_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_SOFTMAX_GRAD_ROLES; i++)
        if (!sop_aligned16(call->args[i].data)) return sop_softmax_grad_cuda(call);
    return SOP_WIDE_TYPE(d->y_dtype, run, call);
}
