/* A cliff is a step that takes more than 1.25 times the median of the steps whose length is within 64 tokens
 * of its own. Each is timed up to three times, the least counts; what looks like a cliff is timed again. Where
 * all steps from some length on take longer, none of them is a cliff: the largest such rise is told beside. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "loaded.h"

enum { LONGEST = 4200, MOST_POINTS = 4200, MOST_SEQS = 64, NEAR = 64, MOST_STEPS = 1 << 15 };
static const double cliff = 1.25, long_s = 2e-3;

enum { PROMPTS, DECODE };
static const char *const kinds[] = {"prompts of n tokens", "a token at length n"};

typedef struct point {
    int32_t n;
    bool edge; /* stands beside the even spacing: no neighbour of others */
    double s;
} point;

typedef struct sweep {
    loaded m;
    int32_t seqs; /* that are open */
    int32_t seq[MOST_SEQS], next[MOST_SEQS];
    sop_step_item items[MOST_SEQS];
    int32_t *ids; /* as many as the longest has */
    point points[MOST_POINTS];
    int32_t n_points, steps, cliffs;
    double first_by; /* the most that a first run took more than the best of the next two */
    char first_at[64];
    /* of short steps: the first and the second run over the third, and how many there are */
    double first[MOST_STEPS], second[MOST_STEPS];
    int32_t n_short;
    double worst; /* of all series */
} sweep;

static sop_status step(sweep *w, int32_t batch, int32_t n_ids, double *s)
{
    for (int32_t i = 0; i < batch; i++)
        w->items[i] =
            (sop_step_item){.seq = w->seq[i], .n_ids = n_ids, .ids = w->ids, .want = SOP_WANT_LAST};
    const double from = sop_now_s();
    const sop_status status = sop_super_step(w->m.super, w->items, batch, w->next, NULL);
    *s = sop_now_s() - from;
    w->steps++;
    return status;
}

static sop_status time_once(sweep *w, int kind, int32_t batch, int32_t n, double *s)
{
    const int32_t before = kind == PROMPTS ? 0 : n - 1;
    int64_t length = before; /* of the shortest */
    sop_status status = SOP_OK;
    for (int32_t i = 0; i < w->seqs && status == SOP_OK; i++) {
        const int64_t there = sop_super_length(w->m.super, w->seq[i]);
        if (i < batch && there < length) length = there;
        if (there && i >= batch) status = sop_super_truncate(w->m.super, w->seq[i], 0);
    }
    for (int32_t i = 0; i < batch && status == SOP_OK; i++)
        if (sop_super_length(w->m.super, w->seq[i]) > length)
            status = sop_super_truncate(w->m.super, w->seq[i], length);
    if (status == SOP_OK && length < before) status = step(w, batch, before - (int32_t)length, s);
    return status == SOP_OK ? step(w, batch, kind == PROMPTS ? n : 1, s) : status;
}

static sop_status measure(sweep *w, int kind, int32_t batch, int32_t n, point *p)
{
    double first = 0;
    *p = (point){.n = n};
    sop_status status = time_once(w, kind, batch, n, &first);
    p->s = first;
    if (first > long_s) return status;
    double again[2] = {0};
    for (int k = 0; k < 2 && status == SOP_OK; k++)
        status = time_once(w, kind, batch, n, &again[k]);
    const double best = again[0] < again[1] ? again[0] : again[1];
    if (status != SOP_OK) return status;
    if (w->n_short < MOST_STEPS) {
        w->first[w->n_short] = first / again[1];
        w->second[w->n_short++] = again[0] / again[1];
    }
    if (best < p->s) p->s = best;
    if (first - best > w->first_by) {
        w->first_by = first - best;
        (void)snprintf(w->first_at, sizeof w->first_at, "%s, n %d, %d sequences",
                       kind == PROMPTS ? "prompts" : "decode", n, batch);
    }
    return status;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the steps at lengths from `from` to `to`, those at edges but for `self` left out; 0: none. */
static double median_of(const sweep *w, int32_t from, int32_t to, int32_t self)
{
    double near[2 * NEAR + 1];
    int32_t n = 0;
    for (int32_t k = 0; k < w->n_points && n < CLI_N(near); k++)
        if (w->points[k].n >= from && w->points[k].n <= to && (k == self || !w->points[k].edge))
            near[n++] = w->points[k].s;
    qsort(near, (size_t)n, sizeof *near, by_value);
    return n ? (near[(n - 1) / 2] + near[n / 2]) / 2 : 0;
}

/* Point i over the median of its neighbours and itself. */
static double ratio_of(const sweep *w, int32_t i)
{
    const int32_t n = w->points[i].n;
    return w->points[i].s / median_of(w, n - NEAR, n + NEAR, i);
}

/* The most that the median of 64 lengths is over that of the 64 before them, and where they begin. */
static double rise_of(const sweep *w, int32_t *at)
{
    double most = 0;
    for (int32_t i = 0; i < w->n_points; i++) {
        const int32_t n = w->points[i].n;
        const double before = median_of(w, n - NEAR, n - 1, -1);
        const double after = median_of(w, n, n + NEAR - 1, -1);
        if (n - NEAR < w->points[0].n || n + NEAR - 1 > w->points[w->n_points - 1].n) continue;
        if (before <= 0 || after <= most * before) continue;
        most = after / before;
        *at = n;
    }
    return most;
}

typedef struct names {
    char text[1024];
} names;

static void add_name(void *ctx, const sop_explain_line *l)
{
    names *k = ctx;
    const size_t n = strlen(k->text);
    if (l->variant && !strstr(k->text, l->variant))
        (void)snprintf(k->text + n, sizeof k->text - n, "%s%s", n ? ", " : "", l->variant);
}

/* The points from `from` to `to` of one batch, judged: all within NEAR of each other or all lengths. */
static sop_status judge(sweep *w, int kind, int32_t batch, int32_t from, int32_t to, double *worst,
                        int32_t *at)
{
    *worst = 0;
    for (int32_t i = 0; i < w->n_points; i++) {
        point *p = &w->points[i];
        if (p->n < from || p->n > to) continue;
        double r = ratio_of(w, i), s;
        for (int k = 0; k < 6 && r > cliff; k++) {
            const sop_status status = time_once(w, kind, batch, p->n, &s);
            if (status != SOP_OK) return status;
            if (s < p->s) p->s = s;
            r = ratio_of(w, i);
        }
        w->cliffs += r > cliff;
        if (r <= *worst) continue;
        *worst = r;
        *at = i;
    }
    return SOP_OK;
}

static void report(sweep *w, int kind, const char *what, int32_t batch, double worst, int32_t at)
{
    const point *p = &w->points[at];
    names k = {""};
    (void)!sop_super_explain(w->m.super, batch, kind == PROMPTS ? p->n : 1, p->n, add_name, &k);
    printf("%s, %s: worst %.2f of the median near it, at n %d with %d sequences, %.1f us\n    %s\n",
           kinds[kind], what, worst, p->n, batch, 1e6 * p->s, k.text);
    (void)fflush(stdout); /* the next one may take a minute */
    if (worst > w->worst) w->worst = worst;
}

static bool is_edge(int32_t n)
{
    for (int32_t p = 1; p <= 1 << 20; p *= 2)
        if (n >= p - 1 && n <= p + 1) return true;
    return false;
}

static sop_status lengths(sweep *w, int kind, int32_t batch, int32_t from, int32_t to,
                          int64_t every)
{
    double worst;
    int32_t at = 0;
    char what[32];
    w->n_points = 0;
    for (int32_t n = from; n <= to; n++) {
        if (n % every && n != to && !is_edge(n)) continue;
        point *p = &w->points[w->n_points++];
        const sop_status status = measure(w, kind, batch, n, p);
        p->edge = n % every != 0;
        if (status != SOP_OK) return status;
    }
    const sop_status status = judge(w, kind, batch, from, to, &worst, &at);
    (void)snprintf(what, sizeof what, "%d lengths", w->n_points);
    if (status != SOP_OK) return status;
    report(w, kind, what, batch, worst, at);
    const double rise =
        kind == DECODE ? rise_of(w, &at) : 0; /* prompts take longer by themselves */
    if (rise > 0) printf("    from n %d on %.2f times what it was before\n", at, rise);
    return SOP_OK;
}

/* Every batch up to the last, at a length among some of its neighbours. */
static sop_status batches(sweep *w, int kind, int32_t length, int64_t every)
{
    static const int32_t off[] = {-64, -32, -16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16, 32, 64};
    double most = -1, worst;
    int32_t at = 0, most_batch = 0;
    point most_at = {0};
    for (int32_t batch = 1; batch <= w->seqs; batch++) {
        if (every > 1 && batch % 8 > 1) continue;
        w->n_points = 0;
        for (int i = 0; i < CLI_N(off); i++) {
            if (length + off[i] < 1) continue;
            const sop_status status =
                measure(w, kind, batch, length + off[i], &w->points[w->n_points++]);
            if (status != SOP_OK) return status;
        }
        const sop_status status = judge(w, kind, batch, length, length, &worst, &at);
        if (status != SOP_OK) return status;
        if (worst <= most) continue;
        most = worst;
        most_at = w->points[at];
        most_batch = batch;
    }
    w->points[0] = most_at;
    report(w, kind, every > 1 ? "some batches" : "every batch", most_batch, most, 0);
    return SOP_OK;
}

static sop_status all(sweep *w, const sweep_range *r)
{
    static const int32_t at_length[] = {1, 512, 4097};
    const int32_t at_batch[] = {r->batch ? r->batch : 1, 8, MOST_SEQS};
    const int n_batches = r->batch ? 1 : CLI_N(at_batch);
    const int32_t from = r->from ? r->from : 1, to = r->to ? r->to : LONGEST;
    sop_status s = sop_super_truncate(w->m.super, w->m.seq, 0);
    w->seq[0] = w->m.seq;
    for (int32_t i = 1; i < w->seqs && s == SOP_OK; i++) s = sop_super_open(w->m.super, &w->seq[i]);
    for (int kind = PROMPTS; kind <= DECODE; kind++) {
        for (int i = 0; i < n_batches && from < to && s == SOP_OK; i++)
            s = lengths(w, kind, at_batch[i], from, to, r->every);
        for (int i = 0; i < CLI_N(at_length) && !r->to && !r->batch && s == SOP_OK; i++)
            s = batches(w, kind, at_length[i], r->every);
        if (from == to && s == SOP_OK) s = batches(w, kind, from, r->every);
    }
    return s;
}

int sweep_run(const sweep_range *r)
{
    sweep *w = calloc(1, sizeof *w);
    const int32_t seqs = r->batch ? r->batch : MOST_SEQS;
    const int32_t longest = !r->to ? LONGEST : r->from == r->to ? r->to + NEAR : r->to;
    const int64_t tokens = (int64_t)seqs * longest;
    const sop_limits limits = {.ctx = longest, .max_seqs = seqs, .max_tokens = (int32_t)tokens};
    const double from = sop_now_s();
    int code = CLI_OK;
    if (tokens > INT32_MAX || r->to - r->from >= MOST_POINTS)
        code = cli_fail(CLI_USAGE, "--lengths: %d of them up to %d in %d sequences are too many",
                        r->to - r->from + 1, longest, seqs);
    else if (!w)
        code = cli_fail(CLI_FAILED, "out of memory");
    if (!code) code = loaded_open(&w->m, &limits);
    if (code) {
        free(w);
        return code;
    }
    w->seqs = seqs;
    w->ids = malloc((size_t)longest * sizeof *w->ids);
    if (!w->ids) code = cli_fail(CLI_FAILED, "out of memory");
    for (int32_t i = 0; i < longest && !code; i++)
        w->ids[i] = (int32_t)((int64_t)i * 7919 % w->m.facts.vocab);
    const sop_status s = code ? SOP_OK : all(w, r);
    if (s != SOP_OK) code = cli_status(s);
    if (!code) {
        printf("%d steps in %.1f s: %d over %.2f times the median near them, worst %.2f\n",
               w->steps, sop_now_s() - from, w->cliffs, cliff, w->worst);
        printf("a step run for the first time took at most %.0f us more than again (%s)\n",
               1e6 * w->first_by, w->first_at);
        const int32_t n = w->n_short;
        qsort(w->first, (size_t)n, sizeof *w->first, by_value);
        qsort(w->second, (size_t)n, sizeof *w->second, by_value);
        if (n)
            printf(
                "over its third run, %d steps of up to 2 ms: the first %.3f (median), %.3f (P99); "
                "the second %.3f, %.3f\n",
                n, w->first[n / 2], w->first[n * 99 / 100], w->second[n / 2],
                w->second[n * 99 / 100]);
        if (w->cliffs) code = CLI_FAILED;
    }
    free(w->ids);
    loaded_close(&w->m);
    free(w);
    return code;
}
