/* Quantised weights against quantised activations. Up to 8 tokens: a panel is decoded in registers as
 * it streams by, for 1 to 4 tokens at once. More: 512 k of a panel are unpacked into L1, then all
 * tokens run past it. Both do the same float operations in the same order for each block of 32 k,
 *
 *     4, 5 bits:  f = f + m s8;  f = f + (S d8) d     S = sum of q8 times unsigned quants
 *     6, 8 bits:  f = f + (S d16) d                   S = sum of q16 times quants (times scale)
 *
 * so a token's bits do not depend on how many there are.
 *
 * int16 sums of maddubs never saturate: |q8| <= 127 and two k a lane make 15 * 127 * 2 = 3810 with 4
 * bits, 8 of them 30480 (a block); 31 * 127 * 2 = 7874 with 5 bits, 4 of them 31496; 63 * 127 * 2 =
 * 16002 with 6 bits, 2 of them 32004. 8 bits would not fit: they take q16 and multiply as int16, no
 * slower and 128 times finer. 32 * 4096 * 16319 (6 bits times a scale of 8) is still below 2^31. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/linear/acts.h"
#include "ops/linear/linear.h"
#include "ops/simd/avx2.h"

enum {
    KC = 512,     /* k unpacked at once: 8 or 16 KiB of quants, within 32 KiB of L1 */
    WIDEST = 4,   /* tokens in one tile */
    DIRECT = 8,   /* up to so many tokens are not worth unpacking */
    AHEAD = 2048, /* bytes of prefetch in the stream of weights */
    R = SOP_PANEL_ROWS
};

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
/* gcc takes integer adds for associative: without this it forms all products first, spills them, and
 * reads w again for every token. */
#define KEEP(v) __asm__("" : "+x"(v))

typedef __m256i v8;

INLINE v8 ld(const void *p)
{
    return _mm256_loadu_si256((const v8 *)p);
}

INLINE void st(void *p, v8 v)
{
    _mm256_storeu_si256((v8 *)p, v);
}

INLINE v8 low4(v8 v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

INLINE v8 high4(v8 v)
{
    return low4(_mm256_srli_epi16(v, 4));
}

/* Bit t of every byte, moved to bit 4. */
INLINE v8 bit4(v8 h, int t)
{
    const v8 s = t < 4 ? _mm256_slli_epi16(h, 4 - t) : _mm256_srli_epi16(h, t - 4);
    return _mm256_and_si256(s, _mm256_set1_epi8(16));
}

INLINE v8 all4(const void *p)
{
    int32_t t;
    memcpy(&t, p, 4);
    return _mm256_set1_epi32(t);
}

INLINE v8 all8(const void *p)
{
    int64_t t;
    memcpy(&t, p, 8);
    return _mm256_set1_epi64x(t);
}

INLINE v8 mac8(v8 sum, v8 u, v8 s)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, s));
}

INLINE v8 mac16(v8 sum, v8 a, v8 b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

INLINE v8 wide8(const void *p) /* 16 signed bytes to int16 */
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 half8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 bytes8(const void *p) /* 8 unsigned bytes to float */
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* The same scale in both int16 of a lane, for 8 rows. */
INLINE v8 scale_pairs(const void *p)
{
    const v8 s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_or_si256(_mm256_slli_epi32(s, 16), _mm256_and_si256(s, _mm256_set1_epi32(65535)));
}

/* The four quads of a group of q6_k for 8 rows. */
INLINE void quads6(const uint8_t *p, v8 q[4])
{
    const v8 a = ld(p), b = ld(p + 64), h = ld(p + 128), m = _mm256_set1_epi8(0x30);
    q[0] = _mm256_or_si256(low4(a), _mm256_and_si256(_mm256_slli_epi16(h, 4), m));
    q[1] = _mm256_or_si256(high4(a), _mm256_and_si256(_mm256_slli_epi16(h, 2), m));
    q[2] = _mm256_or_si256(low4(b), _mm256_and_si256(h, m));
    q[3] = _mm256_or_si256(high4(b), _mm256_and_si256(_mm256_srli_epi16(h, 2), m));
}

INLINE void prefetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T0);
}

/* ---- where the parts of a block stand ---- */

INLINE int is16(int32_t dtype) /* takes q16 */
{
    return dtype == SOP_Q8_0 || dtype == SOP_Q6_K;
}

INLINE int has5(int32_t dtype)
{
    return dtype == SOP_Q5_0 || dtype == SOP_Q5_1 || dtype == SOP_Q5_K;
}

INLINE int is_k(int32_t dtype)
{
    return dtype == SOP_Q4_K || dtype == SOP_Q5_K;
}

/* Bytes of 32 k without what stands once in a block. */
INLINE size_t group_bytes(int32_t dtype)
{
    return has5(dtype) ? 320 : 256;
}

INLINE size_t head_bytes(int32_t dtype)
{
    if (is_k(dtype)) return 320;
    return dtype == SOP_Q4_1 || dtype == SOP_Q5_1 ? 64 : 32;
}

/* d and m of 32 k of 8 rows: group g of the block w, rows 8 h to 8 h + 7. */
INLINE void scales(int32_t dtype, const uint8_t *w, int64_t g, int h, __m256 *d, __m256 *m)
{
    *d = half8(w + 16 * h);
    switch (dtype) {
    case SOP_Q4_0: *m = _mm256_mul_ps(*d, _mm256_set1_ps(-8)); break;
    case SOP_Q5_0: *m = _mm256_mul_ps(*d, _mm256_set1_ps(-16)); break;
    case SOP_Q4_1:
    case SOP_Q5_1: *m = half8(w + 32 + 16 * h); break;
    default:
        *m = _mm256_xor_ps(_mm256_mul_ps(half8(w + 32 + 16 * h), bytes8(w + 192 + 16 * g + 8 * h)),
                           _mm256_set1_ps(-0.0f));
        *d = _mm256_mul_ps(*d, bytes8(w + 64 + 16 * g + 8 * h));
    }
}

/* The end of 32 k: f + m s8, then + (S d8) d. */
INLINE __m256 end8(__m256 f, v8 sum, __m256 d, __m256 m, float d8, float s8)
{
    f = _mm256_fmadd_ps(m, _mm256_set1_ps(s8), f);
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(d8)), d, f);
}

INLINE __m256 end16(__m256 f, v8 sum, __m256 d, float d16)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(d16)), d, f);
}

/* ---- up to 4 tokens, straight from the packed bytes; f [w][2] are the sums ---- */

INLINE void direct8(int32_t dtype, const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                    __m256 f[WIDEST][2])
{
    const int groups = is_k(dtype) ? 8 : 1;
    const size_t step = (size_t)groups * group_bytes(dtype) + head_bytes(dtype);
    const int8_t *x = a->q8 + t * a->k;
    const float *d8 = a->d8 + t * (a->k / 32), *s8 = a->s8 + t * (a->k / 32);
    const v8 one = _mm256_set1_epi16(1);
    for (int64_t b = 0; b < a->k / 32 / groups; b++, w += step) {
        const uint8_t *q = w + head_bytes(dtype);
        for (int g = 0; g < groups; g++, q += group_bytes(dtype), x += 32 * n, d8 += n, s8 += n) {
            prefetch(g ? q : w, g ? group_bytes(dtype) : (size_t)(q - w) + group_bytes(dtype));
            UNROLL for (int h = 0; h < 2; h++)
            {
                const uint8_t *qs = q + (has5(dtype) ? 64 : 0) + 32 * h;
                const v8 five = has5(dtype) ? ld(q + 32 * h) : one;
                v8 s[WIDEST], u[WIDEST];
                UNROLL for (int r = 0; r < n; r++) s[r] = u[r] = _mm256_setzero_si256();
                UNROLL for (int i = 0; i < 4; i++)
                {
                    const v8 both = ld(qs + 64 * i);
                    v8 lo = low4(both), hi = high4(both);
                    if (has5(dtype)) {
                        lo = _mm256_or_si256(lo, bit4(five, i));
                        hi = _mm256_or_si256(hi, bit4(five, i + 4));
                    }
                    UNROLL for (int r = 0; r < n; r++)
                    {
                        s[r] = mac8(s[r], lo, all4(x + (i * n + r) * 4));
                        KEEP(s[r]);
                        u[r] = mac8(u[r], hi, all4(x + ((i + 4) * n + r) * 4));
                        KEEP(u[r]);
                    }
                }
                __m256 d, m;
                scales(dtype, w, g, h, &d, &m);
                UNROLL for (int r = 0; r < n; r++)
                {
                    const v8 sum = has5(dtype)
                                       ? mac16(_mm256_madd_epi16(s[r], one), u[r], one)
                                       : _mm256_madd_epi16(_mm256_add_epi16(s[r], u[r]), one);
                    f[r][h] = end8(f[r][h], sum, d, m, d8[r], s8[r]);
                }
            }
        }
    }
}

INLINE void direct_q8_0(const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                        __m256 f[WIDEST][2])
{
    const int16_t *x = a->q16 + t * a->k;
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 32; b++, w += 544, x += 32 * n, d16 += n) {
        prefetch(w, 544);
        UNROLL for (int h = 0; h < 2; h++)
        {
            v8 s[WIDEST][2]; /* [4 rows][2] */
            UNROLL for (int r = 0; r < n; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
            UNROLL for (int i = 0; i < 8; i++)
            {
                const v8 w0 = wide8(w + 32 + 64 * i + 32 * h);
                const v8 w1 = wide8(w + 48 + 64 * i + 32 * h);
                UNROLL for (int r = 0; r < n; r++)
                {
                    const v8 v = all8(x + (i * n + r) * 4);
                    s[r][0] = mac16(s[r][0], w0, v);
                    KEEP(s[r][0]);
                    s[r][1] = mac16(s[r][1], w1, v);
                    KEEP(s[r][1]);
                }
            }
            const __m256 d = half8(w + 16 * h);
            UNROLL for (int r = 0; r < n; r++)
            {
                const v8 sum = _mm256_hadd_epi32(s[r][0], s[r][1]); /* rows 0 1 4 5 | 2 3 6 7 */
                f[r][h] = end16(f[r][h], _mm256_permute4x64_epi64(sum, 0xd8), d, d16[r]);
            }
        }
    }
}

/* One group of 16 k of 8 rows and one token: scale * sum of (q - 32) x. */
INLINE v8 group6(const v8 q[4], v8 scale2, v8 scale, const int8_t *high, const int8_t *low,
                 int64_t step, int32_t sum)
{
    v8 a = _mm256_maddubs_epi16(q[0], all4(high)),
       b = _mm256_maddubs_epi16(q[2], all4(high + 2 * step));
    v8 c = _mm256_maddubs_epi16(q[0], all4(low));
    a = mac8(a, q[1], all4(high + step));
    b = mac8(b, q[3], all4(high + 3 * step));
    for (int i = 1; i < 4; i++) c = mac8(c, q[i], all4(low + i * step)); /* |low| <= 64: 4 fit */
    const v8 hi = mac16(_mm256_madd_epi16(a, scale2), b, scale2);
    const v8 zero = _mm256_mullo_epi32(scale, _mm256_set1_epi32(-32 * sum));
    return _mm256_add_epi32(mac16(_mm256_slli_epi32(hi, 7), c, scale2), zero);
}

INLINE void direct_q6_k(const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                        __m256 f[WIDEST][2])
{
    const int8_t *high = a->high + t * a->k, *low = a->low + t * a->k;
    const int32_t *sum16 = a->sum16 + t * (a->k / 16);
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 256; b++, w += 3360)
        for (int g = 0; g < 8; g++, high += 32 * n, low += 32 * n, sum16 += 2 * n, d16 += n) {
            prefetch(w + 420 * g, 420);
            UNROLL for (int h = 0; h < 2; h++)
            {
                v8 s[WIDEST];
                UNROLL for (int c = 0; c < 2; c++)
                {
                    v8 q[4];
                    quads6(w + 288 + 384 * g + 192 * c + 32 * h, q);
                    const v8 scale2 = scale_pairs(w + 32 + 32 * g + 16 * c + 8 * h);
                    const v8 scale = _mm256_srai_epi32(scale2, 16);
                    UNROLL for (int r = 0; r < n; r++)
                    {
                        const int64_t at = (4 * c * n + r) * 4;
                        const v8 v =
                            group6(q, scale2, scale, high + at, low + at, 4 * n, sum16[c * n + r]);
                        s[r] = c ? _mm256_add_epi32(s[r], v) : v;
                    }
                }
                const __m256 d = half8(w + 16 * h);
                UNROLL for (int r = 0; r < n; r++) f[r][h] = end16(f[r][h], s[r], d, d16[r]);
            }
        }
}

/* A function for each format and width: within a larger one the sums do not stay in registers. */
typedef void direct_fn(const uint8_t *w, const sop_acts *a, int64_t t, float *sums);
#define DIRECT_N(type, n, body) \
    static void direct_##type##_##n(const uint8_t *w, const sop_acts *a, int64_t t, float *sums) \
    { \
        __m256 f[WIDEST][2]; \
        UNROLL for (int r = 0; r < n; r++) f[r][0] = f[r][1] = _mm256_setzero_ps(); \
        body; \
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int h = 0; h < 2; h++) \
            _mm256_storeu_ps(sums + R * r + 8 * h, f[r][h]); \
    }
#define DIRECT(type) \
    DIRECT_N(type, 1, direct8(SOP_##type, w, a, t, 1, f)) \
    DIRECT_N(type, 2, direct8(SOP_##type, w, a, t, 2, f)) \
    DIRECT_N(type, 4, direct8(SOP_##type, w, a, t, 4, f))
DIRECT(Q4_0)
DIRECT(Q4_1)
DIRECT(Q5_0)
DIRECT(Q5_1)
DIRECT(Q4_K)
DIRECT(Q5_K)
DIRECT_N(Q8_0, 1, direct_q8_0(w, a, t, 1, f))
DIRECT_N(Q8_0, 2, direct_q8_0(w, a, t, 2, f))
DIRECT_N(Q8_0, 4, direct_q8_0(w, a, t, 4, f))
DIRECT_N(Q6_K, 1, direct_q6_k(w, a, t, 1, f))
DIRECT_N(Q6_K, 2, direct_q6_k(w, a, t, 2, f))
DIRECT_N(Q6_K, 4, direct_q6_k(w, a, t, 4, f))

static direct_fn *direct_of(int32_t dtype, int64_t n)
{
#define ONE(type) \
    case SOP_##type: \
        return n == 1 ? direct_##type##_1 : n == 2 ? direct_##type##_2 : direct_##type##_4
    switch (dtype) {
        ONE(Q8_0);
        ONE(Q6_K);
        ONE(Q4_0);
        ONE(Q4_1);
        ONE(Q5_0);
        ONE(Q5_1);
        ONE(Q4_K);
    default: ONE(Q5_K);
    }
#undef ONE
}

/* ---- more tokens: unpack, then tiles ---- */

struct unpacked {
    _Alignas(64) uint8_t q[KC * R * 2]; /* u8 [k/4][16][4], or i16 [k/2][16][2] */
    _Alignas(64) float d[KC / 32][R], m[KC / 32][R];
};

INLINE void unpack8(int32_t dtype, const uint8_t *w, int64_t blocks, struct unpacked *o)
{
    const int groups = is_k(dtype) ? 8 : 1;
    uint8_t *to = o->q;
    int64_t at = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *q = w + head_bytes(dtype);
        for (int g = 0; g < groups; g++, at++, to += 512, q += group_bytes(dtype))
            for (int h = 0; h < 2; h++) {
                const uint8_t *qs = q + (has5(dtype) ? 64 : 0) + 32 * h;
                __m256 d, m;
                UNROLL for (int i = 0; i < 4; i++)
                {
                    const v8 both = ld(qs + 64 * i);
                    v8 lo = low4(both), hi = high4(both);
                    if (has5(dtype)) {
                        const v8 five = ld(q + 32 * h);
                        lo = _mm256_or_si256(lo, bit4(five, i));
                        hi = _mm256_or_si256(hi, bit4(five, i + 4));
                    }
                    st(to + 64 * i + 32 * h, lo);
                    st(to + 256 + 64 * i + 32 * h, hi);
                }
                scales(dtype, w, g, h, &d, &m);
                _mm256_store_ps(o->d[at] + 8 * h, d);
                _mm256_store_ps(o->m[at] + 8 * h, m);
            }
        w = q;
    }
}

/* A quad of 8 rows as two pairs of int16. */
INLINE void pairs(v8 quad, v8 *first, v8 *second)
{
    const v8 order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4,
                                      5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const v8 v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(quad, order), 0xd8);
    *first = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
    *second = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1));
}

static void unpack_q8_0(const uint8_t *w, int64_t blocks, struct unpacked *o)
{
    for (int64_t b = 0; b < blocks; b++, w += 544)
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 8; i++) {
                uint8_t *to = o->q + 1024 * b + 128 * i + 32 * h;
                v8 p0, p1;
                pairs(ld(w + 32 + 64 * i + 32 * h), &p0, &p1);
                st(to, p0);
                st(to + 64, p1);
            }
            _mm256_store_ps(o->d[b] + 8 * h, half8(w + 16 * h));
        }
}

static void unpack_q6_k(const uint8_t *w, int64_t blocks, struct unpacked *o)
{
    for (int64_t b = 0; b < blocks; b++, w += 3360)
        for (int g = 0; g < 16; g++)
            for (int h = 0; h < 2; h++) {
                const v8 scale = scale_pairs(w + 32 + 16 * g + 8 * h);
                v8 q[4];
                quads6(w + 288 + 192 * g + 32 * h, q);
                for (int i = 0; i < 4; i++) {
                    uint8_t *to = o->q + 8192 * b + 512 * g + 128 * i + 32 * h;
                    v8 p0, p1;
                    pairs(_mm256_sub_epi8(q[i], _mm256_set1_epi8(32)), &p0, &p1);
                    st(to, _mm256_mullo_epi16(p0, scale));
                    st(to + 64, _mm256_mullo_epi16(p1, scale));
                }
                _mm256_store_ps(o->d[8 * b + g / 2] + 8 * h, half8(w + 16 * h));
            }
}

static void unpack(int32_t dtype, const uint8_t *w, int64_t blocks, struct unpacked *o)
{
    switch (dtype) {
    case SOP_Q8_0: unpack_q8_0(w, blocks, o); break;
    case SOP_Q6_K: unpack_q6_k(w, blocks, o); break;
    case SOP_Q4_0: unpack8(SOP_Q4_0, w, blocks, o); break;
    case SOP_Q4_1: unpack8(SOP_Q4_1, w, blocks, o); break;
    case SOP_Q5_0: unpack8(SOP_Q5_0, w, blocks, o); break;
    case SOP_Q5_1: unpack8(SOP_Q5_1, w, blocks, o); break;
    case SOP_Q4_K: unpack8(SOP_Q4_K, w, blocks, o); break;
    default: unpack8(SOP_Q5_K, w, blocks, o); break;
    }
}

/* n tokens from token t, k0 to k0 + 32 * blocks, onto sums [n][16], which stay in memory: the integer
 * sums need the registers. chain: quads that fit an int16. */
INLINE void tile8(const struct unpacked *w, const sop_acts *a, int64_t t, int64_t k0,
                  int64_t blocks, const int n, const int chain, float *sums)
{
    const int8_t *x = a->q8 + t * a->k + k0 * n;
    const float *d8 = a->d8 + t * (a->k / 32) + k0 / 32 * n;
    const float *s8 = a->s8 + t * (a->k / 32) + k0 / 32 * n;
    const v8 one = _mm256_set1_epi16(1);
    const uint8_t *q = w->q;
    for (int64_t b = 0; b < blocks; b++, d8 += n, s8 += n) {
        v8 total[WIDEST][2];
        UNROLL for (int c = 0; c < 8; c += chain)
        {
            v8 s[WIDEST][2];
            UNROLL for (int r = 0; r < n; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
            UNROLL for (int i = 0; i < chain; i++, q += 64, x += 4 * n)
            {
                v8 w0 = ld(q), w1 = ld(q + 32);
                KEEP(w0);
                KEEP(w1);
                UNROLL for (int r = 0; r < n; r++)
                {
                    const v8 v = all4(x + 4 * r);
                    s[r][0] = mac8(s[r][0], w0, v);
                    KEEP(s[r][0]);
                    s[r][1] = mac8(s[r][1], w1, v);
                    KEEP(s[r][1]);
                }
            }
            UNROLL for (int r = 0; r < n; r++) UNROLL for (int h = 0; h < 2; h++) total[r][h] =
                c ? mac16(total[r][h], s[r][h], one) : _mm256_madd_epi16(s[r][h], one);
        }
        UNROLL for (int h = 0; h < 2; h++)
        {
            const __m256 d = _mm256_load_ps(w->d[b] + 8 * h), m = _mm256_load_ps(w->m[b] + 8 * h);
            UNROLL for (int r = 0; r < n; r++)
            {
                float *f = sums + R * r + 8 * h;
                _mm256_storeu_ps(f, end8(_mm256_loadu_ps(f), total[r][h], d, m, d8[r], s8[r]));
            }
        }
    }
}

INLINE void tile16(const struct unpacked *w, const sop_acts *a, int64_t t, int64_t k0,
                   int64_t blocks, const int n, float *sums)
{
    const int16_t *x = a->q16 + t * a->k + k0 * n;
    const float *d16 = a->d16 + t * (a->k / 32) + k0 / 32 * n;
    const uint8_t *q = w->q;
    for (int64_t b = 0; b < blocks; b++, d16 += n) {
        v8 s[WIDEST][2];
        UNROLL for (int r = 0; r < n; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
        UNROLL for (int i = 0; i < 8; i++, x += 4 * n) UNROLL for (int p = 0; p < 2; p++, q += 64)
        {
            v8 w0 = ld(q), w1 = ld(q + 32);
            KEEP(w0);
            KEEP(w1);
            UNROLL for (int r = 0; r < n; r++)
            {
                const v8 v = all4(x + 4 * r + 2 * p);
                s[r][0] = mac16(s[r][0], w0, v);
                KEEP(s[r][0]);
                s[r][1] = mac16(s[r][1], w1, v);
                KEEP(s[r][1]);
            }
        }
        UNROLL for (int h = 0; h < 2; h++)
        {
            const __m256 d = _mm256_load_ps(w->d[b] + 8 * h);
            UNROLL for (int r = 0; r < n; r++)
            {
                float *f = sums + R * r + 8 * h;
                _mm256_storeu_ps(f, end16(_mm256_loadu_ps(f), s[r][h], d, d16[r]));
            }
        }
    }
}

/* 16 bits, 4 bits and 5 bits. */
typedef void tile_fn(const struct unpacked *w, const sop_acts *a, int64_t t, int64_t k0,
                     int64_t blocks, float *sums);
#define TILE_N(kind, n, body) \
    static void tile_##kind##_##n(const struct unpacked *w, const sop_acts *a, int64_t t, \
                                  int64_t k0, int64_t blocks, float *sums) \
    { \
        body; \
    }
#define TILE(n) \
    TILE_N(16, n, tile16(w, a, t, k0, blocks, n, sums)) \
    TILE_N(8, n, tile8(w, a, t, k0, blocks, n, 8, sums)) \
    TILE_N(5, n, tile8(w, a, t, k0, blocks, n, 4, sums))
TILE(1)
TILE(2)
TILE(4)

static tile_fn *tile_of(int32_t dtype, int64_t n)
{
    if (is16(dtype)) return n == 1 ? tile_16_1 : n == 2 ? tile_16_2 : tile_16_4;
    if (has5(dtype)) return n == 1 ? tile_5_1 : n == 2 ? tile_5_2 : tile_5_4;
    return n == 1 ? tile_8_1 : n == 2 ? tile_8_2 : tile_8_4;
}

/* ---- the loops over panels ---- */

struct job {
    sop_panels p;
    sop_acts a;
};

static void few_tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_panels *p = &job->p;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const sop_panel at = sop_panel_at(p, i);
        for (int64_t t = 0, n; t < p->tokens; t += n) {
            float sums[WIDEST][R];
            n = sop_tile_width(WIDEST, p->tokens - t);
            direct_of(at.dtype, n)(at.w, &job->a, t, sums[0]);
            for (int64_t r = 0; r < n; r++)
                sop_sums_put(at.y + (t + r) * p->y_stride, sums[r], at.columns, at.bias);
        }
    }
}

static void many_tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_panels *p = &job->p;
    struct unpacked w;
    (void)worker;
    for (int64_t k0 = 0; k0 < p->k; k0 += KC) {
        const int64_t kn = p->k - k0 < KC ? p->k - k0 : KC;
        for (int64_t i = begin; i < end; i++) {
            const sop_panel at = sop_panel_at(p, i);
            const int64_t block = sop_panel_block(at.dtype);
            unpack(at.dtype, at.w + (size_t)(k0 / block) * sop_panel_block_bytes(at.dtype),
                   kn / block, &w);
            for (int64_t t = 0, n; t < p->tokens; t += n) {
                float *y = at.y + t * p->y_stride, sums[WIDEST][R];
                n = sop_tile_width(WIDEST, p->tokens - t);
                for (int64_t r = 0; r < n; r++)
                    sop_sums_get(sums[r], y + r * p->y_stride, k0 ? at.columns : 0);
                sop_sums_fetch(p, at.y, t + n, WIDEST);
                tile_of(at.dtype, n)(&w, &job->a, t, k0, kn / 32, sums[0]);
                for (int64_t r = 0; r < n; r++)
                    sop_sums_put(y + r * p->y_stride, sums[r], at.columns,
                                 k0 + kn == p->k ? at.bias : NULL);
            }
        }
    }
}

/* ---- the row ---- */

static uint32_t kinds(const sop_linear_desc *d)
{
    uint32_t all = 0;
    for (int32_t j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (!is16(d->w_dtype[j]))
            all |= SOP_ACTS_8;
        else
            all |= SOP_ACTS_16 | (d->w_dtype[j] == SOP_Q6_K ? SOP_ACTS_SPLIT : 0);
    }
    return all;
}

const char *sop_linear_q8x_refuse(const void *desc)
{
    const sop_linear_desc *d = desc;
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants float32 activations";
    for (int32_t j = 0; j < 3; j++)
        if (d->n[j] && sop_dtype_block(d->w_dtype[j]) == 1) return "a weight is not quantised";
    return sop_panels_refuse(d);
}

sop_status sop_linear_q8x_avx2_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split)
{
    const sop_linear_desc *d = desc;
    (void)params, (void)facts, (void)budget;
    *split = (sop_split){.scratch_bytes =
                             sop_acts_bytes(d->tokens, d->k, kinds(d)) + sop_stage_y_bytes(d)};
    return SOP_OK;
}

sop_status sop_linear_q8x_avx2(const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    const size_t acts_bytes = sop_acts_bytes(d->tokens, d->k, kinds(d));
    const int32_t workers = sop_workers(call->queue);
    struct job job;
    sop_panels_init(&job.p, call);
    sop_acts_init(&job.a, d->tokens, d->k, kinds(d), WIDEST, call->scratch);
    sop_stage_y(&job.p, call, (char *)call->scratch + acts_bytes);
    if (job.p.tokens == 0) return SOP_OK;
    sop_acts_fill(&job.a, call, job.p.tokens);
    const int64_t grain = (job.p.n_panels + 4 * workers - 1) / (4 * workers);
    sop_parallel(call->queue, job.p.n_panels, grain,
                 job.p.tokens <= DIRECT || d->k == 0 ? few_tokens : many_tokens, &job);
    sop_stage_end(&job.p, call);
    return SOP_OK;
}
