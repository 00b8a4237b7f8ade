/* x * 0 is 0 for a finite x, else NaN: one product and one comparison tell 8 floats. Most calls find
 * nothing, so only a block with a hit is counted. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/finite/finite.h"

static int64_t count8(__m256 x, int32_t allow)
{
    const __m256 product = _mm256_mul_ps(x, _mm256_setzero_ps());
    __m256 hit = _mm256_cmp_ps(product, product, _CMP_UNORD_Q);
    if (allow) {
        const __m256 low = _mm256_set1_ps(-__builtin_inff());
        hit = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_EQ_OQ), hit);
    }
    return __builtin_popcount((unsigned)_mm256_movemask_ps(hit));
}

static int64_t count(const float *x, int64_t n, int32_t allow)
{
    int64_t found = 0, i = 0;
    const __m256 zero = _mm256_setzero_ps();
    for (; i + 32 <= n; i += 32) {
        __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(x + i), zero);
        for (int k = 8; k < 32; k += 8)
            sum = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + k), zero, sum);
        if (_mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)))
            for (int k = 0; k < 32; k += 8) found += count8(_mm256_loadu_ps(x + i + k), allow);
    }
    for (; i < n; i += 8) {
        float pad[8] = {0};
        memcpy(pad, x + i, (size_t)(n - i < 8 ? n - i : 8) * sizeof *x);
        found += count8(_mm256_loadu_ps(pad), allow);
    }
    return found;
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_finite_desc *d = call->desc;
    int64_t n = 0;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        n += count((const float *)call->args[SOP_FINITE_X].data + t * d->x_stride, d->dim,
                   d->allow_neg_inf);
    sop_finite_add(call->args[SOP_FINITE_COUNT].data, n);
}

sop_status sop_finite_f32_avx2(const sop_call *call)
{
    const sop_finite_desc *d = call->desc;
    *(int32_t *)call->args[SOP_FINITE_COUNT].data = 0;
    sop_parallel(call->queue, sop_live(call, SOP_FINITE_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
