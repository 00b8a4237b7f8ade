extern "C" {
#include "ops/layernorm/layernorm.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/layernorm/layernorm_wide.cuh"

extern "C" const char *sop_layernorm_wide_refuse(const void *desc)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->r_stride, d->y_stride};
    const int32_t y = d->y_dtype;
    if (d->x_dtype != y && d->x_dtype != SOP_F32) return "x is neither of y's type nor f32";
    if (d->r_dtype != SOP_F32 && (d->r_dtype != y || d->x_dtype != y))
        return "r is neither f32 nor of the type of x and y";
    if (d->dim > 16384) return "rows are over 16384 long";
    return sop_wide_refuse(y, d->dim, strides, 3);
}

template <typename X, typename R, typename Y, int REP, bool ADD>
static sop_status launch(const sop_call *call, unsigned threads)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    const sop_operand *a = call->args;
    return sop_launch(sop_layernorm_wide<X, R, Y, REP, ADD>, (unsigned)d->tokens, threads, call, *d,
                      (const X *)a[SOP_LAYERNORM_X].data, (const R *)a[SOP_LAYERNORM_R].data,
                      (const float *)a[SOP_LAYERNORM_W].data,
                      (const float *)a[SOP_LAYERNORM_B].data,
                      (const int32_t *)a[SOP_LAYERNORM_LIVE].data, (R *)a[SOP_LAYERNORM_R_OUT].data,
                      (Y *)a[SOP_LAYERNORM_Y].data);
}

/* A sum has one shape for a dim, however many tokens there are: bits do not depend on the batch. */
template <typename X, typename R, typename Y, bool ADD>
static sop_status run_types(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    const int64_t pieces = d->dim * (int64_t)sizeof(Y) / 16;
    if (pieces <= 512) return launch<X, R, Y, 1, ADD>(call, sop_wide_threads(pieces, 1));
    return launch<X, R, Y, 4, ADD>(call, sop_wide_threads(pieces, 4));
}

template <typename X, typename Y> static sop_status run_x(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    if (!call->args[SOP_LAYERNORM_R].data) return run_types<X, X, Y, false>(call);
    return d->r_dtype == SOP_F32 ? run_types<X, float, Y, true>(call)
                                 : run_types<X, X, Y, true>(call);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    return d->x_dtype == SOP_F32 ? run_x<float, T>(call) : run_x<T, T>(call);
}

extern "C" sop_status sop_layernorm_wide_sm80(const sop_call *call)
{
    const sop_layernorm_desc *d = (const sop_layernorm_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_LAYERNORM_ROLES; i++)
        if (i != SOP_LAYERNORM_LIVE && !sop_aligned16(call->args[i].data))
            return sop_layernorm_cuda(call);
    return SOP_WIDE_TYPE(d->y_dtype, run, call);
}
