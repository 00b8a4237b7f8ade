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

/* Rows of 16 floats: [k][16]. */
INLINE void decode_put(int32_t dtype, float *out, int quad, int v, const vf f[4])
{
    (void)dtype;
    UNROLL for (int i = 0; i < 4; i++) vf_store(out + R * (4 * quad + i) + VF * v, f[i]);
}
typedef float decoded;
enum { DECODED_STEP = 32 * R };

#include "ops/linear/decode.h"

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
