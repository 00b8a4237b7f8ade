/* ops/attention/attention_kernel.h: the core for vectors, written once for both widths: included after
 * vf_avx2.h or vf_avx512.h. A row is a query head at a query: all heads of the group share what is
 * done to keys and values. For every tile of 64 keys:
 *
 * - keys become floats and are turned, so that a vector holds one channel of 8 or 16 keys; values
 *   become floats. Both lie in panels, whose columns a matrix product keeps in registers
 * - 6 rows at a time take the tile: scores = q x keys; the online softmax; o = keep o + weights x
 *   values
 *
 * A row's sums run over channels and over keys in the same order whatever the other rows are, and
 * keys that only others see come with a weight of 0: so a query has the same bits in any company, and
 * at both widths.
 *
 *     scratch: q [rows, kp] | o [rows, vp] | keys [64, kp] | values [64, vp] | l [rows, 16] | m [rows]
 *     panel:   columns c .. c + WIDE of a matrix, [depth, WIDE]; the last one may be narrower
 *     kp, vp:  k, v rounded up to 16 */
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
    UNIT = 16 / VF /* vectors of 16 floats: the softmax sums by 16 at both widths */
};

#define ALWAYS static inline __attribute__((always_inline))
/* A loop of a few steps, the index a constant in each: only then are arrays of vectors registers. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* ---- matrix products ---- */

/* Where the second factor b [depth, nv vectors] of a product lies: in a panel with this stride, or, as
 * a type, in rows from byte `at` on. */
struct factor {
    const float *panel;
    int64_t stride;
    const char *const *row;
    int64_t at;
};
enum { IN_PANEL = -1 };

/* out = a b, or keep[r] * out + a b: a [rows, depth]. */
ALWAYS void product(const int rows, const int nv, const int32_t dtype, int64_t depth,
                    const float *a, int64_t a_stride, const struct factor *b, const float *keep,
                    float *out, int64_t out_stride)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2;
    vf sum[ROWS][PANEL_VECTORS];
    EACH(r, rows) EACH(c, nv) sum[r][c] = vf_zero();
    for (int64_t i = 0; i < depth; i++) {
        vf x[PANEL_VECTORS];
        EACH(c, nv)
        x[c] = dtype == IN_PANEL ? vf_load(b->panel + i * b->stride + c * VF)
                                 : vf_decode(b->row[i] + b->at + c * VF * bytes, dtype);
        EACH(r, rows)
        {
            const vf w = vf_set(a[r * a_stride + i]);
            EACH(c, nv) sum[r][c] = vf_fma(w, x[c], sum[r][c]);
        }
    }
    EACH(r, rows)
    EACH(c, nv)
    {
        float *at = out + r * out_stride + c * VF;
        vf_store(at, keep ? vf_fma(vf_load(at), vf_set(keep[r]), sum[r][c]) : sum[r][c]);
    }
}

/* Rows, vectors and type as constants; a whole panel where it is rows of a type. */
static void product_any(int64_t rows, int64_t nv, int32_t dtype, int64_t depth, const float *a,
                        int64_t a_stride, const struct factor *b, const float *keep, float *out,
                        int64_t out_stride)
{
#define SHAPE(r, n, type) \
    case ((type) + 1) * 64 + (r)*8 + (n): \
        product(r, n, type, depth, a, a_stride, b, keep, out, out_stride); \
        break
#define SHAPES(n, type) \
    SHAPE(1, n, type); \
    SHAPE(2, n, type); \
    SHAPE(3, n, type); \
    SHAPE(4, n, type); \
    SHAPE(5, n, type); \
    SHAPE(6, n, type)
    switch ((dtype + 1) * 64 + rows * 8 + nv) {
        SHAPES(1, IN_PANEL);
        SHAPES(2, IN_PANEL);
#if PANEL_VECTORS == 4
        SHAPES(3, IN_PANEL);
        SHAPES(4, IN_PANEL);
#endif
        SHAPES(PANEL_VECTORS, SOP_F32);
        SHAPES(PANEL_VECTORS, SOP_F16);
        SHAPES(PANEL_VECTORS, SOP_BF16);
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

/* ---- a block ---- */

/* A tile begins at key `at`; its keys [first, end), counted from there, are read. */
struct tile {
    int64_t at, first, end;
    const char *key[TILE], *value[TILE];
};

struct state {
    const sop_attention_block *b;
    const sop_attention_desc *d;
    int64_t group, rows, kp, vp;
    float *q, *o, *keys, *values, *l, *m;
    int64_t direct; /* columns of values that are read where they lie, whole panels of them */
    const struct tile *tile, *next;
    int64_t fetched; /* rows of next, keys before values */
};

/* Bring n more rows of the next tile into the second cache: a few at a time between other work, or
 * the memory would stand idle meanwhile. */
static void fetch(struct state *t, int64_t n)
{
    const int64_t bytes = t->d->kv_dtype == SOP_F32 ? 4 : 2;
    for (int64_t end = t->fetched + n; t->fetched < end && t->fetched < 2 * TILE; t->fetched++) {
        const int is_value = t->fetched >= TILE;
        const char *row = is_value ? t->next->value[t->fetched - TILE] : t->next->key[t->fetched];
        for (int64_t i = 0; i < (is_value ? t->d->v : t->d->k) * bytes; i += 64)
            _mm_prefetch(row + i, _MM_HINT_T1);
    }
}

/* The keys of the tile that n rows from row r on see, from the tile's start. */
static void sees(const struct state *t, int64_t r, int64_t n, int64_t *lo, int64_t *hi)
{
    const int64_t query = r / t->group, at = t->b->at + query;
    int64_t head = r - query * t->group, below = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || head == t->group) {
            if (i) below++, head = 0;
            sop_attention_sees(t->d, t->b->keys, at + below, &lo[i], &hi[i]);
            lo[i] -= t->tile->at;
            hi[i] -= t->tile->at;
            if (lo[i] < t->tile->first) lo[i] = t->tile->first;
            if (hi[i] > t->tile->end) hi[i] = t->tile->end;
        } else {
            lo[i] = lo[i - 1];
            hi[i] = hi[i - 1];
        }
        head++;
    }
}

/* Where the keys and values of the tile at key `at` lie; keys that are not read get a neighbour's. */
static void find(const struct state *t, int64_t at, struct tile *out)
{
    const sop_attention_desc *d = t->d;
    const int64_t bytes = d->kv_dtype == SOP_F32 ? 4 : 2;
    out->at = at;
    out->first = at > t->b->from ? 0 : t->b->from - at;
    out->end = t->b->to - at < TILE ? t->b->to - at : TILE;
    for (int64_t j = out->first; j < out->end;) {
        const int64_t place = (at + j) % d->page, page = t->b->table[(at + j) / d->page];
        const int64_t run = j + d->page - place < out->end ? j + d->page - place : out->end;
        const char *k = (const char *)t->b->call->args[SOP_ATTENTION_K_POOL].data +
                        (page * d->kp_page + place * d->kp_token + t->b->g * d->kp_head) * bytes;
        const char *v = (const char *)t->b->call->args[SOP_ATTENTION_V_POOL].data +
                        (page * d->vp_page + place * d->vp_token + t->b->g * d->vp_head) * bytes;
        for (; j < run; j++, k += d->kp_token * bytes, v += d->vp_token * bytes)
            out->key[j] = k, out->value[j] = v;
    }
    for (int64_t j = 0; j < TILE; j++)
        if (j < out->first || j >= out->end) {
            const int64_t neighbour = j < out->first ? out->first : out->end - 1;
            out->key[j] = out->key[neighbour];
            out->value[j] = out->value[neighbour];
        }
}

/* ---- keys and values as floats ---- */

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

/* Channels c .. c + n of 16 rows as floats. */
ALWAYS void decode16(const char *const *row, int64_t c, int64_t n, int32_t dtype, float *out,
                     int64_t stride)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2;
    int64_t i = 0;
    for (; i + VF <= n; i += VF)
        EACH(r, 16) vf_store(out + r * stride + i, vf_decode(row[r] + (c + i) * bytes, dtype));
    for (; i + 8 <= n; i += 8) EACH(r, 16)
    _mm256_storeu_ps(out + r * stride + i, sop_decode8(row[r] + (c + i) * bytes, dtype));
    for (; i < n; i++)
        for (int64_t r = 0; r < 16; r++) out[r * stride + i] = one(row[r] + (c + i) * bytes, dtype);
}

/* 8 keys x 8 channels of floats from the rows at key into 8 vectors at out, one a channel. */
ALWAYS void turn8(const char *const *key, int64_t at, float *out, int64_t stride)
{
    __m256 r[8], s[8];
    EACH(i, 8) r[i] = sop_decode8(key[i] + at, SOP_F32);
    EACH(i, 4)
    {
        s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    EACH(i, 2)
    {
        const __m256 *x = s + 4 * i;
        r[4 * i] = _mm256_shuffle_ps(x[0], x[2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(x[0], x[2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(x[1], x[3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(x[1], x[3], 0xee);
    }
    EACH(i, 4)
    {
        _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* 2 VF keys x 8 channels of a 16-bit type from the rows at key: they are turned before they become
 * floats, which halves the work. Lane l of a vector holds rows 8 l .. 8 l + 7. */
ALWAYS void turn16(const char *const *key, int64_t at, int32_t dtype, float *out, int64_t stride)
{
    uint16_t halves[8][2 * VF];
    vh r[8], s[8];
    EACH(i, 8) r[i] = vh_rows(key + i, at);
    EACH(i, 4)
    {
        s[2 * i] = vh_low16(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = vh_high16(r[2 * i], r[2 * i + 1]);
    }
    EACH(i, 2)
    {
        const vh *x = s + 4 * i;
        r[4 * i] = vh_low32(x[0], x[2]);
        r[4 * i + 1] = vh_high32(x[0], x[2]);
        r[4 * i + 2] = vh_low32(x[1], x[3]);
        r[4 * i + 3] = vh_high32(x[1], x[3]);
    }
    EACH(i, 4)
    {
        vh_store(halves[2 * i], vh_low64(r[i], r[i + 4]));
        vh_store(halves[2 * i + 1], vh_high64(r[i], r[i + 4]));
    }
    EACH(i, 8)
    EACH(n, 2) vf_store(out + i * stride + n * VF, vf_decode(halves[i] + n * VF, dtype));
}

/* The tile's keys into panels of keys, [k, WIDE] each, kp rows apart. */
ALWAYS void turn_keys(struct state *t, int32_t dtype)
{
    const int64_t bytes = dtype == SOP_F32 ? 4 : 2, step = dtype == SOP_F32 ? 8 : 2 * VF;
    for (int64_t j = 0; j < TILE; j += step) {
        const char *const *key = t->tile->key + j;
        float *panel = t->keys + j / WIDE * WIDE * t->kp + j % WIDE;
        int64_t c = 0;
        for (; c + 8 <= t->d->k; c += 8) {
            if (dtype == SOP_F32)
                turn8(key, c * bytes, panel + c * WIDE, WIDE);
            else
                turn16(key, c * bytes, dtype, panel + c * WIDE, WIDE);
            fetch(t, step / 8);
        }
        for (; c < t->d->k; c++)
            for (int64_t i = 0; i < step; i++) panel[c * WIDE + i] = one(key[i] + c * bytes, dtype);
    }
}

/* Vectors of the panel of values that begins at column c. */
static int64_t panel_vectors(int64_t v, int64_t c)
{
    const int64_t left = (v - c + VF - 1) / VF;
    return left < PANEL_VECTORS ? left : PANEL_VECTORS;
}

/* The tile's values into panels of channels, 16 keys at a time; not those that are read directly. */
ALWAYS void lay_values(struct state *t, int32_t dtype)
{
    for (int64_t j = t->tile->first / 16 * 16; j < t->tile->end; j += 16) {
        for (int64_t c = t->direct; c < t->d->v; c += WIDE) {
            const int64_t stride = panel_vectors(t->d->v, c) * VF;
            decode16(t->tile->value + j, c, t->d->v - c < WIDE ? t->d->v - c : WIDE, dtype,
                     t->values + c * TILE + j * stride, stride);
        }
        fetch(t, 8);
    }
}

/* ---- 6 rows and a tile ---- */

ALWAYS vf squeeze(vf z, float cap)
{
    return vf_mul(vf_set(cap), vf_tanh(vf_mul(z, vf_set(1 / cap))));
}

/* Row r's scores with what is added to them, which comes after the cap. */
static void bias(const struct state *t, int64_t r, float *s, int64_t lo, int64_t hi)
{
    if (t->d->cap > 0)
        for (int64_t j = lo / VF * VF; j < hi; j += VF)
            vf_store(s + j, squeeze(vf_load(s + j), t->d->cap));
    sop_attention_bias(t->b, r / t->group, r % t->group, t->tile->at, lo, hi, s);
}

/* The keys [lo, hi) of 64 scores: capped (cap > 0), -inf outside of them in the blocks of 16 that they
 * touch. Returns the largest. */
ALWAYS float mask(float *s, int64_t lo, int64_t hi, float cap)
{
    vf most[UNIT];
    EACH(n, UNIT) most[n] = vf_set(-INFINITY);
    if (lo == 0 && hi == TILE && !(cap > 0)) {
        EACH(j, TILE / 16) EACH(n, UNIT) most[n] = vf_max(most[n], vf_load(s + j * 16 + n * VF));
        return vf_max16(most);
    }
    for (int64_t j = lo / 16 * 16; j < hi; j += 16)
        for (int n = 0; n < UNIT; n++) {
            const int64_t at = j + n * VF;
            vf z = vf_load(s + at);
            if (cap > 0) z = squeeze(z, cap);
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
    EACH(n, UNIT) sum[n] = vf_mul(vf_load(l + n * VF), k);
    for (int64_t j = lo / 16 * 16; j < hi; j += 16) {
        EACH(n, UNIT)
        {
            const vf p = vf_exp_negative(vf_sub(vf_load(s + j + n * VF), base));
            sum[n] = vf_add(sum[n], p);
            vf_store(s + j + n * VF, p);
        }
    }
    EACH(n, UNIT) vf_store(l + n * VF, sum[n]);
}

/* n rows from row r on take the tile: a group goes through all of it while its scores and the tile
 * are in the first cache. */
static void take_tile(struct state *t, int64_t r, int64_t n)
{
    int64_t lo[ROWS], hi[ROWS];
    float s[ROWS * TILE], m[ROWS], keep[VF] = {0};
    sees(t, r, n, lo, hi);
    const int64_t first = lo[0], end = hi[n - 1]; /* what any of the rows sees */
    if (first >= end) return;
    for (int64_t c = first / WIDE * WIDE; c < end; c += WIDE) {
        const int64_t wide = end - c < WIDE ? end - c : WIDE;
        const struct factor keys = {.panel = t->keys + c * t->kp, .stride = WIDE};
        product_any(n, (wide + VF - 1) / VF, IN_PANEL, t->d->k, t->q + r * t->kp, t->kp, &keys,
                    NULL, s + c, TILE);
    }
    const int biased = sop_attention_biased(t->d);
    for (int64_t i = 0; i < n; i++) {
        if (biased) bias(t, r + i, s + i * TILE, lo[i], hi[i]);
        const float before = t->m[r + i];
        const float most = mask(s + i * TILE, lo[i], hi[i], biased ? 0 : t->d->cap);
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
        fetch(t, 8);
    }
    for (int64_t c = 0; c < t->d->v; c += WIDE) {
        const int64_t nv = panel_vectors(t->d->v, c), bytes = t->d->kv_dtype == SOP_F32 ? 4 : 2;
        const struct factor values = {.panel = t->values + c * TILE + first * nv * VF,
                                      .stride = nv * VF,
                                      .row = t->tile->value + first,
                                      .at = c * bytes};
        product_any(n, nv, c < t->direct ? t->d->kv_dtype : IN_PANEL, end - first, s + first, TILE,
                    &values, keep, t->o + r * t->vp + c, t->vp);
    }
}

static void start(struct state *t, const sop_attention_block *b)
{
    const sop_attention_desc *d = t->d = b->call->desc;
    t->b = b;
    t->group = d->heads / d->kv_heads;
    t->rows = b->n * t->group;
    /* decoding twice costs less than writing it down */
    t->direct = t->rows <= 2 * ROWS ? d->v / WIDE * WIDE : 0;
    t->kp = (d->k + 15) / 16 * 16;
    t->vp = (d->v + 15) / 16 * 16;
    t->q = b->scratch;
    t->o = t->q + t->rows * t->kp;
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
            for (; c < d->k; c++) out[c] = q[c] * d->scale;
            const int64_t r = i * t->group + h;
            t->m[r] = b->sinks ? b->sinks[h] : -INFINITY; /* a key whose value is 0 */
            t->l[r * 16] = t->m[r] > -INFINITY;
            /* finish() writes there when all tiles are done: they come meanwhile */
            const char *o = (const char *)(b->o + i * b->o_stride + h * b->o_head);
            for (c = 0; c < d->v * 4; c += 64) __builtin_prefetch(o + c, 1, 2);
        }
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
    struct tile tiles[2];
    int64_t at = b->from < b->to ? b->from / TILE * TILE : b->to;
    start(&t, b);
    if (at < b->to) find(&t, at, &tiles[0]);
    for (int64_t i = 0; at < b->to; at += TILE, i++) {
        t.tile = &tiles[i % 2];
        t.next = &tiles[(i + 1) % 2];
        t.fetched = 2 * TILE;
        if (at + TILE < b->to) {
            find(&t, at + TILE, &tiles[(i + 1) % 2]);
            t.fetched = 0;
        }
#define TURN(dtype) turn_keys(&t, dtype)
#define LAY(dtype) lay_values(&t, dtype)
        FOR_DTYPE(t.d->kv_dtype, TURN)
        FOR_DTYPE(t.d->kv_dtype, LAY)
#undef TURN
#undef LAY
        for (int64_t r = 0, n; r < t.rows; r += n) {
            n = next_rows(t.rows - r);
            take_tile(&t, r, n);
        }
    }
    finish(&t);
}

#endif
