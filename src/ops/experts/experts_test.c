#include "ops/experts/experts.h"

#include <math.h>

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

enum { ROWS = 40, EXPERTS = 3, N = 5, K = 3 };

/* Weight [e, c, :] is (e + 1) 10^-c in its first column, so y[i, c] = x[in, 0] (e + 1) 10^-c. */
static void run(const sop_row *row, int64_t gather, int32_t scatter, int32_t *counts, int32_t *perm,
                float *x, float *y)
{
    static float w[EXPERTS * N * K];
    sop_experts_desc d = {.rows = ROWS, .experts = EXPERTS, .n = N, .k = K};
    d.gather = gather;
    d.scatter = scatter;
    sop_op_experts.complete(&d);
    for (int64_t e = 0; e < EXPERTS; e++)
        for (int64_t c = 0; c < N; c++) w[(e * N + c) * K] = (float)(e + 1) * powf(10, (float)-c);
    for (int i = 0; i < ROWS * N; i++) y[i] = -1;
    const sop_operand args[SOP_EXPERTS_ROLES] = {
        [SOP_EXPERTS_X] = {x, (size_t)ROWS * K * sizeof *x},
        [SOP_EXPERTS_W] = {w, sizeof w},
        [SOP_EXPERTS_COUNTS] = {counts, EXPERTS * sizeof *counts},
        [SOP_EXPERTS_PERM] = {perm, perm ? ROWS * sizeof *perm : 0},
        [SOP_EXPERTS_Y] = {y, (size_t)ROWS * N * sizeof *y}};
    CHECK(run_row(&sop_op_experts, row, &d, args, 2) == SOP_OK);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_experts.n_rows; r++)
        if (row_runs(&sop_op_experts.rows[r])) test(&sop_op_experts.rows[r]);
}

/* Row `out` of y is x0 times the weight of expert e; e < 0: nobody wrote it. */
static int right(const float *y, int64_t out, int64_t x0, int64_t e)
{
    for (int64_t c = 0; c < N; c++) {
        const float want = e < 0 ? -1 : (float)(x0 * (e + 1)) * powf(10, (float)-c);
        if (fabsf(y[out * N + c] - want) > 1e-5f * fabsf(want)) return 0;
    }
    return 1;
}

static void uneven(const sop_row *row)
{
    static float x[ROWS * K], y[ROWS * N];
    int32_t counts[EXPERTS] = {0, 37, 1};
    for (int64_t i = 0; i < ROWS; i++) x[i * K] = (float)(i + 1);
    run(row, 0, 0, counts, NULL, x, y);
    for (int64_t i = 0; i < ROWS; i++) CHECK(right(y, i, i + 1, i < 37 ? 1 : i < 38 ? 2 : -1));
}

static void counts_say_whose_rows_are_whose(void)
{
    each(uneven);
}

/* Counts from the device may be nonsense; memory must survive that. */
static void nonsense(const sop_row *row)
{
    static float x[ROWS * K], y[ROWS * N];
    int32_t counts[EXPERTS] = {2, -1000000, INT32_MAX};
    for (int64_t i = 0; i < ROWS; i++) x[i * K] = (float)(i + 1);
    run(row, 0, 0, counts, NULL, x, y);
    for (int64_t i = 0; i < ROWS; i++) CHECK(right(y, i, i + 1, i < 2 ? 0 : 2));
}

static void counts_past_the_rows_are_cut_off(void)
{
    each(nonsense);
}

/* 20 tokens with 2 pairs each: pair p of expert p % 3. */
static void permuted(const sop_row *row)
{
    static float x[ROWS * K], y[ROWS * N];
    int32_t counts[EXPERTS] = {0}, perm[ROWS], n = 0;
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int32_t p = e; p < ROWS; p += EXPERTS) counts[e]++, perm[n++] = p;
    for (int64_t t = 0; t < ROWS / 2; t++) x[t * K] = (float)(t + 1);
    run(row, 2, 1, counts, perm, x, y);
    for (int64_t p = 0; p < ROWS; p++) CHECK(right(y, p, p / 2 + 1, p % EXPERTS));
    run(row, 2, 0, counts, perm, x, y);
    for (int64_t i = 0; i < ROWS; i++) CHECK(right(y, i, perm[i] / 2 + 1, perm[i] % EXPERTS));
}

static void rows_are_gathered_and_scattered_by_their_pairs(void)
{
    each(permuted);
}

static void a_ragged_k_is_refused_with_the_block(void)
{
    sop_experts_desc d;
    CHECK(sop_desc_parse(&sop_op_experts, "rows=1 experts=2 n=8 k=40 w=q8_0", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "k=40") && strstr(sop_last_error(), "32"));
}

static void a_type_that_is_no_weight_is_refused(void)
{
    sop_experts_desc d;
    CHECK(sop_desc_parse(&sop_op_experts, "rows=1 experts=2 n=8 k=32 w=i32", &d) == SOP_E_ARG);
}

int main(void)
{
    RUN(counts_say_whose_rows_are_whose);
    RUN(counts_past_the_rows_are_cut_off);
    RUN(rows_are_gathered_and_scattered_by_their_pairs);
    RUN(a_ragged_k_is_refused_with_the_block);
    RUN(a_type_that_is_no_weight_is_refused);
    return test_report();
}
