#include "ops/finite/finite.h"

#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

static int32_t count(const sop_row *row, const sop_finite_desc *d, void *x, size_t bytes)
{
    int32_t n = 99;
    const sop_operand args[SOP_FINITE_ROLES] = {
        [SOP_FINITE_X] = {x, bytes}, [SOP_FINITE_COUNT] = {&n, sizeof n}};
    CHECK(run_row(&sop_op_finite, row, d, args, 2) == SOP_OK);
    return n;
}

static void each_place_and_kind_is_counted(void)
{
    const float kinds[] = {NAN, INFINITY, -INFINITY};
    float x[2 * 70];
    for (int32_t r = 0; r < sop_op_finite.n_rows; r++)
        for (int allow = 0; allow < 2; allow++) {
            const sop_row *row = &sop_op_finite.rows[r];
            sop_finite_desc d = {.tokens = 2, .dim = 67, .x_stride = 70, .allow_neg_inf = allow};
            if (!row_takes(row, &d)) continue;
            for (int i = 0; i < 140; i++) x[i] = i % 70 < 67 ? 3e38f : NAN; /* gaps do not count */
            CHECK(count(row, &d, x, sizeof x) == 0);
            for (int i = 0; i < 67; i++)
                for (int k = 0; k < 3; k++) {
                    x[70 + i] = kinds[k];
                    CHECK(count(row, &d, x, sizeof x) == !(allow && k == 2));
                    x[70 + i] = -3e38f;
                }
            for (int i = 0; i < 67; i++) x[i] = -INFINITY, x[70 + i] = NAN;
            CHECK(count(row, &d, x, sizeof x) == (allow ? 67 : 134));
        }
}

static void halves_are_counted(void)
{
    uint16_t x[] = {0x7c00, 0xfc00, 0x7e01, 0x7bff, 0x0001};
    sop_finite_desc d = {.tokens = 1, .dim = 5, .x_stride = 5, .x_dtype = SOP_F16};
    const sop_row *ref = row_named(&sop_op_finite, "finite_ref");
    CHECK(count(ref, &d, x, sizeof x) == 3);
    d.allow_neg_inf = 1;
    CHECK(count(ref, &d, x, sizeof x) == 2);
}

static void the_count_stops_at_its_largest(void)
{
    int32_t n = INT32_MAX - 1;
    sop_finite_add(&n, 5);
    CHECK(n == INT32_MAX);
    n = 3;
    sop_finite_add(&n, (int64_t)1 << 40);
    CHECK(n == INT32_MAX);
}

int main(void)
{
    RUN(each_place_and_kind_is_counted);
    RUN(halves_are_counted);
    RUN(the_count_stops_at_its_largest);
    return test_report();
}
