/* superop tune: measure the variants that could serve, so that from then on the fastest does. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "harness/harness.h"
#include "loaded.h"
#include "plan/planner.h"
#include "super/state.h"

static double o_seconds = 0.2;

enum { MOST_ROWS = 64 };

typedef struct tally {
    int measured, alone, changed; /* shapes */
} tally;

/* Those that could serve here. What takes everything, the floor of an op, is no contestant where another
 * takes the shape: on a large one a single run of it would be all there is time for. */
static int contestants(sop_planner *p, const sop_shape *shape, const sop_row **rows)
{
    const sop_facts *f = sop_planner_facts(p);
    const sop_row *row;
    int n = 0;
    for (int i = 0; (row = sop_planner_row(p, shape->op, i)) != NULL && n < MOST_ROWS; i++) {
        if (row->device != f->kind || row->needs & ~f->features ||
            sop_planner_quarantined(p, row->name) || (row->refuse && row->refuse(&shape->desc)))
            continue;
        if ((shape->bound & SOP_CHOOSE_INVARIANT) && !(row->traits & SOP_ROW_INVARIANT)) continue;
        rows[n++] = row;
    }
    return n > 1 ? n - 1 : n;
}

static void print_rows(const sop_shape *shape, const char *text, const sop_row *const *rows, int n,
                       const sop_bench_result *results, const char *before, const char *now)
{
    printf("%s %s\n", shape->op->name, text);
    for (int i = 0; i < n; i++) {
        const bool is_now = strcmp(rows[i]->name, now) == 0,
                   was = strcmp(rows[i]->name, before) == 0;
        if (!results[i].n)
            printf("  %-28s not timed: %s\n", rows[i]->name, results[i].why);
        else
            printf("  %-28s %10.2f us%s\n", rows[i]->name, 1e6 * results[i].median_s,
                   is_now && was ? "  serves"
                   : is_now      ? "  serves from now on"
                   : was         ? "  served before"
                                 : "");
    }
}

/* Three quarters of a class's rows are live, as in its middle: a class ends where the one of half its
 * size does. What multiplies all of them all the same is held against what does not. */
static int64_t live_of(const sop_shape *shape)
{
    return (3 * shape->desc.extent + 3) / 4;
}

static int tune_shape(sop_planner *p, const sop_shape *shape, tally *t)
{
    const sop_row *rows[MOST_ROWS];
    sop_bench_result results[MOST_ROWS];
    sop_choice before, now;
    char text[1024];
    const uint32_t bound = shape->bound | SOP_CHOOSE_PREPARE;
    const int n = contestants(p, shape, rows);
    if (n < 2) {
        t->alone++;
        return CLI_OK;
    }
    sop_status s = sop_planner_choose(p, shape->op, &shape->desc, bound, SIZE_MAX, &before);
    if (s == SOP_OK)
        s = sop_time_rows(sop_planner_device(p), shape->op, rows, n, &shape->desc, live_of(shape),
                          o_seconds, results);
    for (int i = 0; i < n && s == SOP_OK; i++)
        if (results[i].n)
            s = sop_planner_measured(p, shape->op, &shape->desc, rows[i]->name,
                                     1e9 * results[i].median_s, results[i].n);
    if (s == SOP_OK) s = sop_planner_choose(p, shape->op, &shape->desc, bound, SIZE_MAX, &now);
    if (s != SOP_OK) return cli_status(s);
    sop_desc_print(shape->op, &shape->desc, text, sizeof text);
    print_rows(shape, text, rows, n, results, before.row->name, now.row->name);
    t->measured++;
    t->changed += before.row != now.row;
    return CLI_OK;
}

static int tune_model(tally *t)
{
    loaded m;
    sop_shape *shapes = NULL;
    int32_t n = 0;
    cli_progress progress;
    const sop_limits limits = {.max_seqs = 64};
    int code = loaded_open(&m, &limits);
    if (code) return code;
    const sop_status s = sop_super_shapes(m.super, &shapes, &n);
    if (s != SOP_OK) code = cli_status(s);
    cli_progress_start(&progress, "tune");
    for (int32_t i = 0; i < n && !code; i++) {
        cli_progress_count(&progress, i, n, shapes[i].op->name);
        code = tune_shape(sop_runtime_planner(m.runtime), &shapes[i], t);
    }
    cli_progress_end(&progress);
    free(shapes);
    loaded_close(&m);
    return code;
}

static int tune_op(int n, char **args, tally *t)
{
    sop_device *d = NULL;
    sop_planner *p = NULL;
    sop_shape shape = {0};
    void *desc = NULL;
    int code = cli_op(args[0], &shape.op);
    if (!code) code = cli_desc(shape.op, n - 1, args + 1, false, &desc);
    if (code) return code;
    memcpy(&shape.desc, desc, shape.op->desc_bytes);
    free(desc);
    sop_status s = cli_device(loaded_device, &d);
    if (s == SOP_OK && !d) s = sop_device_cpu((int32_t)loaded_threads, &d);
    if (s == SOP_OK) s = sop_planner_create(d, NULL, &p);
    if (s == SOP_OK) s = cli_plugin_load(p);
    code = s == SOP_OK ? tune_shape(p, &shape, t) : cli_status(s);
    sop_planner_destroy(p);
    sop_device_destroy(d);
    return code;
}

static int tune_run(int n, char **args)
{
    tally t = {0};
    if (!n && !loaded_model) return cli_fail(CLI_USAGE, "give an operator or -m MODEL");
    if (n && loaded_model)
        return cli_fail(CLI_USAGE, "-m %s and %s: give one of them", loaded_model, args[0]);
    const int code = n ? tune_op(n, args, &t) : tune_model(&t);
    if (!code)
        printf("%d shapes measured, %d of them get another variant; %d have but one\n", t.measured,
               t.changed, t.alone);
    return code;
}

static const cli_option options[] = {
    LOADED_OPTIONS(false),
    {"seconds", 's', CLI_REAL, &o_seconds, "S", .help = "of a shape (0.2)", .lo = 0.01, .hi = 600},
};

const cli_verb verb_tune = {
    .name = "tune",
    .brief = "measure the variants that could serve; from then on the fastest does",
    .args = "[OP KEY=VALUE ...]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = -1,
    .examples = "  superop tune -m synth:qwen2-7b --device cuda\n"
                "  superop tune linear m=64 n=3584 k=18944 w=bf16 x=bf16 y=bf16 --device cuda\n"
                "  superop tune -m smollm2-135m\n",
    .more =
        "With a model: at each shape that its steps can have, up to 64 sequences. Times are kept in the\n"
        "store (store.sqlite in superop's cache) for this device and this build, and every later\n"
        "run, bench and explain chooses by them; without them the order of the variants decides.\n",
    .run = tune_run,
};
