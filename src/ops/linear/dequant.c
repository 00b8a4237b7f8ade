/* The block formats: GGUF's, then three for weights of 8 and 4 bits with scales of other files, which
 * repack.h makes. d and m are f16, D is f32, little-endian; w is the weight.
 *
 *   q8_0  34 B  d | i8 q[32]                      w = d q
 *   q4_0  18    d | qs[16]                        w = d (q - 8)
 *   q4_1  20    d, m | qs[16]                     w = d q + m
 *   q5_0  22    d | u32 qh | qs[16]               w = d (q - 16)
 *   q5_1  24    d, m | u32 qh | qs[16]            w = d q + m
 *         byte j of qs: the low 4 bits of elements j and j + 16; bit i of qh: bit 4 of element i
 *   q4_k 144    d, m | sc[12] | qs[128]           w = d s q - m t; s, t: 6 bits for each 32
 *   q5_k 176    d, m | sc[12] | qh[32] | qs[128]  the same with 5 bits
 *         byte 32 i + l of qs: the low 4 bits of elements 64 i + l and 64 i + 32 + l; bits 2i and
 *         2i + 1 of qh[l]: their bit 4
 *   q6_k 210    ql[128] | qh[64] | i8 s[16] | d   w = d s (q - 32), s for each 16
 *         of half h: ql[64 h + 32 a + l] has the low 4 bits of elements 128 h + 32 a + l and, 64
 *         later, its partner; bits 2c, 2c + 1 of qh[32 h + l]: bits 4, 5 of 128 h + 32 c + l
 *
 *   i8_128 132  D | i8 q[128]                     w = D q
 *   f8_128 132  D | e4m3 q[128]                   w = D q
 *         a scale for a row is that of all its blocks, one for 128 rows and columns that of a block in
 *         each row. e4m3 is sign | exponent 4, bias 7 | mantissa 3, without infinities; its two codes
 *         for NaN count as 480 and -480 here, and repack.h refuses them
 *   i4_128  68  d | u8 z | u8 0 | 4 of qs[16]     w = d (q - z), z from 0 to 16
 *         qs number i: elements 32 i to 32 i + 31, as in q4_0 */
#include "ops/linear/dequant.h"

#include <math.h>
#include <string.h>

#include "core/f16.h"
#include "sop/types.h"

int sop_dequant_takes(int32_t dtype)
{
    switch (dtype) {
    case SOP_F32:
    case SOP_F16:
    case SOP_BF16:
    case SOP_Q8_0:
    case SOP_Q4_0:
    case SOP_Q4_1:
    case SOP_Q5_0:
    case SOP_Q5_1:
    case SOP_Q4_K:
    case SOP_Q5_K:
    case SOP_Q6_K:
    case SOP_I8_128:
    case SOP_F8_128:
    case SOP_I4_128: return 1;
    default: return 0;
    }
}

static uint16_t word16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float half(const uint8_t *p)
{
    return sop_f16_to_f32(word16(p));
}

/* 32 elements from 16 bytes of low bits, and bit 4 of element i from bit i of high. */
static void quants32(const uint8_t *qs, uint32_t high, float *q)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (float)((qs[j] & 15) | (high >> j & 1) << 4);
        q[j + 16] = (float)(qs[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

static uint32_t word32(const uint8_t *p)
{
    return word16(p) | (uint32_t)word16(p + 2) << 16;
}

/* The 6-bit scales and mins of q4_k and q5_k. */
static void scales6(const uint8_t *sc, sop_block *o)
{
    for (int j = 0; j < 4; j++) {
        o->s[j] = sc[j] & 63;
        o->t[j] = sc[j + 4] & 63;
        o->s[j + 4] = (int16_t)((sc[j + 8] & 15) | sc[j] >> 6 << 4);
        o->t[j + 4] = (int16_t)(sc[j + 8] >> 4 | sc[j + 4] >> 6 << 4);
    }
}

static void read_k(const uint8_t *b, int five, sop_block *o)
{
    const uint8_t *qh = b + 16, *qs = five ? b + 48 : b + 16;
    o->n = 256;
    o->m = -half(b + 2);
    scales6(b + 4, o);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            const int high = five ? qh[l] >> 2 * i : 0;
            o->q[64 * i + l] = (float)((qs[32 * i + l] & 15) | (high & 1) << 4);
            o->q[64 * i + 32 + l] = (float)(qs[32 * i + l] >> 4 | (high & 2) << 3);
        }
}

static void read_q6_k(const uint8_t *b, sop_block *o)
{
    o->n = 256;
    o->group = 16;
    o->zero = 32;
    o->d = half(b + 208);
    for (int i = 0; i < 16; i++) o->s[i] = (int8_t)b[192 + i];
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++)
            for (int c = 0; c < 4; c++) {
                const int low = b[64 * h + 32 * (c & 1) + l] >> 4 * (c >> 1) & 15;
                const int high = b[128 + 32 * h + l] >> 2 * c & 3;
                o->q[128 * h + 32 * c + l] = (float)(low | high << 4);
            }
}

static float single(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* e4m3 is a float whose exponent is 120 too small: subnormals are subnormals. */
static float e4m3(uint8_t q)
{
    return single((uint32_t)(q & 0x80) << 24 | (uint32_t)(q & 0x7f) << 20) * 0x1p120f;
}

static void read_8(const uint8_t *b, int f8, sop_block *o)
{
    o->n = o->group = 128;
    o->d = single(word32(b));
    for (int i = 0; i < 128; i++) o->q[i] = f8 ? e4m3(b[4 + i]) : (float)(int8_t)b[4 + i];
}

void sop_block_read(int32_t dtype, const void *block, sop_block *o)
{
    const uint8_t *b = block;
    o->d = half(b);
    o->m = 0;
    o->n = o->group = 32;
    o->zero = 0;
    for (int i = 0; i < 16; i++) o->s[i] = o->t[i] = 1;
    switch (dtype) {
    case SOP_Q8_0:
        for (int i = 0; i < 32; i++) o->q[i] = (float)(int8_t)b[2 + i];
        break;
    case SOP_Q4_0:
        o->zero = 8;
        quants32(b + 2, 0, o->q);
        break;
    case SOP_Q4_1:
        o->m = half(b + 2);
        quants32(b + 4, 0, o->q);
        break;
    case SOP_Q5_0:
        o->zero = 16;
        quants32(b + 6, word32(b + 2), o->q);
        break;
    case SOP_Q5_1:
        o->m = half(b + 2);
        quants32(b + 8, word32(b + 4), o->q);
        break;
    case SOP_Q4_K: read_k(b, 0, o); break;
    case SOP_Q5_K: read_k(b, 1, o); break;
    case SOP_I8_128:
    case SOP_F8_128: read_8(b, dtype == SOP_F8_128, o); break;
    case SOP_I4_128:
        o->n = o->group = 128;
        o->zero = b[2];
        for (int i = 0; i < 4; i++) quants32(b + 4 + 16 * i, 0, o->q + 32 * i);
        break;
    default: read_q6_k(b, o); break;
    }
}

void sop_dequant_row(int32_t dtype, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    const int64_t block = sop_dtype_block(dtype);
    switch (dtype) {
    case SOP_F32: memcpy(out, b, (size_t)n * 4); return;
    case SOP_F16:
        for (int64_t i = 0; i < n; i++) out[i] = half(b + 2 * i);
        return;
    case SOP_BF16:
        for (int64_t i = 0; i < n; i++) out[i] = sop_bf16_to_f32(word16(b + 2 * i));
        return;
    default: break;
    }
    for (int64_t at = 0; at < n; at += block, b += sop_dtype_bytes(dtype)) {
        sop_block o;
        sop_block_read(dtype, b, &o);
        for (int32_t g = 0; g < o.n / o.group; g++) {
            /* Where there is an m, both products and the one by q are exact in 24 bits: the sum alone
             * rounds. */
            const float ds = o.d * (float)o.s[g], mt = o.m * (float)o.t[g];
            for (int32_t i = g * o.group; i < (g + 1) * o.group; i++)
                out[at + i] = ds * (o.q[i] - (float)o.zero) + mt;
        }
    }
}
