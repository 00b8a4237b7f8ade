/* 4 rows of a weight are decoded 256 columns at a time and run past their expert's rows, two at a time: 8
 * sums of 8 parts in registers. A sum is one chain in the order of k, kept between pieces of k, so the
 * bits of a row do not depend on how many there are. A task is 16 rows of one weight. */
#include <immintrin.h>

#include "core/op.h"
#include "ops/experts/experts.h"
#include "ops/linear/dequant.h"
#include "ops/simd/avx2.h"

enum { COLUMNS = 256, TOKENS = 16, ROWS = 16, SIDE = 4 };

/* kn columns of one row, then zeros to a multiple of 8. */
static void decode(int32_t dtype, const uint8_t *w, int64_t kn, float *out)
{
    const size_t bytes = sop_dtype_bytes(dtype);
    int64_t i = 0;
    if (sop_dtype_block(dtype) == 1)
        for (; i + 8 <= kn; i += 8)
            _mm256_store_ps(out + i, sop_decode8(w + (size_t)i * bytes, dtype));
    if (i < kn) sop_dequant_row(dtype, w + (size_t)i * bytes, kn - i, out + i);
    for (i = kn; i % 8; i++) out[i] = 0;
}

/* The pieces w of 4 rows past n rows of x, onto sums [n][4]. */
static inline void past(float (*w)[COLUMNS], const float *const *x, int64_t kn, const int n,
                        __m256 (*sums)[SIDE])
{
    const __m256i rest = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(kn % 8)),
                                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 s[2][SIDE];
    for (int t = 0; t < n; t++)
        for (int r = 0; r < SIDE; r++) s[t][r] = sums[t][r];
    for (int64_t i = 0; i < kn; i += 8) {
        __m256 v[2];
        for (int t = 0; t < n; t++)
            v[t] = i + 8 <= kn ? _mm256_loadu_ps(x[t] + i) : _mm256_maskload_ps(x[t] + i, rest);
        for (int r = 0; r < SIDE; r++) {
            const __m256 row = _mm256_load_ps(w[r] + i);
            for (int t = 0; t < n; t++) s[t][r] = _mm256_fmadd_ps(row, v[t], s[t][r]);
        }
    }
    for (int t = 0; t < n; t++)
        for (int r = 0; r < SIDE; r++) sums[t][r] = s[t][r];
}

/* Columns [c, c + n_c) of y, at most 4, for the rows [t0, t0 + n) of expert e, n <= TOKENS. */
static void columns(const sop_call *call, int64_t e, int64_t c, int64_t n_c, int64_t t0, int64_t n)
{
    const sop_experts_desc *d = call->desc;
    const int64_t block = sop_dtype_block(d->w_dtype);
    const size_t bytes = sop_dtype_bytes(d->w_dtype);
    const uint8_t *weight = (const uint8_t *)call->args[SOP_EXPERTS_W].data;
    _Alignas(32) float w[SIDE][COLUMNS];
    __m256 sums[TOKENS][SIDE];
    for (int64_t t = 0; t < n; t++)
        for (int r = 0; r < SIDE; r++) sums[t][r] = _mm256_setzero_ps();
    for (int64_t k0 = 0; k0 < d->k; k0 += COLUMNS) {
        const int64_t kn = d->k - k0 < COLUMNS ? d->k - k0 : COLUMNS;
        for (int64_t r = 0; r < SIDE; r++) {
            const int64_t row = c + (r < n_c ? r : 0); /* past the last, again the first */
            const int64_t at = e * d->w_expert + row * d->w_stride + k0 / block;
            decode(d->w_dtype, weight + (size_t)at * bytes, kn, w[r]);
        }
        for (int64_t t = 0; t < n; t += 2) {
            const float *x[2];
            for (int64_t i = 0; i < 2 && t + i < n; i++)
                x[i] = (const float *)call->args[SOP_EXPERTS_X].data +
                       sop_experts_in(call, t0 + t + i) * d->x_stride + k0;
            if (t + 1 < n)
                past(w, x, kn, 2, sums + t);
            else
                past(w, x, kn, 1, sums + t);
        }
    }
    for (int64_t t = 0; t < n; t++) {
        float *y = (float *)call->args[SOP_EXPERTS_Y].data +
                   sop_experts_out(call, t0 + t) * d->y_stride + c;
        for (int64_t r = 0; r < n_c; r++) y[r] = sop_sum8(sums[t][r]);
    }
}

static void tasks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_experts_desc *d = call->desc;
    const int64_t each = (d->n + ROWS - 1) / ROWS; /* tasks of an expert */
    (void)worker;
    for (int64_t task = begin; task < end; task++) {
        const int64_t e = task / each, c0 = task % each * ROWS;
        int64_t first;
        const int64_t last = sop_experts_end(call, e, &first);
        for (int64_t c = c0; c < c0 + ROWS && c < d->n; c += SIDE)
            for (int64_t t = first; t < last; t += TOKENS)
                columns(call, e, c, d->n - c < SIDE ? d->n - c : SIDE, t,
                        last - t < TOKENS ? last - t : TOKENS);
    }
}

sop_status sop_experts_avx2(const sop_call *call)
{
    const sop_experts_desc *d = call->desc;
    sop_parallel(call->queue, d->experts * ((d->n + ROWS - 1) / ROWS), 1, tasks, call);
    return SOP_OK;
}
