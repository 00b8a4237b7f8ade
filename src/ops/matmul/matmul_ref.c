/* The reference: the formula in its own order, in double. A float32 sum of k products, in any order, is off
 * by min(k, 8 sqrt(k)) + 8 roundings of their magnitudes, for the reasons that linear gives. */
#include <math.h>

#include "core/op.h"
#include "ops/f64.h"
#include "ops/matmul/matmul.h"

struct job {
    const sop_call *call;
    const sop_judge *judge;
};

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    enum { COLUMNS = 64 }; /* sums held at once */
    const struct job *job = arg;
    const sop_matmul_desc *d = job->call->desc;
    const void *a = job->call->args[SOP_MATMUL_A].data, *b = job->call->args[SOP_MATMUL_B].data;
    const int64_t a_row = sop_matmul_a_row(d), a_sum = sop_matmul_a_sum(d);
    const double k = (double)d->k, gamma = (fmin(k, 8 * sqrt(k)) + 8) * SOP_U32;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t from = 0; from < d->cols; from += COLUMNS) {
            const int64_t n = d->cols - from < COLUMNS ? d->cols - from : COLUMNS;
            double sum[COLUMNS] = {0}, size[COLUMNS] = {0}, row[COLUMNS];
            for (int64_t c = 0; c < d->k; c++) {
                const double x = sop_load(a, d->a_dtype, i * a_row + c * a_sum);
                sop_load_row(b, d->b_dtype, c * d->b_stride + from, n, row);
                for (int64_t j = 0; j < n; j++) {
                    const double term = x * row[j];
                    sum[j] += term;
                    size[j] += fabs(term);
                }
            }
            for (int64_t j = 0; j < n; j++)
                sop_put(job->call, job->judge, SOP_MATMUL_Y, d->y_dtype, i * d->y_stride + from + j,
                        i * d->cols + from + j, sum[j], gamma * size[j] + k * 0x1p-149);
        }
        if (!job->call->args[SOP_MATMUL_SUMS].data) continue;
        double sum = 0, size = 0;
        for (int64_t c = 0; c < d->k; c++) {
            const double x = sop_load(a, d->a_dtype, i * a_row + c * a_sum);
            sum += x;
            size += fabs(x);
        }
        sop_put(job->call, job->judge, SOP_MATMUL_SUMS, sop_param_dtype(d->a_dtype), i, i, sum,
                gamma * size);
    }
}

sop_status sop_matmul_reference(const sop_call *call, const sop_judge *judge)
{
    const struct job job = {call, judge};
    sop_parallel(call->queue, ((const sop_matmul_desc *)call->desc)->rows, 1, rows, &job);
    return SOP_OK;
}

sop_status sop_matmul_ref(const sop_call *call)
{
    return sop_matmul_reference(call, NULL);
}
