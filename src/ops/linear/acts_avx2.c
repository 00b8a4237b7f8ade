#include "ops/linear/acts.h"

#include <immintrin.h>
#include <string.h>

#include "core/op.h"

/* 127 * 128 + 63: the largest number whose high byte, rounded, fits. */
enum { TOP8 = 127, TOP16 = 16319 };

static size_t up64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

size_t sop_acts_bytes(int64_t tokens, int64_t k, uint32_t kinds)
{
    const size_t n = (size_t)(tokens * k), scales = up64(n / 32 * 4);
    size_t bytes = 0;
    if (kinds & SOP_ACTS_8) bytes += up64(n) + 2 * scales;
    if (kinds & (SOP_ACTS_16 | SOP_ACTS_SPLIT)) bytes += scales;
    if (kinds & SOP_ACTS_16) bytes += up64(2 * n);
    if (kinds & SOP_ACTS_SPLIT) bytes += 2 * up64(n) + up64(n / 16 * 4);
    return bytes;
}

static void *carve(char **at, size_t bytes)
{
    void *p = *at;
    *at += up64(bytes);
    return p;
}

void sop_acts_init(sop_acts *a, int64_t tokens, int64_t k, uint32_t kinds, int64_t widest,
                   void *scratch)
{
    const size_t n = (size_t)(tokens * k), scales = n / 32 * 4;
    char *at = scratch;
    *a = (sop_acts){.k = k, .widest = widest, .kinds = kinds};
    if (kinds & SOP_ACTS_8) {
        a->q8 = carve(&at, n);
        a->d8 = carve(&at, scales);
        a->s8 = carve(&at, scales);
    }
    if (kinds & (SOP_ACTS_16 | SOP_ACTS_SPLIT)) a->d16 = carve(&at, scales);
    if (kinds & SOP_ACTS_16) a->q16 = carve(&at, 2 * n);
    if (kinds & SOP_ACTS_SPLIT) {
        a->high = carve(&at, n);
        a->low = carve(&at, n);
        a->sum16 = carve(&at, n / 16 * 4);
    }
}

static inline __m256 load8(const void *x, int32_t dtype, int64_t i)
{
    if (dtype == SOP_F32) return _mm256_loadu_ps((const float *)x + i);
    const __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)x + i));
    if (dtype == SOP_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The largest |x| of 32; by comparing bits, so that infinity and NaN are the largest. */
static inline float most_of(const __m256 v[4])
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_and_si256(_mm256_castps_si256(v[0]), mask);
    for (int i = 1; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), mask));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

/* 32 values to q[0], q[1] (16 of 16 bits each) with |q| <= top; returns the scale. Below 2^-126 the
 * scale stops: it stays a normal number, and so does its inverse. max returns its second operand
 * when one is NaN. */
static inline float quantise(const __m256 v[4], float top, __m256i q[2])
{
    const __m128 most = _mm_set_ss(most_of(v)), tops = _mm_set_ss(top);
    const __m128 inverse = _mm_min_ss(_mm_div_ss(tops, most), _mm_set_ss(0x1p126f));
    const __m128 d = _mm_max_ss(_mm_set_ss(0x1p-126f), _mm_div_ss(most, tops));
    const __m256 scale = _mm256_broadcastss_ps(inverse);
    for (int i = 0; i < 2; i++) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], scale));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], scale));
        q[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    }
    return _mm_cvtss_f32(d);
}

static inline int32_t sum16(__m256i v)
{
    v = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

static inline __m256i pack8(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
}

/* 8 quads of 1 byte each to their places in the tile. */
static inline void spread8(int8_t *o, int64_t w, __m256i v)
{
    if (w == 1) {
        _mm256_storeu_si256((__m256i *)o, v);
        return;
    }
    int32_t quad[8];
    _mm256_storeu_si256((__m256i *)quad, v);
    for (int i = 0; i < 8; i++) memcpy(o + i * w * 4, &quad[i], 4);
}

/* 4 quads of 2 bytes each. */
static inline void spread16(int16_t *o, int64_t w, __m256i v)
{
    if (w == 1) {
        _mm256_storeu_si256((__m256i *)o, v);
        return;
    }
    int64_t quad[4];
    _mm256_storeu_si256((__m256i *)quad, v);
    for (int i = 0; i < 4; i++) memcpy(o + i * w * 4, &quad[i], 8);
}

/* Token t + r of a tile of w. */
static void fill_token(const sop_acts *a, const void *x, int32_t dtype, int64_t at, int64_t t,
                       int64_t w, int64_t r)
{
    for (int64_t b = 0; b < a->k / 32; b++) {
        const int64_t scale = t * (a->k / 32) + b * w + r, quad = t * a->k + (b * 8 * w + r) * 4;
        __m256 v[4];
        __m256i q[2];
        for (int i = 0; i < 4; i++) v[i] = load8(x, dtype, at + 32 * b + 8 * i);
        if (a->kinds & SOP_ACTS_8) {
            a->d8[scale] = quantise(v, TOP8, q);
            a->s8[scale] = a->d8[scale] * (float)(sum16(_mm256_add_epi16(q[0], q[1])));
            spread8(a->q8 + quad, w, pack8(q[0], q[1]));
        }
        if (!(a->kinds & (SOP_ACTS_16 | SOP_ACTS_SPLIT))) continue;
        a->d16[scale] = quantise(v, TOP16, q);
        if (a->kinds & SOP_ACTS_16) {
            spread16(a->q16 + quad, w, q[0]);
            spread16(a->q16 + quad + 16 * w, w, q[1]);
        }
        if (a->kinds & SOP_ACTS_SPLIT) {
            __m256i high[2], low[2];
            for (int i = 0; i < 2; i++) {
                high[i] = _mm256_srai_epi16(_mm256_add_epi16(q[i], _mm256_set1_epi16(64)), 7);
                low[i] = _mm256_sub_epi16(q[i], _mm256_slli_epi16(high[i], 7));
                a->sum16[t * (a->k / 16) + (2 * b + i) * w + r] = sum16(q[i]);
            }
            spread8(a->high + quad, w, pack8(high[0], high[1]));
            spread8(a->low + quad, w, pack8(low[0], low[1]));
        }
    }
}

struct job {
    const sop_acts *a;
    const sop_call *call;
    int64_t tokens;
};

static void fill_tiles(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *j = arg;
    const sop_linear_desc *d = j->call->desc;
    const int64_t stop = end * j->a->widest < j->tokens ? end * j->a->widest : j->tokens;
    (void)worker;
    for (int64_t t = begin * j->a->widest, w; t < stop; t += w) {
        w = sop_tile_width(j->a->widest, stop - t);
        for (int64_t r = 0; r < w; r++)
            fill_token(j->a, j->call->args[SOP_LINEAR_X].data, d->x_dtype, (t + r) * d->x_stride, t,
                       w, r);
    }
}

void sop_acts_fill(const sop_acts *a, const sop_call *call, int64_t tokens)
{
    /* 16384 values are some 3 us of one core: below that a fork costs more than it saves. */
    const int64_t tiles = (tokens + a->widest - 1) / a->widest;
    const int64_t grain = tokens * a->k <= 16384 ? tiles : 2;
    sop_parallel(call->queue, tiles, grain, fill_tiles, &(struct job){a, call, tokens});
}
