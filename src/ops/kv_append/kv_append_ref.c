/* The reference: one element after another, rounded once. A code may be the neighbour where a quotient in
 * float32 (a division, u = 2^-24, and what the rows of x are off by no more than) may cross a middle. */
#include <math.h>

#include "core/op.h"
#include "ops/kv_append/kv_append.h"

static double code_of(double q, int32_t dtype)
{
    if (dtype == SOP_I8) return rint(fmin(fmax(q, -127), 127));
    return (double)sop_f8_to_f32(sop_f32_to_f8((float)q));
}

/* n channels of a head: x at `from`, the pool at `to`, the dense pool at `dense`. */
static void put(const sop_call *call, const sop_judge *judge, int32_t x, int32_t pool, int64_t n,
                int64_t from, int64_t to, int64_t dense, const float *scale)
{
    const sop_kv_append_desc *d = call->desc;
    for (int64_t i = 0; i < n; i++) {
        const double value = sop_load(call->args[x].data, d->x_dtype, from + i);
        double put = value, off = 0;
        if (scale) {
            const double q = value / (double)*scale, u = 2 * SOP_U32 * fabs(q);
            put = code_of(q, d->kv_dtype);
            off = fmax(code_of(q + u, d->kv_dtype) - put, put - code_of(q - u, d->kv_dtype));
        }
        sop_put(call, judge, pool, d->kv_dtype, to + i, dense + i, put, off);
    }
}

sop_status sop_kv_append_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_kv_append_desc *d = call->desc;
    const int32_t *slots = call->args[SOP_KV_APPEND_SLOTS].data;
    const float *k_scales =
        sop_is_code(d->kv_dtype) ? call->args[SOP_KV_APPEND_K_SCALES].data : NULL;
    const float *v_scales =
        sop_is_code(d->kv_dtype) ? call->args[SOP_KV_APPEND_V_SCALES].data : NULL;
    const int64_t tokens = sop_live(call, SOP_KV_APPEND_LIVE, d->tokens);
    for (int64_t t = 0; t < tokens; t++) {
        if (slots[t] < 0 || slots[t] >= d->pages * d->page) continue;
        const int64_t page = slots[t] / d->page, place = slots[t] % d->page;
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t row = slots[t] * d->heads + h;
            put(call, judge, SOP_KV_APPEND_K, SOP_KV_APPEND_K_POOL, d->k,
                t * d->k_stride + h * d->k_head,
                page * d->kp_page + place * d->kp_token + h * d->kp_head, row * d->k,
                k_scales ? k_scales + h : NULL);
            put(call, judge, SOP_KV_APPEND_V, SOP_KV_APPEND_V_POOL, d->v,
                t * d->v_stride + h * d->v_head,
                page * d->vp_page + place * d->vp_token + h * d->vp_head, row * d->v,
                v_scales ? v_scales + h : NULL);
        }
    }
    return SOP_OK;
}

sop_status sop_kv_append_ref(const sop_call *call)
{
    return sop_kv_append_reference(call, NULL);
}
