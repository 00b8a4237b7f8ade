/* Weights of any format against float32 activations, written once for two widths of vectors: included
 * by linear_f32x_avx2.c and linear_f32x_avx512.c alone, after the vectors they use (vf_, vb_) and
 *
 *     SOP_F32X_WIDEST   tokens of a tile, 6 or 12
 *     PANELS            panels that run side by side
 *     KC                k that are decoded at once: PANELS * KC * 64 bytes stay in L1
 *
 * A panel is decoded to floats [k][16 rows], each the float nearest to the format's value; then all
 * tokens run past it, PANELS * WIDEST * 16 sums in registers. A sum is one chain of fused
 * multiply-adds in the order of k, kept in y between two pieces of k: so a token's bits depend neither
 * on how many there are nor on the width of the vectors. */
#include "core/op.h"
#include "ops/linear/linear.h"
#include "ops/linear/panels.h"

enum { R = SOP_PANEL_ROWS, NV = R / VF, WIDEST = SOP_F32X_WIDEST };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

/* ---- decode: 32 k of a panel to out [32][16], NV vectors a row ---- */

/* d and m of group g: w = d q + m. */
struct scale {
    vf d, m;
};

INLINE struct scale scale_of(int32_t dtype, const uint8_t *w, int64_t g, int v)
{
    const vf d = vb_half(w + 2 * VF * v);
    switch (dtype) {
    case SOP_Q4_0: return (struct scale){d, vf_mul(d, vf_set(-8))};
    case SOP_Q5_0: return (struct scale){d, vf_mul(d, vf_set(-16))};
    case SOP_Q4_1:
    case SOP_Q5_1: return (struct scale){d, vb_half(w + 32 + 2 * VF * v)};
    case SOP_Q4_K:
    case SOP_Q5_K: {
        const vf m = vf_mul(vb_half(w + 32 + 2 * VF * v), vb_u8(w + 192 + 16 * g + VF * v));
        return (struct scale){vf_mul(d, vb_u8(w + 64 + 16 * g + VF * v)), vf_sub(vf_zero(), m)};
    }
    default: return (struct scale){d, vf_zero()};
    }
}

/* The 4 k of a quad of unsigned bytes. */
INLINE void put_quad(float *out, vb quad, struct scale s)
{
    UNROLL for (int i = 0; i < 4; i++) vf_store(out + R * i, vf_fma(s.d, vb_byte(quad, i), s.m));
}

INLINE void decode_nibbles(int32_t dtype, const uint8_t *w, const uint8_t *q, int64_t g, float *out)
{
    const int five = dtype == SOP_Q5_0 || dtype == SOP_Q5_1 || dtype == SOP_Q5_K;
    for (int v = 0; v < NV; v++) {
        const struct scale s = scale_of(dtype, w, g, v);
        const vb fifth = vb_load(q + 4 * VF * v);
        UNROLL for (int i = 0; i < 4; i++)
        {
            const vb both = vb_load(q + (five ? 64 : 0) + 64 * i + 4 * VF * v);
            vb low = vb_low4(both), high = vb_high4(both);
            if (five) {
                low = vb_or(low, vb_bit4(fifth, i));
                high = vb_or(high, vb_bit4(fifth, i + 4));
            }
            put_quad(out + 4 * R * i + VF * v, low, s);
            put_quad(out + 4 * R * (i + 4) + VF * v, high, s);
        }
    }
}

INLINE void decode_q8_0(const uint8_t *w, float *out)
{
    for (int v = 0; v < NV; v++) {
        const vf d = vb_half(w + 2 * VF * v);
        UNROLL for (int i = 0; i < 8; i++)
        {
            const vb quad = vb_load(w + 32 + 64 * i + 4 * VF * v);
            UNROLL for (int c = 0; c < 4; c++)
                vf_store(out + R * (4 * i + c) + VF * v, vf_mul(d, vb_signed(quad, c)));
        }
    }
}

INLINE void decode_q6_k(const uint8_t *w, int64_t g, float *out)
{
    for (int c = 0; c < 2; c++)
        for (int v = 0; v < NV; v++) {
            const uint8_t *q = w + 288 + 192 * (2 * g + c) + 4 * VF * v;
            const vf d = vf_mul(vb_half(w + 2 * VF * v), vb_i8(w + 32 + 16 * (2 * g + c) + VF * v));
            const struct scale s = {d, vf_mul(d, vf_set(-32))};
            const vb a = vb_load(q), b = vb_load(q + 64), high = vb_load(q + 128);
            float *to = out + 16 * R * c + VF * v;
            put_quad(to, vb_or(vb_low4(a), vb_bits45(high, 0)), s);
            put_quad(to + 4 * R, vb_or(vb_high4(a), vb_bits45(high, 1)), s);
            put_quad(to + 8 * R, vb_or(vb_low4(b), vb_bits45(high, 2)), s);
            put_quad(to + 12 * R, vb_or(vb_high4(b), vb_bits45(high, 3)), s);
        }
}

INLINE void decode_plain(int32_t dtype, const uint8_t *w, float *out)
{
    for (int v = 0; v < NV; v++) {
        if (dtype == SOP_BF16) {
            UNROLL for (int i = 0; i < 16; i++) /* pair i: k = 4 (i / 2) + i % 2, and k + 2 */
            {
                const vb pair = vb_load(w + 64 * i + 4 * VF * v);
                float *to = out + R * (4 * (i / 2) + i % 2) + VF * v;
                vf_store(to, vb_bf16(pair, 0));
                vf_store(to + 2 * R, vb_bf16(pair, 1));
            }
        } else {
            UNROLL for (int i = 0; i < 32; i++)
                vf_store(out + R * i + VF * v, dtype == SOP_F16
                                                   ? vb_half(w + 32 * i + 2 * VF * v)
                                                   : vf_load((const float *)w + R * i + VF * v));
        }
    }
}

/* k0 to k0 + KC of a panel, k0 and KC multiples of 32. */
INLINE void decode_blocks(int32_t dtype, const uint8_t *w, int64_t k0, int64_t kn, float *out)
{
    const int64_t block = sop_panel_block(dtype);
    const size_t bytes = sop_panel_block_bytes(dtype);
    const int five = dtype == SOP_Q5_0 || dtype == SOP_Q5_1 || dtype == SOP_Q5_K;
    for (int64_t k = k0; k < k0 + kn; k += 32, out += 32 * R) {
        const uint8_t *at = w + (size_t)(k / block) * bytes;
        const int64_t g = k % block / 32;
        for (int i = 0; i < 320; i += 64)
            _mm_prefetch((const char *)at + 2048 + 320 * g + i, _MM_HINT_T0);
        switch (dtype) {
        case SOP_F32:
        case SOP_F16:
        case SOP_BF16: decode_plain(dtype, at, out); break;
        case SOP_Q8_0: decode_q8_0(at, out); break;
        case SOP_Q6_K: decode_q6_k(at, g, out); break;
        case SOP_Q4_K:
        case SOP_Q5_K: decode_nibbles(dtype, at, at + 320 + (five ? 320 : 256) * g, g, out); break;
        default:
            decode_nibbles(dtype, at, at + (dtype == SOP_Q4_1 || dtype == SOP_Q5_1 ? 64 : 32), g,
                           out);
        }
    }
}

static void decode(int32_t dtype, const uint8_t *w, int64_t k0, int64_t kn, float *out)
{
    switch (dtype) { /* each with its own copy of decode_blocks */
#define ONE(type) \
    case type: decode_blocks(type, w, k0, kn, out); break;
        ONE(SOP_F32)
        ONE(SOP_F16)
        ONE(SOP_BF16)
        ONE(SOP_Q8_0)
        ONE(SOP_Q4_0)
        ONE(SOP_Q4_1)
        ONE(SOP_Q5_0)
        ONE(SOP_Q5_1)
        ONE(SOP_Q4_K)
        ONE(SOP_Q5_K)
        ONE(SOP_Q6_K)
#undef ONE
    default: break;
    }
}

/* ---- multiply ---- */

/* n tokens of x [kn][n] past the panels w [PANELS][KC][16], onto sums [n][PANELS][16]. */
INLINE void tile(const float *w, const float *x, int64_t kn, const int n, float *sums)
{
    vf f[WIDEST][PANELS * NV];
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int v = 0; v < PANELS * NV; v++) f[r][v] =
        vf_load(sums + (r * PANELS * NV + v) * VF);
    for (int64_t k = 0; k < kn; k++, x += n) {
        vf row[PANELS * NV];
        UNROLL for (int p = 0; p < PANELS; p++) UNROLL for (int v = 0; v < NV; v++)
            row[p * NV + v] = vf_load(w + (p * KC + k) * R + VF * v);
        UNROLL for (int r = 0; r < n; r++)
        {
            const vf b = vf_set(x[r]);
            UNROLL for (int v = 0; v < PANELS * NV; v++) f[r][v] = vf_fma(row[v], b, f[r][v]);
        }
    }
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int v = 0; v < PANELS * NV; v++)
        vf_store(sums + (r * PANELS * NV + v) * VF, f[r][v]);
}

/* A function for each width: within a larger one the sums do not stay in registers. */
#define TILE(n) \
    static __attribute__((noinline)) void tile_##n(const float *w, const float *x, int64_t kn, \
                                                   float *sums) \
    { \
        tile(w, x, kn, n, sums); \
    }
TILE(1)
TILE(2)
TILE(4)
#if SOP_F32X_WIDEST == 12
TILE(8)
TILE(12)
#else
TILE(6)
#endif
#undef TILE

static void any_tile(const float *w, const float *x, int64_t kn, int64_t n, float *sums)
{
    switch (n) {
    case 1: tile_1(w, x, kn, sums); break;
    case 2: tile_2(w, x, kn, sums); break;
    case 4: tile_4(w, x, kn, sums); break;
#if SOP_F32X_WIDEST == 12
    case 8: tile_8(w, x, kn, sums); break;
    default: tile_12(w, x, kn, sums); break;
#else
    default: tile_6(w, x, kn, sums); break;
#endif
    }
}

struct job {
    sop_panels p;
    const float *x;
};

static void some_panels(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_panels *p = &job->p;
    _Alignas(64) float w[PANELS * KC * R];
    (void)worker;
    for (int64_t k0 = 0; k0 == 0 || k0 < p->k; k0 += KC) {
        const int64_t kn = p->k - k0 < KC ? p->k - k0 : KC;
        for (int64_t i = begin * PANELS; i < end * PANELS && i < p->n_panels; i += PANELS) {
            const int64_t panels = p->n_panels - i < PANELS ? p->n_panels - i : PANELS;
            sop_panel at[PANELS];
            for (int64_t c = 0; c < PANELS; c++) {
                at[c] = sop_panel_at(p, c < panels ? i + c : i);
                decode(at[c].dtype, at[c].w, k0, kn, w + c * KC * R);
            }
            for (int64_t t = 0, n; t < p->tokens; t += n) {
                _Alignas(64) float sums[WIDEST][PANELS][R];
                n = sop_tile_width(WIDEST, p->tokens - t);
                for (int64_t r = 0; r < n; r++)
                    for (int64_t c = 0; c < PANELS; c++)
                        sop_sums_get(sums[r][c], at[c].y + (t + r) * p->y_stride,
                                     k0 && c < panels ? at[c].columns : 0);
                any_tile(w, job->x + t * p->k + k0 * n, kn, n, sums[0][0]);
                for (int64_t r = 0; r < n; r++)
                    for (int64_t c = 0; c < panels; c++)
                        sop_sums_put(at[c].y + (t + r) * p->y_stride, sums[r][c], at[c].columns,
                                     k0 + kn == p->k ? at[c].bias : NULL);
            }
        }
    }
}

static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    const int64_t pieces = 4 * sop_workers(call->queue);
    struct job job;
    sop_panels_init(&job.p, call);
    sop_stage_y(&job.p, call, (char *)call->scratch + sop_tiles_bytes(d));
    if (job.p.tokens == 0) return SOP_OK;
    job.x = sop_tiles_fill(call, job.p.tokens, WIDEST, call->scratch);
    const int64_t groups = (job.p.n_panels + PANELS - 1) / PANELS;
    sop_parallel(call->queue, groups, (groups + pieces - 1) / pieces, some_panels, &job);
    sop_stage_end(&job.p, call);
    return SOP_OK;
}
