/* Portable: rows first, which leave their mean and scale in scratch, then dw and db by some columns of all
 * rows at a time. */
#include <math.h>
#include <string.h>

#include "ops/layernorm_grad/layernorm_grad.h"

enum { COLUMNS = 64 };

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_layernorm_grad_desc *d = call->desc;
    const float *w = call->args[SOP_LAYERNORM_GRAD_W].data;
    const double n = (double)d->dim;
    double *kept = call->scratch;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_LAYERNORM_GRAD_X].data + t * d->x_stride;
        const float *dy = (const float *)call->args[SOP_LAYERNORM_GRAD_DY].data + t * d->dy_stride;
        const float *dr = call->args[SOP_LAYERNORM_GRAD_DR].data;
        float *dx = (float *)call->args[SOP_LAYERNORM_GRAD_DX].data + t * d->dx_stride;
        double mean = 0, variance = 0, of_g = 0, of_gz = 0;
        if (dr) dr += t * d->dr_stride;
        for (int64_t i = 0; i < d->dim; i++) mean += (double)x[i];
        mean /= n;
        for (int64_t i = 0; i < d->dim; i++)
            variance += ((double)x[i] - mean) * ((double)x[i] - mean);
        const double scale = 1 / sqrt(variance / n + (double)d->eps);
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = (double)(w ? w[i] * dy[i] : dy[i]);
            of_g += g;
            of_gz += g * (((double)x[i] - mean) * scale);
        }
        of_g /= n;
        of_gz /= n;
        for (int64_t i = 0; i < d->dim; i++) {
            const double g = (double)(w ? w[i] * dy[i] : dy[i]);
            const double v = scale * (g - of_g - ((double)x[i] - mean) * scale * of_gz);
            dx[i] = (float)(dr ? v + (double)dr[i] : v);
        }
        kept[2 * t] = mean;
        kept[2 * t + 1] = scale;
    }
}

static void columns(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_layernorm_grad_desc *d = call->desc;
    const double *kept = call->scratch;
    float *dw = call->args[SOP_LAYERNORM_GRAD_DW].data;
    float *db = call->args[SOP_LAYERNORM_GRAD_DB].data;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        const int64_t from = c * COLUMNS;
        const int64_t to = from + COLUMNS < d->dim ? from + COLUMNS : d->dim;
        float w[COLUMNS] = {0}, b[COLUMNS] = {0};
        for (int64_t t = 0; t < d->tokens; t++) {
            const float *x = (const float *)call->args[SOP_LAYERNORM_GRAD_X].data + t * d->x_stride;
            const float *dy =
                (const float *)call->args[SOP_LAYERNORM_GRAD_DY].data + t * d->dy_stride;
            const double mean = kept[2 * t], scale = kept[2 * t + 1];
            for (int64_t i = from; i < to; i++) {
                w[i - from] += dy[i] * (float)(((double)x[i] - mean) * scale);
                b[i - from] += dy[i];
            }
        }
        const size_t bytes = (size_t)(to - from) * sizeof *w;
        if (dw) memcpy(dw + from, w, bytes);
        if (db) memcpy(db + from, b, bytes);
    }
}

sop_status sop_layernorm_grad_f32_c(const sop_call *call)
{
    const sop_layernorm_grad_desc *d = call->desc;
    sop_parallel(call->queue, d->tokens, 8, rows, call);
    if (call->args[SOP_LAYERNORM_GRAD_DW].data || call->args[SOP_LAYERNORM_GRAD_DB].data)
        sop_parallel(call->queue, (d->dim + COLUMNS - 1) / COLUMNS, 1, columns, call);
    return SOP_OK;
}
