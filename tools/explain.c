/* superop explain: what a step would run, module by module, and why not something else. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "loaded.h"

#include "harness/harness.h"
#include "plan/planner.h"

static int64_t o_tokens = 1, o_batch = 1, o_length;
static bool o_shapes;

static void print_size(char *out, size_t cap, size_t bytes)
{
    if (bytes < 10000)
        (void)snprintf(out, cap, "%zu B", bytes);
    else if (bytes < 10000000)
        (void)snprintf(out, cap, "%.0f kB", (double)bytes / 1e3);
    else
        (void)snprintf(out, cap, "%.1f MB", (double)bytes / 1e6);
}

typedef struct explaining {
    double predicted_s;
    int unknown;        /* modules without a prediction */
    const char *module; /* of the last line */
    char why[512];      /* of the skips that wait to be printed, or "" */
    char names[1024];   /* theirs */
} explaining;

static void print_skips(explaining *x)
{
    if (x->why[0]) printf("      not %s: %s\n", x->names, x->why);
    x->why[0] = 0;
}

/* Neighbours with one reason share a line. */
static void add_skip(explaining *x, const char *row, const char *why)
{
    const size_t n = strlen(x->names);
    if (x->why[0] && strcmp(x->why, why) == 0 && n + strlen(row) + 3 < sizeof x->names) {
        (void)snprintf(x->names + n, sizeof x->names - n, ", %s", row);
        return;
    }
    print_skips(x);
    (void)snprintf(x->names, sizeof x->names, "%s", row);
    (void)snprintf(x->why, sizeof x->why, "%s", why);
}

static void print_line(void *ctx, const sop_explain_line *l)
{
    explaining *x = ctx;
    char where[24] = "once", scratch[24], time[24] = "";
    if (l->skipped) {
        add_skip(x, l->skipped->name, l->why ? l->why : "");
        return;
    }
    print_skips(x);
    if (!l->variant) {
        const bool same = x->module && strcmp(x->module, l->module) == 0;
        printf("%-*s %s\n", same ? 5 : 18, same ? "" : l->module, l->note ? l->note : "");
        return;
    }
    x->module = l->module;
    if (l->layer >= 0 && l->repeats > 1)
        (void)snprintf(where, sizeof where, "x %d", l->repeats);
    else if (l->layer >= 0)
        (void)snprintf(where, sizeof where, "layer %d", l->layer);
    print_size(scratch, sizeof scratch, l->scratch_bytes);
    if (l->predicted_s > 0) (void)snprintf(time, sizeof time, "%.1f us", 1e6 * l->predicted_s);
    if (l->predicted_s <= 0) x->unknown++;
    x->predicted_s += l->predicted_s * (l->repeats > 1 ? l->repeats : 1);
    printf("%-18s %-8s %-30s %9s  %10s\n", l->module, where, l->variant, scratch, time);
    if (o_shapes && l->note) printf("      %s\n", l->note);
}

static void print_memory(const sop_super *s)
{
    sop_memory m;
    sop_super_memory(s, &m);
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        {"packed weights", m.weights}, {"KV pages", m.kv},        {"buffers", m.buffers},
        {"scratch", m.scratch},        {"step inputs", m.inputs}, {"all pools", m.pools},
        {"KV on the host", m.host},    {"mapped file", m.mapped}, {"process", m.process},
    };
    puts("\nmemory:");
    for (int i = 0; i < CLI_N(parts); i++)
        printf("  %-16s %10.1f MB\n", parts[i].name, (double)parts[i].bytes / 1e6);
}

static int explain_run(int n, char **args)
{
    loaded m;
    explaining x = {.why = ""};
    const int64_t length = o_length ? o_length : o_tokens;
    (void)n, (void)args;
    if (length < o_tokens)
        return cli_fail(CLI_USAGE, "--length %lld is less than --tokens %lld", (long long)length,
                        (long long)o_tokens);
    sop_limits limits = {.max_seqs = (int32_t)o_batch};
    if (!loaded_ctx && length > 4096) limits.ctx = length;
    if (o_tokens > 1) limits.max_tokens = (int32_t)(o_tokens * o_batch);
    const int code = loaded_open(&m, &limits);
    if (code) return code;
    sop_ceilings roofs;
    if (sop_ceilings_of(sop_runtime_device(m.runtime), &roofs) == SOP_OK)
        sop_planner_set_ceilings(sop_runtime_planner(m.runtime), roofs.read_bytes_s,
                                 roofs.f32_flops_s, roofs.i8_ops_s);
    printf("%s: %s, %lld layers; %lld sequences of %lld new tokens, %lld long\n\n", loaded_model,
           m.model_facts.arch, (long long)m.model_facts.layers, (long long)o_batch,
           (long long)o_tokens, (long long)length);
    printf("%-18s %-8s %-30s %9s  %10s\n", "module", "where", "variant", "scratch", "predicted");
    const sop_status s =
        sop_super_explain(m.super, (int32_t)o_batch, o_tokens, length, print_line, &x);
    print_skips(&x);
    if (s == SOP_OK) {
        if (x.predicted_s > 0)
            printf("\npredicted for the step: %.3f ms%s\n", 1e3 * x.predicted_s,
                   x.unknown ? ", without the modules whose time is not known" : "");
        print_memory(m.super);
    }
    loaded_close(&m);
    return s == SOP_OK ? CLI_OK : cli_status(s);
}

static const cli_option options[] = {
    LOADED_OPTIONS(true),
    {"tokens", 'n', CLI_INT, &o_tokens, "N", "new tokens of each sequence (1)", .lo = 1, .hi = 1e6},
    {"batch", 'b', CLI_INT, &o_batch, "B", "sequences (1)", .lo = 1, .hi = 1024},
    {"length", 'l', CLI_INT, &o_length, "L", "tokens of a sequence after the step (N)", .hi = 1e8},
    {"shapes", 0, CLI_FLAG, &o_shapes, NULL,
     .help = "show each module's shape, as check and bench take it"},
};

const cli_verb verb_explain = {
    .name = "explain",
    .brief = "show what a step would run, module by module, and why",
    .args = "",
    .options = options,
    .n_options = CLI_N(options),
    .examples = "  superop explain -m smollm2-135m --tokens 1 --batch 1\n"
                "  superop explain -m smollm2-135m --tokens 512 --batch 4\n"
                "  superop explain -m smollm2-135m --tokens 1 --length 70000 --config engine.yaml\n"
                "  superop explain -m smollm2-135m --plugin ours.so\n",
    .run = explain_run,
};
