/* A step of a workload is a batch of prompts of any lengths. They pass in chunks of a bounded number of
 * tokens, one prompt behind the other without padding: the pieces of several prompts share a chunk, and
 * a long prompt takes several. */
#include "workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/texts.h"
#include "loaded.h"

extern const sop_text cli_workloads[]; /* bench/workloads */

typedef struct workload {
    json_t *root;
    const json_t *steps; /* arrays of lengths */
    int64_t n, most_seqs, longest, most_tokens, sequences, tokens, padded;
    double *step_s; /* [n] */
} workload;

static void finish(workload *w)
{
    json_decref(w->root);
    free(w->step_s);
}

static int64_t length_at(const json_t *step, size_t i)
{
    return json_integer_value(json_array_get(step, i));
}

/* Checks the steps and counts what they want. */
static int count(workload *w, const char *name)
{
    w->steps = json_object_get(w->root, "steps");
    w->n = (int64_t)json_array_size(w->steps);
    if (!w->n) return cli_fail(CLI_INPUT, "%s: there is no array \"steps\", or it is empty", name);
    for (int64_t i = 0; i < w->n; i++) {
        const json_t *step = json_array_get(w->steps, (size_t)i);
        const int64_t seqs = (int64_t)json_array_size(step);
        int64_t longest = 0, pages = 0;
        if (seqs < 1 || seqs > 4096)
            return cli_fail(CLI_INPUT, "%s: step %lld has %lld lengths, must be 1 to 4096", name,
                            (long long)i, (long long)seqs);
        for (int64_t k = 0; k < seqs; k++) {
            const int64_t n = length_at(step, (size_t)k);
            if (n < 1 || n > 1 << 24)
                return cli_fail(CLI_INPUT, "%s: length %lld of step %lld is no number from 1 to %d",
                                name, (long long)k, (long long)i, 1 << 24);
            if (n > longest) longest = n;
            pages += (n + 63) / 64 * 64;
            w->tokens += n;
        }
        w->sequences += seqs;
        w->padded += seqs * longest;
        if (seqs > w->most_seqs) w->most_seqs = seqs;
        if (longest > w->longest) w->longest = longest;
        if (pages > w->most_tokens) w->most_tokens = pages;
    }
    w->step_s = calloc((size_t)w->n, sizeof *w->step_s);
    return w->step_s ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

static int load(workload *w, const char *name)
{
    const char *known[16], *text = NULL;
    char *own = NULL;
    size_t bytes;
    int n = 0;
    json_error_t e;
    *w = (workload){0};
    for (const sop_text *t = cli_workloads; t->name && n < CLI_N(known); t++) {
        known[n++] = t->name;
        if (strcmp(t->name, name) == 0) text = t->text;
    }
    if (!text && !strchr(name, '.') && !strchr(name, '/'))
        return cli_unknown("workload", name, known, n);
    if (!text) {
        const int code = cli_read_file(name, &own, &bytes);
        if (code) return code;
    }
    w->root = json_loads(own ? own : text, 0, &e);
    free(own);
    if (!w->root) return cli_fail(CLI_INPUT, "%s: line %d: %s", name, e.line, e.text);
    return count(w, name);
}

/* One step: all its prompts, from open to closed. */
static sop_status one_step(loaded *m, const json_t *step, int64_t chunk, const int32_t *ids,
                           int32_t *seq, sop_step_item *items)
{
    const int32_t n = (int32_t)json_array_size(step);
    sop_status s = SOP_OK;
    int32_t open = 0, at = 0; /* prompts that are open, and done */
    while (open < n && s == SOP_OK) {
        s = sop_super_open(m->super, &seq[open]);
        if (s == SOP_OK) open++;
    }
    for (int64_t done = 0; at < n && s == SOP_OK;) {
        int64_t room = chunk;
        int32_t n_items = 0;
        while (room && at < n) {
            const int64_t left = length_at(step, (size_t)at) - done,
                          take = left < room ? left : room;
            items[n_items++] =
                (sop_step_item){.seq = seq[at], .n_ids = (int32_t)take, .ids = ids + done};
            room -= take;
            done = take == left ? 0 : done + take;
            at += take == left;
        }
        s = sop_super_step(m->super, items, n_items, NULL, NULL);
    }
    while (open > 0) sop_super_close(m->super, seq[--open]);
    return s;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share of n sorted ones lies. */
static double quantile(const double *sorted, int64_t n, double share)
{
    const int64_t i = (int64_t)(share * (double)n);
    return sorted[i < n ? i : n - 1];
}

/* The standard deviation of the P99 of windows of ten steps. */
static double p99_spread(const double *step_s, int64_t n)
{
    enum { WINDOW = 10 };
    double sum = 0, squares = 0, window[WINDOW];
    const int64_t windows = n / WINDOW;
    for (int64_t i = 0; i < windows; i++) {
        memcpy(window, step_s + i * WINDOW, sizeof window);
        qsort(window, WINDOW, sizeof *window, by_value);
        const double p99 = quantile(window, WINDOW, 0.99);
        sum += p99;
        squares += p99 * p99;
    }
    if (windows < 2) return 0;
    const double mean = sum / (double)windows;
    return sqrt(fmax(0, squares / (double)windows - mean * mean));
}

static void report(const workload *w, const loaded *m, int64_t used_bytes, bool as_json)
{
    sop_memory memory;
    sop_super_counts counts;
    double *sorted = malloc((size_t)w->n * sizeof *sorted), sum = 0;
    if (!sorted) return;
    memcpy(sorted, w->step_s, (size_t)w->n * sizeof *sorted);
    qsort(sorted, (size_t)w->n, sizeof *sorted, by_value);
    for (int64_t i = 0; i < w->n; i++) sum += sorted[i];
    sop_super_memory(m->super, &memory);
    sop_super_counts_of(m->super, &counts);
    const double p50 = quantile(sorted, w->n, 0.5), p95 = quantile(sorted, w->n, 0.95);
    const double p99 = quantile(sorted, w->n, 0.99), spread = p99_spread(w->step_s, w->n);
    const double gib = 0x1p-30;
    if (as_json) {
        json_t *o = json_object(), *all = json_array();
        for (int64_t i = 0; i < w->n; i++)
            json_array_append_new(all, json_real(1e3 * w->step_s[i]));
        json_object_set_new(o, "steps", json_integer(w->n));
        json_object_set_new(o, "sum_s", json_real(sum));
        json_object_set_new(o, "p50_ms", json_real(1e3 * p50));
        json_object_set_new(o, "p95_ms", json_real(1e3 * p95));
        json_object_set_new(o, "p99_ms", json_real(1e3 * p99));
        json_object_set_new(o, "p99_sd_ms", json_real(1e3 * spread));
        json_object_set_new(o, "sequences_s", json_real((double)w->sequences / sum));
        json_object_set_new(o, "tokens_s", json_real((double)w->tokens / sum));
        json_object_set_new(o, "pools_gib", json_real((double)memory.pools * gib));
        json_object_set_new(o, "used_gib", json_real((double)used_bytes * gib));
        json_object_set_new(o, "plans", json_integer((json_int_t)counts.plan_misses));
        json_object_set_new(o, "plan_ms", json_real(1e3 * counts.plan_s));
        json_object_set_new(o, "padded_tokens", json_integer(0));
        json_object_set_new(o, "steps_ms", all);
        cli_print_json(o);
    } else {
        printf(
            "steps        %lld of %lld shapes served, 0 out of memory, %lld plans made (%.1f ms), "
            "0 compiles\n",
            (long long)w->n, (long long)w->n, (long long)counts.plan_misses, 1e3 * counts.plan_s);
        printf(
            "time         %.3f s; P50 %.1f ms, P95 %.1f ms, P99 %.1f ms (%.1f ms between windows "
            "of ten)\n",
            sum, 1e3 * p50, 1e3 * p95, 1e3 * p99, 1e3 * spread);
        printf("throughput   %.1f sequences/s, %.0f tokens/s\n", (double)w->sequences / sum,
               (double)w->tokens / sum);
        printf("memory       %.2f GiB of pools", (double)memory.pools * gib);
        if (used_bytes > 0) printf(", %.2f GiB of the device in use", (double)used_bytes * gib);
        printf("\npadding      none: %lld tokens; a batch padded to its longest has %.1f times as "
               "many\n",
               (long long)w->tokens, (double)w->padded / (double)w->tokens);
    }
    free(sorted);
}

/* Bytes of the device that are taken, or 0. */
static int64_t used_of(sop_device *d)
{
    size_t free_bytes = 0, all = 0;
    if (!d || !d->ops->memory || d->ops->memory(d, &free_bytes, &all) != SOP_OK) return 0;
    return (int64_t)(all - free_bytes);
}

int workload_run(const char *name, int64_t chunk, bool as_json)
{
    workload w;
    loaded m;
    int32_t *ids = NULL, *seq = NULL;
    sop_step_item *items = NULL;
    sop_status s = SOP_OK;
    int code = load(&w, name);
    if (code) {
        finish(&w);
        return code;
    }
    if (!loaded_model) loaded_model = json_string_value(json_object_get(w.root, "model"));
    if (!loaded_model) code = cli_fail(CLI_USAGE, "%s names no model: give -m", name);
    if (!code && loaded_ctx && loaded_ctx < w.longest)
        code = cli_fail(CLI_USAGE, "%s has a sequence of %lld tokens, --ctx allows %lld", name,
                        (long long)w.longest, (long long)loaded_ctx);
    sop_limits limits = {.ctx = loaded_ctx ? loaded_ctx : w.longest,
                         .max_seqs = (int32_t)w.most_seqs,
                         .max_tokens = (int32_t)chunk,
                         .kv_tokens = w.most_tokens};
    if (!code) code = loaded_open(&m, &limits);
    if (code) {
        finish(&w);
        return code;
    }
    sop_super_close(m.super, m.seq);
    ids = malloc((size_t)w.longest * sizeof *ids);
    seq = malloc((size_t)w.most_seqs * sizeof *seq);
    items = malloc((size_t)w.most_seqs * sizeof *items);
    if (!ids || !seq || !items) code = cli_fail(CLI_FAILED, "out of memory");
    for (int64_t i = 0; i < w.longest && !code; i++) ids[i] = (int32_t)(i * 7919 % m.facts.vocab);
    cli_progress progress;
    cli_progress_start(&progress, "bench");
    for (int64_t i = 0; i < w.n && !code && s == SOP_OK; i++) {
        const double from = sop_now_s();
        cli_progress_count(&progress, i, w.n, "steps");
        s = one_step(&m, json_array_get(w.steps, (size_t)i), m.facts.max_tokens, ids, seq, items);
        w.step_s[i] = sop_now_s() - from;
    }
    cli_progress_end(&progress);
    if (s != SOP_OK) code = cli_status(s);
    if (!code) report(&w, &m, used_of(m.device), as_json);
    free(ids);
    free(seq);
    free(items);
    loaded_close(&m);
    finish(&w);
    return code;
}
