/* The clock's half of the harness: rows side by side. What is done stands in harness.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "core/op.h"
#include "harness/ceilings.h"
#include "harness/harness.h"
#include "harness/operands.h"

/* Calls of a device with memory of its own go as a graph; its samples are longer, so that its launch
 * counts for nothing. 800 samples a side find a regression of the 95th percentile; 16,384 sets bound the list of a tiny
 * op, whose operands then stay in a cache. */
enum { MOST_SAMPLES = 800, LEAST_SAMPLES = 3, MOST_SETS = 16384, MOST_CALLS = 4096, GROUP = 4 };
static const double sample_s = 50e-6, graph_s = 4e-3;

/* Operands of one weight layout: sets [n] of args [n_roles], one after the other in memory. */
struct sets {
    uint32_t layout; /* 0: plain */
    char *memory;
    size_t bytes;
    sop_operand *args;
    int64_t n, live; /* live -1: the calls say nothing of it */
};

/* A row on the way. */
struct lane {
    const sop_row *row;
    const struct sets *sets;
    sop_bench_result *result;
    int64_t next; /* set */
    sop_call call;
    sop_split split;
    void *scratch, *prepared;
    sop_queue *queue;
    sop_graph *graph; /* of its calls; NULL on a device that sees the host */
    double samples[MOST_SAMPLES];
    int32_t n, calls;
};

/* ---- operands ---- */

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Random content for all bytes of a view, gaps too: a piece of it, laid down again and again. */
static void fill_bytes(const sop_tensor *v, char *data, uint64_t seed)
{
    enum { PIECE = 65537 }; /* a prime: the repeats lie differently in each row */
    const size_t block = sop_dtype_bytes(v->dtype), all = v->bytes / block;
    const size_t n = all < PIECE ? all : PIECE;
    const int64_t elements = (int64_t)n * sop_dtype_block(v->dtype);
    const sop_tensor piece = {.data = data,
                              .bytes = n * block,
                              .dtype = v->dtype,
                              .ndim = 1,
                              .shape = {elements},
                              .stride = {1}};
    sop_fill(&piece, SOP_FAMILY_NORMAL, seed);
    for (size_t at = n; at < all; at += n)
        memcpy(data + at * block, data, (all - at < n ? all - at : n) * block);
}

/* Whether the call has this operand. */
static int32_t has(const struct sets *s, const sop_op *op, const void *desc, int32_t role,
                   sop_tensor *v)
{
    op->view(desc, role, v);
    if (op->roles[role].flags & SOP_ROLE_LIVE) return v->ndim > 0 && s->live >= 0;
    return v->ndim > 0 && !sop_droppable(op, role);
}

/* The operands of one set, in host memory. */
static sop_status fill_set(const struct sets *s, const sop_op *op, const void *desc,
                           const sop_operand *args)
{
    for (int32_t r = 0; r < op->n_roles; r++) {
        sop_tensor v;
        if (!has(s, op, desc, r, &v)) continue;
        if (!s->layout || !(op->roles[r].flags & SOP_ROLE_WEIGHT)) {
            fill_bytes(&v, args[r].data, 77 + (uint64_t)r);
            continue;
        }
        char *plain = malloc(v.bytes);
        if (!plain) return sop_fail(SOP_E_NOMEM, "bench: a weight of %zu bytes", v.bytes);
        fill_bytes(&v, plain, 77 + (uint64_t)r);
        op->pack(desc, r, s->layout, plain, args[r].data, 0, v.shape[0]);
        free(plain);
    }
    if (op->fill) op->fill(desc, 0, s->live, args); /* what the cost counts: all lengths alike */
    return SOP_OK;
}

/* All sets of set bytes, one after the other, from the one in host memory. */
static sop_status spread(const struct sets *s, sop_device *d, const char *host, size_t set)
{
    sop_queue *q;
    SOP_TRY(d->ops->queue_create(d, &q));
    sop_status status = d->ops->copy(q, s->memory, host, set, SOP_COPY_IN);
    for (int64_t k = 1; k < s->n && status == SOP_OK; k++)
        status = d->ops->copy(q, s->memory + (size_t)k * set, s->memory, set, SOP_COPY_WITHIN);
    if (status == SOP_OK) status = d->ops->wait(q);
    d->ops->queue_destroy(q);
    return status;
}

static sop_status sets_init(struct sets *s, sop_device *d, const sop_op *op, const void *desc)
{
    size_t bytes[SOP_MOST_ROLES] = {0}, set = 0, at = 0;
    sop_operand first[SOP_MOST_ROLES] = {{0}};
    for (int32_t r = 0; r < op->n_roles; r++) {
        sop_tensor v;
        if (!has(s, op, desc, r, &v)) continue;
        bytes[r] = s->layout && (op->roles[r].flags & SOP_ROLE_WEIGHT)
                       ? op->packed_bytes(desc, r, s->layout)
                       : v.bytes;
        set += rounded(bytes[r] + 1); /* an operand of 0 bytes has an address too */
    }
    if (set == 0) return sop_fail(SOP_E_INTERNAL, "bench: %s has no operands", op->name);
    const int64_t most = d->ops->sees_host(d) ? MOST_SETS : MOST_CALLS; /* a graph sees them all */
    s->n = (int64_t)(sop_rotation_bytes(d) / set) + 1;
    if (s->n > most) s->n = most;
    s->bytes = (size_t)s->n * set;
    s->args = calloc((size_t)(s->n * op->n_roles), sizeof *s->args);
    char *host = malloc(set);
    if (!s->args || !host) {
        free(host);
        return sop_fail(SOP_E_NOMEM, "bench: %lld sets of operands of %zu bytes", (long long)s->n,
                        set);
    }
    sop_status status = d->ops->reserve(d, s->bytes, (void **)&s->memory);
    for (int32_t r = 0; r < op->n_roles && status == SOP_OK; r++) {
        sop_tensor v;
        if (!has(s, op, desc, r, &v)) continue;
        first[r] = (sop_operand){host + at, bytes[r]};
        for (int64_t k = 0; k < s->n; k++)
            s->args[k * op->n_roles + r] =
                (sop_operand){s->memory + (size_t)k * set + at, bytes[r]};
        at += rounded(bytes[r] + 1);
    }
    if (status == SOP_OK) status = fill_set(s, op, desc, first);
    if (status == SOP_OK) status = spread(s, d, host, set);
    free(host);
    return status;
}

/* ---- lanes ---- */

static sop_status lane_init(struct lane *l, sop_device *d, const sop_op *op, const void *desc)
{
    sop_facts facts;
    d->ops->facts(d, &facts);
    SOP_TRY(d->ops->queue_create(d, &l->queue));
    if (l->row->plan) SOP_TRY(l->row->plan(desc, NULL, &facts, SIZE_MAX, &l->split));
    if (l->row->prepare) SOP_TRY(l->row->prepare(desc, d, &l->prepared));
    SOP_TRY(d->ops->reserve(d, l->split.scratch_bytes, &l->scratch));
    l->call = (sop_call){.size = sizeof l->call,
                         .n_args = (uint32_t)op->n_roles,
                         .desc = desc,
                         .split = &l->split,
                         .prepared = l->prepared,
                         .scratch = l->scratch,
                         .queue = l->queue};
    return SOP_OK;
}

static void lane_finish(struct lane *l, sop_device *d)
{
    if (l->graph) d->ops->graph_destroy(l->graph);
    if (l->scratch) d->ops->release(d, l->scratch, l->split.scratch_bytes);
    if (l->prepared && l->row->release) l->row->release(l->prepared);
    if (l->queue) d->ops->queue_destroy(l->queue);
}

static sop_status submit_calls(struct lane *l)
{
    for (int32_t i = 0; i < l->calls; i++) {
        l->call.args = l->sets->args + l->next * l->call.n_args;
        if (++l->next == l->sets->n) l->next = 0;
        SOP_TRY(l->queue->device->ops->submit(l->queue, l->row, &l->call));
    }
    return SOP_OK;
}

/* How many calls a sample has. */
static sop_status set_calls(struct lane *l, int32_t calls)
{
    sop_device *d = l->queue->device;
    l->calls = calls;
    if (d->ops->sees_host(d)) return SOP_OK;
    if (l->graph) d->ops->graph_destroy(l->graph);
    l->graph = NULL;
    SOP_TRY(d->ops->record_begin(l->queue));
    const sop_status status = submit_calls(l), ended = d->ops->record_end(l->queue, &l->graph);
    return status == SOP_OK ? ended : status;
}

/* Seconds of one call, over a sample of calls, each with the next operands. */
static sop_status sample(struct lane *l, double *out)
{
    const sop_device_ops *ops = l->queue->device->ops;
    const double from = sop_now_s();
    SOP_TRY(l->graph ? ops->replay(l->queue, l->graph) : submit_calls(l));
    SOP_TRY(ops->wait(l->queue));
    *out = (sop_now_s() - from) / l->calls;
    return SOP_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *sorted, int32_t n)
{
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Choose how many calls make a sample, then sample until two medians agree. */
static sop_status warm_up(struct lane *l, double budget_s)
{
    const double from = sop_now_s();
    double took, before = 0;
    l->calls = 1;
    SOP_TRY(sample(l, &took)); /* touches the pages of scratch, wakes the workers, loads the code */
    SOP_TRY(set_calls(l, 1));
    const double wanted = l->graph ? graph_s : sample_s;
    for (;;) {
        SOP_TRY(sample(l, &took));
        if (took * l->calls >= wanted || l->calls >= MOST_CALLS) break;
        SOP_TRY(set_calls(l, 2 * l->calls));
    }
    /* a graph has the same operands each time: enough of them that no cache holds them */
    if (l->graph && l->calls < l->sets->n && took * (double)l->sets->n <= 4 * wanted)
        SOP_TRY(set_calls(l, (int32_t)l->sets->n));
    while (sop_now_s() - from < budget_s) {
        double group[GROUP];
        for (int k = 0; k < GROUP; k++) SOP_TRY(sample(l, &group[k]));
        const double now = median(group, GROUP);
        if (fabs(now - before) <= 0.02 * now) break;
        before = now;
    }
    return SOP_OK;
}

static sop_status race(struct lane *lanes, int32_t n, double seconds)
{
    const double from = sop_now_s();
    uint64_t state = 1;
    int32_t reversed = 0;
    for (int32_t round = 0; round < MOST_SAMPLES; round++) {
        if (round >= LEAST_SAMPLES && sop_now_s() - from > seconds) break;
        /* a pair of rounds mirrors itself: AB BA or BA AB */
        reversed = round % 2 ? !reversed : (int32_t)(sop_random(&state) & 1);
        for (int32_t i = 0; i < n; i++) {
            struct lane *l = &lanes[reversed ? n - 1 - i : i];
            SOP_TRY(sample(l, &l->samples[l->n]));
            l->n++;
        }
    }
    return SOP_OK;
}

/* ---- the report ---- */

static void report(struct lane *l, const sop_cost *cost)
{
    sop_bench_result *r = l->result;
    r->n = l->n;
    r->calls = l->calls;
    r->sets = (int32_t)l->sets->n;
    r->median_s = median(l->samples, l->n); /* sorts them */
    r->min_s = l->samples[0];
    r->p95_s = l->samples[(int32_t)ceil(0.95 * l->n) - 1];
    r->bytes_s = (cost->read_bytes + cost->write_bytes) / r->median_s;
    r->flops_s = cost->flops / r->median_s;
}

/* What share of the roof a row reached. On a card int8 has no roof of its own. */
static void hold_against(const sop_ceilings *top, const sop_row *row, sop_bench_result *r)
{
    const int32_t card = row->device != SOP_DEVICE_CPU;
    const int32_t i8 = !card && (row->traits & SOP_ROW_QUANT_X) != 0;
    const double read = r->bytes_s / top->read_bytes_s;
    const double compute = r->flops_s / (i8 ? top->i8_ops_s : top->f32_flops_s);
    r->roof = read >= compute ? SOP_ROOF_READ
              : card          ? SOP_ROOF_PRODUCTS
              : i8            ? SOP_ROOF_I8
                              : SOP_ROOF_F32;
    r->share = fmax(read, compute);
    r->invalid = r->share > 1.05;
    if (r->invalid)
        (void)snprintf(r->why, sizeof r->why, "%.0f %% of what the machine can do", 100 * r->share);
}

enum { MOST_LAYOUTS = 4 };

/* The sets of a row's layout, made when it is the first that wants them. */
static sop_status sets_for(struct sets *all, sop_device *d, const sop_op *op, const void *desc,
                           const sop_row *row, int64_t live, const struct sets **out)
{
    const uint32_t layout = sop_row_packs(row) ? row->layout : 0;
    for (int32_t i = 0; i < MOST_LAYOUTS; i++) {
        if (all[i].n && all[i].layout != layout) continue;
        *out = &all[i];
        if (all[i].n) return SOP_OK;
        all[i].layout = layout;
        all[i].live = live;
        return sets_init(&all[i], d, op, desc);
    }
    return sop_fail(SOP_E_LIMIT, "bench: rows of %s want more than %d layouts", op->name,
                    MOST_LAYOUTS);
}

sop_status sop_time_rows(sop_device *d, const sop_op *op, const sop_row *const *rows,
                         int32_t n_rows, const void *desc, int64_t live, double seconds,
                         sop_bench_result *results)
{
    struct sets sets[MOST_LAYOUTS] = {{0}};
    struct lane *lanes;
    sop_cost cost;
    int32_t n = 0;
    if (op->n_roles > SOP_MOST_ROLES || op->desc_bytes > SOP_MOST_DESC_BYTES)
        return sop_fail(SOP_E_LIMIT,
                        "bench: %s has %d roles and a desc of %u bytes, at most %d, %d", op->name,
                        op->n_roles, op->desc_bytes, SOP_MOST_ROLES, SOP_MOST_DESC_BYTES);
    op->cost(desc, &cost);

    sop_status status = SOP_OK;
    lanes = calloc((size_t)n_rows + 1, sizeof *lanes);
    if (!lanes) return sop_fail(SOP_E_NOMEM, "bench: %d rows", n_rows);
    for (int32_t i = 0; i < n_rows && status == SOP_OK; i++) {
        char text[64];
        const char *why = sop_row_refusal(d, rows[i], desc, text);
        results[i] = (sop_bench_result){0};
        (void)snprintf(results[i].why, sizeof results[i].why, "%s", why ? why : "");
        if (why) continue;
        struct lane *l = &lanes[n++];
        l->row = rows[i];
        l->result = &results[i];
        status = sets_for(sets, d, op, desc, rows[i], live, &l->sets);
        if (status == SOP_OK) status = lane_init(l, d, op, desc);
    }
    const double from = sop_now_s();
    for (int32_t i = 0; i < n && status == SOP_OK; i++)
        status = warm_up(&lanes[i], 0.3 * seconds / n);
    if (status == SOP_OK) status = race(lanes, n, seconds - (sop_now_s() - from));
    for (int32_t i = 0; i < n && status == SOP_OK; i++) report(&lanes[i], &cost);

    for (int32_t i = 0; i < n; i++) lane_finish(&lanes[i], d);
    free(lanes);
    for (int32_t i = 0; i < MOST_LAYOUTS; i++) {
        if (sets[i].memory) d->ops->release(d, sets[i].memory, sets[i].bytes);
        free(sets[i].args);
    }
    return status;
}

sop_status sop_bench(sop_device *d, const sop_op *op, const sop_row *const *rows, int32_t n_rows,
                     const void *desc, double seconds, sop_bench_result *results)
{
    sop_ceilings top;
    SOP_TRY(sop_ceilings_of(d, &top));
    SOP_TRY(sop_time_rows(d, op, rows, n_rows, desc, -1, seconds > 0 ? seconds : 1, results));
    for (int32_t i = 0; i < n_rows; i++)
        if (results[i].n) hold_against(&top, rows[i], &results[i]);
    return SOP_OK;
}
