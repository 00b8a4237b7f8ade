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
    STREAMS = 4,  /* panels that one token reads side by side */
    MOST = 8,     /* sums of 16 rows in registers: the larger of both */
    AHEAD = 4096, /* bytes of prefetch in the stream of weights */
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

/* What one of `panels` streams reads AHEAD bytes later. Past the end of its panel that is in the panel
 * as many further on; at: where the stream is in its panel. */
INLINE void prefetch(const uint8_t *p, size_t bytes, const int panels, size_t apart, size_t at)
{
    const size_t jump = panels > 1 && at + AHEAD >= apart ? (size_t)(panels - 1) * apart : 0;
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + AHEAD + jump + i, _MM_HINT_T0);
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

/* ---- n tokens from token t past `panels` panels, `apart` bytes from each other; f [panels][n] are the
 * sums. One of panels and n is 1: several tokens share the work of decoding, and for one token several
 * panels are several streams of memory, which one core reads faster than one. ---- */

INLINE void run8(int32_t dtype, const uint8_t *w, size_t apart, const int panels, const sop_acts *a,
                 int64_t t, const int n, __m512 f[MOST])
{
    const uint8_t *const from = w;
    const int groups = is_k(dtype) ? 8 : 1;
    const size_t head = is_k(dtype) ? 320 : dtype == SOP_Q4_1 || dtype == SOP_Q5_1 ? 64 : 32;
    const size_t group = has5(dtype) ? 320 : 256;
    const int8_t *x = a->q8 + t * a->k;
    const float *d8 = a->d8 + t * (a->k / 32), *s8 = a->s8 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 32 / groups; b++, w += head + (size_t)groups * group)
        for (int g = 0; g < groups; g++, x += 32 * n, d8 += n, s8 += n)
            UNROLL for (int p = 0; p < panels; p++)
            {
                const uint8_t *wp = w + (size_t)p * apart, *q = wp + head + group * (size_t)g;
                const v16 fifth = ld(q);
                v16 s[MOST], u[MOST];
                __m512 d, m;
                prefetch(g ? q : wp, g ? group : head + group, panels, apart, (size_t)(w - from));
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
                scales(dtype, wp, g, &d, &m);
                UNROLL for (int r = 0; r < n; r++) f[p + r] =
                    end8(f[p + r], _mm512_add_epi32(s[r], u[r]), d, m, d8[r], s8[r]);
            }
}

INLINE void run_q8_0(const uint8_t *w, size_t apart, const int panels, const sop_acts *a, int64_t t,
                     const int n, __m512 f[MOST])
{
    const uint8_t *const from = w;
    const int8_t *high = a->high + t * a->k, *low = a->low + t * a->k;
    const int32_t *sum16 = a->sum16 + t * (a->k / 16);
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 32;
         b++, w += 544, high += 32 * n, low += 32 * n, d16 += n, sum16 += 2 * n)
        UNROLL for (int p = 0; p < panels; p++)
        {
            const uint8_t *wp = w + (size_t)p * apart;
            v16 s[MOST], u[MOST];
            prefetch(wp, 544, panels, apart, (size_t)(w - from));
            UNROLL for (int r = 0; r < n; r++)
            {
                s[r] = _mm512_setzero_si512();
                u[r] = _mm512_set1_epi32(-128 * (sum16[r] + sum16[n + r]));
            }
            UNROLL for (int i = 0; i < 8; i++)
            {
                const v16 q = _mm512_xor_si512(ld(wp + 32 + 64 * i), _mm512_set1_epi8(-128));
                UNROLL for (int r = 0; r < n; r++)
                {
                    s[r] = _mm512_dpbusd_epi32(s[r], q, all4(high + (i * n + r) * 4));
                    u[r] = _mm512_dpbusd_epi32(u[r], q, all4(low + (i * n + r) * 4));
                }
            }
            const __m512 d = half16(wp);
            UNROLL for (int r = 0; r < n; r++) f[p + r] =
                end16(f[p + r], _mm512_add_epi32(_mm512_slli_epi32(s[r], 7), u[r]), d, d16[r]);
        }
}

INLINE void run_q6_k(const uint8_t *w, size_t apart, const int panels, const sop_acts *a, int64_t t,
                     const int n, __m512 f[MOST])
{
    const uint8_t *const from = w;
    const int8_t *high = a->high + t * a->k, *low = a->low + t * a->k;
    const int32_t *sum16 = a->sum16 + t * (a->k / 16);
    const float *d16 = a->d16 + t * (a->k / 32);
    for (int64_t b = 0; b < a->k / 256; b++, w += 3360)
        for (int g = 0; g < 8; g++, d16 += n, high += 32 * n, low += 32 * n, sum16 += 2 * n)
            UNROLL for (int p = 0; p < panels; p++)
            {
                const uint8_t *wp = w + (size_t)p * apart;
                v16 sum[MOST];
                prefetch(wp + 420 * g, 420, panels, apart, (size_t)(w - from));
                UNROLL for (int c = 0; c < 2; c++)
                {
                    const uint8_t *at = wp + 288 + 384 * g + 192 * c;
                    const v16 l0 = ld(at), l1 = ld(at + 64), h = ld(at + 128);
                    const v16 q[4] = {with45(low4(l0), h, 0), with45(high4(l0), h, 1),
                                      with45(low4(l1), h, 2), with45(high4(l1), h, 3)};
                    const v16 scale = _mm512_cvtepi8_epi32(
                        _mm_loadu_si128((const __m128i *)(wp + 32 + 32 * g + 16 * c)));
                    UNROLL for (int r = 0; r < n; r++)
                    {
                        v16 s = _mm512_setzero_si512();
                        v16 u = _mm512_set1_epi32(-32 * sum16[c * n + r]);
                        UNROLL for (int i = 0; i < 4; i++)
                        {
                            const int64_t quad = ((4 * c + i) * n + r) * 4;
                            s = _mm512_dpbusd_epi32(s, q[i], all4(high + quad));
                            u = _mm512_dpbusd_epi32(u, q[i], all4(low + quad));
                        }
                        s = _mm512_add_epi32(_mm512_slli_epi32(s, 7), u);
                        s = _mm512_mullo_epi32(s, scale);
                        sum[r] = c ? _mm512_add_epi32(sum[r], s) : s;
                    }
                }
                const __m512 d = half16(wp);
                UNROLL for (int r = 0; r < n; r++) f[p + r] = end16(f[p + r], sum[r], d, d16[r]);
            }
}

/* A function for each format and width, of one panel or of STREAMS: within a larger one the sums do not
 * stay in registers. */
typedef void run_fn(const uint8_t *w, size_t apart, const sop_acts *a, int64_t t, float *sums);
#define RUN_N(type, panels, n, call) \
    static void run_##type##_##panels##_##n(const uint8_t *w, size_t apart, const sop_acts *a, \
                                            int64_t t, float *sums) \
    { \
        __m512 f[MOST]; \
        (void)apart; \
        UNROLL for (int i = 0; i < (panels) * (n); i++) f[i] = _mm512_setzero_ps(); \
        call; \
        UNROLL for (int i = 0; i < (panels) * (n); i++) _mm512_storeu_ps(sums + R * i, f[i]); \
    }
#define RUN(panels, n) \
    RUN_N(Q4_0, panels, n, run8(SOP_Q4_0, w, apart, panels, a, t, n, f)) \
    RUN_N(Q4_1, panels, n, run8(SOP_Q4_1, w, apart, panels, a, t, n, f)) \
    RUN_N(Q5_0, panels, n, run8(SOP_Q5_0, w, apart, panels, a, t, n, f)) \
    RUN_N(Q5_1, panels, n, run8(SOP_Q5_1, w, apart, panels, a, t, n, f)) \
    RUN_N(Q4_K, panels, n, run8(SOP_Q4_K, w, apart, panels, a, t, n, f)) \
    RUN_N(Q5_K, panels, n, run8(SOP_Q5_K, w, apart, panels, a, t, n, f)) \
    RUN_N(Q8_0, panels, n, run_q8_0(w, apart, panels, a, t, n, f)) \
    RUN_N(Q6_K, panels, n, run_q6_k(w, apart, panels, a, t, n, f))
RUN(4, 1)
RUN(1, 1)
RUN(1, 2)
RUN(1, 4)
RUN(1, 8)

static run_fn *run_of(int32_t dtype, int64_t panels, int64_t n)
{
#define ONE(type) \
    case SOP_##type: \
        return panels > 1 ? run_##type##_4_1 \
               : n == 1   ? run_##type##_1_1 \
               : n == 2   ? run_##type##_1_2 \
               : n == 4   ? run_##type##_1_4 \
                          : run_##type##_1_8
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

static void one_token(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_panels *p = &job->p;
    (void)worker;
    for (int64_t i = begin, n; i < end; i += n) {
        const sop_panel at = sop_panel_at(p, i);
        float sums[STREAMS][R];
        n = end - i >= STREAMS && at.columns > (STREAMS - 1) * R ? STREAMS : 1;
        run_of(at.dtype, n, 1)(at.w, sop_panel_bytes(at.dtype, p->k), &job->a, 0, sums[0]);
        for (int64_t c = 0; c < n; c++)
            sop_sums_put(at.y + c * R, sums[c], at.columns - c * R,
                         at.bias ? at.bias + c * R : NULL);
    }
}

static void some_tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
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
                run_of(at.dtype, 1, n)(at.w, 0, &job->a, t, sums[0]);
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
    sop_parallel(call->queue, job.p.n_panels, (job.p.n_panels + pieces - 1) / pieces,
                 job.p.tokens == 1 ? one_token : some_tokens, &job);
    sop_stage_end(&job.p, call);
    return SOP_OK;
}
