#include "ops/linear/pack.h"

#include <string.h>

#include "ops/linear/dequant.h"

enum { R = SOP_PANEL_ROWS };

int64_t sop_panel_block(int32_t dtype)
{
    const int64_t block = sop_dtype_block(dtype);
    return block > 1 ? block : 32;
}

size_t sop_panel_block_bytes(int32_t dtype)
{
    switch (dtype) {
    case SOP_F32: return 2048;
    case SOP_F16:
    case SOP_BF16: return 1024;
    case SOP_Q8_0: return 544;
    case SOP_Q4_0: return 288;
    case SOP_Q4_1: return 320;
    case SOP_Q5_0: return 352;
    case SOP_Q5_1: return 384;
    case SOP_Q4_K: return 2368;
    case SOP_Q5_K: return 2880;
    case SOP_Q6_K: return 3360;
    default: return 0;
    }
}

size_t sop_panel_bytes(int32_t dtype, int64_t k)
{
    const int64_t block = sop_panel_block(dtype);
    return (size_t)((k + block - 1) / block) * sop_panel_block_bytes(dtype);
}

size_t sop_linear_packed_bytes(const void *desc, int32_t role, uint32_t layout)
{
    const sop_linear_desc *d = desc;
    const int32_t j = role - SOP_LINEAR_W0;
    if (j < 0 || j > 2 || layout != SOP_LAYOUT_PANEL16) return 0;
    return (size_t)((d->n[j] + R - 1) / R) * sop_panel_bytes(d->w_dtype[j], d->k);
}

/* ---- one row's block into row r of its panel ---- */

static uint32_t get(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Word r of 64 bytes: one quad of one row. */
static void put(uint8_t *o, int r, uint32_t v)
{
    memcpy(o + 4 * r, &v, 4);
}

static void put_half(uint8_t *o, int r, const uint8_t *half)
{
    memcpy(o + 2 * r, half, 2);
}

/* Bit 4t + j of high is bit 4 of element 4t + j: to bit t of byte j. */
static void put_fifth(uint8_t *o, int r, uint32_t high)
{
    uint32_t v = 0;
    for (int t = 0; t < 8; t++) {
        const uint32_t four = high >> 4 * t & 15;
        v |= ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << t;
    }
    put(o, r, v);
}

/* 16 bytes whose low 4 bits are elements 0..15 and whose high ones are 16..31: as they lie. */
static void put_nibbles(uint8_t *o, int r, const uint8_t *qs)
{
    for (int t = 0; t < 4; t++) put(o + 64 * t, r, get(qs + 4 * t));
}

static void put_k(const uint8_t *b, int five, int r, uint8_t *o)
{
    const size_t group = five ? 320 : 256;
    const uint8_t *qh = b + 16, *qs = five ? b + 48 : b + 16;
    put_half(o, r, b);
    put_half(o + 32, r, b + 2);
    for (int j = 0; j < 4; j++) {
        const uint8_t *sc = b + 4 + j;
        o[64 + 16 * j + r] = sc[0] & 63;
        o[192 + 16 * j + r] = sc[4] & 63;
        o[64 + 16 * (j + 4) + r] = (uint8_t)((sc[8] & 15) | sc[0] >> 6 << 4);
        o[192 + 16 * (j + 4) + r] = (uint8_t)(sc[8] >> 4 | sc[4] >> 6 << 4);
    }
    for (int j = 0; j < 8; j++) {
        uint8_t *at = o + 320 + group * (size_t)j;
        const uint8_t *from = qs + 32 * (j / 2);
        if (five) {
            uint32_t v = 0;
            for (int t = 0; t < 8; t++) v |= (get(qh + 4 * t) >> j & 0x01010101u) << t;
            put(at, r, v);
            at += 64;
        }
        for (int t = 0; t < 4; t++) {
            const uint32_t a = get(from + 4 * t), c = get(from + 16 + 4 * t);
            put(at + 64 * t, r,
                j % 2 ? (a >> 4 & 0x0f0f0f0fu) | (c & 0xf0f0f0f0u)
                      : (a & 0x0f0f0f0fu) | (c & 0x0f0f0f0fu) << 4);
        }
    }
}

static void put_q6_k(const uint8_t *b, int r, uint8_t *o)
{
    put_half(o, r, b + 208);
    for (int g = 0; g < 16; g++) {
        const int h = g / 8, c = g % 8 / 2, l = 16 * (g % 2), shift = 4 * (c >> 1);
        const uint8_t *low = b + 64 * h + 32 * (c & 1) + l, *high = b + 128 + 32 * h + l;
        uint8_t *at = o + 288 + 192 * g;
        uint32_t q[4], v = 0;
        o[32 + 16 * g + r] = b[192 + g];
        for (int t = 0; t < 4; t++) {
            q[t] = get(low + 4 * t) >> shift & 0x0f0f0f0fu;
            v |= (get(high + 4 * t) >> 2 * c & 0x03030303u) << 2 * t;
        }
        put(at, r, q[0] | q[1] << 4);
        put(at + 64, r, q[2] | q[3] << 4);
        put(at + 128, r, v);
    }
}

static void put_block(int32_t dtype, const uint8_t *b, int r, uint8_t *o)
{
    if (dtype == SOP_Q6_K) {
        put_q6_k(b, r, o);
        return;
    }
    put_half(o, r, b);
    switch (dtype) {
    case SOP_Q8_0:
        for (int t = 0; t < 8; t++) put(o + 32 + 64 * t, r, get(b + 2 + 4 * t));
        break;
    case SOP_Q4_0: put_nibbles(o + 32, r, b + 2); break;
    case SOP_Q4_1:
        put_half(o + 32, r, b + 2);
        put_nibbles(o + 64, r, b + 4);
        break;
    case SOP_Q5_0:
        put_fifth(o + 32, r, get(b + 2));
        put_nibbles(o + 96, r, b + 6);
        break;
    case SOP_Q5_1:
        put_half(o + 32, r, b + 2);
        put_fifth(o + 64, r, get(b + 4));
        put_nibbles(o + 128, r, b + 8);
        break;
    default: put_k(b, dtype == SOP_Q5_K, r, o); break;
    }
}

/* A row of a plain type; the panel is zero where k ends. */
static void put_row(int32_t dtype, const uint8_t *row, int64_t k, int r, uint8_t *o)
{
    const size_t bytes = sop_dtype_bytes(dtype);
    for (int64_t i = 0; i < k; i++) {
        const int64_t at =
            dtype == SOP_BF16 ? 64 * (i / 4) + 32 * (i % 2) + 2 * r + i % 4 / 2 : R * i + r;
        memcpy(o + (size_t)at * bytes, row + (size_t)i * bytes, bytes);
    }
}

void sop_linear_pack(const void *desc, int32_t role, uint32_t layout, const void *plain, void *out,
                     int64_t begin, int64_t end)
{
    const sop_linear_desc *d = desc;
    const int32_t j = role - SOP_LINEAR_W0, dtype = d->w_dtype[j];
    const int64_t block = sop_dtype_block(dtype);
    const size_t bytes = sop_dtype_bytes(dtype), panel = sop_panel_bytes(dtype, d->k);
    (void)layout;
    for (int64_t row = begin; row < end; row++) {
        const uint8_t *from = (const uint8_t *)plain + (size_t)(row * d->w_stride[j]) * bytes;
        uint8_t *to = (uint8_t *)out + (size_t)(row / R) * panel;
        if (row % R == 0 && (block == 1 || end - row < R)) memset(to, 0, panel);
        if (block == 1) {
            put_row(dtype, from, d->k, (int)(row % R), to);
            continue;
        }
        for (int64_t b = 0; b < d->k / block; b++)
            put_block(dtype, from + (size_t)b * bytes, (int)(row % R),
                      to + (size_t)b * sop_panel_block_bytes(dtype));
    }
}
