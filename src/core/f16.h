/* core/f16.h: half, bfloat16 and e4m3 in plain C, exact in both directions (round to nearest even). Known
 * answers are in core/f16_test.c: gcc 12 miscompiles a common bf16 pattern, so they are tested with
 * the project's own flags. */
#ifndef CORE_F16_H
#define CORE_F16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float sop_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    uint32_t bits;
    if (e == 31) {
        bits = sign | 0x7f800000u | m << 13;
    } else if (e) {
        bits = sign | (e + 112) << 23 | m << 13;
    } else { /* zero or subnormal: m * 2^-24 */
        const float f = (float)m * 0x1p-24f;
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t sop_f32_to_f16(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    const uint32_t sign = x >> 16 & 0x8000;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x3ff));
    if (x >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and up: infinity */
    if (x < 0x38800000u) {                                  /* below 2^-14: subnormal */
        if (x < 0x33000000u) return (uint16_t)sign;         /* below 2^-25 */
        const uint32_t e = x >> 23, m = (x & 0x7fffffu) | 0x800000u, shift = 126 - e;
        const uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1u);
        uint32_t r = m >> shift;
        if (rest > half || (rest == half && (r & 1u))) r++;
        return (uint16_t)(sign | r);
    }
    const uint32_t r = x - 0x38000000u; /* rebias by 112 */
    return (uint16_t)(sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13);
}

static inline float sop_bf16_to_f32(uint16_t b)
{
    const uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t sop_f32_to_bf16(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}

/* e4m3 without infinities: sign | exponent 4, bias 7 | mantissa 3; 0x7f is NaN. It is a float whose
 * exponent is 120 too small, subnormals and all. */
static inline float sop_f8_to_f32(uint8_t b)
{
    const uint32_t bits = (uint32_t)(b & 0x7f) << 20;
    float f;
    memcpy(&f, &bits, 4);
    if ((b & 0x7f) == 0x7f) return NAN;
    return b & 0x80 ? -(f * 0x1p120f) : f * 0x1p120f;
}

/* What is beyond 448 becomes that. */
static inline uint8_t sop_f32_to_f8(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    const uint32_t sign = x >> 24 & 0x80;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (x >= 0x43e00000u) return (uint8_t)(sign | 0x7e);                               /* 448 */
    if (x < 0x3c800000u) return (uint8_t)(sign | (uint32_t)lrintf(fabsf(f) * 0x1p9f)); /* 2^-6 */
    return (uint8_t)(sign | (((x + 0x7ffffu + (x >> 20 & 1u)) >> 20) - 960)); /* rebias by 120 */
}

#endif
