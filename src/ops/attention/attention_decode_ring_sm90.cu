/* attention, few queries, on cards that let the next launch stand ready beside the one that runs. */
#include "ops/attention/decode_cuda.cuh"
#include "ops/attention/decode_ring_sm90.cuh"

typedef void ring_kernel(const decode_args);
struct ring_choice {
    ring_kernel *kernel; /* NULL: none for this head */
    size_t shared;
};
template <typename T, int HEAD> static ring_choice choice(void)
{
    return {sop_decode_ring_sm90<T, HEAD>, ring_decode<HEAD>::SHARED};
}
template <typename T> static ring_choice choice_of(const sop_attention_desc *d)
{
    switch (d->k) {
    case 64: return choice<T, 64>();
    case 128: return choice<T, 128>();
    case 256: return choice<T, 256>();
    default: return {NULL, 0};
    }
}

extern "C" const char *sop_attention_decode_ring_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_decode_refuse(d);
    if (why) return why;
    if (d->alibi) return "alibi is not taken";
    if (d->q_dtype == SOP_F32) return "q is not of 16 bits";
    if (!choice_of<__half>(d).kernel) return "heads are not of 64, 128 or 256";
    if (d->kv_heads > 65535) return "over 65,535 KV heads";
    return NULL;
}

extern "C" sop_status sop_attention_decode_ring_plan(const void *desc, const int32_t *params,
                                                     const sop_facts *facts, size_t budget,
                                                     sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const int64_t group = d->heads / d->kv_heads,
                  of_piece = group < DECODE_GROUP ? group : DECODE_GROUP;
    const int64_t most = SOP_CUDA_COUNTERS / (of_piece * (d->k + 4)); /* CTAs whose mail fits */
    (void)budget;
    const int64_t cost = params ? params[0] : d->k == 256 ? 0 : 8;
    *split = {{facts->workers < most ? facts->workers : most, cost}, 0};
    return SOP_OK;
}

extern "C" sop_status sop_attention_decode_ring_sm90(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (!sop_attention_aligned(call)) return sop_attention_cuda(call);
    const ring_choice c =
        d->q_dtype == SOP_F16 ? choice_of<__half>(d) : choice_of<__nv_bfloat16>(d);
    return sop_launch_cluster(c.kernel, (unsigned)call->split->word[DECODE_GRID], DECODE_WARPS * 32,
                              c.shared, 1, call, sop_decode_args_of(call));
}
