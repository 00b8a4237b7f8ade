/* Portable: rows first, which leave their scale in scratch, then dw by some columns of all rows at a time. */
#include <math.h>
#include <string.h>

#include "ops/rmsnorm_grad/rmsnorm_grad.h"

enum { COLUMNS = 64 };

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_grad_desc *d = call->desc;
    const float *w = call->args[SOP_RMSNORM_GRAD_W].data;
    double *scales = call->scratch;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t t = k / d->heads, h = k % d->heads;
        const float *x =
            (const float *)call->args[SOP_RMSNORM_GRAD_X].data + t * d->x_stride + h * d->x_head;
        const float *dy =
            (const float *)call->args[SOP_RMSNORM_GRAD_DY].data + t * d->dy_stride + h * d->dy_head;
        const float *dr = call->args[SOP_RMSNORM_GRAD_DR].data;
        float *dx =
            (float *)call->args[SOP_RMSNORM_GRAD_DX].data + t * d->dx_stride + h * d->dx_head;
        double squares = 0, mean = 0;
        if (dr) dr += t * d->dr_stride + h * d->dr_head;
        for (int64_t i = 0; i < d->dim; i++) squares += (double)x[i] * (double)x[i];
        const double scale = 1 / sqrt(squares / (double)d->dim + (double)d->eps);
        for (int64_t i = 0; i < d->dim; i++)
            mean += (double)((d->offset + w[i]) * dy[i]) * ((double)x[i] * scale);
        mean /= (double)d->dim;
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = (double)((d->offset + w[i]) * dy[i]);
            const double v = scale * (g - (double)x[i] * scale * mean);
            dx[i] = (float)(dr ? v + (double)dr[i] : v);
        }
        scales[k] = scale;
    }
}

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rmsnorm_grad_desc *d = call->desc;
    const double *scales = call->scratch;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        const int64_t from = c * COLUMNS;
        const int64_t to = from + COLUMNS < d->dim ? from + COLUMNS : d->dim;
        float sum[COLUMNS] = {0};
        for (int64_t k = 0; k < d->tokens * d->heads; k++) {
            const int64_t t = k / d->heads, h = k % d->heads;
            const float *x = (const float *)call->args[SOP_RMSNORM_GRAD_X].data + t * d->x_stride +
                             h * d->x_head;
            const float *dy = (const float *)call->args[SOP_RMSNORM_GRAD_DY].data +
                              t * d->dy_stride + h * d->dy_head;
            const float scale = (float)scales[k];
            for (int64_t i = from; i < to; i++) sum[i - from] += dy[i] * (x[i] * scale);
        }
        memcpy((float *)call->args[SOP_RMSNORM_GRAD_DW].data + from, sum,
               (size_t)(to - from) * sizeof *sum);
    }
}

sop_status sop_rmsnorm_grad_f32_c(const sop_call *call)
{
    const sop_rmsnorm_grad_desc *d = call->desc;
    sop_parallel(call->queue, d->tokens * d->heads, 8, rows, call);
    if (call->args[SOP_RMSNORM_GRAD_DW].data)
        sop_parallel(call->queue, (d->dim + COLUMNS - 1) / COLUMNS, 1, columns, call);
    return SOP_OK;
}
