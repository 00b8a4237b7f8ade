#include "ops/gated_grad/gated_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 3, DIM = 5, ALL = TOKENS * DIM };

/* dgate and dup are the halves of one tensor here. */
static void slopes(int32_t act)
{
    double x[2 * ALL], y[ALL], g[ALL], dx[2 * ALL];
    sop_gated_desc forward = {.tokens = TOKENS, .dim = DIM, .act = act};
    sop_gated_grad_desc d = {.tokens = TOKENS, .dim = DIM, .act = act};
    d.dgate_stride = d.dup_stride = 2 * DIM;
    forward.x_dtype = forward.y_dtype = d.x_dtype = d.dy_dtype = d.dx_dtype = SOP_F64;
    sop_op_gated.complete(&forward);
    sop_op_gated_grad.complete(&d);
    const sop_operand in[SOP_GATED_ROLES] = {
        [SOP_GATED_X] = grad_operand(x, 2 * ALL), [SOP_GATED_Y] = grad_operand(y, ALL)};
    const sop_operand args[SOP_GATED_GRAD_ROLES] = {grad_operand(x, 2 * ALL), grad_operand(g, ALL),
                                                    grad_operand(dx, 2 * ALL - DIM),
                                                    grad_operand(dx + DIM, 2 * ALL - DIM)};
    const grad_fn f = {&sop_op_gated, &forward, in, {SOP_GATED_Y, -1}, {g, NULL}};
    grad_fill(x, 2 * ALL, 1);
    grad_fill(g, ALL, 2);
    CHECK(grad_run(&sop_op_gated_grad, &d, args) == SOP_OK);
    grad_check(&f, x, dx, 2 * ALL);
}

static void the_gradient_is_that_of_every_activation(void)
{
    for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_GELU; act++) slopes(act);
}

static void large_gates_do_not_overflow(void)
{
    float x[4] = {1e20f, -1e20f, 3, 5}, dy[2] = {2, 2}, dgate[2], dup[2];
    for (int32_t act = SOP_ACT_SILU; act <= SOP_ACT_GELU; act++) {
        sop_gated_grad_desc d = {.tokens = 1, .dim = 2, .act = act};
        sop_op_gated_grad.complete(&d);
        const sop_operand args[] = {
            {x, sizeof x}, {dy, sizeof dy}, {dgate, sizeof dgate}, {dup, sizeof dup}};
        for (int32_t k = 0; k < sop_op_gated_grad.n_rows; k++) {
            if (!row_takes(&sop_op_gated_grad.rows[k], &d)) continue;
            CHECK(run_row(&sop_op_gated_grad, &sop_op_gated_grad.rows[k], &d, args, 1) == SOP_OK);
            CHECK(dgate[0] == 6 && dgate[1] == 0 && dup[0] == 2e20f && dup[1] == 0);
        }
    }
}

static void an_activation_that_gated_lacks_is_refused(void)
{
    sop_gated_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_gated_grad, "tokens=2 dim=8 act=relu", &d) == SOP_E_ARG);
}

int main(void)
{
    RUN(the_gradient_is_that_of_every_activation);
    RUN(large_gates_do_not_overflow);
    RUN(an_activation_that_gated_lacks_is_refused);
    return test_report();
}
