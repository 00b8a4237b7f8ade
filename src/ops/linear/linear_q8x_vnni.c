/* As linear_q8x_avx2.c, and the same bits: there it says what is summed in which order. vpdpbusd adds
 * 4 products of an unsigned and a signed byte to a 32-bit lane, so a quad of 16 rows is one step and
 * nothing saturates. The signed bytes of q8_0 are raised by 128. 16-bit activations come as two bytes,
 * 128 high + low. A panel is decoded in registers for 1 to 8 tokens at once; that is so cheap that
 * more tokens do not unpack it either. */
#include <immintrin.h>
#include <string.h>

#include "core/op.h"
#include "ops/linear/acts.h"
#include "ops/linear/linear.h"

enum {
    WIDEST = 8,   /* tokens in one tile */
    TOKENS = 64,  /* that pass all panels of a piece before the next ones do: they stay in L2 */
    AHEAD = 2048, /* bytes of prefetch in the stream of weights */
    R = SOP_PANEL_ROWS
};

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef __m512i v16;

INLINE v16 ld(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE v16 low4(v16 v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INLINE v16 high4(v16 v)
{
    return low4(_mm512_srli_epi16(v, 4));
}

/* low | bit t of every byte of h, moved to bit 4. */
INLINE v16 with5(v16 low, v16 h, int t)
{
    const v16 s =
        t < 4 ? _mm512_slli_epi16(h, (unsigned)(4 - t)) : _mm512_srli_epi16(h, (unsigned)(t - 4));
    return _mm512_ternarylogic_epi32(low, s, _mm512_set1_epi8(16), 0xf8); /* a | (b & c) */
}

/* low | bits 2t and 2t + 1 of every byte of h, moved to bits 4 and 5. */
INLINE v16 with45(v16 low, v16 h, int t)
{
    const v16 s = t < 2 ? _mm512_slli_epi16(h, (unsigned)(4 - 2 * t))
                        : _mm512_srli_epi16(h, (unsigned)(2 * t - 4));
    return _mm512_ternarylogic_epi32(low, s, _mm512_set1_epi8(0x30), 0xf8);
}

INLINE v16 all4(const void *p)
{
    int32_t t;
    memcpy(&t, p, 4);
    return _mm512_set1_epi32(t);
}

INLINE __m512 half16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 bytes16(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE void prefetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T0);
}

INLINE int is16(int32_t dtype) /* takes 16-bit activations */
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

/* d and m of 32 k: group g of the block w. */
INLINE void scales(int32_t dtype, const uint8_t *w, int g, __m512 *d, __m512 *m)
{
    *d = half16(w);
    switch (dtype) {
    case SOP_Q4_0: *m = _mm512_mul_ps(*d, _mm512_set1_ps(-8)); break;
    case SOP_Q5_0: *m = _mm512_mul_ps(*d, _mm512_set1_ps(-16)); break;
    case SOP_Q4_1:
    case SOP_Q5_1: *m = half16(w + 32); break;
    default:
        *m = _mm512_mul_ps(half16(w + 32), bytes16(w + 192 + 16 * g));
        *m = _mm512_xor_ps(*m, _mm512_set1_ps(-0.0f));
        *d = _mm512_mul_ps(*d, bytes16(w + 64 + 16 * g));
    }
}

INLINE __m512 end16(__m512 f, v16 sum, __m512 d, float d16)
{
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(d16)), d, f);
}

INLINE __m512 end8(__m512 f, v16 sum, __m512 d, __m512 m, float d8, float s8)
{
    return end16(_mm512_fmadd_ps(m, _mm512_set1_ps(s8), f), sum, d, d8);
}

/* ---- n tokens from token t past one panel; f are the sums ---- */

INLINE void panel8(int32_t dtype, const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                   __m512 f[WIDEST])
{
    const int groups = is_k(dtype) ? 8 : 1;
    const size_t head = is_k(dtype) ? 320 : dtype == SOP_Q4_1 || dtype == SOP_Q5_1 ? 64 : 32;
    const size_t group = has5(dtype) ? 320 : 256;
    const int8_t *x = a->q8 + t * a->k;
    const float *d8 = a->d8 + t * (a->k / 32), *s8 = a->s8 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 32 / groups; b++, w += head + (size_t)groups * group)
        for (int g = 0; g < groups; g++, x += 32 * n, d8 += n, s8 += n) {
            const uint8_t *q = w + head + group * (size_t)g;
            const v16 fifth = ld(q);
            v16 s[WIDEST], u[WIDEST];
            __m512 d, m;
            prefetch(g ? q : w, g ? group : head + group);
            UNROLL for (int r = 0; r < n; r++) s[r] = u[r] = _mm512_setzero_si512();
            UNROLL for (int i = 0; i < 4; i++)
            {
                const v16 both = ld(q + (has5(dtype) ? 64 : 0) + 64 * i);
                v16 lo = low4(both), hi = high4(both);
                if (has5(dtype)) {
                    lo = with5(lo, fifth, i);
                    hi = with5(hi, fifth, i + 4);
                }
                UNROLL for (int r = 0; r < n; r++)
                {
                    s[r] = _mm512_dpbusd_epi32(s[r], lo, all4(x + (i * n + r) * 4));
                    u[r] = _mm512_dpbusd_epi32(u[r], hi, all4(x + ((i + 4) * n + r) * 4));
                }
            }
            scales(dtype, w, g, &d, &m);
            UNROLL for (int r = 0; r < n; r++) f[r] =
                end8(f[r], _mm512_add_epi32(s[r], u[r]), d, m, d8[r], s8[r]);
        }
}

INLINE void panel_q8_0(const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                       __m512 f[WIDEST])
{
    const int8_t *high = a->high + t * a->k, *low = a->low + t * a->k;
    const int32_t *sum16 = a->sum16 + t * (a->k / 16);
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 32;
         b++, w += 544, high += 32 * n, low += 32 * n, d16 += n, sum16 += 2 * n) {
        v16 s[WIDEST], u[WIDEST];
        prefetch(w, 544);
        UNROLL for (int r = 0; r < n; r++)
        {
            s[r] = _mm512_setzero_si512();
            u[r] = _mm512_set1_epi32(-128 * (sum16[r] + sum16[n + r]));
        }
        UNROLL for (int i = 0; i < 8; i++)
        {
            const v16 q = _mm512_xor_si512(ld(w + 32 + 64 * i), _mm512_set1_epi8(-128));
            UNROLL for (int r = 0; r < n; r++)
            {
                s[r] = _mm512_dpbusd_epi32(s[r], q, all4(high + (i * n + r) * 4));
                u[r] = _mm512_dpbusd_epi32(u[r], q, all4(low + (i * n + r) * 4));
            }
        }
        const __m512 d = half16(w);
        UNROLL for (int r = 0; r < n; r++) f[r] =
            end16(f[r], _mm512_add_epi32(_mm512_slli_epi32(s[r], 7), u[r]), d, d16[r]);
    }
}

INLINE void panel_q6_k(const uint8_t *w, const sop_acts *a, int64_t t, const int n,
                       __m512 f[WIDEST])
{
    const int8_t *high = a->high + t * a->k, *low = a->low + t * a->k;
    const int32_t *sum16 = a->sum16 + t * (a->k / 16);
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 256; b++, w += 3360)
        for (int g = 0; g < 8; g++, d16 += n) {
            v16 sum[WIDEST];
            prefetch(w + 420 * g, 420);
            UNROLL for (int c = 0; c < 2; c++, high += 16 * n, low += 16 * n, sum16 += n)
            {
                const uint8_t *at = w + 288 + 384 * g + 192 * c;
                const v16 l0 = ld(at), l1 = ld(at + 64), h = ld(at + 128);
                const v16 q[4] = {with45(low4(l0), h, 0), with45(high4(l0), h, 1),
                                  with45(low4(l1), h, 2), with45(high4(l1), h, 3)};
                const v16 scale = _mm512_cvtepi8_epi32(
                    _mm_loadu_si128((const __m128i *)(w + 32 + 32 * g + 16 * c)));
                UNROLL for (int r = 0; r < n; r++)
                {
                    v16 s = _mm512_setzero_si512(), u = _mm512_set1_epi32(-32 * sum16[r]);
                    UNROLL for (int i = 0; i < 4; i++)
                    {
                        s = _mm512_dpbusd_epi32(s, q[i], all4(high + (i * n + r) * 4));
                        u = _mm512_dpbusd_epi32(u, q[i], all4(low + (i * n + r) * 4));
                    }
                    s = _mm512_mullo_epi32(_mm512_add_epi32(_mm512_slli_epi32(s, 7), u), scale);
                    sum[r] = c ? _mm512_add_epi32(sum[r], s) : s;
                }
            }
            const __m512 d = half16(w);
            UNROLL for (int r = 0; r < n; r++) f[r] = end16(f[r], sum[r], d, d16[r]);
        }
}

/* A function for each format and width: within a larger one the sums do not stay in registers. */
typedef void panel_fn(const uint8_t *w, const sop_acts *a, int64_t t, float *sums);
#define PANEL_N(type, n, body) \
    static void panel_##type##_##n(const uint8_t *w, const sop_acts *a, int64_t t, float *sums) \
    { \
        __m512 f[WIDEST]; \
        UNROLL for (int r = 0; r < n; r++) f[r] = _mm512_setzero_ps(); \
        body; \
        UNROLL for (int r = 0; r < n; r++) _mm512_storeu_ps(sums + R * r, f[r]); \
    }
#define PANEL(n) \
    PANEL_N(Q4_0, n, panel8(SOP_Q4_0, w, a, t, n, f)) \
    PANEL_N(Q4_1, n, panel8(SOP_Q4_1, w, a, t, n, f)) \
    PANEL_N(Q5_0, n, panel8(SOP_Q5_0, w, a, t, n, f)) \
    PANEL_N(Q5_1, n, panel8(SOP_Q5_1, w, a, t, n, f)) \
    PANEL_N(Q4_K, n, panel8(SOP_Q4_K, w, a, t, n, f)) \
    PANEL_N(Q5_K, n, panel8(SOP_Q5_K, w, a, t, n, f)) \
    PANEL_N(Q8_0, n, panel_q8_0(w, a, t, n, f)) \
    PANEL_N(Q6_K, n, panel_q6_k(w, a, t, n, f))
PANEL(1)
PANEL(2)
PANEL(4)
PANEL(8)

static panel_fn *panel_of(int32_t dtype, int64_t n)
{
#define ONE(type) \
    case SOP_##type: \
        return n == 1   ? panel_##type##_1 \
               : n == 2 ? panel_##type##_2 \
               : n == 4 ? panel_##type##_4 \
                        : panel_##type##_8
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

struct job {
    sop_panels p;
    sop_acts a;
};

static void some_panels(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_panels *p = &job->p;
    (void)worker;
    for (int64_t t0 = 0; t0 < p->tokens; t0 += TOKENS) {
        const int64_t t1 = p->tokens - t0 < TOKENS ? p->tokens : t0 + TOKENS;
        for (int64_t i = begin; i < end; i++) {
            const sop_panel at = sop_panel_at(p, i);
            for (int64_t t = t0, n; t < t1; t += n) {
                float sums[WIDEST][R];
                n = sop_tile_width(WIDEST, t1 - t);
                panel_of(at.dtype, n)(at.w, &job->a, t, sums[0]);
                for (int64_t r = 0; r < n; r++)
                    sop_sums_put(at.y + (t + r) * p->y_stride, sums[r], at.columns, at.bias);
            }
        }
    }
}

static uint32_t kinds(const sop_linear_desc *d)
{
    uint32_t all = 0;
    for (int32_t j = 0; j < 3; j++)
        if (d->n[j]) all |= is16(d->w_dtype[j]) ? SOP_ACTS_SPLIT : SOP_ACTS_8;
    return all;
}

sop_status sop_linear_q8x_vnni_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split)
{
    const sop_linear_desc *d = desc;
    (void)params, (void)facts, (void)budget;
    *split = (sop_split){.scratch_bytes =
                             sop_acts_bytes(d->tokens, d->k, kinds(d)) + sop_stage_y_bytes(d)};
    return SOP_OK;
}

sop_status sop_linear_q8x_vnni(const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    const size_t acts_bytes = sop_acts_bytes(d->tokens, d->k, kinds(d));
    const int64_t pieces = 4 * sop_workers(call->queue);
    struct job job;
    sop_panels_init(&job.p, call);
    sop_acts_init(&job.a, d->tokens, d->k, kinds(d), WIDEST, call->scratch);
    sop_stage_y(&job.p, call, (char *)call->scratch + acts_bytes);
    if (job.p.tokens == 0) return SOP_OK;
    sop_acts_fill(&job.a, call, job.p.tokens);
    sop_parallel(call->queue, job.p.n_panels, (job.p.n_panels + pieces - 1) / pieces, some_panels,
                 &job);
    sop_stage_end(&job.p, call);
    return SOP_OK;
}
