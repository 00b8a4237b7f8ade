#include "ops/merge/merge.h"

#include <math.h>

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* The parts of one token and head by the row; x [parts, v]. */
static void merge(const sop_row *row, int64_t parts, int64_t v, float *x, float *lse, float *y,
                  float *out)
{
    sop_merge_desc d = {.tokens = 1, .parts = parts, .v = v};
    const size_t bytes = (size_t)v * sizeof(float);
    sop_op_merge.complete(&d);
    const sop_operand args[SOP_MERGE_ROLES] = {[SOP_MERGE_X] = {x, (size_t)parts * bytes},
                                               [SOP_MERGE_LSE] = {lse, (size_t)parts * sizeof *lse},
                                               [SOP_MERGE_Y] = {y, bytes},
                                               [SOP_MERGE_LSE_OUT] = {out, sizeof *out}};
    CHECK(run_row(&sop_op_merge, row, &d, args, 1) == SOP_OK);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_merge.n_rows; r++)
        if (row_runs(&sop_op_merge.rows[r])) test(&sop_op_merge.rows[r]);
}

/* P-ATT-07: what saw nothing is not even read. */
static void nothing_and_one(const sop_row *row)
{
    for (int k = 0; k < 2; k++) {
        float x[2] = {k ? 7 : NAN, k ? NAN : 7};
        float lse[2] = {k ? 1.25f : -INFINITY, k ? -INFINITY : 1.25f}, y = 0, out = 0;
        merge(row, 2, 1, x, lse, &y, &out);
        CHECK(y == 7 && out == 1.25f);
    }
}

static void a_part_that_saw_nothing_changes_nothing(void)
{
    each(nothing_and_one);
}

/* P-ATT-08 */
static void natural(const sop_row *row)
{
    float x[2] = {1, 0}, lse[2] = {2, 0}, y = 0, out = 0;
    merge(row, 2, 1, x, lse, &y, &out);
    CHECK(fabsf(y - 0.8807971f) < 1e-6f && fabsf(out - 2.1269280f) < 1e-6f);
}

static void the_logarithm_is_natural(void)
{
    each(natural);
}

static void nothing(const sop_row *row)
{
    enum { PARTS = 9, V = 11 };
    float x[PARTS * V], lse[PARTS], y[V] = {0}, out = 1;
    for (int p = 0; p < PARTS; p++) lse[p] = -INFINITY;
    for (int i = 0; i < PARTS * V; i++) x[i] = NAN;
    merge(row, PARTS, V, x, lse, y, &out);
    for (int i = 0; i < V; i++) CHECK(y[i] == 0);
    CHECK(out == -INFINITY);
}

static void parts_that_all_saw_nothing_give_zero(void)
{
    each(nothing);
}

/* Scores far from 0 must not overflow on the way: P-ATT-06, P-ATT-11. */
static void far(const sop_row *row)
{
    const float at[] = {-19798.99f, 10183.031f, 3e38f};
    for (int k = 0; k < 3; k++) {
        float x[2] = {1, 3}, lse[2] = {at[k], at[k]}, y = 0, out = 0;
        merge(row, 2, 1, x, lse, &y, &out);
        CHECK(fabsf(y - 2) < 1e-6f && fabsf(out - (at[k] + 0.6931472f)) < 5e-3f);
    }
}

static void large_scores_do_not_overflow(void)
{
    each(far);
}

/* NaN anywhere, or an infinite sum, must not look like a result. */
static void broken(const sop_row *row)
{
    const float bad[] = {NAN, INFINITY};
    for (int k = 0; k < 2; k++) {
        float x[3] = {1, 2, 3}, lse[3] = {0, bad[k], -INFINITY}, y = 0, out = 0;
        merge(row, 3, 1, x, lse, &y, &out);
        CHECK(isnan(y) && isnan(out));
    }
}

static void a_bad_log_sum_exp_makes_nan(void)
{
    each(broken);
}

/* More parts than any buffer of a row holds; equal weights: the mean. */
static void many(const sop_row *row)
{
    enum { PARTS = 1000, V = 35 };
    static float x[PARTS * V], lse[PARTS], y[V];
    float out = 0;
    for (int p = 0; p < PARTS; p++) {
        lse[p] = p % 2 ? 3 : -INFINITY;
        for (int i = 0; i < V; i++) x[p * V + i] = p % 2 ? (float)(p + i) : NAN;
    }
    merge(row, PARTS, V, x, lse, y, &out);
    for (int i = 0; i < V; i++) CHECK(fabsf(y[i] - (500 + (float)i)) < 2e-3f);
    CHECK(fabsf(out - (3 + logf(500))) < 1e-5f);
}

static void any_number_of_parts_is_merged(void)
{
    each(many);
}

static void heads_that_overlap_in_y_are_refused(void)
{
    sop_merge_desc d;
    CHECK(sop_desc_parse(&sop_op_merge, "tokens=2 parts=2 heads=2 v=8 y_head=7", &d) ==
          SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_head=7"));
}

int main(void)
{
    RUN(a_part_that_saw_nothing_changes_nothing);
    RUN(the_logarithm_is_natural);
    RUN(parts_that_all_saw_nothing_give_zero);
    RUN(large_scores_do_not_overflow);
    RUN(a_bad_log_sum_exp_makes_nan);
    RUN(any_number_of_parts_is_merged);
    RUN(heads_that_overlap_in_y_are_refused);
    return test_report();
}
