#include "ops/combine/combine.h"

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* Two tokens of three pairs each, so that nothing is rounded; r NULL: absent. */
enum { TOKENS = 2, TOP = 3, DIM = 19 };

static void run(const sop_row *row, float *x, float *r, float *weights, float *y)
{
    sop_combine_desc d = {.tokens = TOKENS, .top = TOP, .dim = DIM};
    const size_t bytes = TOKENS * DIM * sizeof *y;
    sop_op_combine.complete(&d);
    const sop_operand args[SOP_COMBINE_ROLES] = {
        [SOP_COMBINE_X] = {x, TOP * bytes},
        [SOP_COMBINE_R] = {r, r ? bytes : 0},
        [SOP_COMBINE_WEIGHTS] = {weights, TOKENS * TOP * sizeof *weights},
        [SOP_COMBINE_Y] = {y, bytes}};
    CHECK(run_row(&sop_op_combine, row, &d, args, 2) == SOP_OK);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t k = 0; k < sop_op_combine.n_rows; k++)
        if (row_runs(&sop_op_combine.rows[k])) test(&sop_op_combine.rows[k]);
}

static void own(const sop_row *row)
{
    float x[TOKENS * TOP * DIM], y[TOKENS * DIM] = {0};
    float weights[] = {1, 0.5f, 0.25f, 2, 4, 8};
    for (int i = 0; i < TOKENS * TOP * DIM; i++)
        x[i] = (float)(i / DIM + 1); /* the pair's number */
    run(row, x, NULL, weights, y);
    for (int i = 0; i < DIM; i++) CHECK(y[i] == 1 + 1 + 0.75f && y[DIM + i] == 8 + 20 + 48);
}

static void each_token_takes_its_own_pairs(void)
{
    each(own);
}

static void added(const sop_row *row)
{
    float x[TOKENS * TOP * DIM], y[TOKENS * DIM];
    float weights[] = {1, 1, 1, 1, 1, 1};
    for (int i = 0; i < TOKENS * TOP * DIM; i++) x[i] = (float)(i % DIM);
    for (int i = 0; i < TOKENS * DIM; i++) y[i] = (float)i * 100;
    run(row, x, y, weights, y);
    for (int i = 0; i < TOKENS * DIM; i++) CHECK(y[i] == (float)i * 100 + (float)(i % DIM) * 3);
}

static void a_residual_is_added_where_it_lies(void)
{
    each(added);
}

static void no_pair_at_all_is_refused_with_the_number(void)
{
    sop_combine_desc d;
    CHECK(sop_desc_parse(&sop_op_combine, "tokens=2 top=0 dim=8", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "top=0"));
}

int main(void)
{
    RUN(each_token_takes_its_own_pairs);
    RUN(a_residual_is_added_where_it_lies);
    RUN(no_pair_at_all_is_refused_with_the_number);
    return test_report();
}
