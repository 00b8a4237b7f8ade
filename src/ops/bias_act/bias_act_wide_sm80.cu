extern "C" {
#include "ops/bias_act/bias_act.h"
}
#include "ops/bias_act/bias_act_wide.cuh"
#include "ops/cuda/wide_launch.cuh"

extern "C" const char *sop_bias_act_wide_refuse(const void *desc)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->r_stride, d->y_stride};
    if (d->x_dtype != d->y_dtype) return "types of x and y differ";
    if (d->r_dtype != d->y_dtype && d->r_dtype != SOP_F32)
        return "r is neither of y's type nor f32";
    if (d->tokens > INT32_MAX / (d->dim / 2048 + 1)) return "too many blocks";
    return sop_wide_refuse(d->y_dtype, d->dim, strides, 3);
}

template <typename T, typename R, int ACT, bool ADD> static sop_status launch(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    const sop_operand *a = call->args;
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    const unsigned blocks = sop_blocks(pieces, SOP_BIAS_ACT_THREADS); /* along a row */
    const unsigned threads = sop_wide_threads(pieces, blocks);
    return sop_launch(sop_bias_act_wide<T, R, ACT, ADD>,
                      sop_blocks(d->tokens, SOP_BIAS_ACT_ROWS) * blocks, threads, call, *d,
                      (int)blocks, (const T *)a[SOP_BIAS_ACT_X].data,
                      (const R *)a[SOP_BIAS_ACT_R].data, (const float *)a[SOP_BIAS_ACT_BIAS].data,
                      (const int32_t *)a[SOP_BIAS_ACT_LIVE].data, (T *)a[SOP_BIAS_ACT_Y].data);
}

template <typename T, typename R, bool ADD> static sop_status run_types(const sop_call *call)
{
    switch (((const sop_bias_act_desc *)call->desc)->act) {
    case SOP_ACT_SILU: return launch<T, R, SOP_ACT_SILU, ADD>(call);
    case SOP_ACT_GELU_TANH: return launch<T, R, SOP_ACT_GELU_TANH, ADD>(call);
    case SOP_ACT_QUICK_GELU: return launch<T, R, SOP_ACT_QUICK_GELU, ADD>(call);
    case SOP_ACT_RELU: return launch<T, R, SOP_ACT_RELU, ADD>(call);
    default: return launch<T, R, SOP_ACT_GELU, ADD>(call);
    }
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    if (!call->args[SOP_BIAS_ACT_R].data) return run_types<T, T, false>(call);
    return d->r_dtype == SOP_F32 ? run_types<T, float, true>(call) : run_types<T, T, true>(call);
}

extern "C" sop_status sop_bias_act_wide_sm80(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_BIAS_ACT_ROLES; i++)
        if (i != SOP_BIAS_ACT_LIVE && !sop_aligned16(call->args[i].data))
            return sop_bias_act_cuda(call);
    return SOP_WIDE_TYPE(d->y_dtype, run, call);
}
