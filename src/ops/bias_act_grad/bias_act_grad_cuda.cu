extern "C" {
#include "ops/bias_act_grad/bias_act_grad.h"
}
#include "ops/bias_act_grad/bias_act_grad.cuh"

extern "C" sop_status sop_bias_act_grad_cuda_plan(const void *desc, const int32_t *params,
                                                  const sop_facts *facts, size_t budget,
                                                  sop_split *split)
{
    const sop_bias_act_grad_desc *d = (const sop_bias_act_grad_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0}, sop_column_bytes(d->tokens, d->dim, 1)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

sop_status sop_bias_act_grad_cuda(const sop_call *call)
{
    const sop_bias_act_grad_desc *d = (const sop_bias_act_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    float *dbias = (float *)a[SOP_BIAS_ACT_GRAD_DBIAS].data;
    float *part = dbias ? (float *)call->scratch : NULL;
    const int64_t chunks = sop_column_chunks(d->tokens);
    if (d->dim == 0) return SOP_OK;
    sop_status s = SOP_OK;
    if (d->tokens > 0)
        s = sop_launch(sop_bias_act_grad_any, sop_column_grid(d->tokens, d->dim),
                       dim3(32, SOP_COLUMN_LANES), call, *d, sop_column_chunk(d->tokens),
                       a[SOP_BIAS_ACT_GRAD_X].data, a[SOP_BIAS_ACT_GRAD_R].data,
                       (const float *)a[SOP_BIAS_ACT_GRAD_BIAS].data, a[SOP_BIAS_ACT_GRAD_DY].data,
                       a[SOP_BIAS_ACT_GRAD_DX].data, part);
    if (s != SOP_OK || !dbias) return s;
    return sop_column_finish(call, part, chunks, 1, d->dim, dbias, NULL);
}
