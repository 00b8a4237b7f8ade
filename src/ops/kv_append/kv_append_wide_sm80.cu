extern "C" {
#include "ops/kv_append/kv_append.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/kv_append/kv_append_wide.cuh"

extern "C" const char *sop_kv_append_wide_refuse(const void *desc)
{
    const sop_kv_append_desc *d = (const sop_kv_append_desc *)desc;
    const int64_t strides[] = {d->k_stride, d->k_head,   d->v_stride, d->v_head,
                               d->kp_page,  d->kp_token, d->kp_head,  d->vp_page,
                               d->vp_token, d->vp_head,  d->v};
    if (sop_is_code(d->kv_dtype) && d->x_dtype == SOP_F32) return "x is f32, the pools hold codes";
    if (d->heads * (d->k + d->v) > INT32_MAX / 2) return "rows are over 2^30 long";
    return sop_wide_refuse(d->x_dtype == SOP_F32 ? d->kv_dtype : d->x_dtype, d->k, strides, 11);
}

template <typename X, typename KV> static sop_status run_types(const sop_call *call)
{
    const sop_kv_append_desc *d = (const sop_kv_append_desc *)call->desc;
    const sop_operand *a = call->args;
    const int64_t pieces = d->heads * (d->k + d->v) / wide_both<X, KV>::N;
    const unsigned across = sop_wide_across(pieces), down = 256 / across;
    return sop_launch(
        sop_kv_append_wide<X, KV>,
        dim3(sop_blocks(d->tokens, 4 * down), sop_blocks(pieces, across)), dim3(across, down), call,
        *d, (const X *)a[SOP_KV_APPEND_K].data, (const X *)a[SOP_KV_APPEND_V].data,
        (const int32_t *)a[SOP_KV_APPEND_SLOTS].data, (const int32_t *)a[SOP_KV_APPEND_LIVE].data,
        (const float *)a[SOP_KV_APPEND_K_SCALES].data,
        (const float *)a[SOP_KV_APPEND_V_SCALES].data, (KV *)a[SOP_KV_APPEND_K_POOL].data,
        (KV *)a[SOP_KV_APPEND_V_POOL].data);
}

template <typename X> static sop_status run(const sop_call *call)
{
    const sop_kv_append_desc *d = (const sop_kv_append_desc *)call->desc;
    if constexpr (sizeof(X) == 2) {
        if (d->kv_dtype == SOP_I8) return run_types<X, append_i8>(call);
        if (d->kv_dtype == SOP_F8) return run_types<X, append_f8>(call);
    }
    return SOP_WIDE_TYPE2(X, d->kv_dtype, run_types, call);
}

extern "C" sop_status sop_kv_append_wide_sm80(const sop_call *call)
{
    const sop_kv_append_desc *d = (const sop_kv_append_desc *)call->desc;
    const int32_t roles[] = {SOP_KV_APPEND_K, SOP_KV_APPEND_V, SOP_KV_APPEND_K_POOL,
                             SOP_KV_APPEND_V_POOL};
    if (d->tokens == 0) return SOP_OK;
    for (int i = 0; i < 4; i++)
        if (!sop_aligned16(call->args[roles[i]].data)) return sop_kv_append_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
