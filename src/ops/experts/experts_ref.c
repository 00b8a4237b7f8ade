/* The reference: each product of a row and a row of its expert's weight, in double; a weight is the float
 * nearest to its format's formula. How far a right row may be off is what linear's reference says of
 * sums in float32: (8 sqrt(k) + 8) u times the magnitudes. */
#include <math.h>

#include "core/op.h"
#include "ops/experts/experts.h"
#include "ops/linear/dequant.h"

enum { COLUMNS = 256, ROWS = 64 }; /* ROWS: sums held at once for a row of w */

struct job {
    const sop_call *call;
    const sop_judge *judge;
    int64_t e, first, end;
};

/* Column c of y for the rows [i0, i1). */
static void put(const struct job *job, int64_t c, int64_t i0, int64_t i1)
{
    const sop_experts_desc *d = job->call->desc;
    const int64_t block = sop_dtype_block(d->w_dtype);
    const uint8_t *w =
        (const uint8_t *)job->call->args[SOP_EXPERTS_W].data +
        (size_t)(job->e * d->w_expert + c * d->w_stride) * sop_dtype_bytes(d->w_dtype);
    const double k = (double)d->k, gamma = (fmin(k, 8 * sqrt(k)) + 8) * SOP_U32;
    double sum[ROWS] = {0}, size[ROWS] = {0};
    for (int64_t k0 = 0; k0 < d->k; k0 += COLUMNS) {
        const int64_t n = d->k - k0 < COLUMNS ? d->k - k0 : COLUMNS;
        float piece[COLUMNS];
        double x[COLUMNS];
        sop_dequant_row(d->w_dtype, w + (size_t)(k0 / block) * sop_dtype_bytes(d->w_dtype), n,
                        piece);
        for (int64_t i = i0; i < i1; i++) {
            sop_load_row(job->call->args[SOP_EXPERTS_X].data, d->x_dtype,
                         sop_experts_in(job->call, i) * d->x_stride + k0, n, x);
            for (int64_t j = 0; j < n; j++) {
                const double p = (double)piece[j] * x[j];
                sum[i - i0] += p;
                size[i - i0] += fabs(p);
            }
        }
    }
    for (int64_t i = i0; i < i1; i++) {
        const int64_t out = sop_experts_out(job->call, i);
        sop_put(job->call, job->judge, SOP_EXPERTS_Y, d->y_dtype, out * d->y_stride + c,
                out * d->n + c, sum[i - i0], gamma * size[i - i0] + k * 0x1p-149);
    }
}

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++)
        for (int64_t i = job->first; i < job->end; i += ROWS)
            put(job, c, i, i + ROWS < job->end ? i + ROWS : job->end);
}

sop_status sop_experts_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_experts_desc *d = call->desc;
    struct job job = {call, judge, 0, 0, 0};
    for (; job.e < d->experts; job.e++) {
        job.end = sop_experts_end(call, job.e, &job.first);
        if (job.first < job.end) sop_parallel(call->queue, d->n, 8, columns, &job);
    }
    return SOP_OK;
}

sop_status sop_experts_ref(const sop_call *call)
{
    return sop_experts_reference(call, NULL);
}
