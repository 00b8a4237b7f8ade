/* Portable: one pass for the mean, one for the variance, one for the result; a row is a task. */
#include <math.h>

#include "core/op.h"
#include "ops/layernorm/layernorm.h"

void sop_layernorm_row(const float *s, const float *w, const float *b, float *y, int64_t dim,
                       float eps)
{
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < dim; i++) mean += (double)s[i];
    mean /= (double)dim;
    for (int64_t i = 0; i < dim; i++) {
        const double apart = (double)s[i] - mean;
        variance += apart * apart;
    }
    const double scale = 1 / sqrt(variance / (double)dim + (double)eps);
    for (int64_t i = 0; i < dim; i++) {
        const float v = (float)(((double)s[i] - mean) * scale);
        y[i] = (w ? v * w[i] : v) + (b ? b[i] : 0);
    }
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_layernorm_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *s = (const float *)call->args[SOP_LAYERNORM_X].data + t * d->x_stride;
        if (call->args[SOP_LAYERNORM_R].data) {
            const float *r = (const float *)call->args[SOP_LAYERNORM_R].data + t * d->r_stride;
            float *out = (float *)call->args[SOP_LAYERNORM_R_OUT].data + t * d->r_stride;
            for (int64_t i = 0; i < d->dim; i++) out[i] = s[i] + r[i];
            s = out;
        }
        sop_layernorm_row(s, call->args[SOP_LAYERNORM_W].data, call->args[SOP_LAYERNORM_B].data,
                          (float *)call->args[SOP_LAYERNORM_Y].data + t * d->y_stride, d->dim,
                          d->eps);
    }
}

sop_status sop_layernorm_f32_c(const sop_call *call)
{
    const sop_layernorm_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_LAYERNORM_LIVE, d->tokens), 8, rows, call);
    return SOP_OK;
}
