#include "ops/gated/gated.h"

#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

enum { MOST = 16 };

/* act(g) * 1 for each g, by the row; types f32. */
static int activate(const sop_row *row, int32_t act, const float *g, int n, float *y)
{
    sop_gated_desc d = {.tokens = 1, .dim = n, .act = act};
    float x[2 * MOST];
    for (int i = 0; i < n; i++) x[i] = g[i], x[n + i] = 1;
    sop_op_gated.complete(&d);
    const sop_operand args[SOP_GATED_ROLES] = {
        [SOP_GATED_X] = {x, sizeof x}, [SOP_GATED_Y] = {y, (size_t)n * sizeof *y}};
    if (!row_takes(row, &d)) return 0;
    CHECK(run_row(&sop_op_gated, row, &d, args, 1) == SOP_OK);
    return 1;
}

static int near(double got, double want, double relative)
{
    return fabs(got - want) <= relative * fabs(want);
}

/* P-NRM-07 */
static void tanh_gelu_of_large_inputs_does_not_overflow(void)
{
    const float g[] = {8, 10, 10.5f, 15.5f, 100, -13.24f, -100, -1e20f, 1e20f};
    float y[9];
    for (int32_t r = 0; r < sop_op_gated.n_rows; r++) {
        if (!activate(&sop_op_gated.rows[r], SOP_ACT_GELU_TANH, g, 9, y)) continue;
        for (int i = 0; i < 5; i++) CHECK(near((double)y[i], (double)g[i], 1e-6));
        CHECK(fabs((double)y[5]) < 1e-30 && y[6] == 0 && y[7] == 0 && y[8] == 1e20f);
    }
}

/* P-NRM-08 */
static void the_two_gelus_are_told_apart(void)
{
    const float g[] = {1, -2, 3};
    const double erf_form[] = {0.84134475, -0.04550026, 2.99595031};
    const double tanh_form[] = {0.84119199, -0.04540231, 2.99636261};
    float y[3];
    for (int32_t r = 0; r < sop_op_gated.n_rows; r++)
        for (int form = 0; form < 2; form++) {
            const double *want = form ? erf_form : tanh_form;
            if (!activate(&sop_op_gated.rows[r], form ? SOP_ACT_GELU : SOP_ACT_GELU_TANH, g, 3, y))
                continue;
            for (int i = 0; i < 3; i++) CHECK(near((double)y[i], want[i], 1e-6));
        }
}

/* P-NRM-09 */
static void large_negative_halves_give_zero(void)
{
    const float g[] = {-9, -100, -1500, -60000};
    uint16_t x[8], y[4];
    sop_gated_desc d = {.tokens = 1, .dim = 4, .act = SOP_ACT_GELU_TANH};
    d.x_dtype = d.y_dtype = SOP_F16;
    sop_op_gated.complete(&d);
    for (int i = 0; i < 4; i++) x[i] = sop_f32_to_f16(g[i]), x[4 + i] = sop_f32_to_f16(1);
    const sop_operand args[SOP_GATED_ROLES] = {
        [SOP_GATED_X] = {x, sizeof x}, [SOP_GATED_Y] = {y, sizeof y}};
    const sop_row *ref = row_named(&sop_op_gated, "gated_ref");
    CHECK(run_row(&sop_op_gated, ref, &d, args, 1) == SOP_OK);
    for (int i = 0; i < 4; i++) CHECK(fabsf(sop_f16_to_f32(y[i])) < 1e-6f);
}

static void silu_keeps_its_tail_and_its_ends(void)
{
    const float g[] = {-88.5f, -95, -120, 0, 120, -0.5f};
    float y[6];
    for (int32_t r = 0; r < sop_op_gated.n_rows; r++) {
        if (!activate(&sop_op_gated.rows[r], SOP_ACT_SILU, g, 6, y)) continue;
        for (int i = 0; i < 6; i++) {
            const double want = (double)g[i] / (1 + exp(-(double)g[i]));
            CHECK(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 0x1p-142);
        }
    }
}

static void nan_stays_nan(void)
{
    const float g[] = {NAN, 1};
    float y[2];
    for (int32_t r = 0; r < sop_op_gated.n_rows; r++)
        for (int32_t act = 0; act < 3; act++) {
            if (!activate(&sop_op_gated.rows[r], act, g, 2, y)) continue;
            CHECK(isnan(y[0]) && !isnan(y[1]));
        }
}

static void a_second_half_inside_the_first_is_refused(void)
{
    sop_gated_desc d;
    CHECK(sop_desc_parse(&sop_op_gated, "tokens=1 dim=8 up=4", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "up=4"));
}

int main(void)
{
    RUN(tanh_gelu_of_large_inputs_does_not_overflow);
    RUN(the_two_gelus_are_told_apart);
    RUN(large_negative_halves_give_zero);
    RUN(silu_keeps_its_tail_and_its_ends);
    RUN(nan_stays_nan);
    RUN(a_second_half_inside_the_first_is_refused);
    return test_report();
}
