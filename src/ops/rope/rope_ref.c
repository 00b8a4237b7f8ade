/* The reference: the phase in float32 as the contract says, all else in double. */
#include <math.h>

#include "core/op.h"
#include "ops/rope/rope.h"

/* One rotated pair: channels a and b of the head at x, into the head at y. */
static void put_pair(const sop_call *call, const sop_judge *judge, int64_t xa, int64_t ya,
                     int64_t dense, int64_t a, int64_t b, double cosine, double sine)
{
    const sop_rope_desc *d = call->desc;
    const void *x = call->args[SOP_ROPE_X].data;
    const double p = sop_load(x, d->x_dtype, xa + a), q = sop_load(x, d->x_dtype, xa + b);
    /* cosine and sine are within 4 u, then mscale, a product and the sum round */
    const double bound = 7 * SOP_U32 * fabs((double)d->mscale) * (fabs(p) + fabs(q));
    sop_put(call, judge, SOP_ROPE_Y, d->y_dtype, ya + a, dense + a, p * cosine - q * sine, bound);
    sop_put(call, judge, SOP_ROPE_Y, d->y_dtype, ya + b, dense + b, q * cosine + p * sine, bound);
}

sop_status sop_rope_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_rope_desc *d = call->desc;
    const int32_t *pos = call->args[SOP_ROPE_POS].data;
    const float *freqs = call->args[SOP_ROPE_FREQS].data;
    const void *x = call->args[SOP_ROPE_X].data;
    const int64_t tokens = sop_live(call, SOP_ROPE_LIVE, d->tokens), half = d->rot / 2;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t xa = t * d->x_stride + h * d->x_head;
            const int64_t ya = t * d->y_stride + h * d->y_head;
            const int64_t dense = (t * d->heads + h) * d->k;
            for (int64_t i = 0; i < half; i++) {
                const float phase = (float)pos[t] * freqs[i];
                const double c = (double)d->mscale * cos((double)phase);
                const double s = (double)d->mscale * sin((double)phase);
                if (d->interleaved)
                    put_pair(call, judge, xa, ya, dense, 2 * i, 2 * i + 1, c, s);
                else
                    put_pair(call, judge, xa, ya, dense, i, i + half, c, s);
            }
            for (int64_t i = d->rot; i < d->k; i++)
                sop_put(call, judge, SOP_ROPE_Y, d->y_dtype, ya + i, dense + i,
                        sop_load(x, d->x_dtype, xa + i), 0);
        }
    return SOP_OK;
}

sop_status sop_rope_ref(const sop_call *call)
{
    return sop_rope_reference(call, NULL);
}
