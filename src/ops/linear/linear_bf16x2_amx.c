/* Many tokens on AMX tiles. Weights of any format are decoded to bfloat16 as they go by, and each x is
 * taken as the sum of two bfloat16, high + low: then nothing needs a scale behind the sums, which stay
 * in tiles, and x is kept to 2^-15 of itself. So is w where it has more than a bfloat16 (f32, f16);
 * quantised weights keep 8 bits, which is inside the bound of rows that quantise x.
 *
 * A step is 32 tokens x 32 rows x 32 k: the sums in tiles 0 to 3, x in 4 and 5, w in 6 and 7.
 *
 *     x high, x low  [token / 16][k / 32][16 tokens][32 k] bf16, k in the order 0 2 1 3 of each quad
 *     w              [k / 32][8 quads][pair k, k + 2 | pair k + 1, k + 3] of 16 rows: packed bf16 as
 *                    it lies, and what others decode to without a shuffle */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/linear/linear.h"
#include "ops/linear/panels.h"
#include "ops/simd/vb_avx512.h"

enum {
    KC = 1024,   /* k between two stays of the sums in y */
    PAIRS = 4,   /* of panels that share a pass over x: with KC, 256 KiB of decoded weights in L2 */
    FEWEST = 24, /* tokens: below, rows that decode in registers are faster */
    TILE = 1024, /* bytes of a tile of x or w: 32 k */
    R = SOP_PANEL_ROWS,
    NV = 1
};

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

/* gcc 12's own intrinsics do not say that they read memory, so stores before them get lost. */
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_MAC(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* All tiles: 16 rows of 64 bytes. */
static void tiles_begin(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease" ::: "memory");
}

/* ---- weights ---- */

typedef uint8_t decoded; /* a panel [k / 32][TILE]; what is left of f32 and f16 stands LOW behind */
enum { DECODED_STEP = TILE, LOW = KC / 32 * TILE, SPACE = PAIRS * 4 * LOW };

INLINE int has_low(int32_t dtype)
{
    return dtype == SOP_F32 || dtype == SOP_F16;
}

INLINE __m512i top(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000));
}

/* Two vectors to a pair: bfloat16 of a in the low halves, of b in the high ones. */
INLINE __m512i pair(__m512i a, __m512i b)
{
    const __m512i half = _mm512_set1_epi32(0x8000); /* to nearest, ties away */
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_add_epi32(a, half), 16),
                                     _mm512_add_epi32(b, half), _mm512_set1_epi32((int)0xffff0000),
                                     0xf8); /* a | (b & c) */
}

INLINE void decode_put(int32_t dtype, decoded *out, int quad, int v, const vf f[4])
{
    (void)v;
    UNROLL for (int i = 0; i < 2; i++)
    {
        const __m512i a = _mm512_castps_si512(f[i]), b = _mm512_castps_si512(f[i + 2]);
        uint8_t *to = out + 128 * quad + 64 * i;
        if (!has_low(dtype)) {
            _mm512_store_si512(to, pair(a, b));
            continue;
        }
        const vf low_a = vf_sub(f[i], _mm512_castsi512_ps(top(a)));
        const vf low_b = vf_sub(f[i + 2], _mm512_castsi512_ps(top(b)));
        _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(a, 16), top(b)));
        _mm512_store_si512(to + LOW, pair(_mm512_castps_si512(low_a), _mm512_castps_si512(low_b)));
    }
}

#include "ops/linear/decode.h"

/* ---- activations ---- */

struct job {
    sop_panels p;
    uint8_t *high, *low, *space; /* space: SPACE bytes a worker */
    int64_t tiles;               /* of k */
    const sop_call *call;
};

INLINE __m512 load16(const void *x, int32_t dtype, int64_t at, int64_t left)
{
    const __mmask16 m = left >= 16 ? 0xffff : (__mmask16)((1u << (left > 0 ? left : 0)) - 1);
    if (dtype == SOP_F32) return _mm512_maskz_loadu_ps(m, (const float *)x + at);
    const __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)x + at);
    if (dtype == SOP_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* 16 values: the upper halves, in the order 0 2 1 3 of each quad. */
INLINE void store16(uint8_t *to, __m512i v)
{
    const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16));
    _mm256_storeu_si256((__m256i *)to,
                        _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(h, 0xd8), 0xd8));
}

/* 16 tokens a piece; those past the last are zeros. */
static void fill_tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *j = arg;
    const sop_linear_desc *d = j->call->desc;
    const void *x = j->call->args[SOP_LINEAR_X].data;
    (void)worker;
    for (int64_t t = 16 * begin; t < 16 * end; t++)
        for (int64_t i = 0; i < 2 * j->tiles; i++) {
            const int64_t left = t < j->p.tokens ? d->k - 16 * i : 0;
            const size_t to =
                (size_t)((t / 16 * j->tiles + i / 2) * TILE + t % 16 * 64 + i % 2 * 32);
            const __m512 v =
                load16(x, d->x_dtype, t < j->p.tokens ? t * d->x_stride + 16 * i : 0, left);
            const __m512 high = _mm512_castsi512_ps(top(_mm512_castps_si512(v)));
            const __m512i low = _mm512_castps_si512(_mm512_sub_ps(v, high));
            store16(j->high + to, _mm512_castps_si512(high));
            store16(j->low + to, _mm512_add_epi32(low, _mm512_set1_epi32(0x8000)));
        }
}

/* ---- sums ---- */

/* 16 x 16 sums between a tile and y: whole ones directly, others through a copy. */
struct corner {
    float *y;
    int64_t rows, columns; /* that exist */
    const float *bias;
};

#define SUMS_LOAD(t, c, stride) \
    do { \
        if ((c).rows >= 16 && (c).columns >= 16) { \
            TILE_LOAD(t, (c).y, 4 * (stride)); \
        } else { \
            float copy[16][R] = {{0}}; \
            for (int64_t r = 0; r < 16 && r < (c).rows; r++) \
                sop_sums_get(copy[r], (c).y + r * (stride), (c).columns); \
            TILE_LOAD(t, copy, 64); \
        } \
    } while (0)

#define SUMS_STORE(t, c, stride) \
    do { \
        if ((c).rows >= 16 && (c).columns >= 16 && !(c).bias) { \
            TILE_STORE(t, (c).y, 4 * (stride)); \
        } else { \
            float copy[16][R]; \
            TILE_STORE(t, copy, 64); \
            for (int64_t r = 0; r < 16 && r < (c).rows; r++) \
                sop_sums_put((c).y + r * (stride), copy[r], (c).columns, (c).bias); \
        } \
    } while (0)

/* One product of a step: x tiles at a and a + next, w tiles at b0 and b1. */
#define LOAD_X(a, next) \
    do { \
        TILE_LOAD(4, a, 64); \
        TILE_LOAD(5, (a) + (next), 64); \
    } while (0)
#define LOAD_W(b0, b1) \
    do { \
        TILE_LOAD(6, b0, 64); \
        TILE_LOAD(7, b1, 64); \
    } while (0)
#define MAC() \
    do { \
        TILE_MAC(0, 4, 6); \
        TILE_MAC(1, 4, 7); \
        TILE_MAC(2, 5, 6); \
        TILE_MAC(3, 5, 7); \
    } while (0)

/* Two panels side by side, k0 to k0 + kn of them. */
struct pair {
    sop_panel at[2];
    const uint8_t *w[2]; /* decoded, or packed bf16 */
    int64_t panels;      /* 1 or 2 */
    int32_t low;         /* the part left of the weights follows LOW behind */
};

/* Decode panels i and i + 1 into space [2][2 * LOW]. */
static void pair_init(struct pair *w, const sop_panels *p, int64_t i, int64_t k0, int64_t kn,
                      uint8_t *space)
{
    *w = (struct pair){.panels = p->n_panels - i < 2 ? 1 : 2};
    for (int c = 0; c < 2; c++) {
        const sop_panel at = w->at[c] = sop_panel_at(p, c < w->panels ? i + c : i);
        w->low |= has_low(at.dtype);
        w->w[c] = space + 2 * LOW * c;
        if (at.dtype == SOP_BF16)
            w->w[c] = at.w + (size_t)(k0 / 32) * TILE;
        else if (kn > 0)
            decode(at.dtype, at.w, k0, kn, space + 2 * LOW * c);
    }
    /* A neighbour without a low part has a low part of zeros. */
    for (int c = 0; c < 2 && w->low; c++) {
        uint8_t *own = space + 2 * LOW * c;
        if (has_low(w->at[c].dtype)) continue;
        if (w->w[c] != own) memcpy(own, w->w[c], (size_t)((kn + 31) / 32 * TILE));
        memset(own + LOW, 0, LOW);
        w->w[c] = own;
    }
}

/* 32 tokens from token t past a pair. */
static void multiply(const struct job *j, const struct pair *w, int64_t t, int64_t k0, int64_t kn)
{
    const int64_t stride = j->p.y_stride, next = j->tiles * TILE;
    const uint8_t *high = j->high + (t / 16 * j->tiles + k0 / 32) * TILE;
    const uint8_t *low = j->low + (t / 16 * j->tiles + k0 / 32) * TILE;
    struct corner c[4];
    for (int i = 0; i < 4; i++) {
        const sop_panel *at = &w->at[i % 2];
        c[i] = (struct corner){at->y + (t + i / 2 * 16) * stride, j->p.tokens - t - i / 2 * 16,
                               i % 2 < w->panels ? at->columns : 0,
                               k0 + kn >= j->p.k ? at->bias : NULL};
    }
    if (k0) {
        SUMS_LOAD(0, c[0], stride);
        SUMS_LOAD(1, c[1], stride);
        SUMS_LOAD(2, c[2], stride);
        SUMS_LOAD(3, c[3], stride);
    } else {
        for (int i = 0; i < 2; i++) sop_sums_fetch(&j->p, w->at[i].y, t, 32);
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t i = 0; i < kn; i += 32, high += TILE, low += TILE) {
        const uint8_t *w0 = w->w[0] + i / 32 * TILE, *w1 = w->w[1] + i / 32 * TILE;
        LOAD_W(w0, w1);
        LOAD_X(low, next);
        MAC();
        LOAD_X(high, next);
        MAC();
        if (w->low) {
            LOAD_W(w0 + LOW, w1 + LOW);
            MAC();
        }
    }
    SUMS_STORE(0, c[0], stride);
    SUMS_STORE(1, c[1], stride);
    SUMS_STORE(2, c[2], stride);
    SUMS_STORE(3, c[3], stride);
}

static void some_pairs(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *j = arg;
    uint8_t *space = j->space + (size_t)worker * SPACE;
    tiles_begin();
    for (int64_t k0 = 0; k0 == 0 || k0 < j->p.k; k0 += KC) {
        const int64_t kn = j->p.k - k0 < KC ? j->p.k - k0 : KC;
        for (int64_t first = begin; first < end; first += PAIRS) {
            const int64_t n = end - first < PAIRS ? end - first : PAIRS;
            struct pair w[PAIRS];
            for (int64_t i = 0; i < n; i++)
                pair_init(&w[i], &j->p, 2 * (first + i), k0, kn, space + 4 * LOW * i);
            for (int64_t t = 0; t < j->p.tokens; t += 32)
                for (int64_t i = 0; i < n; i++) multiply(j, &w[i], t, k0, kn);
        }
    }
    tiles_end();
}

/* ---- the row ---- */

const char *sop_linear_bf16x2_refuse(const void *desc)
{
    const sop_linear_desc *d = desc;
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants float32 activations";
    if (d->numerics == SOP_NUMERICS_INVARIANT)
        return "numerics=invariant wants one row for any number of tokens";
    if (d->tokens < FEWEST) return "fewer than 24 tokens";
    return sop_panels_refuse(d);
}

/* Bytes of the high or of the low part of x. */
static size_t part_bytes(const sop_linear_desc *d)
{
    return (size_t)((d->tokens + 31) / 32 * 2 * ((d->k + 31) / 32)) * TILE;
}

sop_status sop_linear_bf16x2_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split)
{
    (void)params, (void)budget;
    *split = (sop_split){.scratch_bytes = 2 * part_bytes(desc) + sop_stage_y_bytes(desc) +
                                          (size_t)facts->workers * SPACE};
    return SOP_OK;
}

sop_status sop_linear_bf16x2_amx(const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    const int64_t pieces = 4 * sop_workers(call->queue);
    uint8_t *scratch = call->scratch;
    struct job j = {.high = scratch,
                    .low = scratch + part_bytes(d),
                    .space = scratch + 2 * part_bytes(d),
                    .tiles = (d->k + 31) / 32,
                    .call = call};
    sop_panels_init(&j.p, call);
    sop_stage_y(&j.p, call, j.space + (size_t)sop_workers(call->queue) * SPACE);
    if (j.p.tokens == 0) return SOP_OK;
    sop_parallel(call->queue, (j.p.tokens + 31) / 32 * 2, 1, fill_tokens, &j);
    const int64_t pairs = (j.p.n_panels + 1) / 2;
    sop_parallel(call->queue, pairs, (pairs + pieces - 1) / pieces, some_pairs, &j);
    sop_stage_end(&j.p, call);
    return SOP_OK;
}
