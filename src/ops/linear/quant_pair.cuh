/* 16-bit floats of two numbers of 8 or 4 bits that lie in the bytes of a word: what the rows for few tokens
 * make of weights, exactly, on their way into products. */
#ifndef OPS_LINEAR_QUANT_PAIR_CUH
#define OPS_LINEAR_QUANT_PAIR_CUH

#include "ops/cuda/elements.cuh"

/* (x & mask) | bits, in one instruction: the compiler makes two of it. */
SOP_DEV uint32_t quant_and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}

/* Pairs of T in a word. a b + c is exact wherever it stands. i8 takes the low bytes of the two halves of a
 * word, f8 the high ones; what the others hold does not matter. */
template <typename T> struct quant_pair;
template <> struct quant_pair<__nv_bfloat16> {
    enum : uint32_t { ONES = 0x3f803f80, SIGNS = 0x80008000, MAGIC = 0x43004300 }; /* 128 + q */
    SOP_DEV uint32_t fma(uint32_t a, uint32_t b, uint32_t c)
    {
        uint32_t r;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
        return r;
    }
    /* The bit of -128 moves to the other side: 128 + low 7 bits - (128 or 256). */
    SOP_DEV uint32_t i8(uint32_t t)
    {
        return fma(quant_and_or(t, 0x007f007f, MAGIC), ONES,
                   quant_and_or(t, 0x00800080, MAGIC | SIGNS));
    }
    /* e4m3's exponent, 120 too small for bf16, behind three bits of it that are 0. */
    SOP_DEV uint32_t f8(uint32_t t)
    {
        return fma(quant_and_or(t, SIGNS, (t & 0x7f007f00) >> 4), 0x7b807b80, SIGNS);
    }
};
template <> struct quant_pair<__half> {
    enum : uint32_t { ONES = 0x3c003c00, SIGNS = 0x80008000, MAGIC = 0x64006400 }; /* 1024 + q */
    SOP_DEV uint32_t fma(uint32_t a, uint32_t b, uint32_t c)
    {
        uint32_t r;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
        return r;
    }
    /* 1024 + (q + 128) - 1152 */
    SOP_DEV uint32_t i8(uint32_t t)
    {
        return fma((t & 0x00ff00ff) ^ 0x64806480, ONES, 0x64806480 | SIGNS);
    }
    /* e4m3's exponent, 8 too small for f16. */
    SOP_DEV uint32_t f8(uint32_t t)
    {
        return fma(quant_and_or(t, SIGNS, (t & 0x7f007f00) >> 1), 0x5c005c00, SIGNS);
    }
};
/* Four bits, and zero = -(MAGIC's number + zero point). */
template <typename T> SOP_DEV uint32_t quant_u4(uint32_t t, uint32_t zero)
{
    typedef quant_pair<T> P;
    return P::fma(quant_and_or(t, 0x000f000f, P::MAGIC), P::ONES, zero);
}

#endif
