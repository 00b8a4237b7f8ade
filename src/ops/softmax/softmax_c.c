/* Portable: the maximum, the exponentials with their sum in double, the division; a row is a task. */
#include <math.h>

#include "core/op.h"
#include "ops/softmax/softmax.h"

static void row(const float *x, float *y, int64_t n, float scale)
{
    float max = -INFINITY;
    double sum = 0;
    int nan = 0;
    for (int64_t i = 0; i < n; i++) {
        const float z = scale * x[i];
        nan |= isnan(z);
        max = z > max ? z : max;
    }
    const int none = max == -INFINITY && !nan;
    for (int64_t i = 0; i < n; i++) {
        y[i] = none ? 0 : expf(scale * x[i] - max);
        sum += (double)y[i];
    }
    const float inverse = none ? 0 : (float)(1 / sum);
    for (int64_t i = 0; i < n; i++) y[i] *= inverse;
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_softmax_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        row((const float *)call->args[SOP_SOFTMAX_X].data + t * d->x_stride,
            (float *)call->args[SOP_SOFTMAX_Y].data + t * d->y_stride, d->dim, d->scale);
}

sop_status sop_softmax_f32_c(const sop_call *call)
{
    const sop_softmax_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_SOFTMAX_LIVE, d->tokens), 1, rows, call);
    return SOP_OK;
}
