#include "ops/linear/dequant.h"

#include <math.h>
#include <string.h>

#include "base/test.h"
#include "core/f16.h"
#include "sop/types.h"

static void put_half(uint8_t *p, float f)
{
    const uint16_t h = sop_f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static void q8_0_is_scale_times_signed_byte(void)
{
    uint8_t b[34];
    float w[32];
    put_half(b, 0.5f);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(i - 128);
    sop_dequant_row(SOP_Q8_0, b, 32, w);
    int bad = 0;
    for (int i = 0; i < 32; i++) bad += w[i] != 0.5f * (float)(i - 128);
    CHECK(bad == 0);
}

/* Bytes 16 j + (15 - j): low nibble 15 - j is element j, high nibble j is element j + 16. */
static void nibbles(uint8_t *qs)
{
    for (int j = 0; j < 16; j++) qs[j] = (uint8_t)(16 * j + 15 - j);
}

static void nibbles_of_32_lie_16_apart(void)
{
    uint8_t b[24];
    float w[32];
    int bad = 0;
    put_half(b, 2);
    nibbles(b + 2);
    sop_dequant_row(SOP_Q4_0, b, 32, w);
    for (int j = 0; j < 16; j++)
        bad += w[j] != 2.0f * (float)(7 - j) || w[j + 16] != 2.0f * (float)(j - 8);
    CHECK(bad == 0);
    put_half(b + 2, -3);
    nibbles(b + 4);
    sop_dequant_row(SOP_Q4_1, b, 32, w);
    for (int j = 0; j < 16; j++)
        bad += w[j] != 2.0f * (float)(15 - j) - 3 || w[j + 16] != 2.0f * (float)j - 3;
    CHECK(bad == 0);
}

static void the_fifth_bit_of_element_i_is_bit_i(void)
{
    uint8_t b[24];
    float w[32];
    int bad = 0;
    put_half(b, 1);
    b[2] = 1, b[3] = 0x80, b[4] = 0, b[5] = 0x40; /* elements 0, 15, 30 */
    nibbles(b + 6);
    sop_dequant_row(SOP_Q5_0, b, 32, w);
    for (int i = 0; i < 32; i++) {
        const int q = (i < 16 ? 15 - i : i - 16) + (i == 0 || i == 15 || i == 30 ? 16 : 0);
        bad += w[i] != (float)(q - 16);
    }
    CHECK(bad == 0);
    memmove(b + 4, b + 2, 20);
    put_half(b + 2, 0.25f);
    sop_dequant_row(SOP_Q5_1, b, 32, w);
    for (int i = 0; i < 32; i++) {
        const int q = (i < 16 ? 15 - i : i - 16) + (i == 0 || i == 15 || i == 30 ? 16 : 0);
        bad += w[i] != (float)q + 0.25f;
    }
    CHECK(bad == 0);
}

/* Sub-block j has scale 1 + 8 j and min 63 - 8 j, all 6 bits in use. */
static void scales(uint8_t *sc)
{
    for (int j = 0; j < 4; j++) {
        const int s = 1 + 8 * j, t = 63 - 8 * j, s4 = 1 + 8 * (j + 4), t4 = 63 - 8 * (j + 4);
        sc[j] = (uint8_t)(s | s4 >> 4 << 6);
        sc[j + 4] = (uint8_t)(t | t4 >> 4 << 6);
        sc[j + 8] = (uint8_t)((s4 & 15) | (t4 & 15) << 4);
    }
}

static void k_quants_have_a_scale_and_a_min_for_each_32(void)
{
    uint8_t b[176] = {0};
    float w[256];
    int bad = 0;
    put_half(b, 2);
    put_half(b + 2, 0.5f);
    scales(b + 4);
    for (int i = 0; i < 128; i++) b[16 + i] = (uint8_t)((i & 15) | (i / 32 + 1) << 4);
    sop_dequant_row(SOP_Q4_K, b, 256, w);
    for (int i = 0; i < 256; i++) {
        const int j = i / 32, l = i % 32, q = j % 2 ? j / 2 + 1 : l & 15;
        bad += w[i] != 2.0f * (float)((1 + 8 * j) * q) - 0.5f * (float)(63 - 8 * j);
    }
    CHECK(bad == 0);
    memmove(b + 48, b + 16, 128);
    for (int l = 0; l < 32; l++) b[16 + l] = (uint8_t)(l % 2 ? 0xaa : 0x01);
    sop_dequant_row(SOP_Q5_K, b, 256, w);
    for (int i = 0; i < 256; i++) {
        const int j = i / 32, l = i % 32, high = l % 2 ? j % 2 : j == 0;
        const int q = (j % 2 ? j / 2 + 1 : l & 15) + 16 * high;
        bad += w[i] != 2.0f * (float)((1 + 8 * j) * q) - 0.5f * (float)(63 - 8 * j);
    }
    CHECK(bad == 0);
}

static void q6_k_has_a_signed_scale_for_each_16(void)
{
    uint8_t b[210] = {0};
    float w[256];
    int q[256], bad = 0;
    for (int i = 0; i < 256; i++) {
        q[i] = (i * 37 + i / 32) & 63;
        const int h = i / 128, c = i % 128 / 32, l = i % 32;
        b[64 * h + 32 * (c & 1) + l] |= (uint8_t)((q[i] & 15) << 4 * (c >> 1));
        b[128 + 32 * h + l] |= (uint8_t)(q[i] >> 4 << 2 * c);
    }
    for (int i = 0; i < 16; i++) b[192 + i] = (uint8_t)(17 * i - 128);
    put_half(b + 208, 0.125f);
    sop_dequant_row(SOP_Q6_K, b, 256, w);
    for (int i = 0; i < 256; i++)
        bad += w[i] != 0.125f * (float)((17 * (i / 16) - 128) * (q[i] - 32));
    CHECK(bad == 0);
}

static void blocks_of_128_have_one_scale_before_their_quants(void)
{
    uint8_t b[132];
    float w[128];
    const float d = 0.1f;
    int bad = 0;
    memcpy(b, &d, 4);
    for (int i = 0; i < 128; i++) b[4 + i] = (uint8_t)(i - 64);
    sop_dequant_row(SOP_I8_128, b, 128, w);
    for (int i = 0; i < 128; i++) bad += w[i] != d * (float)(i - 64);
    CHECK(bad == 0);
    /* 1, the least and the largest number, their negatives, a subnormal, zero */
    static const uint8_t codes[8] = {0x38, 0x01, 0x7e, 0xb8, 0x81, 0xfe, 0x05, 0x00};
    static const float numbers[8] = {1, 0x1p-9f, 448, -1, -0x1p-9f, -448, 5 * 0x1p-9f, 0};
    memset(b + 4, 0, 128);
    memcpy(b + 4, codes, 8);
    sop_dequant_row(SOP_F8_128, b, 128, w);
    for (int i = 0; i < 8; i++) CHECK(w[i] == d * numbers[i]);
    put_half(b, 0.25f);
    b[2] = 16, b[3] = 0;
    for (int i = 0; i < 4; i++) nibbles(b + 4 + 16 * i);
    b[4 + 48] = 0x79; /* elements 96 and 112 */
    sop_dequant_row(SOP_I4_128, b, 128, w);
    bad = 0;
    for (int i = 0; i < 96; i++) {
        const int q = i % 32 < 16 ? 15 - i % 32 : i % 32 - 16;
        bad += w[i] != 0.25f * (float)(q - 16);
    }
    CHECK(bad == 0);
    CHECK(w[96] == 0.25f * (9 - 16) && w[112] == 0.25f * (7 - 16));
}

static void plain_types_are_widened_at_any_alignment(void)
{
    uint8_t b[16];
    float w[2];
    put_half(b + 1, -1.5f);
    put_half(b + 3, 0x1p-24f);
    sop_dequant_row(SOP_F16, b + 1, 2, w);
    CHECK(w[0] == -1.5f && w[1] == 0x1p-24f);
    b[1] = 0x80, b[2] = 0x3f, b[3] = 0x20, b[4] = 0xc0;
    sop_dequant_row(SOP_BF16, b + 1, 2, w);
    CHECK(w[0] == 1.0f && w[1] == -2.5f);
    const float f[2] = {3.25f, -0.0f};
    memcpy(b + 1, f, 8);
    sop_dequant_row(SOP_F32, b + 1, 2, w);
    CHECK(memcmp(w, f, 8) == 0);
    CHECK(sop_dequant_takes(SOP_Q6_K) && !sop_dequant_takes(SOP_I8) && !sop_dequant_takes(-1));
}

int main(void)
{
    RUN(q8_0_is_scale_times_signed_byte);
    RUN(nibbles_of_32_lie_16_apart);
    RUN(the_fifth_bit_of_element_i_is_bit_i);
    RUN(k_quants_have_a_scale_and_a_min_for_each_32);
    RUN(q6_k_has_a_signed_scale_for_each_16);
    RUN(blocks_of_128_have_one_scale_before_their_quants);
    RUN(plain_types_are_widened_at_any_alignment);
    return test_report();
}
