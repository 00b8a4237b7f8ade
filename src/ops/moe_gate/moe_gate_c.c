/* Portable: a token is a task; then one counting sort of all pairs. */
#include <math.h>

#include "core/op.h"
#include "ops/moe_gate/moe_gate.h"

void sop_moe_gate_sort(const sop_call *call, int64_t pairs)
{
    const sop_moe_gate_desc *d = call->desc;
    const int32_t *ids = call->args[SOP_MOE_GATE_IDS].data;
    int32_t *counts = call->args[SOP_MOE_GATE_COUNTS].data, at = 0;
    int32_t *perm = call->args[SOP_MOE_GATE_PERM].data;
    for (int64_t e = 0; e < d->experts; e++) counts[e] = 0;
    for (int64_t k = 0; k < pairs; k++) counts[ids[k]]++;
    for (int64_t e = 0; e < d->experts; e++) { /* where its pairs begin */
        const int32_t n = counts[e];
        counts[e] = at;
        at += n;
    }
    for (int64_t k = 0; k < pairs; k++) perm[counts[ids[k]]++] = (int32_t)k;
    for (int64_t e = d->experts - 1; e > 0; e--) counts[e] -= counts[e - 1]; /* where they ended */
}

static float share_of(float z, float max)
{
    return z == -INFINITY ? 0 : expf(z - max);
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_moe_gate_desc *d = call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)call->args[SOP_MOE_GATE_X].data + t * d->x_stride;
        int32_t *ids = (int32_t *)call->args[SOP_MOE_GATE_IDS].data + t * d->top;
        float *weights = (float *)call->args[SOP_MOE_GATE_WEIGHTS].data + t * d->top;
        double chosen = 0, all = 0;
        int64_t n = 0;
        for (int64_t e = 0; e < d->experts; e++) n = sop_moe_gate_insert(x, ids, n, d->top, e);
        const float max = x[ids[0]];
        for (int64_t j = 0; j < d->top; j++)
            chosen += (double)(weights[j] = share_of(x[ids[j]], max));
        for (int64_t e = 0; e < d->experts && d->over == SOP_MOE_ALL; e++)
            all += (double)share_of(x[e], max);
        const double sum = d->over == SOP_MOE_ALL ? all : chosen;
        for (int64_t j = 0; j < d->top && sum != 0; j++)
            weights[j] = (float)((double)weights[j] / sum);
    }
}

sop_status sop_moe_gate_f32_c(const sop_call *call)
{
    const sop_moe_gate_desc *d = call->desc;
    const int64_t live = sop_live(call, SOP_MOE_GATE_LIVE, d->tokens);
    sop_parallel(call->queue, live, 8, tokens, call);
    sop_moe_gate_sort(call, live * d->top);
    return SOP_OK;
}
