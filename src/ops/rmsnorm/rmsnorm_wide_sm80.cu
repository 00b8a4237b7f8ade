extern "C" {
#include "ops/rmsnorm/rmsnorm.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/rmsnorm/rmsnorm_wide.cuh"

extern "C" const char *sop_rmsnorm_wide_refuse(const void *desc)
{
    const sop_rmsnorm_desc *d = (const sop_rmsnorm_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->x_head,   d->r_stride,
                               d->r_head,   d->y_stride, d->y_head};
    if (d->x_dtype != d->r_dtype || d->x_dtype != d->y_dtype) return "types differ";
    if (d->dim > 16384) return "rows are over 16384 long";
    return sop_wide_refuse(d->x_dtype, d->dim, strides, 6);
}

template <typename T, int REP>
static sop_status launch(const sop_call *call, const dim3 &grid, unsigned threads)
{
    const sop_operand *a = call->args;
    return sop_launch(sop_rmsnorm_wide<T, REP>, grid, threads, call,
                      *(const sop_rmsnorm_desc *)call->desc, (const T *)a[SOP_RMSNORM_X].data,
                      (const T *)a[SOP_RMSNORM_R].data, (const float *)a[SOP_RMSNORM_W].data,
                      (const int32_t *)a[SOP_RMSNORM_LIVE].data, (T *)a[SOP_RMSNORM_R_OUT].data,
                      (T *)a[SOP_RMSNORM_Y].data);
}

/* A sum has one shape for a dim, however many tokens there are: bits do not depend on the batch. */
template <typename T> static sop_status run(const sop_call *call)
{
    const sop_rmsnorm_desc *d = (const sop_rmsnorm_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, (unsigned)d->heads);
    const int64_t pieces = d->dim * (int64_t)sizeof(T) / 16;
    if (pieces <= 512) return launch<T, 1>(call, grid, sop_wide_threads(pieces, 1));
    return launch<T, 4>(call, grid, sop_wide_threads(pieces, 4));
}

extern "C" sop_status sop_rmsnorm_wide_sm80(const sop_call *call)
{
    const sop_rmsnorm_desc *d = (const sop_rmsnorm_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < SOP_RMSNORM_ROLES; i++)
        if (i != SOP_RMSNORM_LIVE && !sop_aligned16(call->args[i].data))
            return sop_rmsnorm_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
