/* What the launchers of attention_grad share. */
#ifndef OPS_ATTENTION_GRAD_CUDA_CUH
#define OPS_ATTENTION_GRAD_CUDA_CUH

extern "C" {
#include "ops/attention_grad/attention_grad.h"
}
#include "ops/attention_grad/attention_grad.cuh"
#include "ops/cuda/launch.cuh"

/* The scratch is delta alone. */
static inline sop_attention_grad_args sop_attention_grad_args_of(const sop_call *call)
{
    const sop_operand *a = call->args;
    return {a[SOP_ATTENTION_GRAD_Q].data,
            a[SOP_ATTENTION_GRAD_K].data,
            a[SOP_ATTENTION_GRAD_V].data,
            a[SOP_ATTENTION_GRAD_O].data,
            a[SOP_ATTENTION_GRAD_DO].data,
            (const int32_t *)a[SOP_ATTENTION_GRAD_Q_START].data,
            (const int32_t *)a[SOP_ATTENTION_GRAD_K_START].data,
            (const float *)a[SOP_ATTENTION_GRAD_LSE].data,
            (float *)call->scratch,
            a[SOP_ATTENTION_GRAD_DQ].data,
            a[SOP_ATTENTION_GRAD_DK].data,
            a[SOP_ATTENTION_GRAD_DV].data,
            0};
}

#endif
