#include "ops/bias_act_grad/bias_act_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 3, DIM = 5, ALL = TOKENS * DIM };

/* Of f = sum of g * act(x + bias + r), by x, r and bias. */
static void slopes(int32_t act)
{
    double x[ALL], r[ALL], bias[DIM], g[ALL], y[ALL], dx[ALL], dbias[DIM];
    const sop_bias_act_grad_desc d = {.tokens = TOKENS,
                                      .dim = DIM,
                                      .x_stride = DIM,
                                      .r_stride = DIM,
                                      .dy_stride = DIM,
                                      .dx_stride = DIM,
                                      .act = act,
                                      .x_dtype = SOP_F64,
                                      .r_dtype = SOP_F64,
                                      .dy_dtype = SOP_F64,
                                      .dx_dtype = SOP_F64};
    const sop_bias_act_desc forward = {.tokens = TOKENS,
                                       .dim = DIM,
                                       .x_stride = DIM,
                                       .r_stride = DIM,
                                       .y_stride = DIM,
                                       .act = act,
                                       .x_dtype = SOP_F64,
                                       .r_dtype = SOP_F64,
                                       .y_dtype = SOP_F64};
    const sop_operand args[SOP_BIAS_ACT_GRAD_ROLES] = {
        grad_operand(x, ALL), grad_operand(r, ALL),  grad_operand(bias, DIM),
        grad_operand(g, ALL), grad_operand(dx, ALL), grad_operand(dbias, DIM)};
    const sop_operand in[SOP_BIAS_ACT_ROLES] = {grad_operand(x, ALL),
                                                grad_operand(r, ALL),
                                                grad_operand(bias, DIM),
                                                {NULL, 0},
                                                grad_operand(y, ALL)};
    const grad_fn f = {&sop_op_bias_act, &forward, in, {SOP_BIAS_ACT_Y, -1}, {g, NULL}};
    grad_fill(x, ALL, 1);
    grad_fill(r, ALL, 2);
    grad_fill(bias, DIM, 3);
    grad_fill(g, ALL, 4);
    CHECK(grad_run(&sop_op_bias_act_grad, &d, args) == SOP_OK);
    grad_check(&f, x, dx, ALL);
    grad_check(&f, r, dx, ALL);
    grad_check(&f, bias, dbias, DIM);
}

static void the_gradient_is_that_of_every_activation(void)
{
    for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_RELU; act++) slopes(act);
}

/* One row of n <= 8 by the row, types f32; 0: the row does not run here. */
static int one(const sop_row *row, int32_t act, const float *x, int n, float *dx)
{
    float in[8], dy[8];
    sop_bias_act_grad_desc d = {.tokens = 1, .dim = n, .act = act};
    const size_t bytes = (size_t)n * sizeof *in;
    sop_op_bias_act_grad.complete(&d);
    if (!row_takes(row, &d)) return 0;
    memcpy(in, x, bytes);
    for (int i = 0; i < n; i++) dy[i] = 2;
    const sop_operand args[SOP_BIAS_ACT_GRAD_ROLES] = {[SOP_BIAS_ACT_GRAD_X] = {in, bytes},
                                                       [SOP_BIAS_ACT_GRAD_DY] = {dy, bytes},
                                                       [SOP_BIAS_ACT_GRAD_DX] = {dx, bytes}};
    CHECK(run_row(&sop_op_bias_act_grad, row, &d, args, 1) == SOP_OK);
    return 1;
}

static void large_inputs_have_a_slope_of_one_or_zero(void)
{
    const float x[] = {100, 1e20f, INFINITY, -200, -1e20f, -INFINITY};
    float dx[6] = {0};
    for (int32_t k = 0; k < sop_op_bias_act_grad.n_rows; k++)
        for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_RELU; act++) {
            if (!one(&sop_op_bias_act_grad.rows[k], act, x, 6, dx)) continue;
            for (int i = 0; i < 3; i++) CHECK(dx[i] == 2 && dx[3 + i] == 0);
        }
}

static void relu_has_no_slope_at_zero_and_nan_stays_nan(void)
{
    const float x[] = {0, -0.0f, 1e-30f, -1e-30f, NAN};
    float dx[5] = {0};
    for (int32_t k = 0; k < sop_op_bias_act_grad.n_rows; k++) {
        if (!one(&sop_op_bias_act_grad.rows[k], SOP_ACT_RELU, x, 5, dx)) continue;
        CHECK(dx[0] == 0 && dx[1] == 0 && dx[2] == 2 && dx[3] == 0 && isnan(dx[4]));
    }
}

static void doubles_do_not_mix_with_other_types(void)
{
    sop_bias_act_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_bias_act_grad, "tokens=2 dim=8 x=f64", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "all f64"));
}

static void rows_that_overlap_in_dx_are_refused(void)
{
    sop_bias_act_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_bias_act_grad, "tokens=2 dim=8 dx_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "dx_stride=7"));
}

int main(void)
{
    RUN(the_gradient_is_that_of_every_activation);
    RUN(large_inputs_have_a_slope_of_one_or_zero);
    RUN(relu_has_no_slope_at_zero_and_nan_stays_nan);
    RUN(doubles_do_not_mix_with_other_types);
    RUN(rows_that_overlap_in_dx_are_refused);
    return test_report();
}
