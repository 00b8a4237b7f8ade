/* Sampling without a sort, for the portable and the vector row.
 *
 * 1. The largest logit of each block, over all workers; greedy ends here.
 * 2. For each other row, a task: the cut of top_k (by count), then of top_p (by mass). A lower bound of
 *    the cut leaves few tokens, which fall into bins by their distance from the largest; only the bin
 *    where the target lies is searched, by quickselect.
 * 3. The mass of the survivors block by block; the draw finds its block, then its token.
 *
 * Scratch: largest [rows, blocks] f32 | for each worker: mass [blocks] f64, list [vocab] i32 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/sample/sample.h"

enum { BLOCK = 1024, BINS = 1024 };

/* A token survives when it stands before the cut or is it. */
struct cut {
    float z;
    int64_t index;
};

struct job {
    const sop_call *call;
    const sop_sample_desc *d;
    const sop_sample_kernels *kernels;
    int64_t blocks;
};

struct row {
    const struct job *job;
    const float *z, *largest; /* [vocab], [blocks] */
    double max, inv_temperature, min_weight;
    struct cut cut;
    float low;     /* nothing below it survives; finite */
    double *mass;  /* [blocks] */
    int32_t *list; /* [vocab] */
};

static int64_t blocks_of(const sop_sample_desc *d)
{
    return (d->vocab + BLOCK - 1) / BLOCK;
}

static int64_t block_length(const struct job *j, int64_t block)
{
    return block == j->blocks - 1 ? j->d->vocab - block * BLOCK : BLOCK;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t largest_bytes(const sop_sample_desc *d)
{
    return rounded((size_t)(d->rows * blocks_of(d)) * sizeof(float));
}

static size_t worker_bytes(const sop_sample_desc *d)
{
    return rounded((size_t)blocks_of(d) * sizeof(double)) +
           rounded((size_t)d->vocab * sizeof(int32_t));
}

sop_status sop_sample_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                           size_t budget, sop_split *split)
{
    const sop_sample_desc *d = desc;
    (void)params;
    split->scratch_bytes = largest_bytes(d) + (size_t)facts->workers * worker_bytes(d);
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

/* ---- what survives ---- */

static int survives(const struct cut *c, float z, int64_t i)
{
    return z > c->z || (z == c->z && i <= c->index);
}

/* Weights of a block, 0 for what does not survive; their sum. */
static double block_weights(const struct row *r, int64_t block, double *w)
{
    const int64_t n = block_length(r->job, block), from = block * BLOCK;
    const float *z = r->z + from;
    double sum[4] = {0};
    if (r->largest[block] < r->low) {
        memset(w, 0, (size_t)n * sizeof *w);
        return 0;
    }
    r->job->kernels->weights(z, n, r->low, r->max, r->inv_temperature, w);
    if (from + n > r->cut.index) /* ties with the cut behind it */
        for (int64_t i = 0; i < n; i++)
            if (z[i] == r->cut.z && from + i > r->cut.index) w[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        w[i] = w[i] < r->min_weight ? 0 : w[i];
        sum[i & 3] += w[i];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void raise_low(struct row *r, float low)
{
    if (low > r->low) r->low = low;
}

/* A weight as a logit, rounded down; nothing under it has that weight. */
static void raise_low_to_weight(struct row *r, double weight)
{
    const double z = r->max + log(weight) / r->inv_temperature;
    if (z > -(double)FLT_MAX) raise_low(r, nextafterf((float)z, -FLT_MAX));
}

/* The bin of a finite logit: 16 a unit of distance, the last takes the rest. */
static int32_t bin_of(const struct row *r, float z, double per_unit)
{
    const double at = (r->max - (double)z) * per_unit;
    return at < BINS - 1 ? (int32_t)at : BINS - 1;
}

static int stands_before(const float *z, int32_t a, int32_t b)
{
    return z[a] != z[b] ? z[a] > z[b] : a < b;
}

static void swap(int32_t *a, int32_t *b)
{
    const int32_t t = *a;
    *a = *b;
    *b = t;
}

/* What a token adds to the measure: 1 or its weight. */
static double measure(const struct row *r, int32_t id, int by_mass)
{
    double w = 1;
    if (by_mass) r->job->kernels->weights(r->z + id, 1, r->low, r->max, r->inv_temperature, &w);
    return w;
}

/* The token of list [n] at which the measure, summed in order, reaches target; the last in order
 * when rounding leaves it short. */
static int32_t select_in_list(const struct row *r, int64_t n, double target, int by_mass)
{
    int32_t *list = r->list;
    int64_t lo = 0, hi = n;
    for (;;) {
        /* the median of three as the pivot, put last */
        int32_t *a = &list[lo], *b = &list[lo + (hi - lo) / 2], *c = &list[hi - 1];
        if (hi - lo == 1) return *a;
        if (stands_before(r->z, *b, *a)) swap(a, b);
        if (stands_before(r->z, *c, *b)) swap(b, c);
        if (stands_before(r->z, *b, *a)) swap(a, b);
        swap(b, c);
        int64_t at = lo;
        double before = 0;
        for (int64_t i = lo; i < hi - 1; i++) {
            if (!stands_before(r->z, list[i], *c)) continue;
            before += measure(r, list[i], by_mass);
            swap(&list[at++], &list[i]);
        }
        swap(&list[at], c);
        const double with = before + measure(r, list[at], by_mass);
        if (before >= target && at > lo) {
            hi = at;
        } else if (with >= target || at == hi - 1) {
            return list[at];
        } else {
            target -= with;
            lo = at + 1;
        }
    }
}

/* Narrow the cut to the least prefix whose measure reaches target. */
static void narrow(struct row *r, double target, int by_mass)
{
    const struct job *j = r->job;
    const double per_unit = by_mass ? 16 * r->inv_temperature : 16;
    double bins[BINS] = {0}, w[BLOCK], before = 0;
    for (int64_t block = 0; block < j->blocks; block++) {
        const int64_t n = block_length(j, block), from = block * BLOCK;
        if (r->largest[block] < r->low) continue;
        if (by_mass) (void)block_weights(r, block, w);
        for (int64_t i = 0; i < n; i++)
            if (r->z[from + i] >= r->low && r->z[from + i] < INFINITY)
                bins[bin_of(r, r->z[from + i], per_unit)] += by_mass ? w[i] : 1;
    }
    int32_t bin = 0;
    while (bin < BINS && before + bins[bin] < target) before += bins[bin++];
    if (bin == BINS) return; /* everything, or short by a rounding */
    /* a little more than the bin, to test most tokens by their logit alone */
    const double step = 1 / per_unit, top = r->max - bin * step;
    const float high = nextafterf((float)top, FLT_MAX);
    const float low = bin == BINS - 1 ? r->low : nextafterf((float)(top - step), -FLT_MAX);
    int64_t n = 0;
    for (int64_t block = 0; block < j->blocks; block++) {
        const int64_t from = block * BLOCK, to = from + block_length(j, block);
        if (r->largest[block] < r->low || r->largest[block] < low) continue;
        for (int64_t i = from; i < to; i++)
            if (r->z[i] >= low && r->z[i] <= high && r->z[i] >= r->low &&
                survives(&r->cut, r->z[i], i) && bin_of(r, r->z[i], per_unit) == bin)
                r->list[n++] = (int32_t)i;
    }
    const int32_t last = select_in_list(r, n, target - before, by_mass);
    r->cut = (struct cut){r->z[last], last};
    raise_low(r, r->cut.z);
}

/* At least k tokens reach the k-th largest of the blocks' largest. */
static void narrow_to_count(struct row *r, int64_t k)
{
    double *sorted = r->mass; /* not in use yet */
    for (int64_t i = 0; i < r->job->blocks; i++) {
        const double v = (double)r->largest[i];
        int64_t at = i;
        for (; at > 0 && sorted[at - 1] < v; at--) sorted[at] = sorted[at - 1];
        sorted[at] = v;
    }
    if (k <= r->job->blocks) raise_low(r, (float)sorted[k - 1]);
    narrow(r, (double)k, 0);
}

/* All tokens with a weight under (1 - share) * total / vocab together have less mass than may go; half
 * of it, for the roundings. */
static void narrow_to_mass(struct row *r, double share)
{
    double w[BLOCK], total = 0;
    for (int64_t block = 0; block < r->job->blocks; block++) total += block_weights(r, block, w);
    raise_low_to_weight(r, 0.5 * (1 - share) * total / (double)r->job->d->vocab);
    narrow(r, share * total, 1);
}

/* ---- the token ---- */

static int32_t greedy(const struct row *r)
{
    for (int64_t block = 0; block < r->job->blocks; block++) {
        if ((double)r->largest[block] != r->max) continue;
        for (int64_t i = block * BLOCK;; i++)
            if (r->z[i] == r->largest[block]) return (int32_t)i;
    }
    return -1;
}

static int32_t draw(struct row *r, const sop_sampling *s)
{
    const struct job *j = r->job;
    double w[BLOCK], total = 0;
    r->inv_temperature = 1 / (double)s->temperature;
    r->low = -FLT_MAX;
    r->cut = (struct cut){r->low, INT64_MAX};
    if (s->top_k > 0 && s->top_k < j->d->vocab) narrow_to_count(r, s->top_k);
    if (s->top_p > 0 && s->top_p < 1) narrow_to_mass(r, (double)s->top_p);
    if (s->min_p > 0) {
        r->min_weight = fmin((double)s->min_p, 1);
        raise_low_to_weight(r, r->min_weight);
    }
    for (int64_t block = 0; block < j->blocks; block++)
        total += r->mass[block] = block_weights(r, block, w);

    /* the first block, then the first token, where the mass passes the target; the last survivor
     * when rounding leaves it short */
    const double target = sop_sample_uniform(s->seed, s->counter) * total;
    double mass = 0;
    int64_t block = 0, last = 0;
    for (int64_t k = 0; k < j->blocks; k++) {
        if (r->mass[k] == 0) continue;
        block = k;
        if (mass + r->mass[k] > target) break;
        mass += r->mass[k];
    }
    (void)block_weights(r, block, w);
    for (int64_t i = 0; i < block_length(j, block); i++) {
        if (w[i] == 0) continue;
        last = block * BLOCK + i;
        if ((mass += w[i]) > target) break;
    }
    return (int32_t)last;
}

static void blocks(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *j = arg;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t row = k / j->blocks, block = k % j->blocks;
        const float *z = (const float *)j->call->args[SOP_SAMPLE_LOGITS].data +
                         row * j->d->logits_stride + block * BLOCK;
        ((float *)j->call->scratch)[k] = j->kernels->largest(z, block_length(j, block));
    }
}

static void rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *j = arg;
    const sop_sampling *params = j->call->args[SOP_SAMPLE_PARAMS].data;
    int32_t *ids = j->call->args[SOP_SAMPLE_IDS].data;
    char *own =
        (char *)j->call->scratch + largest_bytes(j->d) + (size_t)worker * worker_bytes(j->d);
    for (int64_t b = begin; b < end; b++) {
        struct row r = {.job = j,
                        .z = (const float *)j->call->args[SOP_SAMPLE_LOGITS].data +
                             b * j->d->logits_stride,
                        .largest = (const float *)j->call->scratch + b * j->blocks,
                        .max = -HUGE_VAL,
                        .mass = (double *)own,
                        .list = (int32_t *)(own + rounded((size_t)j->blocks * sizeof(double)))};
        for (int64_t k = 0; k < j->blocks; k++) r.max = fmax(r.max, (double)r.largest[k]);
        if (r.max == -HUGE_VAL)
            ids[b] = -1;
        else
            ids[b] = params[b].temperature > 0 ? draw(&r, &params[b]) : greedy(&r);
    }
}

sop_status sop_sample_fast(const sop_call *call, const sop_sample_kernels *kernels)
{
    const sop_sample_desc *d = call->desc;
    const struct job j = {call, d, kernels, blocks_of(d)};
    const int64_t live = sop_live(call, SOP_SAMPLE_LIVE, d->rows);
    sop_parallel(call->queue, live * j.blocks, 16, blocks, &j);
    sop_parallel(call->queue, live, 1, rows, &j);
    return SOP_OK;
}
