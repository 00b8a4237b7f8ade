extern "C" {
#include "ops/gated_grad/gated_grad.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/gated_grad/gated_grad_wide.cuh"

extern "C" const char *sop_gated_grad_wide_refuse(const void *desc)
{
    const sop_gated_grad_desc *d = (const sop_gated_grad_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->up, d->dy_stride, d->dgate_stride, d->dup_stride};
    if (d->dy_dtype != d->x_dtype || d->dx_dtype != d->x_dtype) return "types differ";
    if (d->x_dtype == SOP_F64) return "f64 is for the reference";
    if (d->tokens > INT32_MAX / (d->dim / 2048 + 1)) return "too many blocks";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 5);
}

template <typename T, int ACT> static sop_status launch(const sop_call *call)
{
    const sop_gated_grad_desc *d = (const sop_gated_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    const unsigned blocks = sop_blocks(pieces, 512); /* a row */
    const unsigned threads = sop_wide_threads(pieces, 2 * blocks);
    return sop_launch(sop_gated_grad_wide<T, ACT>, (unsigned)d->tokens * blocks, threads, call, *d,
                      (int)blocks, (const T *)a[SOP_GATED_GRAD_X].data,
                      (const T *)a[SOP_GATED_GRAD_DY].data, (T *)a[SOP_GATED_GRAD_DGATE].data,
                      (T *)a[SOP_GATED_GRAD_DUP].data);
}

template <typename T> static sop_status run(const sop_call *call)
{
    switch (((const sop_gated_grad_desc *)call->desc)->act) {
    case SOP_ACT_SILU: return launch<T, SOP_ACT_SILU>(call);
    case SOP_ACT_GELU_TANH: return launch<T, SOP_ACT_GELU_TANH>(call);
    default: return launch<T, SOP_ACT_GELU>(call);
    }
}

extern "C" sop_status sop_gated_grad_wide_sm80(const sop_call *call)
{
    const sop_gated_grad_desc *d = (const sop_gated_grad_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_GATED_GRAD_ROLES; i++)
        if (!sop_aligned16(call->args[i].data)) return sop_gated_grad_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
