#include "ops/attention_grad/attention_grad_cuda.cuh"
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
    if (d->k != d->v || (d->k != 64 && d->k != 128)) return "heads are not of 64 or 128 channels";
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        if (strides[i] % 8) return "a stride is no multiple of 8 elements";
    if (!(d->scale > 0)) return "scale is not above 0";
    if (d->seqs > 65535) return "over 65535 sequences";
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

template <int D, bool KEYS, bool CAP, typename G> static sop_status tiles(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    const dim3 grid(sop_blocks(KEYS ? d->max_kv : d->max_q, SOP_GRAD_SIDE),
                    (unsigned)(KEYS ? d->kv_heads : d->heads), (unsigned)d->seqs);
    return sop_launch_cluster(sop_attention_grad_tiles<D, KEYS, CAP, G>, grid, SOP_GRAD_THREADS,
                              sop_attention_grad_shared(D), 1, call, *d,
                              sop_attention_grad_args_of(call), (const float2 *)call->scratch);
}

template <int D, typename G> static sop_status run(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    sop_status s = SOP_OK;
    if (d->tokens > 0)
        s = sop_launch(sop_attention_grad_stats<D>,
                       dim3(sop_blocks(d->tokens, 8), (unsigned)d->heads), 256, call, *d,
                       (const __nv_bfloat16 *)a[SOP_ATTENTION_GRAD_O].data,
                       (const __nv_bfloat16 *)a[SOP_ATTENTION_GRAD_DO].data,
                       (const float *)a[SOP_ATTENTION_GRAD_LSE].data, (float2 *)call->scratch);
    if (s == SOP_OK && d->keys > 0)
        s = d->cap > 0 ? tiles<D, true, true, G>(call) : tiles<D, true, false, G>(call);
    if (s == SOP_OK && d->tokens > 0)
        s = d->cap > 0 ? tiles<D, false, true, G>(call) : tiles<D, false, false, G>(call);
    return s;
}

extern "C" sop_status sop_attention_grad_sm80(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    for (int i = 0; i < SOP_ATTENTION_GRAD_ROLES; i++)
        if (i != SOP_ATTENTION_GRAD_Q_START && i != SOP_ATTENTION_GRAD_K_START &&
            i != SOP_ATTENTION_GRAD_LSE && !sop_aligned16(call->args[i].data))
            return sop_attention_grad_cuda(call);
    if (d->dq_dtype == SOP_F32) return d->k == 64 ? run<64, float>(call) : run<128, float>(call);
    return d->k == 64 ? run<64, __nv_bfloat16>(call) : run<128, __nv_bfloat16>(call);
}
