#include "core/f16.h"

#include <math.h>

#include "base/test.h"

static float bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static void every_half_survives_the_round_trip(void)
{
    int bad = 0;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = sop_f16_to_f32((uint16_t)h);
        const uint16_t back = sop_f32_to_f16(f);
        if (isnan(f))
            bad += (back & 0x7c00) != 0x7c00 || (back & 0x3ff) == 0;
        else
            bad += back != h;
    }
    CHECK(bad == 0);
}

static void half_rounds_to_nearest_even_between_all_neighbours(void)
{
    int bad = 0;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float lo = sop_f16_to_f32((uint16_t)h), hi = sop_f16_to_f32((uint16_t)(h + 1));
        const float mid = (lo + hi) / 2; /* exact: one bit more than a half has */
        bad += sop_f32_to_f16(mid) != (h & 1 ? h + 1 : h);
        bad += sop_f32_to_f16(nextafterf(mid, lo)) != h;
        bad += sop_f32_to_f16(nextafterf(mid, hi)) != h + 1;
    }
    CHECK(bad == 0);
    CHECK(sop_f32_to_f16(65519.9f) == 0x7bff && sop_f32_to_f16(65520.0f) == 0x7c00);
    CHECK(sop_f32_to_f16(-1e30f) == 0xfc00 && sop_f32_to_f16(-0.0f) == 0x8000);
    CHECK(sop_f32_to_f16(0x1p-25f) == 0 && sop_f32_to_f16(nextafterf(0x1p-25f, 1)) == 1);
}

static void every_e4m3_survives_and_rounding_is_to_the_nearest_even(void)
{
    int bad = 0;
    for (int b = 0; b < 256; b++) {
        const float f = sop_f8_to_f32((uint8_t)b);
        bad += (b & 0x7f) == 0x7f ? !isnan(f) || (sop_f32_to_f8(f) & 0x7f) != 0x7f
                                  : sop_f32_to_f8(f) != b;
    }
    for (int b = 0; b < 0x7e; b++) {
        const float lo = sop_f8_to_f32((uint8_t)b), hi = sop_f8_to_f32((uint8_t)(b + 1));
        const float mid = (lo + hi) / 2;
        bad += sop_f32_to_f8(mid) != (b & 1 ? b + 1 : b);
        bad += sop_f32_to_f8(nextafterf(mid, lo)) != b;
        bad += sop_f32_to_f8(-nextafterf(mid, hi)) != (0x80 | (b + 1));
    }
    CHECK(bad == 0);
    CHECK(sop_f8_to_f32(0x38) == 1 && sop_f8_to_f32(0x7e) == 448 &&
          sop_f8_to_f32(0x81) == -0x1p-9f);
    CHECK(sop_f32_to_f8(1e9f) == 0x7e && sop_f32_to_f8(-INFINITY) == 0xfe);
}

static void known_bfloat16_answers(void)
{
    CHECK(sop_f32_to_bf16(1.0f) == 0x3f80 && sop_f32_to_bf16(-2.5f) == 0xc020);
    CHECK(sop_f32_to_bf16(bits(0x3f808000)) == 0x3f80); /* a tie, to even: down */
    CHECK(sop_f32_to_bf16(bits(0x3f818000)) == 0x3f82); /* a tie, to even: up */
    CHECK(sop_f32_to_bf16(bits(0x3f808001)) == 0x3f81);
    CHECK(sop_f32_to_bf16(bits(0x7f7fffff)) == 0x7f80); /* the largest float rounds to infinity */
    CHECK(sop_f32_to_bf16(bits(0x00000001)) == 0x0000);
    CHECK(sop_f32_to_bf16(bits(0x7f800001)) == 0x7fc0); /* NaN stays NaN */
    int bad = 0;
    for (uint32_t b = 0; b < 0x10000; b++) {
        const float f = sop_bf16_to_f32((uint16_t)b);
        bad += !isnan(f) && sop_f32_to_bf16(f) != b;
    }
    CHECK(bad == 0);
}

/* Two conversions in one function: the shape that gcc 12.2 gets wrong with round-and-truncate. */
static void two_conversions_in_one_expression(void)
{
    static const uint32_t in[4] = {0x3f80ffff, 0xbf80ffff, 0x41ffffff, 0x00008001};
    static const uint16_t want[4] = {0x3f81, 0xbf81, 0x4200, 0x0001};
    for (int i = 0; i < 4; i++) {
        const uint32_t pair =
            sop_f32_to_bf16(bits(in[i])) | (uint32_t)sop_f32_to_bf16(bits(in[(i + 1) % 4])) << 16;
        CHECK(pair == (want[i] | (uint32_t)want[(i + 1) % 4] << 16));
    }
}

int main(void)
{
    RUN(every_half_survives_the_round_trip);
    RUN(half_rounds_to_nearest_even_between_all_neighbours);
    RUN(every_e4m3_survives_and_rounding_is_to_the_nearest_even);
    RUN(known_bfloat16_answers);
    RUN(two_conversions_in_one_expression);
    return test_report();
}
