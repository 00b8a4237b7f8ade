/* A token is a task. 8 logits a step are compared with the last of those chosen so far; only steps that
 * hold a larger one (or a NaN) are looked into. The sum over all is of 8 exponentials a step. */
#include <immintrin.h>
#include <math.h>

#include "core/op.h"
#include "ops/moe_gate/moe_gate.h"
#include "ops/simd/avx2.h"
#include "ops/simd/vmath_avx2.h"

static void choose(const float *x, int64_t experts, int64_t top, int32_t *ids)
{
    int64_t n = 0, e = 0;
    for (; e < top; e++) n = sop_moe_gate_insert(x, ids, n, top, e);
    for (; e + 8 <= experts; e += 8) {
        const __m256 last = _mm256_set1_ps(x[ids[top - 1]]);
        unsigned larger =
            (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + e), last, _CMP_NLE_UQ));
        for (; larger; larger &= larger - 1)
            sop_moe_gate_insert(x, ids, n, top, e + __builtin_ctz(larger));
    }
    for (; e < experts; e++) sop_moe_gate_insert(x, ids, n, top, e);
}

/* exp(z - max), 0 of -inf. */
static __m256 shares(__m256 z, __m256 max)
{
    const __m256 none = _mm256_cmp_ps(z, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
    return _mm256_andnot_ps(none, sop_exp8(_mm256_sub_ps(z, max)));
}

/* n <= 8 values of x, at ids unless that is NULL; -inf in the other lanes. */
static __m256 gather(const float *x, const int32_t *ids, int64_t n)
{
    float v[8];
    for (int64_t k = 0; k < 8; k++) v[k] = k < n ? x[ids ? ids[k] : k] : -INFINITY;
    return _mm256_loadu_ps(v);
}

static void weigh(const sop_moe_gate_desc *d, const float *x, const int32_t *ids, float *weights)
{
    const __m256 max = _mm256_set1_ps(x[ids[0]]);
    __m256 all = _mm256_setzero_ps(), chosen = all;
    int64_t e = 0;
    if (d->over == SOP_MOE_ALL) {
        for (; e + 8 <= d->experts; e += 8)
            all = _mm256_add_ps(all, shares(_mm256_loadu_ps(x + e), max));
        if (e < d->experts)
            all = _mm256_add_ps(all, shares(gather(x + e, NULL, d->experts - e), max));
    }
    for (int64_t j = 0; j < d->top; j += 8) {
        float w[8];
        const __m256 s = shares(gather(x, ids + j, d->top - j), max);
        _mm256_storeu_ps(w, s);
        chosen = _mm256_add_ps(chosen, s);
        for (int64_t k = 0; k < 8 && j + k < d->top; k++) weights[j + k] = w[k];
    }
    const float sum = sop_sum8(d->over == SOP_MOE_ALL ? all : chosen);
    for (int64_t j = 0; j < d->top && sum != 0; j++) weights[j] /= sum;
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_moe_gate_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_MOE_GATE_X].data + t * d->x_stride;
        int32_t *ids = (int32_t *)call->args[SOP_MOE_GATE_IDS].data + t * d->top;
        choose(x, d->experts, d->top, ids);
        weigh(d, x, ids, (float *)call->args[SOP_MOE_GATE_WEIGHTS].data + t * d->top);
    }
}

sop_status sop_moe_gate_f32_avx2(const sop_call *call)
{
    const sop_moe_gate_desc *d = call->desc;
    const int64_t live = sop_live(call, SOP_MOE_GATE_LIVE, d->tokens);
    sop_parallel(call->queue, live, 8, tokens, call);
    sop_moe_gate_sort(call, live * d->top);
    return SOP_OK;
}
