/* scratch -> what rows keep [tokens] | part sums */
extern "C" {
#include "ops/layernorm_grad/layernorm_grad.h"
}
#include "ops/layernorm_grad/layernorm_grad.cuh"

extern "C" sop_status sop_layernorm_grad_cuda_plan(const void *desc, const int32_t *params,
                                                   const sop_facts *facts, size_t budget,
                                                   sop_split *split)
{
    const sop_layernorm_grad_desc *d = (const sop_layernorm_grad_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0},
              (size_t)d->tokens * sizeof(sop_layernorm_kept) +
                  sop_column_bytes(d->tokens, d->dim, 2)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <int THREADS> static sop_status rows(const sop_call *call, sop_layernorm_kept *kept)
{
    const sop_layernorm_grad_desc *d = (const sop_layernorm_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    return sop_launch(sop_layernorm_grad_rows<THREADS>, (unsigned)d->tokens, THREADS, call, *d,
                      a[SOP_LAYERNORM_GRAD_X].data, (const float *)a[SOP_LAYERNORM_GRAD_W].data,
                      a[SOP_LAYERNORM_GRAD_DY].data, a[SOP_LAYERNORM_GRAD_DR].data,
                      a[SOP_LAYERNORM_GRAD_DX].data, kept);
}

sop_status sop_layernorm_grad_cuda(const sop_call *call)
{
    const sop_layernorm_grad_desc *d = (const sop_layernorm_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    float *dw = (float *)a[SOP_LAYERNORM_GRAD_DW].data;
    float *db = (float *)a[SOP_LAYERNORM_GRAD_DB].data;
    const bool sums = dw || db;
    sop_layernorm_kept *kept = sums ? (sop_layernorm_kept *)call->scratch : NULL;
    float *part = sums ? (float *)(kept + d->tokens) : NULL;
    sop_status s = SOP_OK;
    if (d->tokens > 0) s = d->dim <= 256 ? rows<64>(call, kept) : rows<512>(call, kept);
    if (s != SOP_OK || !sums) return s;
    if (d->tokens > 0)
        s = sop_launch(sop_layernorm_grad_columns, sop_column_grid(d->tokens, d->dim),
                       dim3(32, SOP_COLUMN_LANES), call, *d, sop_column_chunk(d->tokens),
                       (const void *)a[SOP_LAYERNORM_GRAD_X].data,
                       (const void *)a[SOP_LAYERNORM_GRAD_DY].data,
                       (const sop_layernorm_kept *)kept, part);
    if (s != SOP_OK) return s;
    return sop_column_finish(call, part, sop_column_chunks(d->tokens), 2, d->dim, dw, db);
}
