/* 8 floats a step; a tail goes through the same lanes by way of a small buffer. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/gated/gated.h"
#include "ops/simd/act_avx2.h"

static inline void row(sop_act8 *act, const float *g, const float *up, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(act(_mm256_loadu_ps(g + i)), _mm256_loadu_ps(up + i)));
    if (i == n) return;
    float pad[16] = {0};
    const size_t bytes = (size_t)(n - i) * sizeof *y;
    memcpy(pad, g + i, bytes);
    memcpy(pad + 8, up + i, bytes);
    _mm256_storeu_ps(pad, _mm256_mul_ps(act(_mm256_loadu_ps(pad)), _mm256_loadu_ps(pad + 8)));
    memcpy(y + i, pad, bytes);
}

static void blocks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_gated_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_GATED_BLOCK - 1) / SOP_GATED_BLOCK;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        const int64_t t = b / per_row, from = b % per_row * SOP_GATED_BLOCK;
        const int64_t n = from + SOP_GATED_BLOCK < d->dim ? SOP_GATED_BLOCK : d->dim - from;
        const float *g = (const float *)call->args[SOP_GATED_X].data + t * d->x_stride + from;
        float *y = (float *)call->args[SOP_GATED_Y].data + t * d->y_stride + from;
        switch (d->act) {
        case SOP_ACT_SILU: row(sop_silu8, g, g + d->up, y, n); break;
        case SOP_ACT_GELU_TANH: row(sop_gelu_tanh8, g, g + d->up, y, n); break;
        default: row(sop_gelu8, g, g + d->up, y, n); break;
        }
    }
}

sop_status sop_gated_f32_avx2(const sop_call *call)
{
    const sop_gated_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_GATED_BLOCK - 1) / SOP_GATED_BLOCK;
    sop_parallel(call->queue, sop_live(call, SOP_GATED_LIVE, d->tokens) * per_row, 2, blocks, call);
    return SOP_OK;
}
