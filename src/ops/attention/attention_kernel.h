/* ops/attention/attention_kernel.h: the core for vectors, written once for both widths: included after
 * vf_avx2.h or vf_avx512.h. For every tile of 64 keys:
 *
 * - scores: keys are decoded and turned, so that a vector holds one channel of 8 or 16 keys; then
 *   rows x keys is a matrix product with 6 rows and a panel of columns in registers. A row is a query
 *   head at a query: all heads of the group share the decoding. For few rows (decode) the turning
 *   would cost more than the product: keys stay as they lie, and rows times keys are dot products,
 *   several summed up at once
 * - weights: the online softmax, row by row, in place
 * - result: weights x values is the same matrix product; values are decoded into panels
 *
 * A row's sums run over channels, then keys, in the same order whatever the other rows are; keys that
 * only other rows see come with a weight of 0. So a query has the same bits in any company, as long
 * as the scores take the same of the two ways: always the first one in the invariant mode.
 *
 *     scratch: q [rows, kp] | scores [16, 64] | o [rows, vp] | keys [64, kp] | values [64, vp]
 *              | l [rows, 16] | m [rows]                     kp, vp: k, v rounded up to 16
 *     panel:   columns c .. c + WIDE of a matrix, [depth, WIDE]; the last one may be narrower */
#ifndef OPS_ATTENTION_KERNEL_H
#define OPS_ATTENTION_KERNEL_H

#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/attention/attention.h"

/* 6 rows x 2 vectors are 12 of 16 registers, 6 x 4 are 24 of 32; 3 more hold operands. */
#if defined(__AVX512F__)
#define PANEL_VECTORS 4
#else
#define PANEL_VECTORS 2
#endif

enum {
    TILE = SOP_ATTENTION_TILE,
    ROWS = 6,
    WIDE = PANEL_VECTORS * VF,
    UNIT = 16 / VF, /* vectors of 16 floats: the softmax sums by 16 at both widths */
    FEW_ROWS = 16,  /* where turning the keys costs as much as it saves */
    QUAD = VF / 4,  /* rows of a block of dot products */
    KEYS_AT_ONCE = 16
};

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* ---- matrix products ---- */

/* out = a b, or keep[r] * out + a b: a [rows, depth], b [depth, nv vectors]. */
ALWAYS void product(const int rows, const int nv, int64_t depth, const float *a, int64_t a_stride,
                    const float *b, int64_t b_stride, const float *keep, float *out,
                    int64_t out_stride)
{
    vf sum[ROWS][PANEL_VECTORS];
    UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int c = 0; c < nv; c++) sum[r][c] =
        vf_zero();
    for (int64_t i = 0; i < depth; i++) {
        vf x[PANEL_VECTORS];
        UNROLLED for (int c = 0; c < nv; c++) x[c] = vf_load(b + i * b_stride + c * VF);

#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const vf w = vf_set(a[r * a_stride + i]);
            UNROLLED for (int c = 0; c < nv; c++) sum[r][c] = vf_fma(w, x[c], sum[r][c]);
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < nv; c++)
    {
        float *at = out + r * out_stride + c * VF;
        vf_store(at, keep ? vf_fma(vf_load(at), vf_set(keep[r]), sum[r][c]) : sum[r][c]);
    }
}

static void product_any(int64_t rows, int64_t nv, int64_t depth, const float *a, int64_t a_stride,
                        const float *b, int64_t b_stride, const float *keep, float *out,
                        int64_t out_stride)
{
#define SHAPE(r, n) \
    case (r)*8 + (n): \
        product(r, n, depth, a, a_stride, b, b_stride, keep, out, out_stride); \
        break
#define SHAPES(n) \
    SHAPE(1, n); \
    SHAPE(2, n); \
    SHAPE(3, n); \
    SHAPE(4, n); \
    SHAPE(5, n); \
    SHAPE(6, n)
    switch (rows * 8 + nv) {
        SHAPES(1);
        SHAPES(2);
#if PANEL_VECTORS == 4
        SHAPES(3);
        SHAPES(4);
#endif
    default: break;
    }
#undef SHAPE
#undef SHAPES
}

/* How many rows to take next of so many: 6, but the last two pieces are about equal. */
static int64_t next_rows(int64_t left)
{
    return left > ROWS && left < 2 * ROWS ? (left + 1) / 2 : left < ROWS ? left : ROWS;
}

/* ---- keys and values as floats ---- */

ALWAYS __m256 eight(const char *p, int32_t dtype)
{
    switch (dtype) {
    case SOP_F32: return _mm256_loadu_ps((const float *)(const void *)p);
    case SOP_F16: return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
    default:
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
    }
}

ALWAYS float one(const char *p, int32_t dtype)
{
    uint16_t half;
    float f;
    if (dtype == SOP_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&half, p, sizeof half);
    return dtype == SOP_F16 ? sop_f16_to_f32(half) : sop_bf16_to_f32(half);
}

/* Run body for the type, as a constant in it. */
#define FOR_DTYPE(dtype, body) \
    switch (dtype) { \
    case SOP_F32: body(SOP_F32); break; \
    case SOP_F16: body(SOP_F16); break; \
    default: body(SOP_BF16); break; \
    }

ALWAYS void decode(const char *p, int32_t dtype, int64_t n, float *out)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, eight(p + i * bytes, dtype));
    for (; i < n; i++) out[i] = one(p + i * bytes, dtype);
}

/* 8 keys x 8 channels from the rows at key into 8 vectors at out, one a channel. */
ALWAYS void turn8(const char *const *key, int64_t at, int32_t dtype, float *out, int64_t stride)
{
    __m256 r[8], s[8];
    UNROLLED for (int i = 0; i < 8; i++) r[i] = eight(key[i] + at, dtype);

#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }

#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }

#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* The tile's keys into panels of keys, [k, WIDE] each, kp rows apart. */
ALWAYS void turn_keys(const char *const *key, int32_t dtype, int64_t k, int64_t kp, float *out)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2;
    for (int64_t j = 0; j < TILE; j += 8) {
        float *panel = out + j / WIDE * WIDE * kp + j % WIDE;
        int64_t c = 0;
        for (; c + 8 <= k; c += 8) turn8(key + j, c * bytes, dtype, panel + c * WIDE, WIDE);
        for (; c < k; c++)
            for (int64_t i = 0; i < 8; i++)
                panel[c * WIDE + i] = one(key[j + i] + c * bytes, dtype);
    }
}

/* Vectors of the panel of values that begins at column c. */
static int64_t panel_vectors(int64_t v, int64_t c)
{
    const int64_t left = (v - c + VF - 1) / VF;
    return left < PANEL_VECTORS ? left : PANEL_VECTORS;
}

/* The tile's values [first, end) into panels of channels. */
ALWAYS void lay_values(const char *const *value, int64_t first, int64_t end, int32_t dtype,
                       int64_t v, float *out)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2;
    for (int64_t j = first; j < end; j++)
        for (int64_t c = 0; c < v; c += WIDE)
            decode(value[j] + c * bytes, dtype, v - c < WIDE ? v - c : WIDE,
                   out + c * TILE + j * panel_vectors(v, c) * VF);
}

/* ---- a block ---- */

struct state {
    const sop_attention_block *b;
    const sop_attention_desc *d;
    int64_t group, rows, kp, vp;
    float *q, *s, *o, *keys, *values, *l, *m;
    int64_t tile, first, end; /* of this tile; the keys of it that are read, from its start */
    const char *key[TILE], *value[TILE];
};

/* The keys of the tile that n rows from row r on see, from the tile's start. */
static void sees(const struct state *t, int64_t r, int64_t n, int64_t *lo, int64_t *hi)
{
    const int64_t query = r / t->group, at = t->b->at + query;
    int64_t head = r - query * t->group, below = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || head == t->group) {
            if (i) below++, head = 0;
            sop_attention_sees(t->d, t->b->keys, at + below, &lo[i], &hi[i]);
            lo[i] -= t->tile;
            hi[i] -= t->tile;
            if (lo[i] < t->first) lo[i] = t->first;
            if (hi[i] > t->end) hi[i] = t->end;
        } else {
            lo[i] = lo[i - 1];
            hi[i] = hi[i - 1];
        }
        head++;
    }
}

/* Where the tile's keys and values lie; places that are not read get a neighbour's. */
static void find(struct state *t)
{
    const sop_attention_desc *d = t->d;
    const int64_t bytes = d->kv_dtype == SOP_F32 ? 4 : 2;
    for (int64_t j = t->first; j < t->end;) {
        const int64_t at = t->tile + j, place = at % d->page;
        const int64_t run = j + d->page - place < t->end ? j + d->page - place : t->end;
        const int64_t page = t->b->table[at / d->page];
        const char *k = (const char *)t->b->call->args[SOP_ATTENTION_K_POOL].data +
                        (page * d->kp_page + place * d->kp_token + t->b->g * d->kp_head) * bytes;
        const char *v = (const char *)t->b->call->args[SOP_ATTENTION_V_POOL].data +
                        (page * d->vp_page + place * d->vp_token + t->b->g * d->vp_head) * bytes;
        for (; j < run; j++, k += d->kp_token * bytes, v += d->vp_token * bytes)
            t->key[j] = k, t->value[j] = v;
    }
    for (int64_t j = 0; j < t->first; j++) t->key[j] = t->key[t->first];
    for (int64_t j = t->end; j < TILE; j++) t->key[j] = t->key[t->end - 1];
}

/* Scores of n rows from row r on for the keys up to hi, by matrix products over turned keys. */
static void scores_turned(const struct state *t, int64_t r, int64_t n, int64_t lo, int64_t hi)
{
    for (int64_t c = lo / WIDE * WIDE; c < hi; c += WIDE) {
        const int64_t wide = hi - c < WIDE ? hi - c : WIDE;
        product_any(n, (wide + VF - 1) / VF, t->d->k, t->q + r * t->kp, t->kp, t->keys + c * t->kp,
                    WIDE, NULL, t->s + c, TILE);
    }
}

/* rows <= QUAD rows of q by 4 keys. */
ALWAYS void dots(const int rows, int64_t kp, const float *q, const float *k, float *out)
{
    vf sum[QUAD][4];
    UNROLLED for (int r = 0; r < QUAD; r++) UNROLLED for (int j = 0; j < 4; j++) sum[r][j] =
        vf_zero();
    for (int64_t c = 0; c < kp; c += VF)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            const vf x = vf_load(k + j * kp + c);
            UNROLLED for (int r = 0; r < rows; r++) sum[r][j] =
                vf_fma(vf_load(q + r * kp + c), x, sum[r][j]);
        }
    vf_sums(sum, rows, out, TILE);
}

/* Scores of all rows by dot products, 16 keys at a time: these stay in the first cache. */
static void scores_dotted(struct state *t)
{
    const int64_t kp = t->kp;
    for (int64_t j = t->first / KEYS_AT_ONCE * KEYS_AT_ONCE; j < t->end; j += KEYS_AT_ONCE) {
        for (int64_t i = 0; i < KEYS_AT_ONCE; i++) {
#define DECODE(dtype) decode(t->key[j + i], dtype, t->d->k, t->keys + i * kp)
            FOR_DTYPE(t->d->kv_dtype, DECODE)
#undef DECODE
        }
        for (int64_t r = 0; r < t->rows; r += QUAD)
            for (int64_t i = 0; i < KEYS_AT_ONCE; i += 4) {
                const float *q = t->q + r * kp, *k = t->keys + i * kp;
                float *out = t->s + r * TILE + j + i;
                switch (t->rows - r) {
                case 1: dots(1, kp, q, k, out); break;
#if PANEL_VECTORS == 4
                case 2: dots(2, kp, q, k, out); break;
                case 3: dots(3, kp, q, k, out); break;
#endif
                default: dots(QUAD, kp, q, k, out);
                }
            }
    }
}

/* The keys [lo, hi) of 64 scores: capped, -inf outside of them in the blocks of 16 that they touch.
 * Returns the largest. */
ALWAYS float mask(const struct state *t, float *s, int64_t lo, int64_t hi)
{
    vf most[UNIT];
    UNROLLED for (int n = 0; n < UNIT; n++) most[n] = vf_set(-INFINITY);
    if (lo == 0 && hi == TILE && !(t->d->cap > 0)) {
        UNROLLED for (int j = 0; j < TILE; j += 16) UNROLLED for (int n = 0; n < UNIT; n++)
            most[n] = vf_max(most[n], vf_load(s + j + n * VF));
        return vf_max16(most);
    }
    for (int64_t j = lo / 16 * 16; j < hi; j += 16)
        for (int n = 0; n < UNIT; n++) {
            const int64_t at = j + n * VF;
            vf z = vf_load(s + at);
            if (t->d->cap > 0)
                z = vf_mul(vf_set(t->d->cap), vf_tanh(vf_mul(z, vf_set(1 / t->d->cap))));
            z = vf_within(z, (int32_t)(lo - at), (int32_t)(hi - at));
            vf_store(s + at, z);
            most[n] = vf_max(most[n], z);
        }
    return vf_max16(most);
}

/* Scores to weights exp(z - m) in the blocks of 16 that [lo, hi) touches; l takes their sums. */
ALWAYS void exponentials(float *s, int64_t lo, int64_t hi, float m, float keep, float *l)
{
    const vf base = vf_set(m), k = vf_set(keep);
    vf sum[UNIT];
    UNROLLED for (int n = 0; n < UNIT; n++) sum[n] = vf_mul(vf_load(l + n * VF), k);
    for (int64_t j = lo / 16 * 16; j < hi; j += 16)
#pragma GCC unroll 8
        for (int n = 0; n < UNIT; n++) {
            const vf p = vf_exp_negative(vf_sub(vf_load(s + j + n * VF), base));
            sum[n] = vf_add(sum[n], p);
            vf_store(s + j + n * VF, p);
        }
    UNROLLED for (int n = 0; n < UNIT; n++) vf_store(l + n * VF, sum[n]);
}

/* n rows from row r on take the tile: a group goes through all of it while its scores and the tile
 * are in the first cache. s: their scores, when they are there already. */
static void take_tile(const struct state *t, int64_t r, int64_t n, float *s)
{
    int64_t lo[ROWS], hi[ROWS];
    float m[ROWS], keep[VF] = {0};
    sees(t, r, n, lo, hi);
    const int64_t first = lo[0], end = hi[n - 1]; /* what any of the rows sees */
    if (first >= end) return;
    if (!s) scores_turned(t, r, n, first, end), s = t->s;
    for (int64_t i = 0; i < n; i++) {
        const float before = t->m[r + i], most = mask(t, s + i * TILE, lo[i], hi[i]);
        m[i] = most > before ? most : before;
        t->m[r + i] = m[i];
        if (m[i] == -INFINITY) m[i] = 0; /* -inf - 0 is fine */
        keep[i] = before - m[i];
    }
    vf_store(keep, vf_exp_negative(vf_load(keep)));
    for (int64_t i = 0; i < n; i++) {
        float *row = s + i * TILE;
        for (int64_t j = first / 16 * 16; j < lo[i] / 16 * 16; j += VF)
            vf_store(row + j, vf_zero());
        for (int64_t j = (hi[i] + 15) / 16 * 16; j < end; j += VF) vf_store(row + j, vf_zero());
        exponentials(row, lo[i], hi[i], m[i], keep[i], t->l + (r + i) * 16);
    }
    for (int64_t c = 0; c < t->d->v; c += WIDE) {
        const int64_t nv = panel_vectors(t->d->v, c);
        product_any(n, nv, end - first, s + first, TILE, t->values + c * TILE + first * nv * VF,
                    nv * VF, keep, t->o + r * t->vp + c, t->vp);
    }
}

static void start(struct state *t, const sop_attention_block *b)
{
    const sop_attention_desc *d = t->d = b->call->desc;
    t->b = b;
    t->group = d->heads / d->kv_heads;
    t->rows = b->n * t->group;
    t->kp = (d->k + 15) / 16 * 16;
    t->vp = (d->v + 15) / 16 * 16;
    t->q = b->scratch;
    t->s = t->q + t->rows * t->kp;
    t->o = t->s + FEW_ROWS * TILE;
    t->keys = t->o + t->rows * t->vp;
    t->values = t->keys + TILE * t->kp;
    t->l = t->values + TILE * t->vp;
    t->m = t->l + t->rows * 16;
    memset(t->o, 0, (size_t)(t->rows * t->vp) * sizeof *t->o);
    memset(t->l, 0, (size_t)(t->rows * 16) * sizeof *t->l);
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t h = 0; h < t->group; h++) {
            const float *q = (const float *)b->call->args[SOP_ATTENTION_Q].data +
                             (b->q0 + i) * d->q_stride + (b->g * t->group + h) * d->q_head;
            float *out = t->q + (i * t->group + h) * t->kp;
            int64_t c = 0;
            for (; c + VF <= d->k; c += VF)
                vf_store(out + c, vf_mul(vf_load(q + c), vf_set(d->scale)));
            for (; c < t->kp; c++) out[c] = c < d->k ? q[c] * d->scale : 0;
            t->m[i * t->group + h] = -INFINITY;
            /* finish() writes there when all tiles are done: they come meanwhile */
            const char *o = (const char *)(b->o + i * b->o_stride + h * b->o_head);
            for (c = 0; c < d->v * 4; c += 64) __builtin_prefetch(o + c, 1, 2);
        }
    /* dot products run over kp channels */
    for (int64_t i = 0; i < KEYS_AT_ONCE; i++)
        for (int64_t c = d->k; c < t->kp; c++) t->keys[i * t->kp + c] = 0;
}

static void finish(const struct state *t)
{
    const sop_attention_block *b = t->b;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t h = 0; h < t->group; h++) {
            const int64_t r = i * t->group + h;
            const float *o = t->o + r * t->vp;
            float *out = b->o + i * b->o_stride + h * b->o_head;
            vf sum[UNIT];
            for (int n = 0; n < UNIT; n++) sum[n] = vf_load(t->l + r * 16 + n * VF);
            const float l = vf_sum16(sum), scale = t->m[r] == -INFINITY ? 0 : 1 / l;
            /* + 0: no row has a -0 that in other company would be +0 */
            int64_t c = 0;
            for (; c + VF <= t->d->v; c += VF)
                vf_store(out + c, vf_fma(vf_load(o + c), vf_set(scale), vf_zero()));
            for (; c < t->d->v; c++) out[c] = o[c] * scale + 0.0f;
            if (b->lse) b->lse[i * b->lse_stride + h] = t->m[r] + logf(l);
        }
}

static void attend(const sop_attention_block *b)
{
    struct state t;
    start(&t, b);
    const int dotted = t.rows <= FEW_ROWS && t.d->numerics != SOP_NUMERICS_INVARIANT;
    for (t.tile = b->from / TILE * TILE; t.tile < b->to; t.tile += TILE) {
        t.first = t.tile > b->from ? 0 : b->from - t.tile;
        t.end = b->to - t.tile < TILE ? b->to - t.tile : TILE;
        find(&t);
#define LAY(dtype) lay_values(t.value, t.first, t.end, dtype, t.d->v, t.values)
        FOR_DTYPE(t.d->kv_dtype, LAY)
#undef LAY
#define TURN(dtype) turn_keys(t.key, dtype, t.d->k, t.kp, t.keys)
        if (dotted)
            scores_dotted(&t);
        else
            FOR_DTYPE(t.d->kv_dtype, TURN)
#undef TURN
        for (int64_t r = 0, n; r < t.rows; r += n) {
            n = next_rows(t.rows - r);
            take_tile(&t, r, n, dotted ? t.s + r * TILE : NULL);
        }
    }
    finish(&t);
}

#endif
