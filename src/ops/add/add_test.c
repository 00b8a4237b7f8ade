#include "ops/add/add.h"

#include <sys/mman.h>

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* P-SHP-15, with rows so far apart that few pages are touched: b is one row for all (stride 0). */
static void elements_past_two_to_the_31_are_right(void)
{
    const int64_t stride = 1200000000, dim = 32769;
    const size_t bytes = (size_t)(2 * stride + dim) * sizeof(float);
    float *a = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    float *b = malloc((size_t)dim * sizeof *b);
    CHECK(a != MAP_FAILED && b);
    for (int64_t i = 0; b && i < dim; i++) b[i] = (float)(i % 7);
    for (int32_t r = 0; r < sop_op_add.n_rows && a != MAP_FAILED && b; r++) {
        const sop_add_desc d = {
            .tokens = 3, .dim = dim, .a_stride = stride, .b_stride = 0, .y_stride = stride};
        const sop_operand args[SOP_ADD_ROLES] = {[SOP_ADD_A] = {a, bytes},
                                                 [SOP_ADD_B] = {b, (size_t)dim * sizeof *b},
                                                 [SOP_ADD_Y] = {a, bytes}};
        if (!row_takes(&sop_op_add.rows[r], &d)) continue;
        a[2 * stride + dim - 1] = 5;
        a[2 * stride + 6] = 0.5f;
        CHECK(run_row(&sop_op_add, &sop_op_add.rows[r], &d, args, 2) == SOP_OK);
        CHECK(a[2 * stride + dim - 1] == 6 && a[2 * stride + 6] == 6.5f);
    }
    free(b);
    if (a != MAP_FAILED) (void)munmap(a, bytes);
}

static void rows_that_overlap_in_y_are_refused(void)
{
    sop_add_desc d;
    CHECK(sop_desc_parse(&sop_op_add, "tokens=2 dim=8 y_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "y_stride=7"));
}

int main(void)
{
    RUN(elements_past_two_to_the_31_are_right);
    RUN(rows_that_overlap_in_y_are_refused);
    return test_report();
}
