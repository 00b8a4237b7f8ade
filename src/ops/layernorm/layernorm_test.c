#include "ops/layernorm/layernorm.h"

#include <math.h>
#include <stdlib.h>

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* One row of f32 by the row; r, w, b NULL when absent. */
static sop_status norm(const sop_row *row, int64_t dim, float eps, float *x, float *r, float *w,
                       float *b, float *y)
{
    sop_layernorm_desc d = {.tokens = 1, .dim = dim, .eps = eps};
    const size_t bytes = (size_t)dim * sizeof(float);
    const sop_operand args[SOP_LAYERNORM_ROLES] = {[SOP_LAYERNORM_X] = {x, bytes},
                                                   [SOP_LAYERNORM_R] = {r, r ? bytes : 0},
                                                   [SOP_LAYERNORM_W] = {w, w ? bytes : 0},
                                                   [SOP_LAYERNORM_B] = {b, b ? bytes : 0},
                                                   [SOP_LAYERNORM_R_OUT] = {r, r ? bytes : 0},
                                                   [SOP_LAYERNORM_Y] = {y, bytes}};
    sop_op_layernorm.complete(&d);
    return run_row(&sop_op_layernorm, row, &d, args, 2);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_layernorm.n_rows; r++)
        if (row_runs(&sop_op_layernorm.rows[r])) test(&sop_op_layernorm.rows[r]);
}

/* P-NRM-01 */
static void far(const sop_row *row)
{
    const float from[] = {0, 100, 1000, 10000};
    const float want[] = {-1.3416408f, -1.3415277f, -1.3415078f, -1.3313334f};
    for (int k = 0; k < 4; k++) {
        float x[16], y[16] = {0};
        for (int i = 0; i < 16; i++) x[i] = from[k] + (float)i * 0.001f;
        CHECK(norm(row, 16, 1e-5f, x, NULL, NULL, NULL, y) == SOP_OK);
        CHECK(fabsf(y[0] - want[k]) < 2e-3f);
        if (k == 3) CHECK(fabsf(y[15] - 1.3313334f) < 2e-3f);
    }
}

static void rows_far_from_zero_keep_their_variance(void)
{
    each(far);
}

/* P-NRM-02; 1e38 also overflows the sum */
static void huge(const sop_row *row)
{
    const float want[] = {-1.3416408f, -0.4472136f, 0.4472136f, 1.3416408f};
    for (int k = 0; k < 2; k++) {
        float x[4], y[4] = {0};
        for (int i = 0; i < 4; i++) x[i] = (float)(i + 1) * (k ? 8e37f : 1e30f);
        CHECK(norm(row, 4, 1e-5f, x, NULL, NULL, NULL, y) == SOP_OK);
        for (int i = 0; i < 4; i++) CHECK(fabsf(y[i] - want[i]) < 1e-6f);
    }
}

static void squares_past_float32_do_not_overflow(void)
{
    each(huge);
}

/* What lies first is no measure of the rest: sums beside it would lose their variance. */
static void first(const sop_row *row)
{
    enum { N = 16384, FIRST = 4 };
    float *x = malloc(2 * N * sizeof *x), *y = x + N;
    double mean = 0, variance = 0;
    for (int i = 0; i < N; i++) x[i] = (float)((i < FIRST ? 30000 : 0) + i % 7);
    for (int i = 0; i < N; i++) mean += (double)x[i] / N;
    for (int i = 0; i < N; i++) variance += pow((double)x[i] - mean, 2) / N;
    CHECK(norm(row, N, 1e-5f, x, NULL, NULL, NULL, y) == SOP_OK);
    for (int i = 0; i < N; i += i < FIRST ? 1 : 997) {
        const double want = ((double)x[i] - mean) / sqrt(variance + 1e-5);
        CHECK(fabs((double)y[i] - want) < 5e-6 * (fabs(want) + 1));
    }
    free(x);
}

static void a_row_that_begins_far_from_its_mean_keeps_its_variance(void)
{
    each(first);
}

/* A row of one value has no variance: what is left is b. Its sum may be past float32. */
static void flat(const sop_row *row)
{
    enum { N = 37 };
    const float value[] = {0, 1e6f + 0.3f, 3e38f};
    const float within = row->device == SOP_DEVICE_CPU ? 1e-4f : 1e-2f; /* its sums are float32 */
    for (int k = 0; k < 3; k++) {
        float x[N], w[N], b[N], y[N] = {0};
        for (int i = 0; i < N; i++) x[i] = value[k], w[i] = 5, b[i] = (float)i;
        CHECK(norm(row, N, 1e-5f, x, NULL, w, b, y) == SOP_OK);
        for (int i = 0; i < N; i++) CHECK(fabsf(y[i] - (float)i) < within);
    }
}

static void a_row_of_one_value_gives_the_bias(void)
{
    each(flat);
}

/* The harness has both or neither. */
static void apart(const sop_row *row)
{
    float x[18], w[18], b[18], plain[18] = {0}, y[18] = {0};
    for (int i = 0; i < 18; i++) x[i] = (float)(i * i % 7), w[i] = (float)i, b[i] = 100 + (float)i;
    CHECK(norm(row, 18, 1e-5f, x, NULL, NULL, NULL, plain) == SOP_OK);
    CHECK(norm(row, 18, 1e-5f, x, NULL, w, NULL, y) == SOP_OK);
    for (int i = 0; i < 18; i++) CHECK(fabsf(y[i] - w[i] * plain[i]) < 1e-5f);
    CHECK(norm(row, 18, 1e-5f, x, NULL, NULL, b, y) == SOP_OK);
    for (int i = 0; i < 18; i++) CHECK(fabsf(y[i] - (b[i] + plain[i])) < 1e-4f);
}

static void w_and_b_are_optional_apart(void)
{
    each(apart);
}

/* The residual is the sum, not the norm; y may be x. */
static void residual(const sop_row *row)
{
    const float want[] = {-1.3416408f, -0.4472136f, 0.4472136f, 1.3416408f};
    float x[] = {1, 1, 1, 1}, r[] = {0, 1, 2, 3};
    CHECK(norm(row, 4, 1e-12f, x, r, NULL, NULL, x) == SOP_OK);
    for (int i = 0; i < 4; i++) CHECK(r[i] == (float)(i + 1) && fabsf(x[i] - want[i]) < 1e-6f);
}

static void the_residual_is_not_normalised(void)
{
    each(residual);
}

static void odd(const sop_row *row)
{
    for (int k = 0; k < 2; k++) {
        float x[40] = {1, 2, 3}, y[40] = {0};
        x[k ? 20 : 39] = k ? NAN : -INFINITY;
        CHECK(norm(row, 40, 1e-5f, x, NULL, NULL, NULL, y) == SOP_OK);
        for (int i = 0; i < 40; i++) CHECK(isnan(y[i]));
    }
}

static void what_is_not_finite_makes_the_row_nan(void)
{
    each(odd);
}

static void a_bad_eps_is_refused_with_the_number(void)
{
    sop_layernorm_desc d;
    CHECK(sop_desc_parse(&sop_op_layernorm, "tokens=1 dim=8 eps=-1", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "eps=-1"));
}

static void rows_that_overlap_in_y_are_refused(void)
{
    sop_layernorm_desc d;
    CHECK(sop_desc_parse(&sop_op_layernorm, "tokens=2 dim=8 y_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_stride=7"));
}

int main(void)
{
    RUN(rows_far_from_zero_keep_their_variance);
    RUN(squares_past_float32_do_not_overflow);
    RUN(a_row_that_begins_far_from_its_mean_keeps_its_variance);
    RUN(a_row_of_one_value_gives_the_bias);
    RUN(w_and_b_are_optional_apart);
    RUN(the_residual_is_not_normalised);
    RUN(what_is_not_finite_makes_the_row_nan);
    RUN(a_bad_eps_is_refused_with_the_number);
    RUN(rows_that_overlap_in_y_are_refused);
    return test_report();
}
