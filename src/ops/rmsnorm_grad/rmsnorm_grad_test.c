#include "ops/rmsnorm_grad/rmsnorm_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 3, HEADS = 2, DIM = 5, ALL = TOKENS * HEADS * DIM };

/* With a residual: f also counts what the norm leaves in r_out, by dr. */
static void norm(int residual, float offset)
{
    double x[ALL], r[ALL], w[DIM], s[ALL], y[ALL], dy[ALL], dr[ALL], dx[ALL], dw[DIM];
    sop_rmsnorm_desc forward = {.tokens = TOKENS, .heads = HEADS, .dim = DIM, .offset = offset};
    sop_rmsnorm_grad_desc d = {.tokens = TOKENS, .heads = HEADS, .dim = DIM, .offset = offset};
    forward.eps = d.eps = 0.1f;
    forward.x_dtype = forward.r_dtype = forward.y_dtype = SOP_F64;
    d.x_dtype = d.dy_dtype = d.dr_dtype = d.dx_dtype = SOP_F64;
    sop_op_rmsnorm.complete(&forward);
    sop_op_rmsnorm_grad.complete(&d);
    const sop_operand none = {NULL, 0};
    const sop_operand in[SOP_RMSNORM_ROLES] = {
        [SOP_RMSNORM_X] = grad_operand(x, ALL),
        [SOP_RMSNORM_R] = residual ? grad_operand(r, ALL) : none,
        [SOP_RMSNORM_W] = grad_operand(w, DIM),
        [SOP_RMSNORM_R_OUT] = residual ? grad_operand(s, ALL) : none,
        [SOP_RMSNORM_Y] = grad_operand(y, ALL)};
    const sop_operand args[SOP_RMSNORM_GRAD_ROLES] = {
        grad_operand(residual ? s : x, ALL),     grad_operand(w, DIM),  grad_operand(dy, ALL),
        residual ? grad_operand(dr, ALL) : none, grad_operand(dx, ALL), grad_operand(dw, DIM)};
    const grad_fn f = {&sop_op_rmsnorm,
                       &forward,
                       in,
                       {SOP_RMSNORM_Y, residual ? SOP_RMSNORM_R_OUT : -1},
                       {dy, dr}};
    grad_fill(x, ALL, 1);
    grad_fill(r, ALL, 2);
    grad_fill(w, DIM, 3);
    grad_fill(dy, ALL, 4);
    grad_fill(dr, ALL, 5);
    CHECK(grad_run(&sop_op_rmsnorm, &forward, in) == SOP_OK);
    CHECK(grad_run(&sop_op_rmsnorm_grad, &d, args) == SOP_OK);
    grad_check(&f, x, dx, ALL);
    if (residual) grad_check(&f, r, dx, ALL);
    grad_check(&f, w, dw, DIM);
}

static void the_gradient_is_that_of_rmsnorm(void)
{
    norm(0, 0);
}

static void the_gradient_passes_both_ways_of_a_residual(void)
{
    norm(1, 0);
}

static void the_offset_of_the_weight_counts(void)
{
    norm(1, 1);
}

static void rows_that_overlap_in_dx_are_refused(void)
{
    sop_rmsnorm_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_rmsnorm_grad, "tokens=2 dim=8 dx_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "dx_stride=7"));
}

int main(void)
{
    RUN(the_gradient_is_that_of_rmsnorm);
    RUN(the_gradient_passes_both_ways_of_a_residual);
    RUN(the_offset_of_the_weight_counts);
    RUN(rows_that_overlap_in_dx_are_refused);
    return test_report();
}
