/* superop check: is every variant right, on every case, within the op's bound of float64. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "harness/harness.h"

static bool o_all;
static const char *o_variant;
static int32_t o_device;
static bool only_plugin; /* nothing but --plugin says what to check */

static int passed, failed, skipped;

enum { MOST_ROWS = 64 };

/* What the cases of one row came to. */
typedef struct row_tally {
    int passed, failed, skipped;
    double worst;  /* error / bound */
    char why[256]; /* of the last skip */
} row_tally;

static void count(const sop_row *row, const char *shape, const sop_check_result *r, row_tally *t)
{
    switch (r->verdict) {
    case SOP_CHECK_PASS:
        t->passed++;
        if (r->worst > t->worst) t->worst = r->worst;
        break;
    case SOP_CHECK_SKIP:
        t->skipped++;
        (void)snprintf(t->why, sizeof t->why, "%s", r->why);
        break;
    default: t->failed++; printf("FAILED %s at %s: %s\n", row->name, shape, r->why);
    }
}

static void print_tally(const sop_row *row, const row_tally *t)
{
    printf("%-28s %3d passed", row->name, t->passed);
    if (t->failed) printf(", %d failed", t->failed);
    if (t->skipped) printf(", %d skipped (%s)", t->skipped, t->why);
    if (t->passed) printf(", worst error %.2f of the bound", t->worst);
    putchar('\n');
    passed += t->passed, failed += t->failed, skipped += t->skipped;
}

/* The rows of an op that --variant asks for, or the plug-in's, or all of the device. */
static int chosen_rows(const sop_op *op, const sop_row **rows)
{
    const sop_row *row;
    int n = 0;
    for (int i = 0; (row = cli_row(op, i)) != NULL && n < MOST_ROWS; i++)
        if (o_variant     ? strcmp(row->name, o_variant) == 0
            : only_plugin ? cli_row_is_added(op, row)
                          : row->device == cli_device_kind(o_device))
            rows[n++] = row;
    return n;
}

static int check_one(sop_checker *c, const sop_op *op, const sop_row *const *rows, int n_rows,
                     const void *desc, row_tally *tallies)
{
    sop_check_result results[MOST_ROWS];
    char shape[512];
    const sop_status s = sop_check(c, op, rows, n_rows, desc, results);
    if (s != SOP_OK) return cli_status(s);
    sop_desc_print(op, desc, shape, sizeof shape);
    for (int i = 0; i < n_rows; i++) count(rows[i], shape, &results[i], &tallies[i]);
    return CLI_OK;
}

/* At the shape of args, or at each of the op's cases. */
static int check_op(sop_checker *c, const sop_op *op, int n_args, char **args)
{
    const sop_row *rows[MOST_ROWS];
    row_tally tallies[MOST_ROWS] = {{0}};
    cli_progress progress;
    const int n_rows = chosen_rows(op, rows);
    int n_cases = 0, code = CLI_OK;
    while (op->cases[n_cases]) n_cases++;
    cli_progress_start(&progress, "checking");
    for (int i = 0; i < (n_args ? 1 : n_cases) && n_rows && !code; i++) {
        char *text = NULL;
        void *desc = NULL;
        if (!n_args && !(text = strdup(op->cases[i]))) return cli_fail(CLI_FAILED, "out of memory");
        cli_progress_count(&progress, i, n_cases, op->name);
        code = cli_desc(op, n_args ? n_args : 1, n_args ? args : &text, n_args && !o_device, &desc);
        if (!code) code = check_one(c, op, rows, n_rows, desc, tallies);
        free(desc);
        free(text);
    }
    cli_progress_end(&progress);
    for (int i = 0; i < n_rows && !code; i++) print_tally(rows[i], &tallies[i]);
    return code;
}

/* The op that has a row of this name. */
static int op_of_variant(const sop_op **out)
{
    const char *names[512];
    const sop_row *row;
    int n = 0;
    for (const sop_op *const *op = sop_ops(); *op; op++)
        for (int i = 0; (row = cli_row(*op, i)) != NULL && n < CLI_N(names); i++) {
            names[n++] = row->name;
            if (strcmp(names[n - 1], o_variant) == 0) {
                *out = *op;
                return CLI_OK;
            }
        }
    return cli_unknown("variant", o_variant, names, n);
}

/* What the plug-in has beside rows of operators. */
static void skip_spans(void)
{
    const sop_row *row;
    for (int i = 0; (row = cli_row(NULL, i)) != NULL; i++) {
        printf("%-28s not checked: it covers several operators\n", row->name);
        skipped++;
    }
}

/* The operator that args and --variant name; *one NULL: all. */
static int chosen_op(int n, char **args, const sop_op **one)
{
    const sop_op *of_variant = NULL;
    int code = n ? cli_op(args[0], one) : CLI_OK;
    if (!code && o_variant) code = op_of_variant(&of_variant);
    if (!code && *one && of_variant && *one != of_variant)
        code = cli_fail(CLI_USAGE, "%s is a variant of %s, not of %s", o_variant, of_variant->name,
                        (*one)->name);
    if (!*one) *one = of_variant;
    return code;
}

static int check_run(int n, char **args)
{
    const sop_op *one = NULL;
    sop_checker *c = NULL;
    sop_device *other = NULL;
    if (n && o_all) return cli_fail(CLI_USAGE, "--all and %s: give one of them", args[0]);
    if (!n && !o_all && !o_variant && !cli_plugin)
        return cli_fail(CLI_USAGE,
                        "give an operator (superop ops lists them), --plugin FILE or --all");
    only_plugin = !n && !o_all;
    sop_status s = cli_device(o_device, &other);
    if (s == SOP_OK) s = other ? sop_checker_create_on(other, &c) : sop_checker_create(&c);
    int code = s == SOP_OK ? cli_rows_open(other) : cli_status(s);
    if (!code) code = chosen_op(n, args, &one);
    for (const sop_op *const *op = sop_ops(); *op && !code; op++)
        if (!one || *op == one) code = check_op(c, *op, n ? n - 1 : 0, args + 1);
    if (!code && !one) skip_spans();
    sop_checker_destroy(c);
    cli_rows_close();
    sop_device_destroy(other);
    if (code) return code;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? CLI_FAILED : CLI_OK;
}

static const cli_option options[] = {
    {"all", 'a', CLI_FLAG, &o_all, NULL, .help = "every operator"},
    {"variant", 'v', CLI_TEXT, &o_variant, "NAME", .help = "this variant only"},
    {"device", 0, CLI_WORD, &o_device, CLI_DEVICES, .help = "whose variants (cpu)"},
    CLI_PLUGIN,
};

const cli_verb verb_check = {
    .name = "check",
    .brief = "compare variants with float64, within the bound of their operator",
    .args = "[OP [KEY=VALUE ...]]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = -1,
    .examples = "  superop check --all\n"
                "  superop check rmsnorm\n"
                "  superop check rmsnorm tokens=3 dim=100 x_stride=128\n"
                "  superop check --variant rmsnorm_f32_avx2\n"
                "  superop check --plugin ours.so\n",
    .more =
        "Without KEY=VALUE, an operator's own cases are checked; without an operator, the variants of\n"
        "--plugin alone. SOP_CPU_MASK=0 in the environment hides all special instructions, 1 all but\n"
        "AVX2; SOP_CUDA_MASK=1 hides of a card what 8.0 has not.\n",
    .run = check_run,
};
