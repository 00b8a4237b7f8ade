#include "ops/bias_act/bias_act.h"

#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

enum { MOST = 16 };

/* One row of n <= MOST by the row, types f32; r, bias NULL when absent. 0: the row does not run here. */
static int activate(const sop_row *row, int32_t act, int32_t residual, const float *x,
                    const float *r, const float *bias, int n, float *y)
{
    sop_bias_act_desc d = {.tokens = 1, .dim = n, .act = act, .residual = residual};
    const size_t bytes = (size_t)n * sizeof *y;
    float a[MOST], b[MOST], c[MOST];
    sop_op_bias_act.complete(&d);
    if (!row_takes(row, &d)) return 0;
    memcpy(a, x, bytes);
    if (r) memcpy(b, r, bytes);
    if (bias) memcpy(c, bias, bytes);
    const sop_operand args[SOP_BIAS_ACT_ROLES] = {
        [SOP_BIAS_ACT_X] = {a, bytes},
        [SOP_BIAS_ACT_R] = {r ? b : NULL, r ? bytes : 0},
        [SOP_BIAS_ACT_BIAS] = {bias ? c : NULL, bias ? bytes : 0},
        [SOP_BIAS_ACT_Y] = {y, bytes}};
    CHECK(run_row(&sop_op_bias_act, row, &d, args, 1) == SOP_OK);
    return 1;
}

static int near(double got, double want, double relative)
{
    return fabs(got - want) <= relative * fabs(want);
}

/* P-NRM-08 */
static void the_three_gelus_are_told_apart(void)
{
    static const int32_t acts[] = {SOP_ACT_GELU, SOP_ACT_GELU_TANH, SOP_ACT_QUICK_GELU};
    static const double want[3][3] = {{0.84134475, -0.04550026, 2.99595031},
                                      {0.84119199, -0.04540231, 2.99636261},
                                      {0.84579576, -0.06434131, 2.98192869}};
    const float x[] = {0.5f, -1, 1}, bias[] = {0.5f, -1, 2};
    float y[3] = {0};
    for (int32_t k = 0; k < sop_op_bias_act.n_rows; k++)
        for (int form = 0; form < 3; form++) {
            if (!activate(&sop_op_bias_act.rows[k], acts[form], 0, x, NULL, bias, 3, y)) continue;
            for (int i = 0; i < 3; i++) CHECK(near((double)y[i], want[form][i], 1e-6));
        }
}

/* quick_gelu(1) = 0.84579576, quick_gelu(-2) = -0.06434131 */
static void a_residual_goes_inside_or_after(void)
{
    const float x[] = {0.25f, -0.5f}, bias[] = {0.25f, -1}, r[] = {0.5f, -0.5f};
    const float whole[] = {0.5f, -0.5f}, half[] = {0.5f, -1.5f};
    float y[2] = {0};
    for (int32_t k = 0; k < sop_op_bias_act.n_rows; k++) {
        const sop_row *row = &sop_op_bias_act.rows[k];
        if (!activate(row, SOP_ACT_QUICK_GELU, SOP_RESIDUAL_INSIDE, x, r, bias, 2, y)) continue;
        CHECK(near((double)y[0], 0.84579576, 1e-6) && near((double)y[1], -0.06434131, 1e-6));
        activate(row, SOP_ACT_QUICK_GELU, SOP_RESIDUAL_AFTER, half, r, whole, 2, y);
        CHECK(near((double)y[0], 0.84579576 + 0.5, 1e-6));
        CHECK(near((double)y[1], -0.06434131 - 0.5, 1e-6));
        /* r alone, bias alone absent: the harness has both or neither */
        activate(row, SOP_ACT_RELU, SOP_RESIDUAL_INSIDE, x, r, NULL, 2, y);
        CHECK(y[0] == 0.75f && y[1] == 0);
        activate(row, SOP_ACT_RELU, SOP_RESIDUAL_AFTER, x, r, NULL, 2, y);
        CHECK(y[0] == 0.75f && y[1] == -0.5f);
    }
}

/* P-NRM-07 */
static void large_inputs_do_not_overflow(void)
{
    const float x[] = {8, 10.5f, 100, 1e20f, -100, -1e20f};
    float y[6] = {0};
    for (int32_t k = 0; k < sop_op_bias_act.n_rows; k++)
        for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_RELU; act++) {
            if (!activate(&sop_op_bias_act.rows[k], act, 0, x, NULL, NULL, 6, y)) continue;
            for (int i = 0; i < 4; i++) CHECK(near((double)y[i], (double)x[i], 1e-3));
            CHECK(fabsf(y[4]) < 1e-30f && y[5] == 0);
        }
}

static void nan_stays_nan_and_relu_knows_infinity(void)
{
    const float x[] = {NAN, 1, -INFINITY, INFINITY};
    float y[4] = {0};
    for (int32_t k = 0; k < sop_op_bias_act.n_rows; k++)
        for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_RELU; act++) {
            if (!activate(&sop_op_bias_act.rows[k], act, 0, x, NULL, NULL, 4, y)) continue;
            CHECK(isnan(y[0]) && !isnan(y[1]));
            if (act == SOP_ACT_RELU) CHECK(y[2] == 0 && y[3] == INFINITY);
        }
}

/* In half precision the sum must not be rounded before it is activated. */
static void the_sum_of_halves_is_not_rounded(void)
{
    uint16_t x[] = {sop_f32_to_f16(2048)}, r[] = {sop_f32_to_f16(-2048)}, y[1] = {0};
    float bias[] = {0.5f};
    sop_bias_act_desc d = {.tokens = 1, .dim = 1, .act = SOP_ACT_RELU};
    d.x_dtype = d.r_dtype = d.y_dtype = SOP_F16;
    sop_op_bias_act.complete(&d);
    const sop_operand args[SOP_BIAS_ACT_ROLES] = {[SOP_BIAS_ACT_X] = {x, sizeof x},
                                                  [SOP_BIAS_ACT_R] = {r, sizeof r},
                                                  [SOP_BIAS_ACT_BIAS] = {bias, sizeof bias},
                                                  [SOP_BIAS_ACT_Y] = {y, sizeof y}};
    const sop_row *ref = row_named(&sop_op_bias_act, "bias_act_ref");
    CHECK(run_row(&sop_op_bias_act, ref, &d, args, 1) == SOP_OK);
    CHECK(y[0] == sop_f32_to_f16(0.5f));
}

static void an_unknown_activation_is_refused_with_the_words(void)
{
    sop_bias_act_desc d;
    CHECK(sop_desc_parse(&sop_op_bias_act, "tokens=1 dim=8 act=swish", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "quick_gelu"));
}

static void rows_that_overlap_in_y_are_refused(void)
{
    sop_bias_act_desc d;
    CHECK(sop_desc_parse(&sop_op_bias_act, "tokens=2 dim=8 y_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_stride=7"));
}

int main(void)
{
    RUN(the_three_gelus_are_told_apart);
    RUN(a_residual_goes_inside_or_after);
    RUN(large_inputs_do_not_overflow);
    RUN(nan_stays_nan_and_relu_knows_infinity);
    RUN(the_sum_of_halves_is_not_rounded);
    RUN(an_unknown_activation_is_refused_with_the_words);
    RUN(rows_that_overlap_in_y_are_refused);
    return test_report();
}
