/* 8 floats a step into f32, f16 or bf16; the tail is scalar. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/kv_append/kv_append.h"

/* Round to nearest even, as core/f16.h; NaN stays NaN. */
static inline __m128i bf16_of(__m256 v)
{
    const __m256i x = _mm256_castps_si256(v), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), one);
    const __m256i r = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

static void put(void *pool, int32_t dtype, int64_t to, const float *x, int64_t n)
{
    int64_t i = 0;
    if (dtype == SOP_F32) {
        memcpy((float *)pool + to, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *out = (uint16_t *)pool + to;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        _mm_storeu_si128((__m128i *)(void *)(out + i),
                         dtype == SOP_F16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
                                          : bf16_of(v));
    }
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
