/* What the launchers of attention share. */
#ifndef OPS_ATTENTION_CUDA_CUH
#define OPS_ATTENTION_CUDA_CUH

#include "ops/attention/attention.cuh"

static inline sop_attention_args sop_attention_args_of(const sop_call *call)
{
    const sop_operand *a = call->args;
    return {a[SOP_ATTENTION_Q].data,
            a[SOP_ATTENTION_K_POOL].data,
            a[SOP_ATTENTION_V_POOL].data,
            (const int32_t *)a[SOP_ATTENTION_TABLE].data,
            (const int32_t *)a[SOP_ATTENTION_Q_START].data,
            (const int32_t *)a[SOP_ATTENTION_KV_LEN].data,
            (const int32_t *)a[SOP_ATTENTION_LIVE].data,
            a[SOP_ATTENTION_O].data,
            (float *)a[SOP_ATTENTION_LSE].data};
}

#endif
