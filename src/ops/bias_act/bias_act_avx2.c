/* 8 floats a step; a tail goes through the same lanes by way of small buffers. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/bias_act/bias_act.h"
#include "ops/simd/act_avx2.h"

/* 8 elements; bias, r NULL: absent. */
static inline __m256 step(sop_act8 *act, const float *x, const float *bias, const float *r,
                          int after)
{
    __m256 v = _mm256_loadu_ps(x);
    if (bias) v = _mm256_add_ps(v, _mm256_loadu_ps(bias));
    if (r && !after) v = _mm256_add_ps(v, _mm256_loadu_ps(r));
    v = act(v);
    return r && after ? _mm256_add_ps(v, _mm256_loadu_ps(r)) : v;
}

static inline void row(sop_act8 *act, const float *x, const float *bias, const float *r, int after,
                       float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, step(act, x + i, bias ? bias + i : NULL, r ? r + i : NULL, after));
    if (i == n) return;
    float pad[3][8] = {{0}};
    const size_t bytes = (size_t)(n - i) * sizeof *y;
    memcpy(pad[0], x + i, bytes);
    if (bias) memcpy(pad[1], bias + i, bytes);
    if (r) memcpy(pad[2], r + i, bytes);
    _mm256_storeu_ps(pad[0], step(act, pad[0], bias ? pad[1] : NULL, r ? pad[2] : NULL, after));
    memcpy(y + i, pad[0], bytes);
}

static void blocks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_bias_act_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_BIAS_ACT_BLOCK - 1) / SOP_BIAS_ACT_BLOCK;
    const int after = d->residual == SOP_RESIDUAL_AFTER;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t t = k / per_row, from = k % per_row * SOP_BIAS_ACT_BLOCK;
        const int64_t n = from + SOP_BIAS_ACT_BLOCK < d->dim ? SOP_BIAS_ACT_BLOCK : d->dim - from;
        const float *x = (const float *)call->args[SOP_BIAS_ACT_X].data + t * d->x_stride + from;
        const float *b = call->args[SOP_BIAS_ACT_BIAS].data, *r = call->args[SOP_BIAS_ACT_R].data;
        float *y = (float *)call->args[SOP_BIAS_ACT_Y].data + t * d->y_stride + from;
        if (b) b += from;
        if (r) r += t * d->r_stride + from;
        switch (d->act) {
        case SOP_ACT_SILU: row(sop_silu8, x, b, r, after, y, n); break;
        case SOP_ACT_GELU_TANH: row(sop_gelu_tanh8, x, b, r, after, y, n); break;
        case SOP_ACT_GELU: row(sop_gelu8, x, b, r, after, y, n); break;
        case SOP_ACT_QUICK_GELU: row(sop_quick_gelu8, x, b, r, after, y, n); break;
        default: row(sop_relu8, x, b, r, after, y, n); break;
        }
    }
}

sop_status sop_bias_act_f32_avx2(const sop_call *call)
{
    const sop_bias_act_desc *d = call->desc;
    const int64_t per_row = (d->dim + SOP_BIAS_ACT_BLOCK - 1) / SOP_BIAS_ACT_BLOCK;
    sop_parallel(call->queue, sop_live(call, SOP_BIAS_ACT_LIVE, d->tokens) * per_row, 2, blocks,
                 call);
    return SOP_OK;
}
