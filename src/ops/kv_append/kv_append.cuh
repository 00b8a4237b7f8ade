/* One block a token: its keys, then its values, head after head. Any types and strides. */
#ifndef OPS_KV_APPEND_CUH
#define OPS_KV_APPEND_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* x at place i of a pool, as it is or as a code. */
SOP_DEV void sop_append_one(void *pool, int32_t dtype, int64_t i, float x, const float *scales,
                            int64_t h)
{
    if (dtype == SOP_I8)
        ((int8_t *)pool)[i] = (int8_t)rintf(fminf(fmaxf(__fdiv_rn(x, scales[h]), -127), 127));
    else if (dtype == SOP_F8)
        ((uint8_t *)pool)[i] = sop_float_to_f8(__fdiv_rn(x, scales[h]));
    else
        sop_store_any(pool, dtype, i, x);
}

static __global__ void sop_kv_append_any(const sop_kv_append_desc d, const void *k, const void *v,
                                         const int32_t *slots, const int32_t *live,
                                         const float *k_scales, const float *v_scales, void *k_pool,
                                         void *v_pool)
{
    sop_begin();
    const int64_t t = blockIdx.x;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int64_t slot = slots[t], page = slot / d.page, place = slot % d.page;
    if (slot < 0 || slot >= d.pages * d.page) return;
    const int64_t nk = d.heads * d.k, n = nk + d.heads * d.v;
    for (int64_t e = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; e < n;
         e += (int64_t)gridDim.y * blockDim.x) {
        if (e < nk) {
            const int64_t h = e / d.k, i = e % d.k;
            sop_append_one(
                k_pool, d.kv_dtype, page * d.kp_page + place * d.kp_token + h * d.kp_head + i,
                sop_load_any(k, d.x_dtype, t * d.k_stride + h * d.k_head + i), k_scales, h);
        } else {
            const int64_t h = (e - nk) / d.v, i = (e - nk) % d.v;
            sop_append_one(
                v_pool, d.kv_dtype, page * d.vp_page + place * d.vp_token + h * d.vp_head + i,
                sop_load_any(v, d.x_dtype, t * d.v_stride + h * d.v_head + i), v_scales, h);
        }
    }
}

#endif
