/* What the launchers of attention share. */
#ifndef OPS_ATTENTION_CUDA_CUH
#define OPS_ATTENTION_CUDA_CUH

extern "C" {
#include "ops/attention/attention.h"
}
#include "ops/attention/attention.cuh"
#include "ops/cuda/tma.cuh"

static inline sop_attention_args sop_attention_args_of(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const sop_operand *a = call->args;
    return {a[SOP_ATTENTION_Q].data,
            a[SOP_ATTENTION_K_POOL].data,
            a[SOP_ATTENTION_V_POOL].data,
            (const int32_t *)a[SOP_ATTENTION_TABLE].data,
            (const int32_t *)a[SOP_ATTENTION_Q_START].data,
            (const int32_t *)a[SOP_ATTENTION_KV_LEN].data,
            (const int32_t *)a[SOP_ATTENTION_LIVE].data,
            (const float *)a[SOP_ATTENTION_K_SCALES].data,
            (const float *)a[SOP_ATTENTION_V_SCALES].data,
            (const float *)(d->alibi ? a[SOP_ATTENTION_SLOPES].data : NULL),
            (const float *)(d->sinks ? a[SOP_ATTENTION_SINKS].data : NULL),
            d->mask_heads ? a[SOP_ATTENTION_MASK].data : NULL,
            a[SOP_ATTENTION_O].data,
            (float *)a[SOP_ATTENTION_LSE].data};
}

/* What the rows by tensor cores share: 16-bit keys and values, all in pieces of 16 bytes. They round the
 * weights of a softmax, and f32 queries, to the type of the keys. */
static inline const char *sop_attention_refuse_16(const sop_attention_desc *d)
{
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants products in float32";
    if (d->kv_dtype != SOP_F16 && d->kv_dtype != SOP_BF16) return "keys are not of 16 bits";
    if (d->q_dtype != d->o_dtype || (d->q_dtype != SOP_F32 && d->q_dtype != d->kv_dtype))
        return "q and o are neither f32 nor of the keys' type";
    if (d->q_stride % 8 || d->q_head % 8 || d->o_stride % 8 || d->o_head % 8 || d->kp_page % 8 ||
        d->kp_token % 8 || d->kp_head % 8 || d->vp_page % 8 || d->vp_token % 8 || d->vp_head % 8)
        return "a stride is no multiple of 16 bytes";
    if (!(d->scale > 0)) return "scale is not above 0";
    return NULL;
}

/* Whether the operands lie at multiples of 16 bytes. */
static inline bool sop_attention_aligned(const sop_call *call)
{
    const int32_t roles[] = {SOP_ATTENTION_Q, SOP_ATTENTION_K_POOL, SOP_ATTENTION_V_POOL,
                             SOP_ATTENTION_O};
    for (int i = 0; i < 4; i++)
        if (!sop_aligned16(call->args[roles[i]].data)) return false;
    return true;
}

#endif
