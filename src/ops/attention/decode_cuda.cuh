/* What launchers of decode attention share. */
#ifndef OPS_ATTENTION_DECODE_CUDA_CUH
#define OPS_ATTENTION_DECODE_CUDA_CUH

#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/decode_sm80.cuh"

/* What the plan says. */
enum { DECODE_GRID, DECODE_SEG_COST };

static inline int64_t sop_decode_parts(const sop_attention_desc *d)
{
    return (d->heads / d->kv_heads + DECODE_GROUP - 1) / DECODE_GROUP;
}

/* The arguments of a call as the kernel takes them. */
static inline decode_args sop_decode_args_of(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    decode_args p = {sop_attention_args_of(call)};
    p.q_stride = d->q_stride, p.q_head = d->q_head;
    p.o_stride = d->o_stride, p.o_head = d->o_head;
    p.kp_page = d->kp_page, p.kp_token = d->kp_token, p.kp_head = d->kp_head;
    p.vp_page = d->vp_page, p.vp_token = d->vp_token, p.vp_head = d->vp_head;
    p.tokens = (int)d->tokens, p.seqs = (int)d->seqs;
    p.heads = (int)d->heads, p.group = (int)(d->heads / d->kv_heads),
    p.parts = (int)sop_decode_parts(d);
    p.page = (int)d->page, p.pages = (int)d->pages,
    p.page_bits = d->page & (d->page - 1) ? -1 : __builtin_ctzll((unsigned long long)d->page),
    p.table_stride = (int)d->table_stride;
    p.window = (int)d->window, p.causal = d->causal;
    p.seg_cost = (int)call->split->word[DECODE_SEG_COST];
    p.scale = d->scale, p.cap = d->cap;
    p.mail = (float *)sop_cuda_counters(call);
    return p;
}

#endif
