#include "ops/matmul/matmul.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

/* Whether row makes of a [2, 3], or of its transpose, and b [3, 2] what they are together. */
static void small(const sop_row *row, int32_t transposed)
{
    const float plain[] = {1, 2, 3, 4, 5, 6}, down[] = {1, 4, 2, 5, 3, 6};
    float a[6], b[] = {1, -1, 2, 0, 0.5f, 3}, y[4] = {0}, sums[2] = {0};
    sop_matmul_desc d = {.rows = 2, .cols = 2, .k = 3, .transposed = transposed};
    sop_op_matmul.complete(&d);
    memcpy(a, transposed ? down : plain, sizeof a);
    const sop_operand args[SOP_MATMUL_ROLES] = {
        {a, sizeof a}, {b, sizeof b}, {y, sizeof y}, {sums, sizeof sums}};
    if (!row_takes(row, &d)) return;
    CHECK(run_row(&sop_op_matmul, row, &d, args, 1) == SOP_OK);
    CHECK(y[0] == 6.5f && y[1] == 8 && y[2] == 17 && y[3] == 14);
    CHECK(sums[0] == 6 && sums[1] == 15);
}

static void rows_of_one_count_columns_of_the_other(void)
{
    for (int32_t k = 0; k < sop_op_matmul.n_rows; k++) {
        small(&sop_op_matmul.rows[k], 0);
        small(&sop_op_matmul.rows[k], 1);
    }
}

/* y = x w^T + bias, by the weight's rows: dx = dy w, dw = dy^T x, dbias = the sums of dy's columns. */
static void the_gradients_of_linear_are_two_products(void)
{
    enum { T = 4, N = 3, K = 5 };
    double x[T * K], w[N * K], bias[N], y[T * N], dy[T * N], dx[T * K], dw[N * K], dbias[N];
    const sop_matmul_desc by_x = {T, K, N, N, K, K, 0, SOP_F64, SOP_F64, SOP_F64};
    const sop_matmul_desc by_w = {N, K, T, N, K, K, 1, SOP_F64, SOP_F64, SOP_F64};
    const sop_operand x_args[] = {
        grad_operand(dy, T * N), grad_operand(w, N * K), grad_operand(dx, T * K), {NULL, 0}};
    const sop_operand w_args[] = {grad_operand(dy, T * N), grad_operand(x, T * K),
                                  grad_operand(dw, N * K), grad_operand(dbias, N)};
    sop_linear_desc d = {.tokens = T, .k = K, .n = {N}, .bias = 1, .w_dtype = {SOP_F64}};
    d.x_dtype = d.y_dtype = SOP_F64;
    sop_op_linear.complete(&d);
    const sop_operand in[SOP_LINEAR_ROLES] = {[SOP_LINEAR_X] = grad_operand(x, T * K),
                                              [SOP_LINEAR_W0] = grad_operand(w, N * K),
                                              [SOP_LINEAR_B0] = grad_operand(bias, N),
                                              [SOP_LINEAR_Y] = grad_operand(y, T * N)};
    const grad_fn f = {&sop_op_linear, &d, in, {SOP_LINEAR_Y, -1}, {dy, NULL}};
    grad_fill(x, T * K, 1);
    grad_fill(w, N * K, 2);
    grad_fill(bias, N, 3);
    grad_fill(dy, T * N, 4);
    CHECK(grad_run(&sop_op_matmul, &by_x, x_args) == SOP_OK);
    CHECK(grad_run(&sop_op_matmul, &by_w, w_args) == SOP_OK);
    grad_check(&f, x, dx, T * K);
    grad_check(&f, w, dw, N * K);
    grad_check(&f, bias, dbias, N);
}

static void rows_that_overlap_in_y_are_refused(void)
{
    sop_matmul_desc d;
    CHECK(sop_desc_parse(&sop_op_matmul, "rows=2 cols=8 k=3 y_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_stride=7"));
}

int main(void)
{
    RUN(rows_of_one_count_columns_of_the_other);
    RUN(the_gradients_of_linear_are_two_products);
    RUN(rows_that_overlap_in_y_are_refused);
    return test_report();
}
