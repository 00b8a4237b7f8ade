#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

enum { DIM = 16 };

/* By every row that runs here: codes and scales of rows of DIM. */
static int by(const sop_row *row, int64_t tokens, const float *x, uint8_t *codes, float *scale)
{
    float own[4 * DIM];
    sop_quantize_desc d = {.tokens = tokens, .dim = DIM};
    memcpy(own, x, (size_t)(tokens * DIM) * 4);
    memset(codes, 0x7f, (size_t)(tokens * DIM));
    memset(scale, 0xff, (size_t)tokens * 4);
    const sop_operand args[SOP_QUANTIZE_ROLES] = {
        [SOP_QUANTIZE_X] = {own, (size_t)(tokens * DIM) * 4},
        [SOP_QUANTIZE_CODES] = {codes, (size_t)(tokens * DIM)},
        [SOP_QUANTIZE_SCALE] = {scale, (size_t)tokens * 4}};
    sop_op_quantize.complete(&d);
    CHECK(sop_op_quantize.check(&d) == SOP_OK);
    if (!row_takes(row, &d)) return 0;
    CHECK(run_row(&sop_op_quantize, row, &d, args, 1) == SOP_OK);
    return 1;
}

#define EVERY_ROW(row) \
    for (const sop_row *row = sop_op_quantize.rows; \
         row < sop_op_quantize.rows + sop_op_quantize.n_rows; row++)

static void the_largest_of_a_row_is_448_whatever_its_size(void)
{
    const float sizes[4] = {896, 0.875f, 448 * 0x1p100f, 448 * 0x1p-120f};
    float x[4 * DIM] = {0}, scale[4];
    uint8_t codes[4 * DIM];
    for (int t = 0; t < 4; t++) {
        x[t * DIM + t] = -sizes[t];
        x[t * DIM + 9] = sizes[t] / 2;
        x[t * DIM + 10] = sizes[t] / 448 * 17; /* a tie: 16 is even, 18 is not */
        x[t * DIM + 11] = sizes[t] / 448 * 19; /* 18 or 20: 20 is even */
    }
    EVERY_ROW(row)
    {
        if (!by(row, 4, x, codes, scale)) continue;
        for (int t = 0; t < 4; t++) {
            CHECK(scale[t] == sizes[t] / 448);
            CHECK(sop_f8_to_f32(codes[t * DIM + t]) == -448);
            CHECK(sop_f8_to_f32(codes[t * DIM + 9]) == 224);
            CHECK(sop_f8_to_f32(codes[t * DIM + 10]) == 16);
            CHECK(sop_f8_to_f32(codes[t * DIM + 11]) == 20);
            CHECK(sop_f8_to_f32(codes[t * DIM + 15]) == 0);
        }
    }
}

static void a_row_of_zeros_or_next_to_them_has_the_least_scale(void)
{
    float x[2 * DIM] = {0}, scale[2];
    uint8_t codes[2 * DIM];
    x[DIM + 3] = 3 * 0x1p-126f;
    x[DIM + 4] = -0x1p-149f;
    EVERY_ROW(row)
    {
        if (!by(row, 2, x, codes, scale)) continue;
        CHECK(scale[0] == 0x1p-126f && scale[1] == 0x1p-126f);
        for (int i = 0; i < DIM; i++) CHECK(codes[i] == 0);
        CHECK(sop_f8_to_f32(codes[DIM + 3]) == 3);
        CHECK(sop_f8_to_f32(codes[DIM + 4]) == 0);
    }
}

static void what_is_not_finite_becomes_nan_and_leaves_the_others_alone(void)
{
    static const float values[3] = {INFINITY, -INFINITY, NAN};
    uint8_t codes[2 * DIM];
    float scale[2];
    for (int v = 0; v < 3; v++) {
        float x[2 * DIM];
        for (int i = 0; i < 2 * DIM; i++) x[i] = i % 2 ? 448 : -28;
        x[5] = values[v];
        EVERY_ROW(row)
        {
            if (!by(row, 2, x, codes, scale)) continue;
            CHECK(scale[0] == 1 && scale[1] == 1);
            for (int i = 0; i < 2 * DIM; i++)
                CHECK(i == 5 ? isnan(sop_f8_to_f32(codes[i])) : sop_f8_to_f32(codes[i]) == x[i]);
        }
    }
}

static void a_wrong_desc_is_refused_with_the_numbers(void)
{
    sop_quantize_desc d;
    CHECK(sop_desc_parse(&sop_op_quantize, "tokens=2 dim=8 codes_stride=7", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "7 apart") != NULL);
    CHECK(sop_desc_parse(&sop_op_quantize, "tokens=-1 dim=8", &d) == SOP_E_SHAPE);
    CHECK(sop_desc_parse(&sop_op_quantize, "tokens=1 dim=8 x=f64", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "f64") != NULL);
}

int main(void)
{
    RUN(the_largest_of_a_row_is_448_whatever_its_size);
    RUN(a_row_of_zeros_or_next_to_them_has_the_least_scale);
    RUN(what_is_not_finite_becomes_nan_and_leaves_the_others_alone);
    RUN(a_wrong_desc_is_refused_with_the_numbers);
    return test_report();
}
