/* Ceilings of AVX-512 with VNNI; see ceilings_avx2.c. */
#include <immintrin.h>

#include "harness/ceilings.h"

static void read_bytes(const void *p, size_t bytes)
{
    const char *v = p;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 256) {
        a = _mm512_add_epi64(a, _mm512_load_si512(v + i));
        b = _mm512_add_epi64(b, _mm512_load_si512(v + i + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(v + i + 128));
        d = _mm512_add_epi64(d, _mm512_load_si512(v + i + 192));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    __asm__ volatile("" : : "v"(a));
}

static void f32(int64_t steps)
{
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    __m512 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
#define FMA(acc) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y));
    while (steps-- > 0) {
        FMA(a) FMA(b) FMA(c) FMA(d) FMA(e) FMA(f) FMA(g) FMA(h) FMA(i) FMA(j) FMA(k) FMA(l)
    }
}

static void i8(int64_t steps)
{
    const __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-2);
    __m512i a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
#define DOT(acc) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y));
    while (steps-- > 0) {
        DOT(a) DOT(b) DOT(c) DOT(d) DOT(e) DOT(f) DOT(g) DOT(h) DOT(i) DOT(j) DOT(k) DOT(l)
    }
}

const sop_ceiling_loops sop_ceiling_loops_avx512 = {read_bytes, f32, i8, 12 * 16 * 2, 12 * 64 * 2};
