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
    float x[T * K], w[N * K], bias[N], dy[T * N], dx[T * K], dw[N * K], dbias[N], y[T * N];
    float *const all[] = {x, w, bias, dy};
    const int sizes[] = {T * K, N * K, N, T * N};
    uint64_t state = 1;
    for (int a = 0; a < 4; a++) /* small whole numbers: every sum is exact */
        for (int i = 0; i < sizes[a]; i++) all[a][i] = (float)(sop_random(&state) % 9) - 4;
    const sop_matmul_desc by_x = {T, K, N, N, K, K, 0, SOP_F32, SOP_F32, SOP_F32};
    const sop_matmul_desc by_w = {N, K, T, N, K, K, 1, SOP_F32, SOP_F32, SOP_F32};
    const sop_operand x_args[] = {{dy, sizeof dy}, {w, sizeof w}, {dx, sizeof dx}, {NULL, 0}};
    const sop_operand w_args[] = {
        {dy, sizeof dy}, {x, sizeof x}, {dw, sizeof dw}, {dbias, sizeof dbias}};
    CHECK(grad_run(&sop_op_matmul, &by_x, x_args) == SOP_OK);
    CHECK(grad_run(&sop_op_matmul, &by_w, w_args) == SOP_OK);
    /* what dy counts of a step of 1 along each input, which is the derivative of what is linear in it */
    sop_linear_desc d = {.tokens = T, .k = K, .n = {N}, .bias = 1};
    sop_op_linear.complete(&d);
    const sop_operand args[SOP_LINEAR_ROLES] = {[SOP_LINEAR_X] = {x, sizeof x},
                                                [SOP_LINEAR_W0] = {w, sizeof w},
                                                [SOP_LINEAR_B0] = {bias, sizeof bias},
                                                [SOP_LINEAR_Y] = {y, sizeof y}};
    const float *const grads[] = {dx, dw, dbias};
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < sizes[a]; i++) {
            float f[2] = {0};
            for (int step = 0; step < 2; step++) {
                all[a][i] += (float)step;
                CHECK(grad_run(&sop_op_linear, &d, args) == SOP_OK);
                for (int j = 0; j < T * N; j++) f[step] += dy[j] * y[j];
            }
            all[a][i] -= 1;
            CHECK(f[1] - f[0] == grads[a][i]);
        }
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
