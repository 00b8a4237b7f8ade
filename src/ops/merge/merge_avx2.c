/* A token and head is a task. 32 channels at a time stay in registers while all parts go by; the weights
 * are taken 8 at a time before, and wait in a buffer. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/merge/merge.h"
#include "ops/simd/avx2.h"
#include "ops/simd/vmath_avx2.h"

enum { PARTS = 256 }; /* weights held at once */

/* exp(lse - m) of n <= PARTS parts into w, 0 of those that saw nothing; their sum. */
static float weigh(const float *lse, int64_t apart, int64_t n, float m, float *w)
{
    __m256 sum = _mm256_setzero_ps();
    for (int64_t p = 0; p < n; p += 8) {
        float l[8];
        for (int64_t k = 0; k < 8; k++) l[k] = p + k < n ? lse[(p + k) * apart] : -INFINITY;
        const __m256 v = _mm256_loadu_ps(l);
        const __m256 none = _mm256_cmp_ps(v, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
        const __m256 e = _mm256_andnot_ps(none, sop_exp8(_mm256_sub_ps(v, _mm256_set1_ps(m))));
        _mm256_storeu_ps(w + p, e);
        sum = _mm256_add_ps(sum, e);
    }
    return sop_sum8(sum);
}

/* The masks of the first n of 8 lanes. */
static __m256i lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n < 8 ? n : 8)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* y (0 when fresh) + sum of w_p x_p, for n <= 32 channels. */
static inline void add(const float *x, int64_t apart, const float *w, int64_t parts, float *y,
                       int64_t n, int fresh)
{
    __m256i in[4];
    __m256 s[4];
    for (int64_t k = 0; k < 4; k++) {
        in[k] = lanes(n > 8 * k ? n - 8 * k : 0);
        s[k] = fresh ? _mm256_setzero_ps() : _mm256_maskload_ps(y + 8 * k, in[k]);
    }
    for (int64_t p = 0; p < parts; p++, x += apart) {
        if (w[p] == 0) continue; /* what saw nothing is not read */
        const __m256 f = _mm256_set1_ps(w[p]);
        for (int64_t k = 0; k < 4; k++)
            s[k] = _mm256_fmadd_ps(f, _mm256_maskload_ps(x + 8 * k, in[k]), s[k]);
    }
    for (int64_t k = 0; k < 4; k++) _mm256_maskstore_ps(y + 8 * k, in[k], s[k]);
}

static void row(const sop_merge_desc *d, const float *x, const float *lse, float *y, float *out)
{
    float w[PARTS], m = -INFINITY, sum = 0;
    for (int64_t p = 0; p < d->parts; p++) m = fmaxf(m, lse[p * d->lse_part]);
    for (int64_t p = 0; p == 0 || p < d->parts; p += PARTS) {
        const int64_t n = d->parts - p < PARTS ? d->parts - p : PARTS;
        sum += weigh(lse + p * d->lse_part, d->lse_part, n, m, w);
        for (int64_t i = 0; i < d->v; i += 32)
            add(x + p * d->x_part + i, d->x_part, w, n, y + i, d->v - i, p == 0);
    }
    if (out) *out = sum == 0 ? -INFINITY : m + logf(sum);
    if (sum == 0) return;
    const float inverse = 1 / sum;
    for (int64_t i = 0; i < d->v; i++) y[i] *= inverse;
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_merge_desc *d = call->desc;
    float *out = call->args[SOP_MERGE_LSE_OUT].data;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t t = k / d->heads, h = k % d->heads;
        row(d, (const float *)call->args[SOP_MERGE_X].data + t * d->x_stride + h * d->x_head,
            (const float *)call->args[SOP_MERGE_LSE].data + t * d->lse_stride + h,
            (float *)call->args[SOP_MERGE_Y].data + t * d->y_stride + h * d->y_head,
            out ? out + k : NULL);
    }
}

sop_status sop_merge_f32_avx2(const sop_call *call)
{
    const sop_merge_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_MERGE_LIVE, d->tokens) * d->heads, 4, rows, call);
    return SOP_OK;
}
