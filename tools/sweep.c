/* A cliff is a step that takes more than 1.25 times the median of the steps whose length is within 64 tokens
 * of its own. Each is timed up to three times, the least counts; what looks like a cliff is timed again. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "loaded.h"

enum { LONGEST = 4200, MOST_SEQS = 64, NEAR = 64 };
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
    int32_t seq[MOST_SEQS], next[MOST_SEQS];
    sop_step_item items[MOST_SEQS];
    int32_t *ids; /* [LONGEST] */
    point points[LONGEST];
    int32_t n_points, steps, cliffs;
    double
        first_by; /* the most that a first run of a step took more than the best of the next two */
    char first_at[64];
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
    const int64_t length = sop_super_length(w->m.super, w->seq[0]);
    sop_status status = SOP_OK;
    for (int32_t i = 0; i < MOST_SEQS && status == SOP_OK; i++) {
        const int64_t there = sop_super_length(w->m.super, w->seq[i]);
        if (there > before || (there && i >= batch))
            status = sop_super_truncate(w->m.super, w->seq[i], i < batch ? before : 0);
    }
    if (status == SOP_OK && length < before) { /* all of them are equally long */
        for (int32_t i = 0; i < batch && status == SOP_OK; i++)
            status = sop_super_truncate(w->m.super, w->seq[i], 0);
        if (status == SOP_OK) status = step(w, batch, before, s);
    }
    return status == SOP_OK ? step(w, batch, kind == PROMPTS ? n : 1, s) : status;
}

static sop_status measure(sweep *w, int kind, int32_t batch, int32_t n, point *p)
{
    double first = 0, s = 0;
    *p = (point){.n = n};
    sop_status status = time_once(w, kind, batch, n, &first);
    p->s = first;
    if (first > long_s) return status;
    double best = 1e9;
    for (int k = 0; k < 2 && status == SOP_OK; k++) {
        status = time_once(w, kind, batch, n, &s);
        if (s < best) best = s;
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

/* Point i over the median of its neighbours and itself. */
static double ratio_of(const sweep *w, int32_t i)
{
    double near[2 * NEAR + 1];
    int32_t n = 0;
    for (int32_t k = 0; k < w->n_points && n < CLI_N(near); k++)
        if (abs(w->points[k].n - w->points[i].n) <= NEAR && (k == i || !w->points[k].edge))
            near[n++] = w->points[k].s;
    qsort(near, (size_t)n, sizeof *near, by_value);
    return w->points[i].s / ((near[(n - 1) / 2] + near[n / 2]) / 2);
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
    for (int32_t p = 1; p <= LONGEST; p *= 2)
        if (n >= p - 1 && n <= p + 1) return true;
    return false;
}

static sop_status lengths(sweep *w, int kind, int32_t batch, int64_t every)
{
    double worst;
    int32_t at = 0;
    char what[32];
    w->n_points = 0;
    for (int32_t n = 1; n <= LONGEST; n++) {
        if (n % every && n != LONGEST && !is_edge(n)) continue;
        point *p = &w->points[w->n_points++];
        const sop_status status = measure(w, kind, batch, n, p);
        p->edge = n % every != 0;
        if (status != SOP_OK) return status;
    }
    const sop_status status = judge(w, kind, batch, 1, LONGEST, &worst, &at);
    (void)snprintf(what, sizeof what, "%d lengths", w->n_points);
    if (status == SOP_OK) report(w, kind, what, batch, worst, at);
    return status;
}

/* Every batch, at a length among some of its neighbours. */
static sop_status batches(sweep *w, int kind, int32_t length, int64_t every)
{
    static const int32_t off[] = {-64, -32, -16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16, 32, 64};
    double most = -1, worst;
    int32_t at = 0, most_batch = 0;
    point most_at = {0};
    for (int32_t batch = 1; batch <= MOST_SEQS; batch++) {
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
    report(w, kind, every > 1 ? "some batches" : "batches of 1 to 64", most_batch, most, 0);
    return SOP_OK;
}

static sop_status all(sweep *w, int64_t every)
{
    static const int32_t at_batch[] = {1, 8, MOST_SEQS}, at_length[] = {1, 512, 4097};
    sop_status s = sop_super_truncate(w->m.super, w->m.seq, 0);
    w->seq[0] = w->m.seq;
    for (int32_t i = 1; i < MOST_SEQS && s == SOP_OK; i++)
        s = sop_super_open(w->m.super, &w->seq[i]);
    for (int kind = PROMPTS; kind <= DECODE; kind++) {
        for (int i = 0; i < CLI_N(at_batch) && s == SOP_OK; i++)
            s = lengths(w, kind, at_batch[i], every);
        for (int i = 0; i < CLI_N(at_length) && s == SOP_OK; i++)
            s = batches(w, kind, at_length[i], every);
    }
    return s;
}

int sweep_run(int64_t every)
{
    sweep *w = calloc(1, sizeof *w);
    const sop_limits limits = {
        .ctx = LONGEST, .max_seqs = MOST_SEQS, .max_tokens = MOST_SEQS * LONGEST};
    const double from = sop_now_s();
    int code = w ? loaded_open(&w->m, &limits) : cli_fail(CLI_FAILED, "out of memory");
    if (code) {
        free(w);
        return code;
    }
    w->ids = malloc((size_t)LONGEST * sizeof *w->ids);
    if (!w->ids) code = cli_fail(CLI_FAILED, "out of memory");
    for (int32_t i = 0; i < LONGEST && !code; i++)
        w->ids[i] = (int32_t)((int64_t)i * 7919 % w->m.facts.vocab);
    const sop_status s = code ? SOP_OK : all(w, every);
    if (s != SOP_OK) code = cli_status(s);
    if (!code) {
        printf("%d steps in %.1f s: %d over %.2f times the median near them, worst %.2f\n",
               w->steps, sop_now_s() - from, w->cliffs, cliff, w->worst);
        printf("a step run for the first time took at most %.0f us more than again (%s)\n",
               1e6 * w->first_by, w->first_at);
        if (w->cliffs) code = CLI_FAILED;
    }
    free(w->ids);
    loaded_close(&w->m);
    free(w);
    return code;
}
