#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/decode_sm80.cuh"

/* What the plan says. */
enum { GRID, SEG_COST };

static int64_t parts_of(const sop_attention_desc *d)
{
    return (d->heads / d->kv_heads + DECODE_GROUP - 1) / DECODE_GROUP;
}

extern "C" const char *sop_attention_decode_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (d->tokens > DECODE_MOST_TOKENS || d->tokens > 16 * d->seqs)
        return "over 256 queries, or over 16 a sequence";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_TILED))) return "no path of it is a candidate";
    if (d->page % DECODE_UNIT) return "pages are no multiple of 16 tokens";
    if (d->tokens * d->kv_heads * parts_of(d) * DECODE_GROUP > SOP_CUDA_COUNTERS)
        return "too many heads of too many queries";
    return NULL;
}

/* A (query, KV head) costs as much as some more units of 16 keys: the merge of its warps. On an H200,
 * where 12 mixed short sequences took 67 us without it, 15 us with 16. */
extern "C" sop_status sop_attention_decode_plan(const void *desc, const int32_t *params,
                                                const sop_facts *facts, size_t budget,
                                                sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    *split = {{facts->workers, params ? params[0] : 16}, 0};
    split->scratch_bytes = (size_t)facts->workers * 2 * DECODE_GROUP * ((size_t)d->k + 2) * 4;
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename T, typename QO> static sop_status run(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const unsigned grid = (unsigned)call->split->word[GRID];
    decode_args p = {sop_attention_args_of(call)};
    p.q_stride = d->q_stride, p.q_head = d->q_head;
    p.o_stride = d->o_stride, p.o_head = d->o_head;
    p.kp_page = d->kp_page, p.kp_token = d->kp_token, p.kp_head = d->kp_head;
    p.vp_page = d->vp_page, p.vp_token = d->vp_token, p.vp_head = d->vp_head;
    p.tokens = (int)d->tokens, p.seqs = (int)d->seqs;
    p.heads = (int)d->heads, p.group = (int)(d->heads / d->kv_heads), p.parts = (int)parts_of(d);
    p.page = (int)d->page, p.table_stride = (int)d->table_stride;
    p.window = (int)d->window, p.causal = d->causal;
    p.seg_cost = (int)call->split->word[SEG_COST];
    p.scale = d->scale, p.cap = d->cap;
    p.part_o = (float *)call->scratch;
    p.part_ml = (float2 *)(p.part_o + (size_t)grid * 2 * DECODE_GROUP * d->k);
    p.arrived = sop_cuda_counters(call);
    return sop_launch(d->k == 64 ? sop_decode_sm80<T, QO, 64> : sop_decode_sm80<T, QO, 128>, grid,
                      DECODE_WARPS * 32, call, p);
}

extern "C" sop_status sop_attention_decode_sm80(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (!sop_attention_aligned(call)) return sop_attention_cuda(call);
    if (d->q_dtype == SOP_F32)
        return d->kv_dtype == SOP_F16 ? run<__half, float>(call) : run<__nv_bfloat16, float>(call);
    return d->kv_dtype == SOP_F16 ? run<__half, __half>(call)
                                  : run<__nv_bfloat16, __nv_bfloat16>(call);
}
