/* The reference: sort all finite logits, then take the filters one after the other. Read this first.
 * Scratch: logits [vocab] f64, weights [vocab] f64, order [vocab] i32, of one row after the other. */
#include <math.h>

#include "core/op.h"
#include "ops/sample/sample.h"

struct row {
    double *z, *weight; /* by index */
    int32_t *order;
};

/* Whether token a stands before token b. */
static int before(const struct row *r, int32_t a, int32_t b)
{
    const double x = r->z[a], y = r->z[b];
    return x != y ? x > y : a < b;
}

/* Heap sort: no memory, no recursion. The heap's top is what stands last. */
static void sift(const struct row *r, int64_t i, int64_t n)
{
    int32_t *o = r->order;
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(r, o[child], o[child + 1])) child++;
        if (!before(r, o[i], o[child])) return;
        const int32_t swap = o[i];
        o[i] = o[child];
        o[child] = swap;
    }
}

static void sort(const struct row *r, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;) sift(r, i, n);
    for (int64_t last = n; last-- > 1;) {
        const int32_t swap = r->order[0];
        r->order[0] = r->order[last];
        r->order[last] = swap;
        sift(r, 0, last);
    }
}

static int32_t draw(const struct row *r, int64_t vocab, const sop_sampling *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < vocab; i++)
        if (isfinite(r->z[i])) r->order[n++] = (int32_t)i;
    if (n == 0) return -1;
    sort(r, n);
    if (!(s->temperature > 0)) return r->order[0];

    const double max = r->z[r->order[0]];
    double total = 0, mass = 0;
    int64_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (int64_t i = 0; i < vocab; i++) r->weight[i] = 0;
    for (int64_t i = 0; i < kept; i++) {
        const int32_t id = r->order[i];
        r->weight[id] = exp((r->z[id] - max) / (double)s->temperature);
        total += r->weight[id];
    }
    if (s->top_p > 0 && s->top_p < 1) {
        int64_t i = 0;
        while (i < kept && mass < (double)s->top_p * total) mass += r->weight[r->order[i++]];
        for (kept = i; i < n; i++) r->weight[r->order[i]] = 0;
    }
    const double least = fmin((double)s->min_p, 1); /* the largest weight is 1 */
    for (int64_t i = 0; i < kept; i++)
        if (r->weight[r->order[i]] < least) r->weight[r->order[i]] = 0;

    total = 0;
    for (int64_t i = 0; i < vocab; i++) total += r->weight[i];
    const double target = sop_sample_uniform(s->seed, s->counter) * total;
    int32_t last = r->order[0];
    mass = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (r->weight[i] == 0) continue;
        last = (int32_t)i;
        if ((mass += r->weight[i]) > target) break;
    }
    return last;
}

sop_status sop_sample_ref_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                               size_t budget, sop_split *split)
{
    const sop_sample_desc *d = desc;
    (void)params, (void)facts;
    split->scratch_bytes = (size_t)d->vocab * (2 * sizeof(double) + sizeof(int32_t));
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

sop_status sop_sample_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_sample_desc *d = call->desc;
    const sop_sampling *params = call->args[SOP_SAMPLE_PARAMS].data;
    const int64_t rows = sop_live(call, SOP_SAMPLE_LIVE, d->rows);
    double *z = call->scratch;
    const struct row r = {z, z + d->vocab, (int32_t *)(z + 2 * d->vocab)};
    for (int64_t b = 0; b < rows; b++) {
        sop_load_row(call->args[SOP_SAMPLE_LOGITS].data, d->x_dtype, b * d->logits_stride, d->vocab,
                     z);
        sop_put(call, judge, SOP_SAMPLE_IDS, SOP_I32, b, b, draw(&r, d->vocab, &params[b]), 0);
    }
    return SOP_OK;
}

sop_status sop_sample_ref(const sop_call *call)
{
    return sop_sample_reference(call, NULL);
}
