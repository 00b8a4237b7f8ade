/* attention over caches of 8 bits, few queries: the codes are read as they are, half the bytes. */
#include "ops/attention/decode_cuda.cuh"

extern "C" {
#include "ops/kv_append/kv_append.h"
}

/* NULL when there is none for this head. */
typedef void decode_kernel(const decode_args);
template <typename QO, bool F8> static decode_kernel *kernel_of(const sop_attention_desc *d)
{
    switch (d->k) {
    case 64: return sop_decode_sm80<__half, QO, 64, false, decode_code<F8>>;
    case 96: return sop_decode_sm80<__half, QO, 96, false, decode_code<F8>>;
    case 128: return sop_decode_sm80<__half, QO, 128, false, decode_code<F8>>;
    default: return NULL;
    }
}

extern "C" const char *sop_attention_decode_bytes_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    sop_attention_desc numbers = *d; /* what else it wants is as if they were of 16 bits */
    if (!sop_is_code(d->kv_dtype)) return "the pools hold no codes";
    if (d->q_dtype == SOP_F32) return "q is not of 16 bits";
    if (d->kp_page % 16 || d->kp_token % 16 || d->kp_head % 16 || d->vp_page % 16 ||
        d->vp_token % 16 || d->vp_head % 16)
        return "a row of a pool is no multiple of 16 bytes";
    if (d->alibi) return "alibi is not taken";
    if (!kernel_of<__half, false>(d)) return "heads are not of 64, 96 or 128";
    numbers.kv_dtype = d->q_dtype;
    return sop_attention_decode_refuse(&numbers);
}

template <typename QO> static sop_status run(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const unsigned grid = (unsigned)call->split->word[DECODE_GRID];
    decode_kernel *const kernel =
        d->kv_dtype == SOP_F8 ? kernel_of<QO, true>(d) : kernel_of<QO, false>(d);
    return sop_launch(kernel, grid, DECODE_WARPS * 32, call, sop_decode_args_of(call));
}

extern "C" sop_status sop_attention_decode_bytes_sm80(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (!sop_attention_aligned(call)) return sop_attention_cuda(call);
    return d->q_dtype == SOP_F16 ? run<__half>(call) : run<__nv_bfloat16>(call);
}
