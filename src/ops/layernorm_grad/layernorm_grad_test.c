#include "ops/layernorm_grad/layernorm_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 3, DIM = 7, ALL = TOKENS * DIM };

/* With a residual: f also counts what the norm leaves in r_out, by dr. */
static void norm(int residual)
{
    double x[ALL], r[ALL], w[DIM], b[DIM], s[ALL], y[ALL], dy[ALL], dr[ALL], dx[ALL], dw[DIM],
        db[DIM];
    sop_layernorm_desc forward = {.tokens = TOKENS, .dim = DIM, .eps = 0.1f};
    sop_layernorm_grad_desc d = {.tokens = TOKENS, .dim = DIM, .eps = 0.1f};
    forward.x_dtype = forward.r_dtype = forward.y_dtype = SOP_F64;
    d.x_dtype = d.dy_dtype = d.dr_dtype = d.dx_dtype = SOP_F64;
    sop_op_layernorm.complete(&forward);
    sop_op_layernorm_grad.complete(&d);
    const sop_operand none = {NULL, 0};
    const sop_operand in[SOP_LAYERNORM_ROLES] = {
        [SOP_LAYERNORM_X] = grad_operand(x, ALL),
        [SOP_LAYERNORM_R] = residual ? grad_operand(r, ALL) : none,
        [SOP_LAYERNORM_W] = grad_operand(w, DIM),
        [SOP_LAYERNORM_B] = grad_operand(b, DIM),
        [SOP_LAYERNORM_R_OUT] = residual ? grad_operand(s, ALL) : none,
        [SOP_LAYERNORM_Y] = grad_operand(y, ALL)};
    const sop_operand args[SOP_LAYERNORM_GRAD_ROLES] = {grad_operand(residual ? s : x, ALL),
                                                        grad_operand(w, DIM),
                                                        grad_operand(dy, ALL),
                                                        residual ? grad_operand(dr, ALL) : none,
                                                        grad_operand(dx, ALL),
                                                        grad_operand(dw, DIM),
                                                        grad_operand(db, DIM)};
    const grad_fn f = {&sop_op_layernorm,
                       &forward,
                       in,
                       {SOP_LAYERNORM_Y, residual ? SOP_LAYERNORM_R_OUT : -1},
                       {dy, dr}};
    grad_fill(x, ALL, 1);
    grad_fill(r, ALL, 2);
    grad_fill(w, DIM, 3);
    grad_fill(b, DIM, 6);
    grad_fill(dy, ALL, 4);
    grad_fill(dr, ALL, 5);
    CHECK(grad_run(&sop_op_layernorm, &forward, in) == SOP_OK);
    CHECK(grad_run(&sop_op_layernorm_grad, &d, args) == SOP_OK);
    grad_check(&f, x, dx, ALL);
    if (residual) grad_check(&f, r, dx, ALL);
    grad_check(&f, w, dw, DIM);
    grad_check(&f, b, db, DIM);
}

static void the_gradient_is_that_of_layernorm(void)
{
    norm(0);
}

static void the_gradient_passes_both_ways_of_a_residual(void)
{
    norm(1);
}

/* A shift of a whole row changes nothing: so dx sums to 0. */
static void dx_of_a_row_sums_to_zero(void)
{
    enum { N = 64 };
    float x[N], dy[N], dx[N];
    uint64_t state = 3;
    sop_layernorm_grad_desc d = {.tokens = 1, .dim = N};
    sop_op_layernorm_grad.complete(&d);
    for (int i = 0; i < N; i++) {
        x[i] = 1000 + (float)(sop_random(&state) % 7);
        dy[i] = (float)(sop_random(&state) % 16) - 8;
    }
    const sop_operand args[SOP_LAYERNORM_GRAD_ROLES] = {[SOP_LAYERNORM_GRAD_X] = {x, sizeof x},
                                                        [SOP_LAYERNORM_GRAD_DY] = {dy, sizeof dy},
                                                        [SOP_LAYERNORM_GRAD_DX] = {dx, sizeof dx}};
    for (int32_t k = 0; k < sop_op_layernorm_grad.n_rows; k++) {
        const sop_row *row = &sop_op_layernorm_grad.rows[k];
        float sum = 0;
        if (!row_takes(row, &d)) continue;
        CHECK(run_row(&sop_op_layernorm_grad, row, &d, args, 1) == SOP_OK);
        for (int i = 0; i < N; i++) sum += dx[i];
        CHECK(fabsf(sum) < 1e-4f);
    }
}

static void rows_that_overlap_in_dx_are_refused(void)
{
    sop_layernorm_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_layernorm_grad, "tokens=2 dim=8 dx_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "dx_stride=7"));
}

int main(void)
{
    RUN(the_gradient_is_that_of_layernorm);
    RUN(the_gradient_passes_both_ways_of_a_residual);
    RUN(dx_of_a_row_sums_to_zero);
    RUN(rows_that_overlap_in_dx_are_refused);
    return test_report();
}
