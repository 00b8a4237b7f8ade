/* The reference: each expert's rank is how many come before it; weights in double; an expert's pairs one
 * after another. Ids, counts and the order are exact. A weight is off as one of softmax is: its
 * exponential by (|z - max| + 4) u, the sum of n of them by theirs and, statistically, 2 sqrt(n) u, then
 * one division. */
#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/moe_gate/moe_gate.h"

/* Whether expert a with logit x stands before expert b with logit y. */
static int before(double x, int64_t a, double y, int64_t b)
{
    if (isnan(x) || isnan(y)) return isnan(x) == isnan(y) ? a < b : isnan(y);
    return x > y || (x == y && a < b);
}

static void choose(const sop_moe_gate_desc *d, const void *x, int64_t at, int32_t *ids)
{
    for (int64_t e = 0; e < d->experts; e++) {
        const double z = sop_load(x, d->x_dtype, at + e);
        int64_t rank = 0;
        for (int64_t o = 0; o < d->experts; o++)
            rank += o != e && before(sop_load(x, d->x_dtype, at + o), o, z, e);
        if (rank < d->top) ids[rank] = (int32_t)e;
    }
}

static double share_of(double z, double max)
{
    return z == -HUGE_VAL ? 0 : exp(z - max);
}

static double error_of(double z, double max)
{
    return z == -HUGE_VAL ? 0 : (fabs(z - max) + 4) * SOP_U32;
}

static void put_weights(const sop_call *call, const sop_judge *judge, int64_t t, const int32_t *ids)
{
    const sop_moe_gate_desc *d = call->desc;
    const void *x = call->args[SOP_MOE_GATE_X].data;
    const int64_t at = t * d->x_stride, n = d->over == SOP_MOE_CHOSEN ? d->top : d->experts;
    const double max = sop_load(x, d->x_dtype, at + ids[0]);
    double sum = 0, error = 0;
    for (int64_t i = 0; i < n; i++) {
        const double z = sop_load(x, d->x_dtype, at + (d->over == SOP_MOE_CHOSEN ? ids[i] : i));
        sum += share_of(z, max);
        error += share_of(z, max) * error_of(z, max);
    }
    error = error / sum + (2 * sqrt((double)n) + 4) * SOP_U32;
    for (int64_t j = 0; j < d->top; j++) {
        const double z = sop_load(x, d->x_dtype, at + ids[j]);
        const double w = sum == 0 ? 0 : share_of(z, max) / sum;
        sop_put(call, judge, SOP_MOE_GATE_WEIGHTS, SOP_F32, t * d->top + j, t * d->top + j, w,
                w > 0 ? w * (error_of(z, max) + error) + 0x1p-149 : 0);
    }
}

sop_status sop_moe_gate_ref_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split)
{
    const sop_moe_gate_desc *d = desc;
    const size_t bytes = (size_t)(d->tokens * d->top) * sizeof(int32_t);
    (void)params, (void)facts;
    if (bytes > budget)
        return sop_fail(SOP_E_LIMIT, "moe_gate: %zu bytes of scratch, %zu allowed", bytes, budget);
    *split = (sop_split){.scratch_bytes = bytes};
    return SOP_OK;
}

sop_status sop_moe_gate_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_moe_gate_desc *d = call->desc;
    const int64_t tokens = sop_live(call, SOP_MOE_GATE_LIVE, d->tokens), pairs = tokens * d->top;
    int32_t *ids = call->scratch; /* [pairs] */
    for (int64_t t = 0; t < tokens; t++) {
        choose(d, call->args[SOP_MOE_GATE_X].data, t * d->x_stride, ids + t * d->top);
        put_weights(call, judge, t, ids + t * d->top);
    }
    for (int64_t k = 0; k < pairs; k++)
        sop_put(call, judge, SOP_MOE_GATE_IDS, SOP_I32, k, k, ids[k], 0);
    for (int64_t e = 0, at = 0; e < d->experts; e++) {
        const int64_t first = at;
        for (int64_t k = 0; k < pairs; k++) {
            if (ids[k] != e) continue;
            sop_put(call, judge, SOP_MOE_GATE_PERM, SOP_I32, at, at, (double)k, 0);
            at++;
        }
        sop_put(call, judge, SOP_MOE_GATE_COUNTS, SOP_I32, e, e, (double)(at - first), 0);
    }
    return SOP_OK;
}

sop_status sop_moe_gate_ref(const sop_call *call)
{
    return sop_moe_gate_reference(call, NULL);
}
