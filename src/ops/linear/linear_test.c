#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "core/op.h"
#include "ops/call_test.h"
#include "ops/ops.h"

static const int32_t formats[] = {SOP_F32,  SOP_F16,    SOP_BF16,   SOP_Q8_0,  SOP_Q4_0,
                                  SOP_Q4_1, SOP_Q5_0,   SOP_Q5_1,   SOP_Q4_K,  SOP_Q5_K,
                                  SOP_Q6_K, SOP_I8_128, SOP_F8_128, SOP_I4_128};

/* Several rows past one shape, one weight, one y after another. */
struct problem {
    sop_linear_desc d;
    float *x, *y;
    void *w, *packed;
    size_t w_bytes, packed_bytes;
};

static uint64_t seed = 1;

static float noise(void)
{
    return (float)(int32_t)(sop_random(&seed) >> 32) * 0x1p-31f;
}

/* Valid blocks of the type, any codes; extreme: all codes and scales at one end. */
static void fill_weights(struct problem *p, int extreme)
{
    const int32_t dtype = p->d.w_dtype[0];
    const size_t block = sop_dtype_bytes(dtype);
    uint8_t *b = p->w;
    for (size_t i = 0; i < p->w_bytes / block; i++, b += block) {
        if (sop_dtype_block(dtype) == 1) {
            sop_store(b, dtype, 0, (double)noise());
            continue;
        }
        for (size_t c = 0; c < block; c++)
            b[c] = !extreme                                   ? (uint8_t)sop_random(&seed)
                   : dtype == SOP_Q8_0 || dtype == SOP_I8_128 ? 0x80
                                                              : 0xff;
        if (extreme && dtype == SOP_Q6_K) memset(b + 192, 0x80, 16);
        const float scale = 0.01f + 0.01f * noise();
        const uint16_t d = sop_f32_to_f16(scale), m = sop_f32_to_f16(noise());
        if (dtype == SOP_I8_128 || dtype == SOP_F8_128) {
            memcpy(b, &scale, 4);
            continue;
        }
        if (dtype == SOP_I4_128) b[2] = extreme ? 0 : b[2] % 17, b[3] = 0;
        memcpy(b + (dtype == SOP_Q6_K ? 208 : 0), &d, 2);
        if (dtype == SOP_Q4_1 || dtype == SOP_Q5_1 || dtype == SOP_Q4_K || dtype == SOP_Q5_K)
            memcpy(b + 2, &m, 2);
    }
}

static void problem_init(struct problem *p, int32_t dtype, int64_t m, int64_t n, int64_t k)
{
    *p = (struct problem){.d = {.tokens = m, .n = {n}, .k = k, .w_dtype = {dtype}}};
    p->d.layouts[0] = SOP_LAYOUT_PLAIN | SOP_LAYOUT_PANEL16;
    sop_op_linear.complete(&p->d);
    CHECK(sop_op_linear.check(&p->d) == SOP_OK);
    p->w_bytes = (size_t)n * sop_dtype_row_bytes(dtype, k);
    p->packed_bytes = sop_op_linear.packed_bytes(&p->d, SOP_LINEAR_W0, SOP_LAYOUT_PANEL16);
    p->x = malloc((size_t)(m * k) * 4);
    p->y = malloc((size_t)(m * n) * 4);
    p->w = malloc(p->w_bytes);
    p->packed = malloc(p->packed_bytes);
    for (int64_t i = 0; i < m * k; i++) p->x[i] = noise();
    fill_weights(p, 0);
}

static void problem_finish(struct problem *p)
{
    free(p->x);
    free(p->y);
    free(p->w);
    free(p->packed);
}

/* y of the first m tokens by a row; 0 when it does not run here. */
static int run_by(struct problem *p, const sop_row *row, int64_t m)
{
    const size_t n = (size_t)p->d.n[0], k = (size_t)p->d.k;
    sop_linear_desc d = p->d;
    sop_operand args[SOP_LINEAR_ROLES] = {{NULL, 0}};
    d.tokens = m;
    if (!row_takes(row, &d)) return 0;
    if (row->layout == SOP_LAYOUT_PANEL16)
        sop_op_linear.pack(&d, SOP_LINEAR_W0, SOP_LAYOUT_PANEL16, p->w, p->packed, 0, d.n[0]);
    args[SOP_LINEAR_X] = (sop_operand){p->x, (size_t)m * k * 4};
    args[SOP_LINEAR_Y] = (sop_operand){p->y, (size_t)m * n * 4};
    args[SOP_LINEAR_W0] = row->layout == SOP_LAYOUT_PLAIN
                              ? (sop_operand){p->w, p->w_bytes}
                              : (sop_operand){p->packed, p->packed_bytes};
    memset(p->y, 0xff, args[SOP_LINEAR_Y].bytes); /* NaN */
    CHECK(run_row(&sop_op_linear, row, &d, args, 2) == SOP_OK);
    return 1;
}

/* value and bound [m, n] of the first m tokens, for a row with these traits. */
static void judge(struct problem *p, int64_t m, uint32_t traits, double *value, double *bound)
{
    double *values[SOP_LINEAR_ROLES] = {NULL}, *bounds[SOP_LINEAR_ROLES] = {NULL};
    sop_linear_desc d = p->d;
    sop_operand args[SOP_LINEAR_ROLES] = {{NULL, 0}};
    d.tokens = m;
    args[SOP_LINEAR_X].data = p->x;
    args[SOP_LINEAR_W0].data = p->w;
    values[SOP_LINEAR_Y] = value;
    bounds[SOP_LINEAR_Y] = bound;
    const sop_call call = {.size = sizeof call, .desc = &d, .args = args};
    const sop_judge j = {traits, SOP_LINEAR_ROLES, values, bounds};
    CHECK(sop_op_linear.reference(&call, &j) == SOP_OK);
}

/* Largest error of y over its bound. */
static double worst(struct problem *p, int64_t m, uint32_t traits)
{
    const size_t n = (size_t)(m * p->d.n[0]);
    double *value = malloc(n * sizeof *value), *bound = malloc(n * sizeof *bound), most = 0;
    judge(p, m, traits, value, bound);
    for (size_t i = 0; i < n; i++) {
        const double e = fabs((double)p->y[i] - value[i]) / bound[i];
        if (!(e <= most)) most = e;
    }
    free(value);
    free(bound);
    return most;
}

/* ---- ---- */

static void a_token_alone_has_the_bits_it_has_among_others(void)
{
    for (int32_t f = 0; f < SOP_N(formats); f++) {
        struct problem p;
        problem_init(&p, formats[f], 37, 35, 768);
        float *alone = malloc((size_t)(37 * 35) * 4);
        for (int32_t r = 0; r < sop_op_linear.n_rows; r++) {
            const sop_row *row = &sop_op_linear.rows[r];
            if (!(row->traits & SOP_ROW_INVARIANT) || !run_by(&p, row, 37)) continue;
            memcpy(alone, p.y, (size_t)(37 * 35) * 4);
            int bad = 0;
            for (int64_t m = 36; m > 0; m -= m > 20 ? 5 : 1)
                if (run_by(&p, row, m)) bad += memcmp(p.y, alone, (size_t)(m * 35) * 4) != 0;
            CHECK(bad == 0);
            if (bad) printf("%s %s\n", row->name, sop_dtype_text(formats[f]));
        }
        free(alone);
        problem_finish(&p);
    }
}

/* Under numerics=invariant a plan may take any of the rows that run here, by the number of tokens. */
static void rows_of_a_kind_give_the_same_bits_on_every_processor(void)
{
    static const char *const kinds[2][2] = {{"linear_q8x_avx2", "linear_q8x_vnni"},
                                            {"linear_f32x_avx2", "linear_f32x_avx512"}};
    int compared = 0;
    for (int32_t f = 0; f < SOP_N(formats); f++)
        for (int kind = 0; kind < 2; kind++) {
            struct problem p;
            problem_init(&p, formats[f], 11, 40, 512);
            float *one = malloc((size_t)(11 * 40) * 4);
            const int ran = run_by(&p, row_named(&sop_op_linear, kinds[kind][0]), 11);
            memcpy(one, p.y, (size_t)(11 * 40) * 4);
            if (ran && run_by(&p, row_named(&sop_op_linear, kinds[kind][1]), 11)) {
                CHECK(memcmp(one, p.y, (size_t)(11 * 40) * 4) == 0);
                compared++;
            }
            free(one);
            problem_finish(&p);
        }
    if (!compared) SKIP("the same bits on every processor", "this one has one level only");
}

/* The sums of small integers that could pass 16 bits do it here or nowhere. */
static void quants_and_x_at_their_ends_do_not_overflow(void)
{
    for (int32_t f = 0; f < SOP_N(formats); f++)
        for (int64_t m = 1; m <= 20; m += 19)
            for (int signs = 0; signs < 3; signs++) {
                struct problem p;
                problem_init(&p, formats[f], m, 16, 512);
                fill_weights(&p, 1);
                for (int64_t i = 0; i < m * 512; i++)
                    p.x[i] = signs == 0 ? 3.0f : signs == 1 ? -3.0f : i % 2 ? 3.0f : -3.0f;
                for (int32_t r = 0; r < sop_op_linear.n_rows - 1; r++) {
                    const sop_row *row = &sop_op_linear.rows[r];
                    if (run_by(&p, row, m)) CHECK(worst(&p, m, row->traits) <= 1);
                }
                problem_finish(&p);
            }
}

/* q8_0 and q6_k take 16-bit activations: 128 times finer than the bound asks. */
static void wide_formats_keep_x_to_16_bits(void)
{
    static const int32_t wide[2] = {SOP_Q8_0, SOP_Q6_K};
    for (int f = 0; f < 2; f++) {
        struct problem p;
        problem_init(&p, wide[f], 9, 32, 256);
        for (int64_t m = 1; m <= 9; m += 8) {
            if (run_by(&p, row_named(&sop_op_linear, "linear_q8x_avx2"), m))
                CHECK(worst(&p, m, SOP_ROW_QUANT_X) < 1.0 / 64);
        }
        problem_finish(&p);
    }
}

static void what_is_not_finite_in_x_reaches_all_of_its_token_and_no_other(void)
{
    static const float values[4] = {NAN, INFINITY, -INFINITY, -NAN};
    for (int32_t f = 0; f < SOP_N(formats); f++)
        for (int64_t m = 3; m <= 35; m += 16)
            for (int v = 0; v < 4; v++) {
                struct problem p;
                problem_init(&p, formats[f], m, 20, 512);
                p.x[1 * 512 + 77] = values[v];
                for (int32_t r = 0; r < sop_op_linear.n_rows; r++) {
                    int finite = 0, other = 0;
                    if (!run_by(&p, &sop_op_linear.rows[r], m)) continue;
                    for (int64_t i = 0; i < m * 20; i++)
                        if (i / 20 == 1)
                            finite += isfinite(p.y[i]) != 0;
                        else
                            other += !isfinite(p.y[i]);
                    CHECK(finite == 0 && other == 0);
                    if (finite || other)
                        printf("%s %s m=%d\n", sop_op_linear.rows[r].name,
                               sop_dtype_text(formats[f]), (int)m);
                }
                problem_finish(&p);
            }
}

/* 32 activations of 3000 against ones in a format with a minimum: their sum is over what a half has. */
static void the_sum_of_large_activations_does_not_overflow(void)
{
    struct problem p;
    problem_init(&p, SOP_Q4_1, 17, 16, 32);
    const uint16_t d = sop_f32_to_f16(0), one = sop_f32_to_f16(1);
    for (int i = 0; i < 16; i++) {
        uint8_t *b = (uint8_t *)p.w + 20 * i;
        memset(b, 0, 20);
        memcpy(b, &d, 2);
        memcpy(b + 2, &one, 2);
    }
    for (int i = 0; i < 17 * 32; i++) p.x[i] = 3000;
    for (int32_t r = 0; r < sop_op_linear.n_rows; r++)
        for (int64_t m = 1; m <= 17; m += 16)
            if (run_by(&p, &sop_op_linear.rows[r], m)) {
                int bad = 0;
                for (int64_t i = 0; i < m * 16; i++) bad += !(fabsf(p.y[i] - 96000) < 960);
                CHECK(bad == 0);
            }
    problem_finish(&p);
}

/* Below the smallest normal number a scale or its inverse could leave the range of floats. */
static void tiny_and_zero_activations_stay_finite(void)
{
    static const float sizes[4] = {0, 1e-45f, 1e-40f, 3e-37f};
    for (int32_t f = 0; f < SOP_N(formats); f++)
        for (int s = 0; s < 4; s++) {
            struct problem p;
            problem_init(&p, formats[f], 18, 16, 256);
            for (int64_t i = 0; i < 18 * 256; i++) p.x[i] = i % 2 ? sizes[s] : -sizes[s];
            for (int32_t r = 0; r < sop_op_linear.n_rows - 1; r++)
                for (int64_t m = 1; m <= 18; m += 17)
                    if (run_by(&p, &sop_op_linear.rows[r], m)) {
                        const sop_row *row = &sop_op_linear.rows[r];
                        if (row->device == SOP_DEVICE_CUDA) { /* 16 bits have none so small: 0 */
                            for (int64_t i = 0; i < m * 16; i++) CHECK(fabsf(p.y[i]) < 1e-30f);
                            continue;
                        }
                        CHECK(worst(&p, m, row->traits) <= 1);
                    }
            problem_finish(&p);
        }
}

static void no_columns_of_x_give_the_bias_alone(void)
{
    static const float bias[3] = {1, -2, 3};
    float y[6];
    sop_linear_desc d = {.tokens = 2, .n = {3}, .bias = 1, .w_dtype = {SOP_Q8_0}};
    d.layouts[0] = SOP_LAYOUT_PLAIN | SOP_LAYOUT_PANEL16;
    sop_op_linear.complete(&d);
    for (int32_t r = 0; r < sop_op_linear.n_rows; r++) {
        float b[3];
        sop_operand args[SOP_LINEAR_ROLES] = {{NULL, 0}};
        memcpy(b, bias, sizeof b);
        memset(y, 0xff, sizeof y);
        args[SOP_LINEAR_B0] = (sop_operand){b, sizeof b};
        args[SOP_LINEAR_Y] = (sop_operand){y, sizeof y};
        if (!row_takes(&sop_op_linear.rows[r], &d)) continue;
        CHECK(run_row(&sop_op_linear, &sop_op_linear.rows[r], &d, args, 1) == SOP_OK);
        for (int i = 0; i < 6; i++) CHECK(y[i] == bias[i % 3]);
    }
}

/* 128 codes of 1, of -2 and of 448 in a token, past weights of 1/2. */
static void codes_count_as_they_are_times_the_scale_of_their_token(void)
{
    static const uint8_t codes[3] = {0x38, 0xc0, 0x7e};
    static const float sums[3] = {64, -128, 28672}, scales[3] = {0.25f, 2, 3};
    uint8_t x[3 * 128], w[4 * 132];
    float y[3 * 4], x_scale[3];
    for (int t = 0; t < 3; t++) memset(x + t * 128, codes[t], 128);
    for (int i = 0; i < 4; i++) {
        const float half = 0.5f;
        memset(w + i * 132, 0x38, 132);
        memcpy(w + i * 132, &half, 4);
    }
    sop_linear_desc d;
    CHECK(sop_desc_parse(&sop_op_linear, "m=3 n=4 k=128 w=f8_128 x=f8 layouts=both", &d) == SOP_OK);
    int32_t ran = 0;
    for (int32_t r = 0; r < sop_op_linear.n_rows; r++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const sop_row *row = &sop_op_linear.rows[r];
            sop_operand args[SOP_LINEAR_ROLES] = {[SOP_LINEAR_X] = {x, sizeof x},
                                                  [SOP_LINEAR_W0] = {w, sizeof w},
                                                  [SOP_LINEAR_Y] = {y, sizeof y}};
            if (!row_takes(row, &d)) continue;
            memcpy(x_scale, scales, sizeof scales);
            if (scaled) args[SOP_LINEAR_X_SCALE] = (sop_operand){x_scale, sizeof x_scale};
            memset(y, 0xff, sizeof y);
            CHECK(run_row(&sop_op_linear, row, &d, args, 1) == SOP_OK);
            for (int i = 0; i < 12; i++) CHECK(y[i] == sums[i / 4] * (scaled ? scales[i / 4] : 1));
            ran++;
        }
    CHECK(ran >= 4); /* the portable row and the reference */
}

static void a_wrong_desc_is_refused_with_the_numbers(void)
{
    sop_linear_desc d;
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=100 w=q4_k", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "k=100") && strstr(sop_last_error(), "256"));
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=8 w=i8", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "i8") != NULL);
    CHECK(sop_desc_parse(&sop_op_linear, "m=2 n=4 k=8 y_stride=3", &d) == SOP_E_SHAPE);
    CHECK(sop_desc_parse(&sop_op_linear, "m=2 n=4 k=64 w=q8_0 w_stride=1", &d) == SOP_E_SHAPE);
    CHECK(sop_desc_parse(&sop_op_linear, "m=3000000000 n=4 k=8", &d) == SOP_E_SHAPE);
    CHECK(sop_desc_parse(&sop_op_linear, "m=-1 n=4 k=8", &d) == SOP_E_SHAPE);
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=8 x=i8", &d) == SOP_E_ARG);
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=8 bias=9", &d) == SOP_E_ARG);
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=8 x=f8 y=f8", &d) == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "y is f8") != NULL);
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=8 x=f8 y=f64", &d) == SOP_E_ARG);
}

static void a_row_says_why_it_refuses(void)
{
    sop_linear_desc d;
    const sop_row *q8x = row_named(&sop_op_linear, "linear_q8x_avx2");
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=32 w=q8_0", &d) == SOP_OK);
    CHECK(strstr(q8x->refuse(&d), "packed"));
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=32 w=q8_0 layouts=both numerics=exact", &d) ==
          SOP_OK);
    CHECK(strstr(q8x->refuse(&d), "exact"));
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=32 w=f16 layouts=both", &d) == SOP_OK);
    CHECK(strstr(q8x->refuse(&d), "quantised"));
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=128 w=i4_128 layouts=both", &d) == SOP_OK);
    CHECK(strstr(q8x->refuse(&d), "no panels"));
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=32 w=q8_0 layouts=panel16", &d) == SOP_OK);
    CHECK(strstr(row_named(&sop_op_linear, "linear_c")->refuse(&d), "plain"));
    CHECK(q8x->refuse(&d) == NULL);
    CHECK(sop_desc_parse(&sop_op_linear, "m=1 n=4 k=32 w=q8_0 x=f8 layouts=both", &d) == SOP_OK);
    CHECK(strstr(q8x->refuse(&d), "x is f8"));
}

int main(void)
{
    RUN(a_token_alone_has_the_bits_it_has_among_others);
    RUN(rows_of_a_kind_give_the_same_bits_on_every_processor);
    RUN(quants_and_x_at_their_ends_do_not_overflow);
    RUN(wide_formats_keep_x_to_16_bits);
    RUN(what_is_not_finite_in_x_reaches_all_of_its_token_and_no_other);
    RUN(the_sum_of_large_activations_does_not_overflow);
    RUN(tiny_and_zero_activations_stay_finite);
    RUN(no_columns_of_x_give_the_bias_alone);
    RUN(codes_count_as_they_are_times_the_scale_of_their_token);
    RUN(a_wrong_desc_is_refused_with_the_numbers);
    RUN(a_row_says_why_it_refuses);
    return test_report();
}
