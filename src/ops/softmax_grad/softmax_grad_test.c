#include "ops/softmax_grad/softmax_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 3, DIM = 7, ALL = TOKENS * DIM };

static void the_gradient_is_that_of_softmax(void)
{
    double x[ALL], y[ALL], g[ALL], dx[ALL];
    sop_softmax_desc forward = {.tokens = TOKENS, .dim = DIM, .scale = 0.5f};
    sop_softmax_grad_desc d = {.tokens = TOKENS, .dim = DIM, .scale = 0.5f};
    forward.x_dtype = forward.y_dtype = d.y_dtype = d.dy_dtype = d.dx_dtype = SOP_F64;
    sop_op_softmax.complete(&forward);
    sop_op_softmax_grad.complete(&d);
    const sop_operand in[SOP_SOFTMAX_ROLES] = {
        [SOP_SOFTMAX_X] = grad_operand(x, ALL), [SOP_SOFTMAX_Y] = grad_operand(y, ALL)};
    const sop_operand args[SOP_SOFTMAX_GRAD_ROLES] = {grad_operand(y, ALL), grad_operand(g, ALL),
                                                      grad_operand(dx, ALL)};
    const grad_fn f = {&sop_op_softmax, &forward, in, {SOP_SOFTMAX_Y, -1}, {g, NULL}};
    grad_fill(x, ALL, 1);
    grad_fill(g, ALL, 2);
    CHECK(grad_run(&sop_op_softmax, &forward, in) == SOP_OK);
    CHECK(grad_run(&sop_op_softmax_grad, &d, args) == SOP_OK);
    grad_check(&f, x, dx, ALL);
}

/* Rows that a mask left empty have y = 0 everywhere. */
static void a_row_of_zeros_has_no_gradient(void)
{
    float y[9] = {0}, dy[9], dx[9];
    sop_softmax_grad_desc d = {.tokens = 1, .dim = 9};
    sop_op_softmax_grad.complete(&d);
    for (int i = 0; i < 9; i++) dy[i] = (float)i * 1e30f;
    const sop_operand args[] = {{y, sizeof y}, {dy, sizeof dy}, {dx, sizeof dx}};
    for (int32_t k = 0; k < sop_op_softmax_grad.n_rows; k++) {
        if (!row_takes(&sop_op_softmax_grad.rows[k], &d)) continue;
        CHECK(run_row(&sop_op_softmax_grad, &sop_op_softmax_grad.rows[k], &d, args, 1) == SOP_OK);
        for (int i = 0; i < 9; i++) CHECK(dx[i] == 0);
    }
}

static void rows_that_overlap_in_dx_are_refused(void)
{
    sop_softmax_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_softmax_grad, "tokens=2 dim=8 dx_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "dx_stride=7"));
}

int main(void)
{
    RUN(the_gradient_is_that_of_softmax);
    RUN(a_row_of_zeros_has_no_gradient);
    RUN(rows_that_overlap_in_dx_are_refused);
    return test_report();
}
