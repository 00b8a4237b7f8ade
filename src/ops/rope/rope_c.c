/* Portable: cosines and sines once a token, shared by all heads. A token is a task. */
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/rope/rope.h"

static void rotate(const sop_rope_desc *d, const float *x, float *y, const float *c, const float *s)
{
    const int64_t half = d->rot / 2, next = d->interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        const int64_t a = d->interleaved ? 2 * i : i, b = a + next;
        const float p = x[a], q = x[b];
        y[a] = p * c[i] - q * s[i];
        y[b] = q * c[i] + p * s[i];
    }
    if (x != y && d->rot < d->k)
        memcpy(y + d->rot, x + d->rot, (size_t)(d->k - d->rot) * sizeof *y);
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rope_desc *d = call->desc;
    const int32_t *pos = call->args[SOP_ROPE_POS].data;
    const float *freqs = call->args[SOP_ROPE_FREQS].data;
    float *c = (float *)call->scratch + worker * sop_rope_table_floats(d), *s = c + d->rot;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t i = 0; i < d->rot / 2; i++) {
            const float phase = (float)pos[t] * freqs[i];
            c[i] = d->mscale * cosf(phase);
            s[i] = d->mscale * sinf(phase);
        }
        for (int64_t h = 0; h < d->heads; h++)
            rotate(d, (const float *)call->args[SOP_ROPE_X].data + t * d->x_stride + h * d->x_head,
                   (float *)call->args[SOP_ROPE_Y].data + t * d->y_stride + h * d->y_head, c, s);
    }
}

sop_status sop_rope_f32_c(const sop_call *call)
{
    const sop_rope_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_ROPE_LIVE, d->tokens), 4, tokens, call);
    return SOP_OK;
}
