/* Pieces of 16 bytes of the wider type: a thread has one place of a token's keys or values, for four
 * tokens whose loads are in flight together; short tokens share a block. */
#ifndef OPS_KV_APPEND_WIDE_CUH
#define OPS_KV_APPEND_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

/* Codes of a pool. */
struct append_i8 {
    uint8_t bits;
};
struct append_f8 {
    uint8_t bits;
};
SOP_DEV void append_code(float x, append_i8 &out)
{
    out.bits = (uint8_t)(int8_t)rintf(fminf(fmaxf(x, -127), 127));
}
SOP_DEV void append_code(float x, append_f8 &out)
{
    out.bits = sop_float_to_f8(x);
}

template <typename KV, int N> SOP_DEV void append_store(KV *to, const float (&x)[N], float scale)
{
    if constexpr (sizeof(KV) == 1) {
        wide_raw<KV, N> raw;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            KV code[4];
#pragma unroll
            for (int e = 0; e < 4; e++) append_code(__fdiv_rn(x[i + e], scale), code[e]);
            raw.word[i / 4] = (uint32_t)code[0].bits | (uint32_t)code[1].bits << 8 |
                              (uint32_t)code[2].bits << 16 | (uint32_t)code[3].bits << 24;
        }
        wide_put(to, raw);
    } else {
        wide_store(to, x);
    }
}

template <typename X, typename KV>
static __global__ __launch_bounds__(256) void sop_kv_append_wide(
    const sop_kv_append_desc d, const X *k, const X *v, const int32_t *slots, const int32_t *live,
    const float *k_scales, const float *v_scales, KV *k_pool, KV *v_pool)
{
    enum { N = wide_both<X, KV>::N, REP = 4 };
    sop_begin();
    const int keys = (int)(d.heads * d.k) / N, n = keys + (int)(d.heads * d.v) / N;
    const int at = blockIdx.y * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const bool is_key = at < keys;
    const int each = (int)(is_key ? d.k : d.v) / N, of = is_key ? at : at - keys;
    const int64_t h = of / each, i = of % each * N;
    const X *x = is_key ? k + h * d.k_head + i : v + h * d.v_head + i;
    KV *pool = is_key ? k_pool + h * d.kp_head + i : v_pool + h * d.vp_head + i;
    const float scale = sizeof(KV) == 1 ? (is_key ? k_scales : v_scales)[h] : 1;
    const int64_t stride = is_key ? d.k_stride : d.v_stride;
    const int64_t of_page = is_key ? d.kp_page : d.vp_page;
    const int64_t of_token = is_key ? d.kp_token : d.vp_token;
    const int64_t tokens = sop_live_rows(live, d.tokens), slots_all = d.pages * d.page;
    const int64_t first = (int64_t)blockIdx.x * REP * blockDim.y + threadIdx.y;
    wide_raw<X, N> raw[REP];
    int32_t slot[REP];
#pragma unroll
    for (int r = 0; r < REP; r++) {
        const int64_t t = first + r * blockDim.y;
        slot[r] = -1;
        if (t >= tokens) continue;
        slot[r] = slots[t];
        wide_fetch(x + t * stride, raw[r]);
    }
#pragma unroll
    for (int r = 0; r < REP; r++) {
        if (slot[r] < 0 || slot[r] >= slots_all) continue;
        const uint32_t page = (uint32_t)slot[r] / (uint32_t)d.page;
        const uint32_t place = (uint32_t)slot[r] - page * (uint32_t)d.page;
        float w[N];
        wide_floats(raw[r], w);
        append_store(pool + page * of_page + place * of_token, w, scale);
    }
}

#endif
