#include "ops/attention/attention_any.cuh"
#include "ops/attention/attention_cuda.cuh"

sop_status sop_attention_cuda(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, (unsigned)d->heads, sop_blocks(d->v, 256));
    if (d->tokens == 0) return SOP_OK;
    return sop_launch(sop_attention_any, grid, 256, call, *d, sop_attention_args_of(call));
}
