/* 4 rows of 16 columns in registers go along k; what is left of columns goes through a masked step. A task
 * is 4 rows, and passes along b once for each 16 columns of it. */
#include <immintrin.h>

#include "ops/matmul/matmul.h"

enum { ROWS = 4, COLUMNS = 16 };

/* Lanes of 8 that hold one of n columns. */
static __m256i lanes(int64_t n)
{
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), at);
}

/* y [m, n] from row i and column j on; rows past m repeat the last. */
static void block(const sop_call *call, int64_t i, int64_t m, int64_t j, int64_t n)
{
    const sop_matmul_desc *d = call->desc;
    const int64_t a_row = sop_matmul_a_row(d), a_sum = sop_matmul_a_sum(d);
    const float *a[ROWS], *b = (const float *)call->args[SOP_MATMUL_B].data + j;
    float *y = (float *)call->args[SOP_MATMUL_Y].data + i * d->y_stride + j;
    const __m256i first = lanes(n), second = lanes(n - 8);
    __m256 sum[ROWS][2];
    for (int r = 0; r < ROWS; r++) {
        a[r] = (const float *)call->args[SOP_MATMUL_A].data + (i + (r < m ? r : m - 1)) * a_row;
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < d->k; k++) {
        const __m256 b0 = _mm256_maskload_ps(b + k * d->b_stride, first);
        const __m256 b1 = _mm256_maskload_ps(b + k * d->b_stride + 8, second);
        for (int r = 0; r < ROWS; r++) {
            const __m256 x = _mm256_set1_ps(a[r][k * a_sum]);
            sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
        }
    }
    for (int64_t r = 0; r < m; r++) {
        _mm256_maskstore_ps(y + r * d->y_stride, first, sum[r][0]);
        _mm256_maskstore_ps(y + r * d->y_stride + 8, second, sum[r][1]);
    }
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_matmul_desc *d = call->desc;
    float *sums = call->args[SOP_MATMUL_SUMS].data;
    (void)worker;
    for (int64_t task = begin; task < end; task++) {
        const int64_t i = task * ROWS, m = i + ROWS < d->rows ? ROWS : d->rows - i;
        for (int64_t j = 0; j < d->cols; j += COLUMNS)
            block(call, i, m, j, j + COLUMNS < d->cols ? COLUMNS : d->cols - j);
        for (int64_t r = i; sums && r < i + m; r++) {
            const float *a = (const float *)call->args[SOP_MATMUL_A].data + r * sop_matmul_a_row(d);
            sums[r] = 0;
            for (int64_t k = 0; k < d->k; k++) sums[r] += a[k * sop_matmul_a_sum(d)];
        }
    }
}

sop_status sop_matmul_f32_avx2(const sop_call *call)
{
    const sop_matmul_desc *d = call->desc;
    sop_parallel(call->queue, (d->rows + ROWS - 1) / ROWS, 1, rows, call);
    return SOP_OK;
}
