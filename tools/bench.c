/* superop bench: how fast a model or an operator is here. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli.h"
#include "harness/harness.h"
#include "loaded.h"
#include "sweep.h"
#include "workload.h"

static int64_t o_prefill = 512, o_decode = 128, o_repeats = 5, o_chunk, o_sweep, o_batch;
static double o_seconds = 1;
static const char *o_variant, *o_workload, *o_lengths;
static bool o_json;

/* --- a model --- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct spread {
    double least, median, most;
} spread;

static spread spread_of(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return (spread){values[0], (values[(n - 1) / 2] + values[n / 2]) / 2, values[n - 1]};
}

enum { MOST_BATCH = 64 };
static int32_t batch_seq[MOST_BATCH]; /* the first is the model's own */

/* Tokens a second of n tokens of each sequence in steps of at most `most` of each, from the present ends. */
static sop_status time_tokens(loaded *m, const int32_t *ids, int64_t n, int64_t most, double *rate)
{
    int32_t next[MOST_BATCH];
    sop_step_item items[MOST_BATCH];
    const double start = sop_now_s();
    for (int64_t at = 0, take; at < n; at += take) {
        take = n - at < most ? n - at : most;
        for (int64_t i = 0; i < o_batch; i++)
            items[i] = (sop_step_item){
                .seq = batch_seq[i],
                .n_ids = (int32_t)take,
                .ids = ids + at,
                .want = most == 1 || at + take == n ? SOP_WANT_LAST : SOP_WANT_NONE,
            };
        const sop_status s = sop_super_step(m->super, items, (int32_t)o_batch, next, NULL);
        if (s != SOP_OK) return s;
    }
    *rate = (double)(n * o_batch) / (sop_now_s() - start);
    return SOP_OK;
}

/* The same of tokens that the model says itself, some steps ahead of the host. */
static sop_status time_ahead(loaded *m, int32_t id, int64_t n, double *rate)
{
    enum { AT_ONCE = 32 };
    int32_t next[AT_ONCE * MOST_BATCH], last[MOST_BATCH];
    sop_step_item items[MOST_BATCH];
    for (int64_t i = 0; i < o_batch; i++) {
        last[i] = id;
        items[i] = (sop_step_item){
            .seq = batch_seq[i], .n_ids = 1, .ids = &last[i], .want = SOP_WANT_LAST};
    }
    const double start = sop_now_s();
    for (int64_t at = 0; at < n;) {
        const int32_t steps = n - at < AT_ONCE ? (int32_t)(n - at) : AT_ONCE;
        const sop_status s = sop_super_ahead(m->super, items, (int32_t)o_batch, steps, next);
        if (s != SOP_OK) return s;
        memcpy(last, next + (steps - 1) * o_batch, (size_t)o_batch * sizeof *last);
        at += steps;
    }
    *rate = (double)(n * o_batch) / (sop_now_s() - start);
    return SOP_OK;
}

enum { PREFILL, DECODE, AHEAD, RATES };

/* One round: a fresh sequence, the prompt, then the decode steps. */
static sop_status one_round(loaded *m, const int32_t *ids, double rate[RATES])
{
    sop_status s = SOP_OK;
    for (int64_t i = 0; i < o_batch && s == SOP_OK; i++)
        s = sop_super_truncate(m->super, batch_seq[i], 0);
    if (s == SOP_OK && o_prefill)
        s = time_tokens(m, ids, o_prefill, m->facts.max_tokens / o_batch, &rate[PREFILL]);
    if (s == SOP_OK && o_decode) s = time_tokens(m, ids + o_prefill, o_decode, 1, &rate[DECODE]);
    if (s == SOP_OK && o_decode) s = time_ahead(m, 0, o_decode, &rate[AHEAD]);
    return s;
}

static void print_rate(const char *what, int64_t n, spread r, const char *end)
{
    printf("%-8s %5lld tokens  %9.1f tok/s  (%.1f to %.1f)%s\n", what, (long long)n, r.median,
           r.least, r.most, end);
}

static json_t *json_spread(int64_t tokens, spread r)
{
    json_t *o = json_object();
    json_object_set_new(o, "tokens", json_integer(tokens));
    json_object_set_new(o, "tokens_s", json_real(r.median));
    json_object_set_new(o, "least", json_real(r.least));
    json_object_set_new(o, "most", json_real(r.most));
    return o;
}

/* fast: the same with numerics fast, or NULL. */
static void print_model(const loaded *m, const spread rates[RATES], const spread *fast)
{
    char share[96] = "";
    if (m->read_bytes_s > 0)
        (void)snprintf(share, sizeof share, ", %.0f %% of this machine's %.1f GB/s",
                       100 * rates[DECODE].median / (double)o_batch *
                           (double)m->model_facts.step_read_bytes / m->read_bytes_s,
                       m->read_bytes_s / 1e9);
    const double price[] = {fast ? fast[PREFILL].median / rates[PREFILL].median : 0,
                            fast ? fast[DECODE].median / rates[DECODE].median : 0};
    if (o_json) {
        json_t *o = json_object();
        json_object_set_new(o, "prefill", json_spread(o_prefill, rates[PREFILL]));
        json_object_set_new(o, "decode", json_spread(o_decode, rates[DECODE]));
        json_object_set_new(o, "ahead", json_spread(o_decode, rates[AHEAD]));
        json_object_set_new(o, "read_bytes_s", json_real(m->read_bytes_s));
        if (fast && o_prefill) json_object_set_new(o, "price_prefill", json_real(price[0]));
        if (fast && o_decode) json_object_set_new(o, "price_decode", json_real(price[1]));
        cli_print_json(o);
        return;
    }
    if (o_prefill) print_rate("prefill", o_prefill, rates[PREFILL], "");
    if (o_decode) print_rate("decode", o_decode, rates[DECODE], share);
    if (o_decode)
        print_rate("ahead", o_decode, rates[AHEAD], ", 32 steps between two looks of the host");
    if (!fast) return;
    printf("the same bits in any batch cost");
    if (o_prefill) printf(" %.2f times the time of a prompt", price[0]);
    if (o_decode) printf("%s %.2f times that of a token", o_prefill ? "," : "", price[1]);
    printf(", against numerics fast\n");
}

/* The rates of the model that the options name; of m only its numbers are left. */
static int model_rates(spread rates[RATES], loaded *m)
{
    const int64_t n = o_prefill + o_decode;
    sop_limits limits = {.ctx = loaded_ctx ? loaded_ctx : n + o_decode,
                         .max_seqs = (int32_t)o_batch};
    int code = loaded_open(m, &limits);
    if (code) return code;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    double *values[RATES], warm[RATES], rate[RATES] = {0};
    sop_status s = SOP_OK;
    for (int k = 0; k < RATES; k++) values[k] = calloc((size_t)o_repeats, sizeof *values[k]);
    if (!ids || !values[PREFILL] || !values[DECODE] || !values[AHEAD])
        code = cli_fail(CLI_FAILED, "out of memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n && !code; i++) /* any tokens do; these spread over the embedding */
        ids[i] = (int32_t)(i * 7919 % m->facts.vocab);
    batch_seq[0] = m->seq;
    for (int64_t i = 1; i < o_batch && s == SOP_OK; i++)
        s = sop_super_open(m->super, &batch_seq[i]);
    if (!code && s == SOP_OK) s = one_round(m, ids, warm);
    cli_progress progress;
    cli_progress_start(&progress, "bench");
    for (int64_t i = 0; i < o_repeats && !code && s == SOP_OK; i++) {
        cli_progress_count(&progress, i, o_repeats, "rounds");
        s = one_round(m, ids, rate);
        for (int k = 0; k < RATES; k++) values[k][i] = rate[k];
    }
    cli_progress_end(&progress);
    if (s != SOP_OK) code = cli_status(s);
    for (int k = 0; k < RATES && !code; k++) rates[k] = spread_of(values[k], o_repeats);
    if (!code) loaded_measure(m);
    for (int k = 0; k < RATES; k++) free(values[k]);
    free(ids);
    loaded_close(m);
    return code;
}

static int bench_model(void)
{
    spread rates[RATES], fast[RATES];
    loaded m, other;
    if (!o_prefill && !o_decode)
        return cli_fail(CLI_USAGE, "--prefill 0 and --decode 0 leave nothing to do");
    int code = model_rates(rates, &m);
    const bool priced = !code && m.numerics == SOP_NUMERICS_INVARIANT;
    if (priced) {
        loaded_numerics = SOP_NUMERICS_FAST;
        code = model_rates(fast, &other);
    }
    if (!code) print_model(&m, rates, priced ? fast : NULL);
    return code;
}

/* --- an operator --- */

enum { MOST_ROWS = 64 };

static const char *const roofs[] = {"reading", "f32", "int8", "16-bit products"};

/* A rate in its own unit: GB/s or TB/s, GFLOP/s or TFLOP/s. */
static void print_rate_of(char *out, size_t cap, double rate, const char *unit)
{
    const bool tera = rate >= 1e12;
    (void)snprintf(out, cap, "%.2f %c%s", rate / (tera ? 1e12 : 1e9), tera ? 'T' : 'G', unit);
}

static void print_time(char *out, size_t cap, double seconds)
{
    if (seconds < 1e-5)
        (void)snprintf(out, cap, "%.0f ns", 1e9 * seconds);
    else if (seconds < 1e-2)
        (void)snprintf(out, cap, "%.1f us", 1e6 * seconds);
    else
        (void)snprintf(out, cap, "%.1f ms", 1e3 * seconds);
}

static void print_result(const sop_row *row, const sop_bench_result *r)
{
    char median[32], least[32], tail[32], bytes[32], flops[32];
    if (!r->n) {
        printf("  %-28s not timed: %s\n", row->name, r->why);
        return;
    }
    print_time(median, sizeof median, r->median_s);
    print_time(least, sizeof least, r->min_s);
    print_time(tail, sizeof tail, r->p95_s);
    print_rate_of(bytes, sizeof bytes, r->bytes_s, "B/s");
    print_rate_of(flops, sizeof flops, r->flops_s, "FLOP/s");
    printf("  %-28s %10s  (least %s, P95 %s, n=%d)  %11s %14s  %3.0f %% of %s%s\n", row->name,
           median, least, tail, r->n, bytes, flops, 100 * r->share, roofs[r->roof],
           r->invalid ? "  INVALID: over the ceiling" : "");
}

static json_t *json_result(const sop_op *op, const char *shape, const sop_row *row,
                           const sop_bench_result *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "op", json_string(op->name));
    json_object_set_new(o, "shape", json_string(shape));
    json_object_set_new(o, "variant", json_string(row->name));
    json_object_set_new(o, "route", json_string(row->route));
    json_object_set_new(o, "n", json_integer(r->n));
    if (!r->n) json_object_set_new(o, "why", json_string(r->why));
    json_object_set_new(o, "min_s", json_real(r->min_s));
    json_object_set_new(o, "median_s", json_real(r->median_s));
    json_object_set_new(o, "p95_s", json_real(r->p95_s));
    json_object_set_new(o, "bytes_s", json_real(r->bytes_s));
    json_object_set_new(o, "flops_s", json_real(r->flops_s));
    json_object_set_new(o, "share", json_real(r->share));
    json_object_set_new(o, "roof", json_string(roofs[r->roof]));
    json_object_set_new(o, "valid", json_boolean(!r->invalid));
    return o;
}

static int bench_shape(sop_device *d, const sop_op *op, int n_args, char **args)
{
    const sop_row *rows[MOST_ROWS];
    sop_bench_result results[MOST_ROWS];
    char shape[512];
    void *desc = NULL;
    int32_t n = 0;
    const int code = cli_desc(op, n_args, args, !loaded_device, &desc);
    if (code) return code;
    const sop_row *row;
    for (int i = 0; (row = cli_row(op, i)) != NULL && n < MOST_ROWS; i++)
        if (o_variant ? strcmp(row->name, o_variant) == 0
                      : row->device == cli_device_kind(loaded_device) || cli_row_is_added(op, row))
            rows[n++] = row;
    const sop_status s = sop_bench(d, op, rows, n, desc, o_seconds, results);
    sop_desc_print(op, desc, shape, sizeof shape);
    free(desc);
    if (s != SOP_OK) return cli_status(s);
    if (!o_json) printf("%s %s\n", op->name, shape);
    for (int32_t i = 0; i < n; i++) {
        if (o_json)
            cli_print_json(json_result(op, shape, rows[i], &results[i]));
        else
            print_result(rows[i], &results[i]);
    }
    return CLI_OK;
}

/* At the shape of args, or at each of the op's cases. */
static int bench_op(const sop_op *op, int n_args, char **args)
{
    sop_device *d = NULL;
    sop_ceilings c;
    cli_progress progress;
    int code = CLI_OK, n_cases = 0;
    while (op->cases[n_cases]) n_cases++;
    sop_status s = cli_device(loaded_device, &d);
    if (s == SOP_OK && !d) s = sop_device_cpu((int32_t)loaded_threads, &d);
    if (s == SOP_OK) s = sop_ceilings_of(d, &c);
    if (s != SOP_OK)
        code = cli_status(s);
    else if (!o_json && loaded_device)
        printf("%s: reads %.2f TB/s, %.0f TFLOP/s in 16-bit products\n", d->ops->name,
               c.read_bytes_s / 1e12, c.f32_flops_s / 1e12);
    else if (!o_json)
        printf("this machine: reads %.1f GB/s, %.0f GFLOP/s f32, %.0f Gop/s int8\n",
               c.read_bytes_s / 1e9, c.f32_flops_s / 1e9, c.i8_ops_s / 1e9);
    if (!code) code = cli_rows_open(d);
    if (!code && n_args) code = bench_shape(d, op, n_args, args);
    cli_progress_start(&progress, "bench");
    for (int i = 0; !n_args && i < n_cases && !code; i++) {
        char *text = strdup(op->cases[i]);
        if (!text) return cli_fail(CLI_FAILED, "out of memory");
        cli_progress_count(&progress, i, n_cases, op->name);
        code = bench_shape(d, op, 1, &text);
        cli_progress_end(&progress);
        free(text);
    }
    cli_rows_close();
    sop_device_destroy(d);
    return code;
}

static int bench_sweep(void)
{
    sweep_range r = {.every = o_sweep, .batch = (int32_t)o_batch};
    if (o_lengths) {
        char *end;
        const long from = strtol(o_lengths, &end, 10);
        const long to = *end == ':' ? strtol(end + 1, &end, 10) : from;
        if (*end || from < 1 || to < from || to > 1 << 24)
            return cli_fail(CLI_USAGE, "--lengths %s: give FROM:TO, or one length, from 1 on",
                            o_lengths);
        r.from = (int32_t)from, r.to = (int32_t)to;
    }
    return sweep_run(&r);
}

static int bench_run(int n, char **args)
{
    const sop_op *op = NULL;
    if (o_workload && n) return cli_fail(CLI_USAGE, "--workload and %s: give one of them", args[0]);
    if (o_workload) return workload_run(o_workload, o_chunk, o_json);
    if (!n && !loaded_model)
        return cli_fail(CLI_USAGE, "give an operator, -m MODEL or --workload NAME");
    if (n && loaded_model)
        return cli_fail(CLI_USAGE, "-m %s and %s: give one of them", loaded_model, args[0]);
    if (o_sweep && n) return cli_fail(CLI_USAGE, "--sweep is of a model: give -m MODEL");
    if (o_lengths && !o_sweep)
        return cli_fail(CLI_USAGE, "--lengths is of --sweep: give --sweep 1");
    if (!n && o_sweep) return bench_sweep();
    if (!o_batch) o_batch = 1;
    if (!n) return bench_model();
    const int code = cli_op(args[0], &op);
    return code ? code : bench_op(op, n - 1, args + 1);
}

static const cli_option options[] = {
    LOADED_OPTIONS(false),
    {"prefill", 0, CLI_INT, &o_prefill, "N", .help = "with -m: tokens of the prompt (512)",
     .hi = 1e6},
    {"decode", 0, CLI_INT, &o_decode, "N", .help = "with -m: tokens one by one (128)", .hi = 1e6},
    {"batch", 'b', CLI_INT, &o_batch, "B", .help = "with -m: sequences (1)", .lo = 1,
     .hi = MOST_BATCH},
    {"repeats", 'r', CLI_INT, &o_repeats, "N", .help = "with -m: rounds (5)", .lo = 1, .hi = 1e4},
    {"sweep", 0, CLI_INT, &o_sweep, "N",
     .help = "with -m: look for cliffs at each N-th length up to 4,200, and each batch up to 64",
     .lo = 1, .hi = 4200},
    {"lengths", 0, CLI_TEXT, &o_lengths, "FROM:TO",
     .help = "with --sweep: these lengths at -b sequences; one length: every batch around it"},
    {"workload", 'w', CLI_TEXT, &o_workload, "NAME",
     .help = "batches of prompts: field, short, or a file like those"},
    {"chunk", 0, CLI_INT, &o_chunk, "N",
     .help = "with --workload: tokens of one pass; 0: as configured", .hi = 1 << 20},
    {"variant", 'v', CLI_TEXT, &o_variant, "NAME", .help = "of an operator: this one only"},
    {"seconds", 's', CLI_REAL, &o_seconds, "S", .help = "of a shape (1)", .lo = 0.01, .hi = 600},
    {"json", 'j', CLI_FLAG, &o_json, NULL, .help = "an object for the model, or one a variant"},
};

const cli_verb verb_bench = {
    .name = "bench",
    .brief = "time a model, or the variants of an operator side by side",
    .args = "[OP [KEY=VALUE ...]]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = -1,
    .examples =
        "  superop bench linear m=1 n=4608 k=3584 w=bf16\n"
        "  superop bench rmsnorm\n"
        "  superop bench add tokens=1 dim=4096 --plugin ours.so\n"
        "  superop bench linear m=64 n=3584 k=3584 w=bf16 x=bf16 y=bf16 --device cuda\n"
        "  superop bench -m smollm2-135m --prefill 512 --decode 128 -r 5\n"
        "  superop bench -m synth:qwen2-7b --device cuda\n"
        "  superop bench -m synth:qwen2-0.5b-layer --sweep 16 --device cuda\n"
        "  superop bench -m synth:qwen2-0.5b --sweep 1 --lengths 8100:8300 -b 1 --device cuda\n"
        "  superop bench --workload field --device cuda --chunk 16384\n",
    .more =
        "Medians, with the least and the most (a model) or the least and the P95 (an operator);\n"
        "shares are of what this machine was measured to do at most in the same process.\n",
    .run = bench_run,
};
