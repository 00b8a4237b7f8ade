#include "ops/attention/decode_cuda.cuh"

/* NULL when there is none for this head; those with alibi are of its models. */
typedef void decode_kernel(const decode_args);
template <typename T, typename QO> static decode_kernel *kernel_of(const sop_attention_desc *d)
{
    switch (d->alibi ? -d->k : d->k) {
    case 64: return sop_decode_sm80<T, QO, 64, false>;
    case 80: return sop_decode_sm80<T, QO, 80, false>;
    case 96: return sop_decode_sm80<T, QO, 96, false>;
    case 112: return sop_decode_sm80<T, QO, 112, false>;
    case 128: return sop_decode_sm80<T, QO, 128, false>;
    case 160: return sop_decode_sm80<T, QO, 160, false>;
    case 192: return sop_decode_sm80<T, QO, 192, false>;
    case 256: return sop_decode_sm80<T, QO, 256, false>;
    case -64: return sop_decode_sm80<T, QO, 64, true>;
    case -112: return sop_decode_sm80<T, QO, 112, true>;
    case -128: return sop_decode_sm80<T, QO, 128, true>;
    default: return NULL;
    }
}

extern "C" const char *sop_attention_decode_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (d->numerics == SOP_NUMERICS_INVARIANT) return "its split of the keys follows the batch";
    if (d->mask_heads) return "a mask is taken by the row of many queries alone";
    if (d->k != d->v) return "keys and values differ in width";
    if (!kernel_of<__half, __half>(d))
        return d->alibi ? "heads are not of 64, 112 or 128, the ones for alibi"
                        : "heads are not of 64 to 128 by 16, 160, 192 or 256";
    if (d->alibi && !d->causal) return "alibi sees keys on both sides";
    if (d->tokens > DECODE_MOST_TOKENS || d->tokens > 16 * d->seqs)
        return "over 256 queries, or over 16 a sequence";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_TILED))) return "no path of it is a candidate";
    if (d->page % 8) return "pages are no multiple of 8 tokens";
    const int64_t strides[] = {d->kp_page, d->kp_token, d->kp_head,
                               d->vp_page, d->vp_token, d->vp_head};
    for (int i = 0; i < 6; i++)
        if (strides[i] > INT32_MAX || strides[i] < INT32_MIN) return "a stride is over 2^31";
    return NULL;
}

/* A (query, KV head) costs as much as some more units of 16 keys, in whole rounds of the warps: their merge.
 * On an H200 one sequence of 65,536 keys beside 31 of 512 takes 85 us with 8, 87 with 16; 12 mixed short
 * ones 9.6 and 9.2. */
extern "C" sop_status sop_attention_decode_plan(const void *desc, const int32_t *params,
                                                const sop_facts *facts, size_t budget,
                                                sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const int64_t most = SOP_CUDA_COUNTERS / (DECODE_GROUP * (d->k + 4)); /* CTAs whose mail fits */
    (void)budget;
    *split = {{facts->workers < most ? facts->workers : most, params ? params[0] : 8}, 0};
    return SOP_OK;
}

template <typename T, typename QO> static sop_status run(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const unsigned grid = (unsigned)call->split->word[DECODE_GRID];
    const decode_args p = sop_decode_args_of(call);
    return sop_launch(kernel_of<T, QO>(d), grid, DECODE_WARPS * 32, call, p);
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
