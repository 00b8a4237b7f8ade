/* Ceilings of AVX2: 12 FMA chains cover 2 ports at a latency of 4 to 5; bytes go through vpmaddubsw,
 * vpmaddwd and vpaddd, as in kernels without VNNI. The instructions are written out: compilers put
 * register copies between them, and hoist a product that does not change. */
#include <immintrin.h>

#include "harness/ceilings.h"

static void read_bytes(const void *p, size_t bytes)
{
    const __m256i *v = p;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes / 32; i += 8) {
        a = _mm256_add_epi64(a, _mm256_load_si256(v + i));
        b = _mm256_add_epi64(b, _mm256_load_si256(v + i + 1));
        c = _mm256_add_epi64(c, _mm256_load_si256(v + i + 2));
        d = _mm256_add_epi64(d, _mm256_load_si256(v + i + 3));
        a = _mm256_add_epi64(a, _mm256_load_si256(v + i + 4));
        b = _mm256_add_epi64(b, _mm256_load_si256(v + i + 5));
        c = _mm256_add_epi64(c, _mm256_load_si256(v + i + 6));
        d = _mm256_add_epi64(d, _mm256_load_si256(v + i + 7));
    }
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    __asm__ volatile("" : : "x"(a));
}

static void f32(int64_t steps)
{
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    __m256 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
#define FMA(acc) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(acc) : "x"(x), "x"(y));
    while (steps-- > 0) {
        FMA(a) FMA(b) FMA(c) FMA(d) FMA(e) FMA(f) FMA(g) FMA(h) FMA(i) FMA(j) FMA(k) FMA(l)
    }
}

static void i8(int64_t steps)
{
    const __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-2), one = _mm256_set1_epi16(1);
    __m256i a = x, b = x, c = x, d = x, e = x, f = x, t;
#define DOT(acc) \
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" \
                     : "+x"(acc), "=&x"(t) \
                     : "x"(x), "x"(y), "x"(one));
    while (steps-- > 0) {
        DOT(a) DOT(b) DOT(c) DOT(d) DOT(e) DOT(f)
    }
}

const sop_ceiling_loops sop_ceiling_loops_avx2 = {read_bytes, f32, i8, 12 * 8 * 2, 6 * 32 * 2};
