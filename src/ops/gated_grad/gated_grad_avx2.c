/* 8 floats a step; a tail goes through the same lanes by way of small buffers; a row is a task. */
#include <string.h>

#include "ops/gated_grad/gated_grad.h"
#include "ops/simd/act_grad_avx2.h"

static inline void step(int32_t act, const float *gate, const float *up, const float *dy,
                        float *dgate, float *dup)
{
    const __m256 g = _mm256_loadu_ps(dy), u = _mm256_loadu_ps(up);
    __m256 slope;
    const __m256 y = sop_act_grad8(act, _mm256_loadu_ps(gate), &slope);
    _mm256_storeu_ps(dgate, _mm256_mul_ps(_mm256_mul_ps(slope, u), g));
    _mm256_storeu_ps(dup, _mm256_mul_ps(y, g));
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_gated_grad_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_GATED_GRAD_X].data + t * d->x_stride;
        const float *dy = (const float *)call->args[SOP_GATED_GRAD_DY].data + t * d->dy_stride;
        float *dgate = (float *)call->args[SOP_GATED_GRAD_DGATE].data + t * d->dgate_stride;
        float *dup = (float *)call->args[SOP_GATED_GRAD_DUP].data + t * d->dup_stride;
        int64_t i = 0;
        for (; i + 8 <= d->dim; i += 8)
            step(d->act, x + i, x + d->up + i, dy + i, dgate + i, dup + i);
        if (i == d->dim) continue;
        float pad[5][8] = {{0}};
        const size_t bytes = (size_t)(d->dim - i) * sizeof *dy;
        memcpy(pad[0], x + i, bytes);
        memcpy(pad[1], x + d->up + i, bytes);
        memcpy(pad[2], dy + i, bytes);
        step(d->act, pad[0], pad[1], pad[2], pad[3], pad[4]);
        memcpy(dgate + i, pad[3], bytes);
        memcpy(dup + i, pad[4], bytes);
    }
}

sop_status sop_gated_grad_f32_avx2(const sop_call *call)
{
    sop_parallel(call->queue, ((const sop_gated_grad_desc *)call->desc)->tokens, 2, rows, call);
    return SOP_OK;
}
