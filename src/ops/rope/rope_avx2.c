/* Cosines and sines of 8 phases at a time, once a token; then 8 channels a step of every head. In the
 * interleaved form the table holds each twice, so that one shuffle and one fmaddsub rotate 4 pairs. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/op.h"
#include "ops/rope/rope.h"

/* Reduction below is exact to 2^-22 up to here; beyond, libm. */
static const float most_phase = 0x1p20f;

/* Both within 2 u of the truth for |x| < 2^20: x - n pi/2 by three floats of pi/2, the first of which
 * cancels exactly in an FMA, then minimax polynomials on [-pi/4, pi/4] (weighted least squares on a
 * dense grid, relative errors 2^-27 and 2^-33). */
static void sincos8(__m256 x, __m256 *cosine, __m256 *sine)
{
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.45f306p-1f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.921fb6p+0f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.777a5cp-25f), r);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.ee59dap-50f), r);
    const __m256 z = _mm256_mul_ps(r, r);
    __m256 s = _mm256_set1_ps(-0x1.99406p-13f);
    s = _mm256_fmadd_ps(s, z, _mm256_set1_ps(0x1.11073p-7f));
    s = _mm256_fmadd_ps(s, z, _mm256_set1_ps(-0x1.555546p-3f));
    s = _mm256_fmadd_ps(_mm256_mul_ps(s, z), r, r);
    __m256 c = _mm256_set1_ps(0x1.99e86ap-16f);
    c = _mm256_fmadd_ps(c, z, _mm256_set1_ps(-0x1.6c0c28p-10f));
    c = _mm256_fmadd_ps(c, z, _mm256_set1_ps(0x1.55554ap-5f));
    c = _mm256_fmadd_ps(c, z, _mm256_set1_ps(-0.5f));
    c = _mm256_fmadd_ps(c, z, _mm256_set1_ps(1));
    /* quadrant q: sine is s, c, -s, -c; cosine is c, -s, -c, s */
    const __m256i q = _mm256_cvtps_epi32(n);
    const __m256 swap = _mm256_castsi256_ps(_mm256_slli_epi32(q, 31));
    const __m256i two = _mm256_set1_epi32(2);
    const __m256i minus_s = _mm256_slli_epi32(_mm256_and_si256(q, two), 30);
    const __m256i minus_c =
        _mm256_slli_epi32(_mm256_and_si256(_mm256_add_epi32(q, _mm256_set1_epi32(1)), two), 30);
    *sine = _mm256_xor_ps(_mm256_blendv_ps(s, c, swap), _mm256_castsi256_ps(minus_s));
    *cosine = _mm256_xor_ps(_mm256_blendv_ps(c, s, swap), _mm256_castsi256_ps(minus_c));
}

/* The table of one token: c, s [rot/2] in the half form, each value twice in the interleaved one. */
static void make_table(const sop_rope_desc *d, float pos, const float *freqs, float *c, float *s)
{
    const int64_t half = d->rot / 2;
    for (int64_t i = 0; i < half; i += 8) {
        const int64_t n = half - i < 8 ? half - i : 8;
        float phase[8] = {0}, c8[8], s8[8];
        int near = 1;
        for (int64_t j = 0; j < n; j++) {
            phase[j] = pos * freqs[i + j];
            near &= fabsf(phase[j]) < most_phase;
        }
        __m256 vc, vs;
        sincos8(_mm256_loadu_ps(phase), &vc, &vs);
        const __m256 m = _mm256_set1_ps(d->mscale);
        _mm256_storeu_ps(c8, _mm256_mul_ps(vc, m));
        _mm256_storeu_ps(s8, _mm256_mul_ps(vs, m));
        if (!near)
            for (int64_t j = 0; j < n; j++) {
                c8[j] = d->mscale * cosf(phase[j]);
                s8[j] = d->mscale * sinf(phase[j]);
            }
        for (int64_t j = 0; j < n; j++)
            if (d->interleaved) {
                c[2 * (i + j)] = c[2 * (i + j) + 1] = c8[j];
                s[2 * (i + j)] = s[2 * (i + j) + 1] = s8[j];
            } else {
                c[i + j] = c8[j];
                s[i + j] = s8[j];
            }
    }
}

static void rotate_half(int64_t half, const float *x, float *y, const float *c, const float *s)
{
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const __m256 p = _mm256_loadu_ps(x + i), q = _mm256_loadu_ps(x + i + half);
        const __m256 vc = _mm256_loadu_ps(c + i), vs = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(y + i, _mm256_fmsub_ps(p, vc, _mm256_mul_ps(q, vs)));
        _mm256_storeu_ps(y + i + half, _mm256_fmadd_ps(q, vc, _mm256_mul_ps(p, vs)));
    }
    for (; i < half; i++) {
        const float p = x[i], q = x[i + half];
        y[i] = p * c[i] - q * s[i];
        y[i + half] = q * c[i] + p * s[i];
    }
}

static void rotate_pairs(int64_t rot, const float *x, float *y, const float *c, const float *s)
{
    int64_t i = 0;
    for (; i + 8 <= rot; i += 8) {
        const __m256 p = _mm256_loadu_ps(x + i), q = _mm256_permute_ps(p, 0xb1);
        _mm256_storeu_ps(y + i, _mm256_fmaddsub_ps(p, _mm256_loadu_ps(c + i),
                                                   _mm256_mul_ps(q, _mm256_loadu_ps(s + i))));
    }
    for (; i < rot; i += 2) {
        const float p = x[i], q = x[i + 1];
        y[i] = p * c[i] - q * s[i];
        y[i + 1] = q * c[i] + p * s[i];
    }
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_rope_desc *d = call->desc;
    const int32_t *pos = call->args[SOP_ROPE_POS].data;
    float *c = (float *)call->scratch + worker * sop_rope_table_floats(d), *s = c + d->rot;
    for (int64_t t = begin; t < end; t++) {
        make_table(d, (float)pos[t], call->args[SOP_ROPE_FREQS].data, c, s);
        for (int64_t h = 0; h < d->heads; h++) {
            const float *x =
                (const float *)call->args[SOP_ROPE_X].data + t * d->x_stride + h * d->x_head;
            float *y = (float *)call->args[SOP_ROPE_Y].data + t * d->y_stride + h * d->y_head;
            if (d->interleaved)
                rotate_pairs(d->rot, x, y, c, s);
            else
                rotate_half(d->rot / 2, x, y, c, s);
            if (x != y && d->rot < d->k)
                memcpy(y + d->rot, x + d->rot, (size_t)(d->k - d->rot) * sizeof *y);
        }
    }
}

sop_status sop_rope_f32_avx2(const sop_call *call)
{
    const sop_rope_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_ROPE_LIVE, d->tokens), 4, tokens, call);
    return SOP_OK;
}
