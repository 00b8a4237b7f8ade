#include "ops/rmsnorm/rmsnorm.h"

#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "core/op.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* One norm by the row; r NULL without a residual. */
static sop_status norm(const sop_row *row, sop_rmsnorm_desc *d, void *x, void *r, float *w, void *y)
{
    sop_op_rmsnorm.complete(d);
    const size_t bytes = (size_t)(d->tokens * d->x_stride) * sizeof(float);
    const sop_operand args[SOP_RMSNORM_ROLES] = {[SOP_RMSNORM_X] = {x, bytes},
                                                 [SOP_RMSNORM_R] = {r, r ? bytes : 0},
                                                 [SOP_RMSNORM_W] = {w, bytes},
                                                 [SOP_RMSNORM_R_OUT] = {r, r ? bytes : 0},
                                                 [SOP_RMSNORM_Y] = {y, bytes}};
    return run_row(&sop_op_rmsnorm, row, d, args, 2);
}

static const sop_row *reference(void)
{
    return row_named(&sop_op_rmsnorm, "rmsnorm_ref");
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_rmsnorm.n_rows; r++)
        if (row_runs(&sop_op_rmsnorm.rows[r])) test(&sop_op_rmsnorm.rows[r]);
}

/* P-NRM-03 */
static void squares_of_large_halves_do_not_overflow(void)
{
    static uint16_t x[4096], r[4096], y[4096];
    static float w[4096];
    sop_rmsnorm_desc d = {.tokens = 1, .dim = 4096};
    d.x_dtype = d.r_dtype = d.y_dtype = SOP_F16;
    for (int i = 0; i < 4096; i++)
        x[i] = sop_f32_to_f16(8000), r[i] = sop_f32_to_f16(50000), w[i] = 1;
    CHECK(norm(reference(), &d, x, NULL, w, y) == SOP_OK);
    for (int i = 0; i < 4096; i++) CHECK(y[i] == sop_f32_to_f16(1));
    CHECK(norm(reference(), &d, x, r, w, y) == SOP_OK);
    CHECK(r[5] == sop_f32_to_f16(58000) && y[5] == sop_f32_to_f16(1));
}

/* The squares of 1e30 pass float32. */
static void huge(const sop_row *row)
{
    const float sizes[] = {1e30f, 3e38f, INFINITY};
    for (int k = 0; k < 3; k++) {
        float x[20], w[20], y[20];
        sop_rmsnorm_desc d = {.tokens = 1, .dim = 20};
        for (int i = 0; i < 20; i++) x[i] = sizes[k], w[i] = 1;
        CHECK(norm(row, &d, x, NULL, w, y) == SOP_OK);
        for (int i = 0; i < 20; i++) CHECK(k < 2 ? fabsf(y[i] - 1) < 1e-6f : isnan(y[i]));
    }
}

static void squares_past_float32_do_not_overflow(void)
{
    each(huge);
}

/* P-NRM-04 */
static void one_plus_w_is_added_in_float32(void)
{
    /* 3 * 1.5^2 + 5 * 0.5^2 + 8 = 16: the mean square is 1 */
    const float values[16] = {1.5f, 1.5f, 1.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f,
                              1,    1,    1,    1,    1,    1,    1,    1};
    uint16_t x[16], y[16];
    float w[16];
    sop_rmsnorm_desc d = {.tokens = 1, .dim = 16, .offset = 1, .eps = 1e-12f};
    d.x_dtype = d.r_dtype = d.y_dtype = SOP_BF16;
    for (int i = 0; i < 16; i++) x[i] = sop_f32_to_bf16(values[i]), w[i] = 15.8125f;
    CHECK(norm(reference(), &d, x, NULL, w, y) == SOP_OK);
    CHECK(y[0] == sop_f32_to_bf16(25.25f));
}

/* P-NRM-05 */
static void residual(const sop_row *row)
{
    const float want[] = {0.3651484f, 0.7302967f, 1.0954451f, 1.4605935f};
    float zero[4] = {0}, r[] = {1, 2, 3, 4}, w[] = {1, 1, 1, 1}, y[4] = {0};
    sop_rmsnorm_desc d = {.tokens = 1, .dim = 4, .eps = 1e-12f};
    CHECK(norm(row, &d, zero, r, w, y) == SOP_OK);
    for (int i = 0; i < 4; i++) CHECK(r[i] == (float)(i + 1) && fabsf(y[i] - want[i]) < 1e-6f);
    /* in place: y is x, the residual apart */
    float x[] = {1, 1, 1, 1}, s[] = {0, 1, 2, 3};
    CHECK(norm(row, &d, x, s, w, x) == SOP_OK);
    for (int i = 0; i < 4; i++) CHECK(s[i] == (float)(i + 1) && fabsf(x[i] - want[i]) < 1e-6f);
}

static void the_residual_is_not_normalised(void)
{
    each(residual);
}

/* P-NRM-06 */
static void small(const sop_row *row)
{
    float x[33], w[33], y[33];
    for (int i = 0; i < 33; i++) x[i] = 1e-3f, w[i] = 1;
    sop_rmsnorm_desc d = {.tokens = 1, .dim = 33, .eps = 1e-5f};
    CHECK(norm(row, &d, x, NULL, w, y) == SOP_OK);
    for (int i = 0; i < 33; i++) CHECK(fabsf(y[i] - 0.3015113f) < 1e-6f);
    d.eps = 1e-6f;
    CHECK(norm(row, &d, x, NULL, w, y) == SOP_OK);
    for (int i = 0; i < 33; i++) CHECK(fabsf(y[i] - 0.7071068f) < 1e-6f);
}

static void eps_is_the_one_of_the_desc(void)
{
    each(small);
}

/* P-SHP-03 */
static void widths(const sop_row *row)
{
    static const int64_t dims[] = {32, 96, 3576, 3584, 3592, 12288};
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        const int64_t n = dims[k];
        float *all = malloc((size_t)n * 4 * sizeof *all);
        float *x = all, *r = all + n, *w = all + 2 * n, *y = all + 3 * n;
        sop_rmsnorm_desc d = {.tokens = 1, .dim = n, .eps = 1e-6f};
        int wrong = 0;
        for (int64_t i = 0; i < n; i++) x[i] = r[i] = w[i] = 1;
        CHECK(norm(row, &d, x, r, w, y) == SOP_OK);
        for (int64_t i = 0; i < n; i++) wrong += r[i] != 2 || fabsf(y[i] - 1) > 2e-6f;
        CHECK(wrong == 0);
        free(all);
    }
}

static void every_width_adds_and_normalises(void)
{
    each(widths);
}

static void a_bad_eps_is_refused_with_the_number(void)
{
    sop_rmsnorm_desc d;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=1 dim=8 eps=-1", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "eps=-1"));
}

static void rows_that_overlap_in_y_are_refused(void)
{
    sop_rmsnorm_desc d;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=2 dim=8 y_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_stride=7"));
}

int main(void)
{
    RUN(squares_of_large_halves_do_not_overflow);
    RUN(squares_past_float32_do_not_overflow);
    RUN(one_plus_w_is_added_in_float32);
    RUN(the_residual_is_not_normalised);
    RUN(eps_is_the_one_of_the_desc);
    RUN(every_width_adds_and_normalises);
    RUN(a_bad_eps_is_refused_with_the_number);
    RUN(rows_that_overlap_in_y_are_refused);
    return test_report();
}
