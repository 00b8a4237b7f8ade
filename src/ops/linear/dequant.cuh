/* ops/linear/dequant.cuh: one element of a weight of any format, as dequant.c has it, to the bit. The
 * formats are drawn there. Blocks lie at even addresses, those
 * with scales in f32 at multiples of 4. */
#ifndef OPS_LINEAR_DEQUANT_CUH
#define OPS_LINEAR_DEQUANT_CUH

#include "ops/cuda/elements.cuh"

SOP_DEV float sop_half_at(const uint8_t *p)
{
    return __half2float(*(const __half *)p);
}

/* Bytes of a block, elements of a block. */
SOP_DEV int sop_block_bytes(int32_t dtype)
{
    switch (dtype) {
#define X(name, value, text, elems, bytes) \
    case value: return bytes;
        SOP_DTYPE_MAP(X)
#undef X
    default: return 0;
    }
}

/* The 6-bit scale and minimum j of q4_k and q5_k. */
SOP_DEV void sop_scales6(const uint8_t *sc, int j, int *s, int *t)
{
    if (j < 4) {
        *s = sc[j] & 63;
        *t = sc[j + 4] & 63;
    } else {
        *s = (sc[j + 4] & 15) | sc[j - 4] >> 6 << 4;
        *t = sc[j + 4] >> 4 | sc[j] >> 6 << 4;
    }
}

/* e4m3 is a float whose exponent is 120 too small. */
SOP_DEV float sop_e4m3(uint8_t q)
{
    return __uint_as_float((uint32_t)(q & 0x80) << 24 | (uint32_t)(q & 0x7f) << 20) * 0x1p120f;
}

/* Element i of a row. Where there is a minimum, the products are exact in 24 bits: the sum alone
 * rounds. */
SOP_DEV float sop_weight_at(int32_t dtype, const uint8_t *row, int64_t i)
{
    const int e = (int)(i % 32);
    switch (dtype) {
    case SOP_F16:
    case SOP_BF16:
    case SOP_F32: return sop_load_any(row, dtype, i);
    case SOP_Q8_0: {
        const uint8_t *b = row + i / 32 * 34;
        return sop_half_at(b) * (float)(int8_t)b[2 + e];
    }
    case SOP_Q4_0: {
        const uint8_t *b = row + i / 32 * 18;
        return sop_half_at(b) * (float)((b[2 + e % 16] >> e / 16 * 4 & 15) - 8);
    }
    case SOP_Q4_1: {
        const uint8_t *b = row + i / 32 * 20;
        return sop_half_at(b) * (float)(b[4 + e % 16] >> e / 16 * 4 & 15) + sop_half_at(b + 2);
    }
    case SOP_Q5_0: {
        const uint8_t *b = row + i / 32 * 22;
        const int q = (b[6 + e % 16] >> e / 16 * 4 & 15) | (b[2 + e / 8] >> e % 8 & 1) << 4;
        return sop_half_at(b) * (float)(q - 16);
    }
    case SOP_Q5_1: {
        const uint8_t *b = row + i / 32 * 24;
        const int q = (b[8 + e % 16] >> e / 16 * 4 & 15) | (b[4 + e / 8] >> e % 8 & 1) << 4;
        return sop_half_at(b) * (float)q + sop_half_at(b + 2);
    }
    case SOP_Q4_K:
    case SOP_Q5_K: {
        const int five = dtype == SOP_Q5_K, c = (int)(i % 256) / 32; /* group of 32 */
        const uint8_t *b = row + i / 256 * (five ? 176 : 144), *qs = b + (five ? 48 : 16);
        int s, t, q = qs[c / 2 * 32 + e] >> c % 2 * 4 & 15;
        sop_scales6(b + 4, c, &s, &t);
        if (five) q |= (b[16 + e] >> c & 1) << 4;
        const float ds = sop_half_at(b) * (float)s, mt = -sop_half_at(b + 2) * (float)t;
        return ds * (float)q + mt;
    }
    case SOP_I8_128: {
        const uint8_t *b = row + i / 128 * 132;
        return *(const float *)b * (float)(int8_t)b[4 + i % 128];
    }
    case SOP_F8_128: {
        const uint8_t *b = row + i / 128 * 132;
        return *(const float *)b * sop_e4m3(b[4 + i % 128]);
    }
    case SOP_I4_128: {
        const uint8_t *b = row + i / 128 * 68;
        const int q = b[4 + i % 128 / 32 * 16 + e % 16] >> e / 16 * 4 & 15;
        return sop_half_at(b) * (float)(q - b[2]);
    }
    default: { /* q6_k */
        const uint8_t *b = row + i / 256 * 210;
        const int in = (int)(i % 256), h = in / 128, c = in % 128 / 32;
        const int low = b[64 * h + 32 * (c & 1) + e] >> 4 * (c >> 1) & 15;
        const int high = b[128 + 32 * h + e] >> 2 * c & 3;
        const float ds = sop_half_at(b + 208) * (float)(int8_t)b[192 + in / 16];
        return ds * (float)((low | high << 4) - 32);
    }
    }
}

#endif
