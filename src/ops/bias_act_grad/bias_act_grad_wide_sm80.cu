extern "C" {
#include "ops/bias_act_grad/bias_act_grad.h"
}
#include "ops/bias_act_grad/bias_act_grad_wide.cuh"
#include "ops/cuda/wide_launch.cuh"

extern "C" const char *sop_bias_act_grad_wide_refuse(const void *desc)
{
    const sop_bias_act_grad_desc *d = (const sop_bias_act_grad_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->r_stride, d->dy_stride, d->dx_stride};
    if (d->r_dtype != d->x_dtype || d->dy_dtype != d->x_dtype || d->dx_dtype != d->x_dtype)
        return "types differ";
    if (d->x_dtype == SOP_F64) return "f64 is for the reference";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 4);
}

template <typename T, int ACT> static sop_status launch(const sop_call *call)
{
    const sop_bias_act_grad_desc *d = (const sop_bias_act_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    float *dbias = (float *)a[SOP_BIAS_ACT_GRAD_DBIAS].data;
    float *part = dbias ? (float *)call->scratch : NULL;
    const int64_t chunks = sop_column_chunks(d->tokens);
    const dim3 grid(sop_blocks(d->dim, 32 * wide<T>::N), (unsigned)chunks);
    sop_status s = SOP_OK;
    if (d->tokens > 0)
        s = sop_launch(
            sop_bias_act_grad_wide<T, ACT>, grid, dim3(32, SOP_COLUMN_LANES), call, *d,
            sop_column_chunk(d->tokens), (const T *)a[SOP_BIAS_ACT_GRAD_X].data,
            (const T *)a[SOP_BIAS_ACT_GRAD_R].data, (const float *)a[SOP_BIAS_ACT_GRAD_BIAS].data,
            (const T *)a[SOP_BIAS_ACT_GRAD_DY].data, (T *)a[SOP_BIAS_ACT_GRAD_DX].data, part);
    if (s != SOP_OK || !dbias) return s;
    return sop_column_finish(call, part, chunks, 1, d->dim, dbias, NULL);
}

template <typename T> static sop_status run(const sop_call *call)
{
    switch (((const sop_bias_act_grad_desc *)call->desc)->act) {
    case SOP_ACT_SILU: return launch<T, SOP_ACT_SILU>(call);
    case SOP_ACT_GELU_TANH: return launch<T, SOP_ACT_GELU_TANH>(call);
    case SOP_ACT_QUICK_GELU: return launch<T, SOP_ACT_QUICK_GELU>(call);
    case SOP_ACT_RELU: return launch<T, SOP_ACT_RELU>(call);
    default: return launch<T, SOP_ACT_GELU>(call);
    }
}

extern "C" sop_status sop_bias_act_grad_wide_sm80(const sop_call *call)
{
    const sop_bias_act_grad_desc *d = (const sop_bias_act_grad_desc *)call->desc;
    for (int i = 0; i < SOP_BIAS_ACT_GRAD_DBIAS; i++)
        if (!sop_aligned16(call->args[i].data)) return sop_bias_act_grad_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
