extern "C" {
#include "ops/rmsnorm_grad/rmsnorm_grad.h"
}
#include "ops/rmsnorm_grad/norm_grad_launch.cuh"

extern "C" const char *sop_rmsnorm_grad_wide_refuse(const void *desc)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)desc;
    const int64_t strides[] = {d->x_stride,  d->x_head,  d->dy_stride, d->dy_head,
                               d->dr_stride, d->dr_head, d->dx_stride, d->dx_head};
    if (d->dy_dtype != d->x_dtype || d->dr_dtype != d->x_dtype || d->dx_dtype != d->x_dtype)
        return "types differ";
    return norm_grad_refuse(d->x_dtype, d->dim, strides, 8);
}

extern "C" sop_status sop_rmsnorm_grad_wide_plan(const void *desc, const int32_t *params,
                                                 const sop_facts *facts, size_t budget,
                                                 sop_split *split)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)desc;
    (void)params;
    const sop_status s =
        norm_grad_plan(d->x_dtype, d->tokens * d->heads, d->dim, 1, facts, budget, split);
    /* where an operand is not aligned, the floor row runs with its own */
    sop_split floor;
    (void)sop_rmsnorm_grad_cuda_plan(desc, params, facts, budget, &floor);
    if (floor.scratch_bytes > split->scratch_bytes) split->scratch_bytes = floor.scratch_bytes;
    return s == SOP_OK && split->scratch_bytes > budget ? SOP_E_LIMIT : s;
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)call->desc;
    const sop_operand *o = call->args;
    const norm_grad_args a = {o[SOP_RMSNORM_GRAD_X].data,
                              o[SOP_RMSNORM_GRAD_DY].data,
                              o[SOP_RMSNORM_GRAD_DR].data,
                              (const float *)o[SOP_RMSNORM_GRAD_W].data,
                              o[SOP_RMSNORM_GRAD_DX].data,
                              NULL,
                              d->tokens * d->heads,
                              d->heads,
                              d->dim,
                              d->x_stride,
                              d->x_head,
                              d->dy_stride,
                              d->dy_head,
                              d->dr_stride,
                              d->dr_head,
                              d->dx_stride,
                              d->dx_head,
                              d->eps,
                              d->offset};
    return norm_grad_run<T, false>(call, a, (float *)o[SOP_RMSNORM_GRAD_DW].data, NULL);
}

extern "C" sop_status sop_rmsnorm_grad_wide_sm80(const sop_call *call)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)call->desc;
    for (int i = 0; i < SOP_RMSNORM_GRAD_DW; i++)
        if (!sop_aligned16(call->args[i].data)) return sop_rmsnorm_grad_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
