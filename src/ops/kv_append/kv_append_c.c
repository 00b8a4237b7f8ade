/* Portable, all types: equal types are copied, others go through float. A token is a task. */
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/kv_append/kv_append.h"

static void put(void *pool, int32_t to_dtype, int64_t to, const void *x, int32_t from_dtype,
                int64_t from, int64_t n, const float *scale)
{
    const size_t to_bytes = sop_dtype_bytes(to_dtype), from_bytes = sop_dtype_bytes(from_dtype);
    char *out = (char *)pool + (size_t)to * to_bytes;
    const char *in = (const char *)x + (size_t)from * from_bytes;
    if (to_dtype == from_dtype) {
        memcpy(out, in, (size_t)n * to_bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float value = (float)sop_load(in, from_dtype, i);
        if (scale) value /= *scale;
        if (to_dtype == SOP_I8) value = rintf(fminf(fmaxf(value, -127), 127));
        sop_store(out, to_dtype, i, (double)value);
    }
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_kv_append_desc *d = call->desc;
    const int32_t *slots = call->args[SOP_KV_APPEND_SLOTS].data;
    const float *k_scales =
        sop_is_code(d->kv_dtype) ? call->args[SOP_KV_APPEND_K_SCALES].data : NULL;
    const float *v_scales =
        sop_is_code(d->kv_dtype) ? call->args[SOP_KV_APPEND_V_SCALES].data : NULL;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        if (slots[t] < 0 || slots[t] >= d->pages * d->page) continue;
        const int64_t page = slots[t] / d->page, place = slots[t] % d->page;
        for (int64_t h = 0; h < d->heads; h++) {
            put(call->args[SOP_KV_APPEND_K_POOL].data, d->kv_dtype,
                page * d->kp_page + place * d->kp_token + h * d->kp_head,
                call->args[SOP_KV_APPEND_K].data, d->x_dtype, t * d->k_stride + h * d->k_head, d->k,
                k_scales ? k_scales + h : NULL);
            put(call->args[SOP_KV_APPEND_V_POOL].data, d->kv_dtype,
                page * d->vp_page + place * d->vp_token + h * d->vp_head,
                call->args[SOP_KV_APPEND_V].data, d->x_dtype, t * d->v_stride + h * d->v_head, d->v,
                v_scales ? v_scales + h : NULL);
        }
    }
}

sop_status sop_kv_append_c(const sop_call *call)
{
    const sop_kv_append_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_KV_APPEND_LIVE, d->tokens), 16, tokens, call);
    return SOP_OK;
}
