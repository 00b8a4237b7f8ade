/* Portable, as linear_c: each row of a weight is decoded 256 columns at a time and runs past its expert's
 * rows, 16 of them at once. A task is 16 rows of one weight. */
#include "core/op.h"
#include "ops/experts/experts.h"
#include "ops/linear/dequant.h"
#include "ops/linear/dot.h"

enum { COLUMNS = 256, TOKENS = 16, ROWS = 16 };

/* Column c of y for the rows [t0, t0 + n) of expert e, n <= TOKENS. */
static void column(const sop_call *call, int64_t e, int64_t c, int64_t t0, int64_t n)
{
    const sop_experts_desc *d = call->desc;
    const int64_t block = sop_dtype_block(d->w_dtype);
    const size_t bytes = sop_dtype_bytes(d->w_dtype);
    const uint8_t *w = (const uint8_t *)call->args[SOP_EXPERTS_W].data +
                       (size_t)(e * d->w_expert + c * d->w_stride) * bytes;
    float sum[TOKENS][SOP_DOT_PARTS] = {{0}}, piece[COLUMNS];
    for (int64_t k0 = 0; k0 < d->k; k0 += COLUMNS) {
        const int64_t kn = d->k - k0 < COLUMNS ? d->k - k0 : COLUMNS;
        sop_dequant_row(d->w_dtype, w + (size_t)(k0 / block) * bytes, kn, piece);
        for (int64_t t = 0; t < n; t++)
            sop_dot((const float *)call->args[SOP_EXPERTS_X].data +
                        sop_experts_in(call, t0 + t) * d->x_stride + k0,
                    piece, kn, sum[t]);
    }
    for (int64_t t = 0; t < n; t++)
        ((float *)call->args[SOP_EXPERTS_Y].data)[sop_experts_out(call, t0 + t) * d->y_stride + c] =
            sop_dot_sum(sum[t]);
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
        for (int64_t c = c0; c < c0 + ROWS && c < d->n; c++)
            for (int64_t t = first; t < last; t += TOKENS)
                column(call, e, c, t, last - t < TOKENS ? last - t : TOKENS);
    }
}

sop_status sop_experts_c(const sop_call *call)
{
    const sop_experts_desc *d = call->desc;
    sop_parallel(call->queue, d->experts * ((d->n + ROWS - 1) / ROWS), 1, tasks, call);
    return SOP_OK;
}
