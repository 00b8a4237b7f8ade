#include "ops/attention_grad/attention_grad_launch.cuh"
#include "ops/attention_grad/attention_grad_sm80.cuh"

extern "C" const char *sop_attention_grad_sm80_refuse(const void *desc)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)desc;
    const int64_t strides[] = {d->q_stride,  d->q_head,  d->k_stride,  d->k_head,
                               d->v_stride,  d->v_head,  d->o_stride,  d->o_head,
                               d->do_stride, d->do_head, d->dq_stride, d->dq_head,
                               d->dk_stride, d->dk_head, d->dv_stride, d->dv_head};
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants products in float32";
    /* the gradient of a score may pass float16 */
    if (d->q_dtype != SOP_BF16 || d->o_dtype != SOP_BF16) return "a type is not bf16";
    if (d->dq_dtype != SOP_BF16 && d->dq_dtype != SOP_F32) return "gradients are not bf16 or f32";
    if (d->k > 128 || d->v > 128) return "heads are of over 128 channels";
    if (d->k % 8 || d->v % 8) return "heads are no multiple of 8 channels";
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        if (strides[i] % 8) return "a stride is no multiple of 8 elements";
    if (!(d->scale > 0)) return "scale is not above 0";
    if (d->seqs > 65535) return "over 65535 sequences";
    if (d->max_q > 65535 * 64 || d->max_kv > 65535 * 64)
        return "a sequence is over 65535 tiles long";
    return NULL;
}

extern "C" sop_status sop_attention_grad_sm80_plan(const void *desc, const int32_t *params,
                                                   const sop_facts *facts, size_t budget,
                                                   sop_split *split)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0}, (size_t)(d->tokens * d->heads) * sizeof(float2)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <int D, bool KEYS, bool CAP, typename G> struct by_mma {
    static constexpr auto kernel = sop_attention_grad_mma<D, KEYS, CAP, G>;
    enum {
        threads = SOP_GRAD_THREADS,
        rows = SOP_GRAD_SIDE,
        shared = 6 * SOP_GRAD_SIDE * D * 2 + 2 * SOP_GRAD_SIDE * 8
    };
};

extern "C" sop_status sop_attention_grad_sm80(const sop_call *call)
{
    return grad_run_any<by_mma>(call);
}
