/* scratch -> scales [tokens, heads] | part sums */
extern "C" {
#include "ops/rmsnorm_grad/rmsnorm_grad.h"
}
#include "ops/rmsnorm_grad/rmsnorm_grad.cuh"

extern "C" sop_status sop_rmsnorm_grad_cuda_plan(const void *desc, const int32_t *params,
                                                 const sop_facts *facts, size_t budget,
                                                 sop_split *split)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)desc;
    const int64_t groups = d->tokens * d->heads;
    (void)params;
    (void)facts;
    *split = {{0}, (size_t)groups * sizeof(float) + sop_column_bytes(groups, d->dim, 1)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <int THREADS> static sop_status rows(const sop_call *call, float *scales)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid((unsigned)d->tokens, (unsigned)d->heads);
    return sop_launch(sop_rmsnorm_grad_rows<THREADS>, grid, THREADS, call, *d,
                      a[SOP_RMSNORM_GRAD_X].data, (const float *)a[SOP_RMSNORM_GRAD_W].data,
                      a[SOP_RMSNORM_GRAD_DY].data, a[SOP_RMSNORM_GRAD_DR].data,
                      a[SOP_RMSNORM_GRAD_DX].data, scales);
}

sop_status sop_rmsnorm_grad_cuda(const sop_call *call)
{
    const sop_rmsnorm_grad_desc *d = (const sop_rmsnorm_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    float *dw = (float *)a[SOP_RMSNORM_GRAD_DW].data;
    float *scales = dw ? (float *)call->scratch : NULL;
    const int64_t groups = d->tokens * d->heads;
    float *part = dw ? scales + groups : NULL;
    sop_status s = SOP_OK;
    if (groups > 0) s = d->dim <= 256 ? rows<64>(call, scales) : rows<512>(call, scales);
    if (s != SOP_OK || !dw) return s;
    if (groups > 0)
        s = sop_launch(sop_rmsnorm_grad_columns, sop_column_grid(groups, d->dim),
                       dim3(32, SOP_COLUMN_LANES), call, *d, sop_column_chunk(groups),
                       (const void *)a[SOP_RMSNORM_GRAD_X].data,
                       (const void *)a[SOP_RMSNORM_GRAD_DY].data, (const float *)scales, part);
    if (s != SOP_OK) return s;
    return sop_column_finish(call, part, sop_column_chunks(groups), 1, d->dim, dw, NULL);
}
