/* Portable: 4 rows of 64 columns at a time, so that a row of b is read for four of y. */
#include <string.h>

#include "ops/matmul/matmul.h"

enum { ROWS = 4, COLUMNS = 64 };

/* y [m, n] from row i and column j on. */
static void block(const sop_call *call, int64_t i, int64_t m, int64_t j, int64_t n)
{
    const sop_matmul_desc *d = call->desc;
    const int64_t a_row = sop_matmul_a_row(d), a_sum = sop_matmul_a_sum(d);
    const float *a = (const float *)call->args[SOP_MATMUL_A].data + i * a_row;
    const float *b = (const float *)call->args[SOP_MATMUL_B].data + j;
    float *y = (float *)call->args[SOP_MATMUL_Y].data + i * d->y_stride + j;
    float sum[ROWS][COLUMNS] = {{0}};
    for (int64_t k = 0; k < d->k; k++)
        for (int64_t r = 0; r < m; r++) {
            const float x = a[r * a_row + k * a_sum];
            for (int64_t c = 0; c < n; c++) sum[r][c] += x * b[k * d->b_stride + c];
        }
    for (int64_t r = 0; r < m; r++) memcpy(y + r * d->y_stride, sum[r], (size_t)n * sizeof **sum);
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

sop_status sop_matmul_f32_c(const sop_call *call)
{
    const sop_matmul_desc *d = call->desc;
    sop_parallel(call->queue, (d->rows + ROWS - 1) / ROWS, 1, rows, call);
    return SOP_OK;
}
