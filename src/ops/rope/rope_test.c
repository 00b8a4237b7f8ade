#include <math.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

static int near(float got, double want, double within)
{
    return fabs((double)got - want) <= within;
}

/* One token of one head through a row. */
static int turn(const sop_row *row, sop_rope_desc d, int32_t pos, const float *freqs,
                const float *x, float *y)
{
    d.tokens = 1;
    sop_op_rope.complete(&d);
    const sop_operand args[SOP_ROPE_ROLES] = {
        [SOP_ROPE_X] = {(void *)(uintptr_t)x, 0},
        [SOP_ROPE_POS] = {&pos, 4},
        [SOP_ROPE_FREQS] = {(void *)(uintptr_t)freqs, 0},
        [SOP_ROPE_Y] = {y, 0},
    };
    if (!row_takes(row, &d)) return 0;
    CHECK(run_row(&sop_op_rope, row, &d, args, 1) == SOP_OK);
    return 1;
}

#define EACH_ROW(row) \
    for (const sop_row *row = sop_op_rope.rows; row < sop_op_rope.rows + sop_op_rope.n_rows; row++)

static const sop_rope_scaling plain = {.kind = SOP_ROPE_PLAIN, .base = 10000};

static void halves_and_neighbours_are_told_apart(void)
{
    const float x[4] = {1, 2, 3, 4};
    float freqs[2], mscale, y[4];
    CHECK(sop_rope_freqs(&plain, 4, freqs, &mscale) == SOP_OK && mscale == 1);
    const double half[4] = {-1.9841106, 1.9599007, 2.4623779, 4.0197997};
    const double pairs[4] = {-1.1426397, 1.9220756, 2.9598507, 4.0297995};
    EACH_ROW(row)
    {
        if (turn(row, (sop_rope_desc){.k = 4}, 1, freqs, x, y))
            for (int i = 0; i < 4; i++) CHECK(near(y[i], half[i], 1e-6));
        if (turn(row, (sop_rope_desc){.k = 4, .interleaved = 1}, 1, freqs, x, y))
            for (int i = 0; i < 4; i++) CHECK(near(y[i], pairs[i], 1e-6));
    }
}

static void far_positions_are_not_rounded(void)
{
    const float x[2] = {1, 0}, one = 1;
    float a[2], b[2];
    EACH_ROW(row)
    {
        if (!turn(row, (sop_rope_desc){.k = 2}, 15962, &one, x, a)) continue;
        CHECK(near(a[0], -0.9080159, 1e-6));
        turn(row, (sop_rope_desc){.k = 2}, 256, &one, x, a);
        turn(row, (sop_rope_desc){.k = 2}, 257, &one, x, b);
        CHECK(fabsf(a[0] - b[0]) > 0.1f);
        turn(row, (sop_rope_desc){.k = 2}, 999999, &one, x, a);
        CHECK(near(a[0], 0.2116200, 1e-5));
        turn(row, (sop_rope_desc){.k = 2}, -3, &one, x, a); /* computed, not looked up */
        CHECK(near(a[0], cos(-3.0), 1e-6) && near(a[1], sin(-3.0), 1e-6));
        turn(row, (sop_rope_desc){.k = 2}, INT32_MAX, &one, x, a);
        CHECK(near(a[0], cos(2147483648.0), 1e-6));
    }
}

static void a_million_tokens_keep_their_frequencies(void)
{
    float freqs[64], mscale, x[128] = {0}, y[128];
    CHECK(sop_rope_freqs(&plain, 128, freqs, &mscale) == SOP_OK);
    x[0] = x[10] = 1;
    EACH_ROW(row)
    {
        if (!turn(row, (sop_rope_desc){.k = 128}, 1000000, freqs, x, y)) continue;
        CHECK(near(y[0], 0.9367521, 1e-5) && near(y[64], -0.3499935, 1e-5));
        CHECK(near(y[10], -0.8616445, 2e-2) && near(y[74], -0.5075124, 2e-2));
    }
}

static void channels_beyond_rot_are_copied(void)
{
    float x[16], y[16], freqs[2], mscale;
    const double want[4] = {-1.9841106, 1.9599007, 2.4623779, 4.0197997};
    for (int i = 0; i < 16; i++) x[i] = (float)(i + 1);
    CHECK(sop_rope_freqs(&plain, 4, freqs, &mscale) == SOP_OK);
    EACH_ROW(row)
    {
        if (!turn(row, (sop_rope_desc){.k = 16, .rot = 4}, 1, freqs, x, y)) continue;
        for (int i = 0; i < 4; i++) CHECK(near(y[i], want[i], 1e-6));
        CHECK(memcmp(y + 4, x + 4, 12 * sizeof *x) == 0);
    }
}

/* Every phase the vector code takes is within 4 u of libm's double. */
static void sines_of_the_avx2_row_are_accurate_up_to_2_to_the_20(void)
{
    enum { N = 4096 };
    const sop_row *row = row_named(&sop_op_rope, "rope_f32_avx2");
    static float freqs[N], x[2 * N], y[2 * N];
    sop_rope_desc d = {.k = 2 * N};
    sop_op_rope.complete(&d);
    if (!row_takes(row, &d)) {
        SKIP("sines_of_the_avx2_row_are_accurate_up_to_2_to_the_20", "no AVX2");
        return;
    }
    double worst = 0;
    for (int i = 0; i < N; i++) x[i] = 1;
    for (int turn_of = 0; turn_of < 64; turn_of++) {
        const int32_t pos = turn_of < 32 ? turn_of : 1048575 - turn_of * 37;
        /* around multiples of pi/2, where the reduction cancels most, and between */
        for (int i = 0; i < N; i++)
            freqs[i] = i % 2
                           ? (float)i / N
                           : (float)(1.5707963267948966 * i / (pos ? pos : 1) * (pos > N ? 99 : 1));
        turn(row, d, pos, freqs, x, y);
        for (int i = 0; i < N; i++) {
            const double phase = (double)((float)pos * freqs[i]);
            if (fabs(phase) >= 0x1p20) continue;
            worst = fmax(worst, fabs((double)y[i] - cos(phase)));
            worst = fmax(worst, fabs((double)y[N + i] - sin(phase)));
        }
    }
    CHECK(worst <= 4 * 0x1p-24);
}

static void llama3_divides_the_slow_pairs_and_blends_three(void)
{
    const sop_rope_scaling s = {.kind = SOP_ROPE_LLAMA3,
                                .base = 500000,
                                .factor = 32,
                                .low_freq = 1,
                                .high_freq = 4,
                                .original = 8192};
    const sop_rope_scaling base = {.kind = SOP_ROPE_PLAIN, .base = 500000};
    float f[32], p[32], mscale;
    CHECK(sop_rope_freqs(&s, 64, f, &mscale) == SOP_OK && mscale == 1);
    CHECK(sop_rope_freqs(&base, 64, p, &mscale) == SOP_OK);
    for (int i = 0; i < 15; i++) CHECK(f[i] == p[i]);
    for (int i = 18; i < 32; i++) CHECK(near(f[i], (double)p[i] / 32, 1e-7 * (double)f[i]));
    CHECK(near(f[15], 1.2905479e-3, 1e-9) && near(f[16], 4.2955680e-4, 3e-10));
    CHECK(near(f[17], 9.7082878e-5, 1e-10) && near(f[18], 1.9461638e-5, 1e-11));
    CHECK(near(f[31], 9.4183067e-8, 1e-13));
}

static float yarn_mscale(double factor, double m, double all, double attention)
{
    const sop_rope_scaling s = {.kind = SOP_ROPE_YARN,
                                .base = 10000,
                                .factor = factor,
                                .original = 4096,
                                .mscale = m,
                                .mscale_all_dim = all,
                                .attention_factor = attention};
    float f[32], mscale = 0;
    CHECK(sop_rope_freqs(&s, 64, f, &mscale) == SOP_OK);
    return mscale;
}

static void yarn_scales_by_the_right_magnitude_once(void)
{
    CHECK(yarn_mscale(16, 1, 1, 0) == 1);
    CHECK(near(yarn_mscale(16, 0, 0, 0), 1.2772589, 1e-6));
    CHECK(near(yarn_mscale(128, 0, 0, 1.4852030), 1.4852030, 1e-6));
}

/* The end points by hand: rot 64, base 10000, original 4096: 32 turns at pair 10.47, one turn at
 * 22.51; so 0..10 stay, 23..31 are divided, and between it is linear from 10 to 23. */
static void yarn_blends_between_its_two_pairs(void)
{
    const sop_rope_scaling s = {
        .kind = SOP_ROPE_YARN, .base = 10000, .factor = 4, .original = 4096};
    float f[32], p[32], mscale;
    CHECK(sop_rope_freqs(&s, 64, f, &mscale) == SOP_OK);
    CHECK(sop_rope_freqs(&plain, 64, p, &mscale) == SOP_OK);
    for (int i = 0; i < 32; i++) {
        const double ramp = i <= 10 ? 0 : i >= 23 ? 1 : (i - 10) / 13.0;
        const double want = (double)p[i] * (ramp / 4 + 1 - ramp);
        CHECK(near(f[i], want, 2e-7 * want));
    }
}

static void linear_divides_all_pairs(void)
{
    const sop_rope_scaling s = {.kind = SOP_ROPE_LINEAR, .base = 10000, .factor = 8};
    float f[8], p[8], mscale;
    CHECK(sop_rope_freqs(&s, 16, f, &mscale) == SOP_OK && mscale == 1);
    CHECK(sop_rope_freqs(&plain, 16, p, &mscale) == SOP_OK);
    for (int i = 0; i < 8; i++) CHECK(f[i] == p[i] / 8);
}

/* Under freqs of the other sign dy becomes dx. */
static void the_gradient_turns_the_other_way(void)
{
    enum { N = 2 * 2 * 6 };
    for (int32_t interleaved = 0; interleaved < 2; interleaved++) {
        double x[N], g[N], y[N], dx[N];
        float freqs[2] = {1, 0.25f}, back[2] = {-1, -0.25f};
        int32_t pos[2] = {3, 11};
        sop_rope_desc d = {.tokens = 2, .heads = 2, .k = 6, .rot = 4, .mscale = 1.5f};
        d.interleaved = interleaved;
        d.x_dtype = d.y_dtype = SOP_F64;
        sop_op_rope.complete(&d);
        const sop_operand in[SOP_ROPE_ROLES] = {[SOP_ROPE_X] = grad_operand(x, N),
                                                [SOP_ROPE_POS] = {pos, sizeof pos},
                                                [SOP_ROPE_FREQS] = {freqs, sizeof freqs},
                                                [SOP_ROPE_Y] = grad_operand(y, N)};
        const sop_operand args[SOP_ROPE_ROLES] = {[SOP_ROPE_X] = grad_operand(g, N),
                                                  [SOP_ROPE_POS] = {pos, sizeof pos},
                                                  [SOP_ROPE_FREQS] = {back, sizeof back},
                                                  [SOP_ROPE_Y] = grad_operand(dx, N)};
        const grad_fn f = {&sop_op_rope, &d, in, {SOP_ROPE_Y, -1}, {g, NULL}};
        grad_fill(x, N, 1);
        grad_fill(g, N, 2);
        CHECK(grad_run(&sop_op_rope, &d, args) == SOP_OK);
        grad_check(&f, x, dx, N);
    }
}

static void what_cannot_turn_is_refused_with_the_number(void)
{
    sop_rope_desc d = {.tokens = 1, .k = 40, .rot = 33, .interleaved = 1};
    float f[1], mscale;
    sop_op_rope.complete(&d);
    CHECK(sop_op_rope.check(&d) == SOP_E_SHAPE && strstr(sop_last_error(), "33"));
    d.rot = 42;
    CHECK(sop_op_rope.check(&d) == SOP_E_SHAPE && strstr(sop_last_error(), "42"));
    CHECK(sop_rope_freqs(&plain, 33, f, &mscale) == SOP_E_ARG && strstr(sop_last_error(), "33"));
    const sop_rope_scaling bad = {.kind = SOP_ROPE_YARN, .base = 10000, .factor = -2};
    CHECK(sop_rope_freqs(&bad, 2, f, &mscale) == SOP_E_ARG && strstr(sop_last_error(), "-2"));
}

int main(void)
{
    RUN(halves_and_neighbours_are_told_apart);
    RUN(far_positions_are_not_rounded);
    RUN(a_million_tokens_keep_their_frequencies);
    RUN(channels_beyond_rot_are_copied);
    RUN(sines_of_the_avx2_row_are_accurate_up_to_2_to_the_20);
    RUN(llama3_divides_the_slow_pairs_and_blends_three);
    RUN(yarn_scales_by_the_right_magnitude_once);
    RUN(yarn_blends_between_its_two_pairs);
    RUN(linear_divides_all_pairs);
    RUN(the_gradient_turns_the_other_way);
    RUN(what_cannot_turn_is_refused_with_the_number);
    return test_report();
}
