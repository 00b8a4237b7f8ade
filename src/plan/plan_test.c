#include "sop/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "base/test.h"
#include "core/cpu.h"
#include "ops/spans/spans.h"
#include "plan/planner.h"

static sop_device *device;

static sop_planner *fresh(const char *store)
{
    sop_planner *p = NULL;
    CHECK(sop_planner_create(device, store, &p) == SOP_OK);
    return p;
}

static const sop_op *rmsnorm(void)
{
    return sop_op_find("rmsnorm");
}

static sop_rmsnorm_desc desc_of(int64_t dim)
{
    sop_rmsnorm_desc d = {.tokens = 2, .dim = dim};
    rmsnorm()->complete(&d);
    return d;
}

static void a_plan_names_the_variant_it_chose_and_runs_it(void)
{
    sop_planner *p = fresh("");
    sop_plan *plan;
    sop_queue *q;
    const sop_rmsnorm_desc d = {.tokens = 1, .dim = 4, .eps = 1e-6f};
    CHECK(sop_plan_rmsnorm(p, &d, &plan) == SOP_OK);
    CHECK(strcmp(sop_plan_variant(plan),
                 sop_cpu_features() & SOP_CPU_AVX2 ? "rmsnorm_f32_avx2" : "rmsnorm_f32_c") == 0);
    float x[4] = {1, 2, 3, 4}, w[4] = {1, 1, 1, 1}, y[4];
    sop_operand args[SOP_RMSNORM_ROLES] = {[SOP_RMSNORM_X] = {x, sizeof x},
                                           [SOP_RMSNORM_W] = {w, sizeof w},
                                           [SOP_RMSNORM_Y] = {y, sizeof y}};
    CHECK(device->ops->queue_create(device, &q) == SOP_OK);
    CHECK(sop_plan_run(plan, q, args, NULL) == SOP_OK);
    CHECK(y[0] > 0.3651f && y[0] < 0.3652f && y[3] > 1.4605f && y[3] < 1.4606f);
    args[SOP_RMSNORM_Y].bytes = 12;
    CHECK(sop_plan_run(plan, q, args, NULL) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "12 bytes, planned for 16") != NULL);
    device->ops->queue_destroy(q);
    sop_plan_destroy(plan);
    sop_planner_destroy(p);
}

static void a_bad_desc_is_refused_with_the_number(void)
{
    sop_planner *p = fresh("");
    sop_plan *plan;
    const sop_rmsnorm_desc d = {.tokens = 1, .dim = 4, .eps = -1};
    CHECK(sop_plan_rmsnorm(p, &d, &plan) == SOP_E_ARG);
    CHECK(plan == NULL && strstr(sop_last_error(), "eps=-1") != NULL);
    sop_planner_destroy(p);
}

struct seen {
    char text[512];
};

static void note_skip(void *ctx, const sop_row *row, const char *why)
{
    struct seen *s = ctx;
    const size_t n = strlen(s->text);
    (void)snprintf(s->text + n, sizeof s->text - n, "[%s: %s]", row->name, why);
}

static void every_refusal_has_its_reason(void)
{
    sop_planner *p = fresh("");
    struct seen seen = {""};
    sop_choice c;
    sop_rmsnorm_desc d = desc_of(8);
    d.x_dtype = SOP_BF16;
    CHECK(sop_planner_explain(p, rmsnorm(), &d, 0, SIZE_MAX, note_skip, &seen, &c) == SOP_OK);
    CHECK(strcmp(c.row->name, "rmsnorm_ref") == 0);
    CHECK(strstr(seen.text, "[rmsnorm_f32_c: a type is not f32]") != NULL);
    d = desc_of(8);
    seen.text[0] = 0;
    CHECK(sop_planner_explain(p, rmsnorm(), &d, SOP_CHOOSE_PORTABLE, SIZE_MAX, note_skip, &seen,
                              &c) == SOP_OK);
    CHECK(strcmp(c.row->name, "rmsnorm_f32_c") == 0);
    sop_planner_destroy(p);
}

static sop_status nothing(const sop_call *call)
{
    (void)call;
    return SOP_OK;
}

static const char *odd_dims(const void *desc)
{
    return ((const sop_rmsnorm_desc *)desc)->dim % 2 ? NULL : "takes odd sizes only";
}

static const sop_row extra = {.size = sizeof(sop_row),
                              .device = SOP_DEVICE_CPU,
                              .name = "test:rmsnorm",
                              .route = "c",
                              .refuse = odd_dims,
                              .run = nothing};

static const char *chosen(sop_planner *p, int64_t dim)
{
    const sop_rmsnorm_desc d = desc_of(dim);
    sop_choice c;
    return sop_planner_choose(p, rmsnorm(), &d, 0, SIZE_MAX, &c) == SOP_OK ? c.row->name : "";
}

static void an_added_row_serves_its_shapes_and_goes_again(void)
{
    sop_planner *p = fresh("");
    const char *before = chosen(p, 9);
    CHECK(sop_planner_add(p, "rmsnorm", &extra) == SOP_OK);
    CHECK(sop_planner_add(p, "rmsnorm", &extra) == SOP_E_ARG);
    CHECK(strcmp(chosen(p, 9), "test:rmsnorm") == 0);
    CHECK(strcmp(chosen(p, 8), before) == 0);
    CHECK(sop_planner_remove(p, &extra) == SOP_OK);
    CHECK(strcmp(chosen(p, 9), before) == 0);
    CHECK(sop_planner_remove(p, &extra) == SOP_E_NOT_FOUND);
    sop_planner_destroy(p);
}

static void a_row_of_another_make_is_turned_away(void)
{
    sop_planner *p = fresh("");
    sop_row row = extra;
    row.size = 16;
    CHECK(sop_planner_add(p, "rmsnorm", &row) == SOP_E_ARG);
    row = extra;
    row.device = SOP_DEVICE_CUDA;
    CHECK(sop_planner_add(p, "rmsnorm", &row) == SOP_E_ARG);
    CHECK(sop_planner_add(p, "rmsnrm", &extra) == SOP_E_NOT_FOUND);
    sop_planner_destroy(p);
}

static void quarantine_outlives_the_planner_and_can_be_lifted(void)
{
    char folder[] = "/tmp/sop_plan_XXXXXX", store[64];
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(store, sizeof store, "%s/store.sqlite", folder);
    sop_planner *p = fresh(store);
    const char *best = chosen(p, 8);
    CHECK(sop_planner_quarantine(p, best, "it gave NaN") == SOP_OK);
    CHECK(strcmp(chosen(p, 8), best) != 0);
    sop_planner_destroy(p);
    p = fresh(store);
    CHECK(sop_planner_quarantined(p, best) && strstr(sop_planner_quarantined(p, best), "NaN"));
    CHECK(strcmp(chosen(p, 8), best) != 0);
    CHECK(sop_planner_release(p, best) == SOP_OK);
    CHECK(strcmp(chosen(p, 8), best) == 0);
    CHECK(sop_planner_release(p, best) == SOP_E_NOT_FOUND);
    sop_planner_destroy(p);
    char cmd[96];
    (void)snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    CHECK(system(cmd) == 0);
}

static void measurement_picks_among_the_candidates(void)
{
    sop_planner *p = fresh("");
    const sop_rmsnorm_desc d = desc_of(8);
    const char *best = chosen(p, 8);
    CHECK(strcmp(best, "rmsnorm_ref") != 0);
    CHECK(sop_planner_measured(p, rmsnorm(), &d, best, 300, 9) == SOP_OK);
    CHECK(sop_planner_measured(p, rmsnorm(), &d, "rmsnorm_ref", 100, 9) == SOP_OK);
    CHECK(strcmp(chosen(p, 8), "rmsnorm_ref") == 0);
    CHECK(strcmp(chosen(p, 16), best) == 0); /* another shape was not measured */
    sop_planner_destroy(p);
}

static int prepared, released;

static sop_status prepare(const void *desc, sop_device *d, void **state)
{
    (void)desc, (void)d;
    prepared++;
    *state = &prepared;
    return SOP_OK;
}

static void release(void *state)
{
    released += state == &prepared;
}

static void a_row_that_prepares_is_refused_until_it_was_prepared(void)
{
    sop_planner *p = fresh("");
    sop_row row = extra;
    row.prepare = prepare;
    row.release = release;
    CHECK(sop_planner_add(p, "rmsnorm", &row) == SOP_OK);
    CHECK(strcmp(chosen(p, 9), "test:rmsnorm") != 0 && prepared == 0);
    sop_plan *plan;
    const sop_rmsnorm_desc d = desc_of(9);
    CHECK(sop_plan_rmsnorm(p, &d, &plan) == SOP_OK); /* planning may prepare */
    CHECK(strcmp(sop_plan_variant(plan), "test:rmsnorm") == 0 && prepared == 1);
    sop_plan_destroy(plan);
    sop_planner_destroy(p);
    CHECK(released == 1);
}

static sop_status no_library(const void *desc, sop_device *d, void **state)
{
    (void)desc, (void)d, (void)state;
    return sop_fail(SOP_E_NOT_FOUND, "the planted library is not there");
}

static void another_route_is_explained_though_it_stands_behind(void)
{
    sop_planner *p = fresh("");
    struct seen seen = {""};
    sop_choice c;
    sop_row row = extra;
    const sop_rmsnorm_desc d = desc_of(9);
    row.route = "vendor";
    CHECK(sop_planner_add(p, "rmsnorm", &row) == SOP_OK);
    CHECK(sop_planner_explain(p, rmsnorm(), &d, 0, SIZE_MAX, note_skip, &seen, &c) == SOP_OK);
    CHECK(strcmp(c.row->name, "test:rmsnorm") == 0);
    CHECK(strstr(seen.text, "[rmsnorm_f32_c: another route; stands behind until it is measured "
                            "faster]"));
    CHECK(sop_planner_remove(p, &row) == SOP_OK);
    row.prepare = no_library;
    seen.text[0] = 0;
    CHECK(sop_planner_add(p, "rmsnorm", &row) == SOP_OK);
    CHECK(sop_planner_explain(p, rmsnorm(), &d, SOP_CHOOSE_PREPARE, SIZE_MAX, note_skip, &seen,
                              &c) == SOP_OK);
    CHECK(strcmp(c.row->route, "c") == 0);
    static const char said[] = "[test:rmsnorm: the planted library is not there]";
    CHECK(strncmp(seen.text, said, sizeof said - 1) == 0);
    sop_planner_destroy(p);
}

static void a_library_brings_its_rows_and_takes_them_along(void)
{
    sop_planner *p = fresh("");
    const sop_op *add = sop_op_find("add");
    sop_add_desc d = {.tokens = 1, .dim = 4};
    sop_choice c;
    add->complete(&d);
    CHECK(sop_planner_load(p, "/nonexistent/vendor.so") == SOP_E_NOT_FOUND);
    CHECK(sop_planner_choose(p, add, &d, 0, SIZE_MAX, &c) == SOP_OK);
    CHECK(strncmp(c.row->name, "vendor:", 7) != 0);
    CHECK(sop_planner_load(p, SOP_TEST_VENDOR) == SOP_OK);
    CHECK(sop_planner_choose(p, add, &d, 0, SIZE_MAX, &c) == SOP_OK);
    CHECK(strcmp(c.row->name, "vendor:add_f32") == 0 && strcmp(c.row->route, "vendor") == 0);
    d.a_dtype = SOP_F16;
    CHECK(sop_planner_choose(p, add, &d, 0, SIZE_MAX, &c) == SOP_OK);
    CHECK(strcmp(c.row->name, "vendor:add_f32") != 0);
    CHECK(sop_planner_load(p, SOP_TEST_VENDOR) == SOP_E_ARG); /* its names are taken */
    sop_planner_destroy(p);
}

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The costs are said in the design: a hit is a small part of a microsecond, a miss of one op some. The
 * limits here have room for a busy machine and an unoptimised build. */
static void choosing_costs_microseconds_at_most(void)
{
    sop_planner *p = fresh("");
    enum { N = 100000 };
    sop_rmsnorm_desc d = desc_of(8);
    sop_choice c;
    CHECK(sop_planner_choose(p, rmsnorm(), &d, 0, SIZE_MAX, &c) == SOP_OK);
    const double t0 = now_us();
    for (int i = 0; i < N; i++)
        CHECK(sop_planner_choose(p, rmsnorm(), &d, 0, SIZE_MAX, &c) == SOP_OK);
    const double hit = (now_us() - t0) / N;
    const double t1 = now_us();
    for (int i = 0; i < N; i++) {
        d.tokens = i + 3; /* each a new shape */
        CHECK(sop_planner_choose(p, rmsnorm(), &d, 0, SIZE_MAX, &c) == SOP_OK);
    }
    const double miss = (now_us() - t1) / N;
    printf("plan hit %.3f us, miss %.3f us\n", hit, miss);
    CHECK(hit < 2 && miss < 10);
    sop_planner_destroy(p);
}

/* A span over norms and products, of a split that follows the norm's width. */
static const char *const norm_linear[] = {"rmsnorm", "linear", NULL};

static const char *refuses_wide(const void *desc)
{
    const sop_rmsnorm_desc *norm = ((const void *const *)desc)[0];
    return norm->dim > 64 ? "over 64 wide" : NULL;
}

static sop_status split_by_width(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split)
{
    const sop_rmsnorm_desc *norm = ((const void *const *)desc)[0];
    (void)params, (void)facts, (void)budget;
    *split = (sop_split){.word = {norm->dim}};
    return SOP_OK;
}

static sop_status never_run(const sop_call *call)
{
    (void)call;
    return SOP_E_UNSUPPORTED;
}

static void a_span_that_repeats_covers_what_has_one_split(void)
{
    static const sop_row once = {sizeof(sop_row),
                                 SOP_DEVICE_CPU,
                                 "norm_linear_once",
                                 "c",
                                 0,
                                 0,
                                 .span = norm_linear,
                                 .refuse = refuses_wide,
                                 .plan = split_by_width,
                                 .run = never_run};
    static const sop_row again = {sizeof(sop_row),
                                  SOP_DEVICE_CPU,
                                  "norm_linear_again",
                                  "c",
                                  0,
                                  SOP_ROW_REPEATS,
                                  .span = norm_linear,
                                  .refuse = refuses_wide,
                                  .plan = split_by_width,
                                  .run = never_run};
    enum { N = 7 };
    sop_planner *p = fresh("");
    sop_rmsnorm_desc norm[N];
    const sop_op *ops[N];
    const void *descs[N];
    sop_choice c;
    int32_t covered = 0;
    for (int32_t i = 0; i < N; i++) {
        norm[i] = desc_of(64);
        ops[i] = sop_op_find(norm_linear[i % 2]);
        descs[i] = &norm[i];
    }
    CHECK(sop_planner_add(p, NULL, &once) == SOP_OK);
    CHECK(sop_planner_span(p, ops, descs, N, 0, SIZE_MAX, NULL, NULL, &c, &covered));
    CHECK(c.row == &once && covered == 2);
    CHECK(sop_planner_add(p, NULL, &again) == SOP_OK);
    CHECK(sop_planner_span(p, ops, descs, N, 0, SIZE_MAX, NULL, NULL, &c, &covered));
    CHECK(c.row == &again && covered == 6); /* the last list is cut short */
    norm[4].dim = 32;                       /* another split */
    CHECK(sop_planner_span(p, ops, descs, N, 0, SIZE_MAX, NULL, NULL, &c, &covered));
    CHECK(covered == 4 && c.split.word[0] == 64);
    norm[2].dim = 128; /* refused */
    CHECK(sop_planner_span(p, ops, descs, N, 0, SIZE_MAX, NULL, NULL, &c, &covered));
    CHECK(covered == 2);
    ops[3] = ops[0]; /* another op */
    norm[2].dim = 64;
    CHECK(sop_planner_span(p, ops, descs, N, 0, SIZE_MAX, NULL, NULL, &c, &covered));
    CHECK(covered == 2);
    sop_planner_destroy(p);
}

int main(void)
{
    CHECK(sop_device_cpu(1, &device) == SOP_OK);
    RUN(a_plan_names_the_variant_it_chose_and_runs_it);
    RUN(a_bad_desc_is_refused_with_the_number);
    RUN(every_refusal_has_its_reason);
    RUN(an_added_row_serves_its_shapes_and_goes_again);
    RUN(a_row_of_another_make_is_turned_away);
    RUN(quarantine_outlives_the_planner_and_can_be_lifted);
    RUN(measurement_picks_among_the_candidates);
    RUN(a_row_that_prepares_is_refused_until_it_was_prepared);
    RUN(another_route_is_explained_though_it_stands_behind);
    RUN(a_library_brings_its_rows_and_takes_them_along);
    RUN(a_span_that_repeats_covers_what_has_one_split);
    RUN(choosing_costs_microseconds_at_most);
    sop_device_destroy(device);
    return test_report();
}
