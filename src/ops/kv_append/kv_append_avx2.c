/* 8 floats a step into f32, f16 or bf16; the tail is scalar. */
#include <string.h>

#include "core/op.h"
#include "ops/kv_append/kv_append.h"
#include "ops/simd/avx2.h"

static void put(void *pool, int32_t dtype, int64_t to, const float *x, int64_t n)
{
    int64_t i = 0;
    if (dtype == SOP_F32) {
        memcpy((float *)pool + to, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *out = (uint16_t *)pool + to;
    for (; i + 8 <= n; i += 8) sop_encode8(out + i, dtype, _mm256_loadu_ps(x + i));
    for (; i < n; i++) out[i] = dtype == SOP_F16 ? sop_f32_to_f16(x[i]) : sop_f32_to_bf16(x[i]);
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_kv_append_desc *d = call->desc;
    const int32_t *slots = call->args[SOP_KV_APPEND_SLOTS].data;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        if (slots[t] < 0 || slots[t] >= d->pages * d->page) continue;
        const int64_t page = slots[t] / d->page, place = slots[t] % d->page;
        for (int64_t h = 0; h < d->heads; h++) {
            put(call->args[SOP_KV_APPEND_K_POOL].data, d->kv_dtype,
                page * d->kp_page + place * d->kp_token + h * d->kp_head,
                (const float *)call->args[SOP_KV_APPEND_K].data + t * d->k_stride + h * d->k_head,
                d->k);
            put(call->args[SOP_KV_APPEND_V_POOL].data, d->kv_dtype,
                page * d->vp_page + place * d->vp_token + h * d->vp_head,
                (const float *)call->args[SOP_KV_APPEND_V].data + t * d->v_stride + h * d->v_head,
                d->v);
        }
    }
}

sop_status sop_kv_append_f32_avx2(const sop_call *call)
{
    const sop_kv_append_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_KV_APPEND_LIVE, d->tokens), 16, tokens, call);
    return SOP_OK;
}
