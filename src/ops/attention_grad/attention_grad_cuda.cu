#include "ops/attention_grad/attention_grad_cuda.cuh"

extern "C" sop_status sop_attention_grad_cuda_plan(const void *desc, const int32_t *params,
                                                   const sop_facts *facts, size_t budget,
                                                   sop_split *split)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0}, (size_t)(d->tokens * d->heads) * sizeof(float)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

sop_status sop_attention_grad_cuda(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    const sop_attention_grad_args args = sop_attention_grad_args_of(call);
    const dim3 queries((unsigned)d->tokens, (unsigned)d->heads, sop_blocks(d->k, 256));
    const dim3 keys((unsigned)d->keys, (unsigned)d->kv_heads, sop_blocks(d->k + d->v, 256));
    sop_status s = SOP_OK;
    if (d->tokens > 0) s = sop_launch(sop_attention_grad_queries, queries, 256, call, *d, args);
    if (s != SOP_OK || d->keys == 0) return s;
    return sop_launch(sop_attention_grad_keys, keys, 256, call, *d, args);
}
