#include "ops/softmax/softmax.h"

#include <math.h>
#include <sys/mman.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

static sop_status softmax(const sop_row *row, const sop_softmax_desc *d, void *x, void *y)
{
    sop_tensor vx, vy;
    sop_op_softmax.view(d, SOP_SOFTMAX_X, &vx);
    sop_op_softmax.view(d, SOP_SOFTMAX_Y, &vy);
    const sop_operand args[SOP_SOFTMAX_ROLES] = {
        [SOP_SOFTMAX_X] = {x, vx.bytes}, [SOP_SOFTMAX_Y] = {y, vy.bytes}};
    return run_row(&sop_op_softmax, row, d, args, 2);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_softmax.n_rows; r++)
        if (row_runs(&sop_op_softmax.rows[r])) test(&sop_op_softmax.rows[r]);
}

/* P-SHP-01: rows whose offset passes 2^31 elements; only the pages of the rows are ever touched. */
static void far_row(const sop_row *row)
{
    const int64_t stride = 1100000000, dim = 40;
    sop_softmax_desc d = {
        .tokens = 3, .dim = dim, .x_stride = stride, .y_stride = stride, .scale = 1};
    const size_t bytes = (size_t)(2 * stride + dim) * sizeof(float);
    float *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(x != MAP_FAILED);
    if (x == MAP_FAILED) return;
    for (int64_t i = 0; i < dim; i++) x[2 * stride + i] = (float)(i % 2);
    CHECK(softmax(row, &d, x, x) == SOP_OK);
    const double odd = exp(1) / (20 * (1 + exp(1)));
    CHECK(fabs((double)x[2 * stride + 1] - odd) < 1e-7);
    CHECK(x[0] == 0.025f && x[stride + 39] == 0.025f);
    (void)munmap(x, bytes);
}

static void rows_past_two_to_the_31_are_written(void)
{
    each(far_row);
}

/* P-SHP-07 */
static void nothing(const sop_row *row)
{
    sop_softmax_desc d = {.tokens = 2, .dim = 0, .scale = 1};
    float y = 7;
    CHECK(softmax(row, &d, &y, &y) == SOP_OK && y == 7);
    d = (sop_softmax_desc){.tokens = 0, .dim = 2, .x_stride = 2, .y_stride = 2, .scale = 1};
    CHECK(softmax(row, &d, &y, &y) == SOP_OK && y == 7);
}

static void an_empty_input_gives_an_empty_result(void)
{
    each(nothing);
}

/* P-SHP-09 */
static void long_rows_of_zeros_give_one_over_n(void)
{
    static const int64_t sizes[] = {12288, 16384, 32768, 102400, 262144};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        sop_softmax_desc d = {
            .tokens = 1, .dim = sizes[k], .x_dtype = SOP_BF16, .y_dtype = SOP_BF16};
        uint16_t *x = calloc((size_t)sizes[k], sizeof *x);
        const uint16_t want = sop_f32_to_bf16(1 / (float)sizes[k]);
        int wrong = 0;
        sop_op_softmax.complete(&d);
        CHECK(softmax(row_named(&sop_op_softmax, "softmax_ref"), &d, x, x) == SOP_OK);
        for (int64_t i = 0; i < sizes[k]; i++) wrong += x[i] != want;
        CHECK(wrong == 0);
        free(x);
    }
}

static void ends(const sop_row *row)
{
    const float inf = INFINITY;
    float x[][9] = {
        {-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf},
        {-inf, 3, -inf, -inf, -inf, -inf, -inf, -inf, -inf},
        {3e38f, -3e38f, 3e38f, 0, 0, 0, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0, NAN},
        {0, 0, inf, 0, 0, 0, 0, 0, 0},
        {-inf, -inf, -inf, -inf, -inf, NAN, -inf, -inf, -inf},
    };
    float y[6][9];
    sop_softmax_desc d = {.tokens = 6, .dim = 9};
    sop_op_softmax.complete(&d);
    CHECK(softmax(row, &d, x, y) == SOP_OK);
    for (int i = 0; i < 9; i++) {
        CHECK(y[0][i] == 0);
        CHECK(y[1][i] == (i == 1));
        CHECK(y[2][i] == (i == 0 || i == 2 ? 0.5f : 0));
        CHECK(isnan(y[3][i]) && isnan(y[4][i]) && isnan(y[5][i]));
    }
}

static void infinite_and_huge_inputs_have_their_stated_results(void)
{
    each(ends);
}

int main(void)
{
    RUN(rows_past_two_to_the_31_are_written);
    RUN(an_empty_input_gives_an_empty_result);
    RUN(long_rows_of_zeros_give_one_over_n);
    RUN(infinite_and_huge_inputs_have_their_stated_results);
    return test_report();
}
