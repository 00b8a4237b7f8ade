/* Few queries of long sequences, heads of 64 to 256: the bytes of the cache are all that counts. Keys and
 * values in 16-bit elements, sums in f32.
 *
 * The work is the list (query, KV head, unit of 16 keys), where the units of each (query, head) are filled up
 * to a multiple of the 8 warps of a CTA, which take them in turn, and count `seg_cost` units more, for their
 * merge. A fixed grid shares it equally, by a scan of the live lengths: a graph serves any lengths. The
 * warps merge in shared memory; the CTA that began a (query, head) is sent the partial results of those that
 * go on with it, and merges them in the order of the list. It had its own part last, so that it hardly
 * waits. All CTAs must fit on the card at once.
 *
 * mail: a place a CTA, [8 heads][HEAD results, not yet divided by their sum; maximum; sum; -; -]. A word is 0
 * before and after the kernel, and +0 is sent as -0, so that who sees a word has it: no count, no fence.
 *
 * Keys and values need no shared memory: 16-byte global loads already give mma.m16n8k16 fragments, because
 * the order of d inside a dot product, and of d among output rows, is free. Up to 8 query heads of a
 * group are the n = 8 of both products (P^T by movmatrix):
 *     S^T[16 keys, 8 heads] = K Q^T,    O^T[d, 8 heads] += V^T P^T
 * Thread (g = lane / 4, t = lane % 4) holds
 *     K: keys g, g + 8;                      16-byte chunks t, t + 4, ...
 *     V: keys 2t, 2t + 1, 2t + 8, 2t + 9;    16-byte chunks g, g + 8, ...
 * of as many as fill all t, or all g; what is left of d comes in chunks of 8, then of 4 bytes, by the same
 * rule: nothing is loaded or multiplied in vain. Caches of 8 bits come by the same rule; their codes become
 * f16 numbers, exactly, in registers, and their scales are applied to scores and results.
 *
 * Heads up to 128 have two units in registers, one that is computed and one that is on its way; of 128 bytes
 * or less, a third behind it. Of wider heads there is one: its keys are loaded anew as soon as the scores are
 * there, its values as soon as the result is; queries are in shared memory, and the warps merge four at a
 * time. */
#ifndef OPS_ATTENTION_DECODE_SM80_CUH
#define OPS_ATTENTION_DECODE_SM80_CUH

#include "ops/attention/attention.cuh"

enum { DECODE_WARPS = 8, DECODE_UNIT = 16, DECODE_GROUP = 8, DECODE_MOST_TOKENS = 256 };

struct decode_args {
    sop_attention_args a;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    int tokens, seqs, heads, group, parts; /* parts: pieces of up to 8 heads of a group */
    int page, page_bits, pages, table_stride, window, causal,
        seg_cost; /* page_bits: -1, or of 2^n */
    float scale, cap;
    float *mail; /* zero before and after */
};

/* WORDS of 4 bytes from p; 0 when not live. FIXED: nothing writes them while the kernel runs. */
#define DECODE_LOAD(CACHE, ...) \
    if constexpr (WORDS == 4) \
        asm volatile("ld.global" CACHE "L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) \
                     : "l"(p)__VA_ARGS__); \
    else if constexpr (WORDS == 2) \
        asm volatile("ld.global" CACHE "L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];" \
                     : "=r"(x[0]), "=r"(x[1]) \
                     : "l"(p)__VA_ARGS__); \
    else \
        asm volatile("ld.global" CACHE "L1::no_allocate.L2::128B.u32 %0, [%1];" \
                     : "=r"(x[0]) \
                     : "l"(p)__VA_ARGS__)
template <bool FIXED, int WORDS> SOP_DEV void decode_load(uint32_t *to, const void *p, bool live)
{
    uint32_t x[WORDS] = {};
    if (live && FIXED) {
        DECODE_LOAD(".nc.", );
    }
    if (live && !FIXED) {
        DECODE_LOAD(".", : "memory");
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) to[i] = x[i];
}
#define DECODE_MMA(T, TYPE) \
    SOP_DEV void decode_mma(T, float(&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
                            uint32_t b0, uint32_t b1) \
    { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
    }
DECODE_MMA(__nv_bfloat16, "bf16")
DECODE_MMA(__half, "f16")
SOP_DEV uint32_t decode_transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
/* WORDS of two elements of a query, rounded to T where it is in f32; 0 when not live. */
template <typename T, int WORDS, typename QO>
SOP_DEV void decode_query(uint32_t *to, const QO *from, bool live)
{
#pragma unroll
    for (int i = 0; i < WORDS; i++) to[i] = 0;
    if (!live) return;
    if constexpr (sizeof(QO) == 4) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2) {
            const float4 x = *(const float4 *)(from + 2 * i);
            to[i] = sop_pack<T>(x.x, x.y);
            to[i + 1] = sop_pack<T>(x.z, x.w);
        }
    } else if constexpr (WORDS == 4) {
        const uint4 x = *(const uint4 *)from;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else {
        const uint2 x = *(const uint2 *)from;
        to[0] = x.x, to[1] = x.y;
    }
}
/* From shared memory, and again each time: it is not to be kept in registers. */
SOP_DEV uint4 decode_again(const uint4 *p)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"((uint32_t)__cvta_generic_to_shared(p))
                 : "memory");
    return x;
}
SOP_DEV float decode_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* An element of a cache of codes: f8 e4m3, or i8. */
template <bool F8> struct decode_code {
    uint8_t bits;
};

/* BYTES: of an element. */
template <int HEAD, int BYTES = 2> struct decode_regs {
    enum { K = HEAD * BYTES / 16, V = HEAD * BYTES / 32 }; /* words of a key, of a value */
    uint32_t k[2][K], v[4][V];
    int lo, hi; /* keys of the unit that count; hi 0: no unit */
    int at;     /* its first key, from the query's position on */
};

/* How LANES lanes share a row, WORDS of 4 bytes each: in chunks of 16 bytes as far as these go round, then of
 * 8, then of 4. The byte at which word w of lane i stands. */
template <int WORDS, int LANES> SOP_DEV int decode_byte(int w, int i)
{
    enum { BY4 = WORDS / 4 * 4, BY2 = WORDS / 2 * 2 };
    if (w < BY4) return (i + LANES * (w / 4)) * 16 + w % 4 * 4;
    return w < BY2 ? BY4 * LANES * 4 + i * 8 + (w - BY4) * 4 : BY2 * LANES * 4 + i * 4;
}
template <bool FIXED, int WORDS, int LANES>
SOP_DEV void decode_row(uint32_t *to, const uint8_t *row, int i, bool live)
{
    enum { BY4 = WORDS / 4 * 4, BY2 = WORDS / 2 * 2 };
#pragma unroll
    for (int c = 0; c < WORDS / 4; c++)
        decode_load<FIXED, 4>(to + 4 * c, row + decode_byte<WORDS, LANES>(4 * c, i), live);
    if constexpr (BY2 > BY4)
        decode_load<FIXED, 2>(to + BY4, row + decode_byte<WORDS, LANES>(BY4, i), live);
    if constexpr (WORDS > BY2)
        decode_load<FIXED, 1>(to + BY2, row + decode_byte<WORDS, LANES>(BY2, i), live);
}

/* Where the two halves of a unit lie, of 8 keys each: a page, and a token of it. */
struct decode_where {
    int page[2], at[2];
};
/* Of the unit whose first key is this; keys from `end` on are not looked up. */
SOP_DEV decode_where decode_find(const decode_args &p, const int32_t *table, int key, int end)
{
    const int i = p.page_bits >= 0 ? key >> p.page_bits : key / p.page, at = key - i * p.page;
    decode_where x = {{table[i], 0}, {at, at + 8}};
    x.page[1] = x.page[0];
    if (at + 8 == p.page && key + 8 < end) x.page[1] = table[i + 1], x.at[1] = 0;
    return x;
}
/* Where a half begins, in elements; a stride fits in 32 bits, so that each product is one instruction. */
SOP_DEV int64_t decode_half(const decode_where &from, int half, int head, int64_t of_page,
                            int64_t of_token, int64_t of_head)
{
    return (int64_t)from.page[half] * (int)of_page + (int64_t)from.at[half] * (int)of_token +
           (int64_t)head * (int)of_head;
}
template <bool FIXED, bool FULL, int HEAD, int BYTES>
SOP_DEV void decode_rows_k(const decode_args &p, decode_regs<HEAD, BYTES> &to,
                           const decode_where &from, int head)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool live = FULL || (g + 8 * r >= to.lo && g + 8 * r < to.hi);
        const int64_t row = decode_half(from, r, head, p.kp_page, p.kp_token, p.kp_head) +
                            (int64_t)g * (int)p.kp_token;
        decode_row<FIXED, decode_regs<HEAD, BYTES>::K, 4>(
            to.k[r], (const uint8_t *)p.a.k_pool + row * BYTES, t, live);
    }
}
template <bool FIXED, bool FULL, int HEAD, int BYTES>
SOP_DEV void decode_rows_v(const decode_args &p, decode_regs<HEAD, BYTES> &to,
                           const decode_where &from, int head)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int in_half = 2 * t + r % 2, slot = in_half + r / 2 * 8;
        const bool live = FULL || (slot >= to.lo && slot < to.hi);
        const int64_t row = decode_half(from, r / 2, head, p.vp_page, p.vp_token, p.vp_head) +
                            (int64_t)in_half * (int)p.vp_token;
        decode_row<FIXED, decode_regs<HEAD, BYTES>::V, 8>(
            to.v[r], (const uint8_t *)p.a.v_pool + row * BYTES, g, live);
    }
}
/* Of the keys in [to.lo, to.hi): most units are full, and then nothing is asked for each row. */
template <bool FIXED, int HEAD, int BYTES>
SOP_DEV void decode_fetch_k(const decode_args &p, decode_regs<HEAD, BYTES> &to,
                            const decode_where &from, int head)
{
    if (to.lo <= 0 && to.hi >= DECODE_UNIT)
        decode_rows_k<FIXED, true>(p, to, from, head);
    else
        decode_rows_k<FIXED, false>(p, to, from, head);
}
template <bool FIXED, int HEAD, int BYTES>
SOP_DEV void decode_fetch_v(const decode_args &p, decode_regs<HEAD, BYTES> &to,
                            const decode_where &from, int head)
{
    if (to.lo <= 0 && to.hi >= DECODE_UNIT)
        decode_rows_v<FIXED, true>(p, to, from, head);
    else
        decode_rows_v<FIXED, false>(p, to, from, head);
}

/* Codes 0, 1 and 2, 3 of a word as f16 numbers. */
template <bool F8> SOP_DEV void decode_numbers(uint32_t word, uint32_t &lo, uint32_t &hi)
{
    if constexpr (F8) {
#if __CUDA_ARCH__ >= 890
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(lo) : "h"((unsigned short)word));
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(hi) : "h"((unsigned short)(word >> 16)));
#else
        uint32_t *const to[2] = {&lo, &hi};
        for (int i = 0; i < 2; i++)
            *to[i] = sop_pack<__half>(sop_f8_to_float((uint8_t)(word >> 16 * i)),
                                      sop_f8_to_float((uint8_t)(word >> (16 * i + 8))));
#endif
    } else { /* 1024 + 128 + code has the code's bits, less its sign, at its end */
        const uint32_t from_zero = word ^ 0x80808080u;
        const __half2 zero = __half2half2(__ushort_as_half(0x6480));
        const uint32_t pair[2] = {__byte_perm(from_zero, 0x64646464u, 0x4140),
                                  __byte_perm(from_zero, 0x64646464u, 0x4342)};
        __half2 x[2];
        for (int i = 0; i < 2; i++) x[i] = __hsub2(*(const __half2 *)&pair[i], zero);
        lo = *(const uint32_t *)&x[0];
        hi = *(const uint32_t *)&x[1];
    }
}
SOP_DEV constexpr bool decode_is_f8(decode_code<true>)
{
    return true;
}
template <typename C> SOP_DEV constexpr bool decode_is_f8(C)
{
    return false;
}

/* A query beside keys of codes: as f16 numbers, in the order of the words of a key, a power of two from what
 * they are, so that the largest is between 1 and 2. Returns that power; of 0 when not live. */
template <int HEAD, typename QO>
SOP_DEV float decode_query_codes(uint32_t (&qf)[HEAD / 8], const QO *q, bool live)
{
    enum { WORDS = HEAD / 16 };
    const int t = threadIdx.x % 4;
    float x[WORDS][4], top = 0;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        const QO *from = q + decode_byte<WORDS, 4>(w, t);
        if (!live)
            x[w][0] = x[w][1] = x[w][2] = x[w][3] = 0;
        else if constexpr (sizeof(QO) == 4) {
            const float4 y = *(const float4 *)from;
            x[w][0] = y.x, x[w][1] = y.y, x[w][2] = y.z, x[w][3] = y.w;
        } else {
            const uint2 y = *(const uint2 *)from;
            sop_unpack<QO>(y.x, x[w][0], x[w][1]);
            sop_unpack<QO>(y.y, x[w][2], x[w][3]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) top = fmaxf(top, fabsf(x[w][i]));
    }
    for (int z = 1; z < 4; z *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, z));
    const uint32_t power = min(max(__float_as_uint(top) & 0x7f800000u, 0x00800000u), 0x7e000000u);
    const float by = __uint_as_float(0x7f000000u - power); /* 1 / power */
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        qf[2 * w] = sop_pack<__half>(x[w][0] * by, x[w][1] * by);
        qf[2 * w + 1] = sop_pack<__half>(x[w][2] * by, x[w][3] * by);
    }
    return __uint_as_float(power);
}

/* The part of one (query, piece of heads) that a CTA owns; all in units of the global list. */
struct decode_segment {
    int token, head, first, last; /* head: of KV heads * parts; all units of the pair, filled up */
    int begin, end;               /* this CTA's, none of which only fills up */
};

/* What the warps of a CTA share. */
template <int HEAD> struct decode_shared {
    enum { WIDE = HEAD > 128, AT_ONCE = WIDE ? DECODE_WARPS / 2 : DECODE_WARPS };
    enum { MOST = DECODE_MOST_TOKENS, PITCH = HEAD + 4 };
    uint4 q[WIDE ? HEAD / 32 : 1][WIDE ? 32 : 1]; /* 16-byte chunks of the lanes */
    decode_segment seg[WIDE ? DECODE_WARPS : 1];  /* that a warp is at */
    int prefix[MOST + 1], warp_sum[DECODE_WARPS],
        start_token;                            /* costs of one head before a query */
    int seq_of[MOST], lo_of[MOST], hi_of[MOST]; /* the keys that each query sees */
    float m[DECODE_WARPS][DECODE_GROUP], l[DECODE_WARPS][DECODE_GROUP];
    float o[AT_ONCE][DECODE_GROUP * PITCH];
};

/* Where channel d of the result stands among the rows of the products: row g + 8 (e / (HEAD / 16)) of
 * product e % (HEAD / 16), for element e of what the threads of g hold of a value. */
template <int HEAD, int BYTES = 2> SOP_DEV int decode_place(int d)
{
    enum { WORDS = HEAD * BYTES / 32, BY4 = WORDS / 4 * 4, BY2 = WORDS / 2 * 2, EACH = 16 / BYTES };
    enum { FROM2 = BY4 * 32 / BYTES, FROM1 = BY2 * 32 / BYTES }; /* chunks of 8 bytes begin, of 4 */
    int g = d / EACH % 8, e = d / EACH / 8 * EACH + d % EACH;
    if (BY2 > BY4 && d >= FROM2)
        g = (d - FROM2) / (EACH / 2), e = FROM2 / 8 + (d - FROM2) % (EACH / 2);
    if (WORDS > BY2 && d >= FROM1)
        g = (d - FROM1) / (EACH / 4), e = FROM1 / 8 + (d - FROM1) % (EACH / 4);
    return e % (HEAD / 16) * 16 + g + e / (HEAD / 16) * 8;
}

SOP_DEV int decode_heads(const decode_args &p)
{
    return p.heads / p.group * p.parts;
}

/* Units, filled up so that all warps of a CTA have as many. */
SOP_DEV int decode_rounds(int units)
{
    return (units + DECODE_WARPS - 1) / DECODE_WARPS * DECODE_WARPS;
}

/* Units of a CTA. */
SOP_DEV int decode_share(const decode_args &p, const int *prefix)
{
    const int total = prefix[DECODE_MOST_TOKENS] * decode_heads(p);
    return decode_rounds((total + (int)gridDim.x - 1) / (int)gridDim.x);
}

/* Units of the keys [lo, hi). */
SOP_DEV int decode_units(int lo, int hi)
{
    return (hi + DECODE_UNIT - 1) / DECODE_UNIT - lo / DECODE_UNIT;
}

template <typename Shared>
SOP_DEV void decode_segment_at(const Shared &sh, int heads, int seg_cost, int u, int u_end,
                               decode_segment *s)
{
    while (u >= sh.prefix[s->token + 1] * heads) s->token++;
    const int n = sh.prefix[s->token + 1] - sh.prefix[s->token];
    const int base = sh.prefix[s->token] * heads;
    s->head = (u - base) / n;
    s->last = base + (s->head + 1) * n;
    s->first = s->last - n + seg_cost;
    s->begin = max(u, s->first);
    s->end = min(u_end, s->first + decode_units(sh.lo_of[s->token], sh.hi_of[s->token]));
}

/* A query: its sequence, or -1; that one's queries [q0, q1) and keys. */
struct decode_query_of {
    int s, q0, q1, keys;
};
SOP_DEV decode_query_of decode_read(const decode_args &p)
{
    const int i = threadIdx.x;
    if (i >= p.tokens) return {-1, 0, 0, 0};
    /* Mostly a sequence has one query, its own: what that takes is read at once. */
    const int seqs = (int)sop_live_rows(p.a.live, p.seqs), guess = min(i, p.seqs - 1);
    decode_query_of x = {guess, p.a.q_start[guess], p.a.q_start[guess + 1], p.a.kv_len[guess]};
    if (i >= seqs || x.q0 != i || x.q1 != i + 1) {
        x.s = sop_sequence_of(p.a.q_start, seqs, i);
        if (x.s >= 0) x = {x.s, p.a.q_start[x.s], p.a.q_start[x.s + 1], p.a.kv_len[x.s]};
    }
    return x;
}

/* The list of the work; x: of query threadIdx.x. */
template <typename Shared>
SOP_DEV void decode_list(const decode_args &p, Shared &sh, const decode_query_of &x)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT };
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int cost = 0;
    if (tid < p.tokens) {
        sh.seq_of[tid] = x.s;
        sh.lo_of[tid] = sh.hi_of[tid] = 0;
        if (x.s >= 0) {
            const int pos = tid - x.q0 + x.keys - (x.q1 - x.q0);
            const int hi = !p.causal ? x.keys : max(pos + 1, 0);
            sh.lo_of[tid] = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
            sh.hi_of[tid] = hi;
            cost = hi > sh.lo_of[tid] ? decode_rounds(decode_units(sh.lo_of[tid], hi)) + p.seg_cost
                                      : 0;
        }
    }
    int sum = cost;
    for (int x = 1; x < 32; x *= 2) {
        const int y = __shfl_up_sync(~0u, sum, x);
        if (lane >= x) sum += y;
    }
    if (lane == 31) sh.warp_sum[warp] = sum;
    if (tid == 0) sh.prefix[0] = 0;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        if (w < warp) sum += sh.warp_sum[w];
    sh.prefix[tid + 1] = sum;
    __syncthreads();
    const int heads = decode_heads(p), u0 = blockIdx.x * decode_share(p, sh.prefix);
    if (u0 < sum * heads && u0 >= (sum - cost) * heads) sh.start_token = tid;
    __syncthreads();
}

template <typename Shared> SOP_DEV void decode_list(const decode_args &p, Shared &sh)
{
    decode_list(p, sh, decode_read(p));
}

/* A unit of 16 keys into the result of a warp: o not yet divided by the sum l of this thread's keys, m the
 * maximum of the scores. query(i) brings qf[2 i] and on where they are not kept; the keys are no longer
 * needed when scored() is called. by: beside codes, what the scores of heads 2t, 2t + 1 are multiplied with. */
template <typename T, typename C, int HEAD, bool ALIBI, typename Query, typename Scored>
SOP_DEV void decode_unit(const decode_args &p, const decode_regs<HEAD, sizeof(C)> &cur,
                         const float (&slope)[2], const float (&by)[2], float (&o)[HEAD / 16][4],
                         float (&m)[2], float (&l)[2], Query query, const uint32_t (&qf)[HEAD / 8],
                         Scored scored)
{
    enum { CODES = sizeof(C) == 1 };
    constexpr bool F8 = decode_is_f8(C());
    const int lane = threadIdx.x % 32, g = lane / 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const int lo = cur.lo, hi = cur.hi, at = cur.at;
    float s[4] = {}, s1[4] = {};
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        uint32_t k0[2], k1[2];
        if constexpr (CODES) {
            decode_numbers<F8>(cur.k[0][i], k0[0], k0[1]);
            decode_numbers<F8>(cur.k[1][i], k1[0], k1[1]);
        } else {
            k0[0] = cur.k[0][2 * i], k0[1] = cur.k[0][2 * i + 1];
            k1[0] = cur.k[1][2 * i], k1[1] = cur.k[1][2 * i + 1];
        }
        query(i);
        decode_mma(T(), i % 2 ? s1 : s, k0[0], k1[0], k0[1], k1[1], qf[2 * i], qf[2 * i + 1]);
    }
    scored();
    float alpha[2];
#pragma unroll
    for (int r = 0; r < 2; r++) { /* head 2t + r; keys g and g + 8 */
        float a = s[r] + s1[r], b = s[2 + r] + s1[2 + r];
        if (CODES) a *= by[r], b *= by[r];
        if (p.cap > 0) { /* cap tanh(scale z / cap) log2 e */
            const float in = 2 * 1.44269504f * p.scale / p.cap;
            const float out = p.cap * 1.44269504f;
            a = out - __fdividef(2 * out, decode_exp2(in * a) + 1);
            b = out - __fdividef(2 * out, decode_exp2(in * b) + 1);
        }
        if (ALIBI) {
            a = fmaf(slope[r], (float)(at + g), a);
            b = fmaf(slope[r], (float)(at + g + 8), b);
        }
        if (!(g >= lo && g < hi)) a = -INFINITY;
        if (!(g + 8 >= lo && g + 8 < hi)) b = -INFINITY;
        float top = fmaxf(m[r], fmaxf(a, b));
        for (int z = 4; z < 32; z *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, z));
        alpha[r] = decode_exp2((m[r] - top) * k2);
        m[r] = top;
        s[r] = decode_exp2((a - top) * k2);
        s[2 + r] = decode_exp2((b - top) * k2);
        l[r] = l[r] * alpha[r] + s[r] + s[2 + r];
    }
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[j][i] *= alpha[i % 2];
    }
    const uint32_t b0 = decode_transpose(sop_pack<T>(s[0], s[1]));
    const uint32_t b1 = decode_transpose(sop_pack<T>(s[2], s[3]));
    /* rows of a product: an element of g's value, and one HEAD / 16 further on; pairs of keys */
    if constexpr (CODES) {
#pragma unroll
        for (int i = 0; i < HEAD / 16;
             i += 2) {           /* two products at a time: of elements i and i + 1 */
            uint32_t x[2][2][2]; /* [which half of the rows, of the keys][product] */
#pragma unroll
            for (int h = 0; h < 4; h++) {
                const int j = i + h / 2 * (HEAD / 16), r = h % 2 * 2;
                const uint32_t two =
                    __byte_perm(cur.v[r][j / 4], cur.v[r + 1][j / 4], j % 4 ? 0x7362 : 0x5140);
                decode_numbers<F8>(two, x[h / 2][h % 2][0], x[h / 2][h % 2][1]);
            }
#pragma unroll
            for (int k = 0; k < 2; k++)
                decode_mma(T(), o[i + k], x[0][0][k], x[1][0][k], x[0][1][k], x[1][1][k], b0, b1);
        }
    } else {
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            const int j = i + HEAD / 16, w = i / 2, w1 = j / 2;
            const uint32_t sel = i % 2 ? 0x7632 : 0x5410, sel1 = j % 2 ? 0x7632 : 0x5410;
            decode_mma(T(), o[i], __byte_perm(cur.v[0][w], cur.v[1][w], sel),
                       __byte_perm(cur.v[0][w1], cur.v[1][w1], sel1),
                       __byte_perm(cur.v[2][w], cur.v[3][w], sel),
                       __byte_perm(cur.v[2][w1], cur.v[3][w1], sel1), b0, b1);
        }
    }
}

/* ---- mail ---- */

SOP_DEV float decode_word(float x)
{
    return __float_as_uint(x) ? x : -0.0f;
}
SOP_DEV void decode_post(float *to, float x)
{
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(decode_word(x)) : "memory");
}
SOP_DEV void decode_post2(float *to, float x, float y)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(decode_word(x)),
                 "f"(decode_word(y))
                 : "memory");
}
SOP_DEV float decode_look(const float *from)
{
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}
SOP_DEV void decode_look2(const float *from, float &x, float &y)
{
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x), "=f"(y)
                 : "l"(from)
                 : "memory");
}

SOP_DEV void decode_look4(const float *from, float *x)
{
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "l"(from)
                 : "memory");
}

/* What a thread has of a result: of head `warp` of a piece D channels, side by side or every 32nd. */
template <int HEAD> struct decode_own {
    enum { D = (HEAD + 31) / 32, PAIRS = HEAD % 64 == 0 };
    SOP_DEV int channel(int i)
    {
        const int lane = threadIdx.x % 32;
        return HEAD % 32 ? lane + 32 * i : lane * D + i;
    }
    SOP_DEV bool live(int i)
    {
        return HEAD % 32 == 0 || channel(i) < HEAD;
    }
};

/* Where a warp's head of a segment's result goes: to be known before the result is. */
struct decode_end {
    int first, last; /* the CTAs that share the (query, piece of heads) */
    int head;        /* of all; -1: the piece has fewer */
};
/* share: units of a CTA. */
SOP_DEV decode_end decode_end_of(const decode_args &p, const decode_segment &s, int share, int warp)
{
    const int in_group = s.head % p.parts * DECODE_GROUP + warp;
    return {s.first / share, (s.last - 1) / share,
            in_group < p.group ? s.head / p.parts * p.group + in_group : -1};
}

/* The end of a segment, whose warps are one: maximum, sum and results not yet divided. To the CTA that began
 * the (query, piece of heads), or, of that CTA, with what it is sent into the output. MANY: results of that
 * many CTAs are looked at side by side, of 4 channels a thread; 0: one that waits for others is left as it is. */
template <typename QO, int HEAD, int MANY>
SOP_DEV void decode_finish(const decode_args &p, const decode_end &end, int token, int warp,
                           int lane, float top, float den, float (&y)[decode_own<HEAD>::D])
{
    typedef decode_own<HEAD> own;
    enum { D = own::D, PAIRS = own::PAIRS, FOURS = D % 4 == 0 && PAIRS, GROUP = DECODE_GROUP };
    enum { AT_A_TIME = MANY == 0 ? 1 : D > 4 ? (MANY + 1) / 2 : MANY };
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    auto slot_of = [&](int cta) {
        return p.mail + ((int64_t)cta * min((int)GROUP, p.group) + warp) * (HEAD + 4);
    };
    if (end.head < 0) return;
    if ((int)blockIdx.x != end.first) {
        float *to = slot_of(blockIdx.x);
#pragma unroll
        for (int i = 0; i < D; i++) {
            if (!PAIRS && own::live(i)) decode_post(to + own::channel(i), y[i]);
            if (PAIRS && i % 2) decode_post2(to + own::channel(i - 1), y[i - 1], y[i]);
        }
        if (lane == 0) decode_post2(to + HEAD, top, den);
        return;
    }
    if (MANY == 0 && end.first < end.last) return;
    for (int from = end.first + 1; MANY > 0 && from <= end.last; from += AT_A_TIME) {
        float x[AT_A_TIME][D], ml[AT_A_TIME][2];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int j = 0; j < AT_A_TIME; j++) {
                if (from + j > end.last) break;
                const float *o_of = slot_of(from + j);
#pragma unroll
                for (int i = 0; i < D; i++) {
                    if (!PAIRS && own::live(i)) x[j][i] = decode_look(o_of + own::channel(i));
                    if (PAIRS && !FOURS && i % 2)
                        decode_look2(o_of + own::channel(i - 1), x[j][i - 1], x[j][i]);
                    if (FOURS && i % 4 == 3) decode_look4(o_of + own::channel(i - 3), x[j] + i - 3);
                }
                decode_look2(o_of + HEAD, ml[j][0], ml[j][1]);
            }
#pragma unroll
            for (int j = 0; j < AT_A_TIME; j++) {
                if (from + j > end.last) break;
                all &= __float_as_uint(ml[j][0]) && __float_as_uint(ml[j][1]);
#pragma unroll
                for (int i = 0; i < D; i++)
                    if (own::live(i)) all &= __float_as_uint(x[j][i]) != 0;
            }
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            if (from + j > end.last) break;
            float *o_of = slot_of(from + j);
            const float up = fmaxf(top, ml[j][0]), f0 = decode_exp2((top - up) * k2);
            const float f1 = decode_exp2((ml[j][0] - up) * k2);
            den = den * f0 + ml[j][1] * f1;
            top = up;
#pragma unroll
            for (int i = 0; i < D; i++) {
                if (!own::live(i)) continue;
                y[i] = y[i] * f0 + x[j][i] * f1;
                o_of[own::channel(i)] = 0; /* as it was */
            }
            if (lane < 2) o_of[HEAD + lane] = 0;
        }
    }
    QO *to = (QO *)p.a.o + token * p.o_stride + end.head * p.o_head;
    float base = top * k2;
    if (p.a.sinks) { /* one key more, whose value is 0 */
        const float sink = p.a.sinks[end.head] * 1.44269504f, up = fmaxf(base, sink);
        const float keep = decode_exp2(base - up);
        den = den * keep + decode_exp2(sink - up);
#pragma unroll
        for (int i = 0; i < D; i++) y[i] *= keep;
        base = up;
    }
    const float over = __fdividef(1, den);
#pragma unroll
    for (int i = 0; i < D; i++)
        if (own::live(i)) to[own::channel(i)] = sop_from_float<QO>(y[i] * over);
    if (p.a.lse && lane == 0)
        p.a.lse[(int64_t)token * p.heads + end.head] = (base + log2f(den)) * 0.693147181f;
}

/* Queries that see nothing: their results. */
template <typename QO, int HEAD, typename Shared>
SOP_DEV void decode_unseeing(const decode_args &p, const Shared &sh)
{
    enum { THREADS = DECODE_WARPS * 32 };
    const int tid = threadIdx.x;
    for (int i = blockIdx.x; i < p.tokens; i += gridDim.x) {
        if (sh.seq_of[i] < 0 || sh.hi_of[i] > sh.lo_of[i]) continue;
        for (int e = tid; e < p.heads * HEAD; e += THREADS)
            ((QO *)p.a.o)[i * p.o_stride + e / HEAD * p.o_head + e % HEAD] = sop_from_float<QO>(0);
        for (int h = tid; p.a.lse && h < p.heads; h += THREADS)
            p.a.lse[(int64_t)i * p.heads + h] = p.a.sinks ? p.a.sinks[h] : -INFINITY;
    }
}

/* ---- the work ---- */

/* What follows the list, for a block of DECODE_WARPS. C: an element of the cache, T or a code, beside which T
 * is half; Q and O are T or float, beside codes any. FIXED: nothing writes keys and values while the kernel
 * runs. ALIBI: causal only, so that the last key seen is at the query's position. */
template <typename T, typename QO, int HEAD, bool FIXED, bool ALIBI, typename C = T>
SOP_DEV void decode_body(const decode_args &p, decode_shared<HEAD> &sh)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    enum { PITCH = decode_shared<HEAD>::PITCH };
    enum { WIDE = decode_shared<HEAD>::WIDE, AT_ONCE = decode_shared<HEAD>::AT_ONCE };
    /* as many as units in registers, so that cur = next costs nothing; beside other code it must stay
     * small */
    enum { CODES = sizeof(C) == 1, DEEP = FIXED && HEAD * sizeof(C) <= 128 };
    enum { UNROLL = !FIXED || WIDE ? 1 : DEEP ? 3 : 2 };
    static_assert(!(CODES && WIDE), "codes of wide heads");
    /* Parts of other CTAs at a time. Only the last segment of a CTA waits for them: behind the loop, where
     * registers are free. */
    enum { MAIL = FIXED ? 0 : HEAD > 64 ? 2 : 4, MAIL_BEHIND = 8 };
    typedef decode_regs<HEAD, sizeof(C)> regs;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const int n_heads = decode_heads(p), share = decode_share(p, sh.prefix);
    const int total = sh.prefix[DECODE_MOST_TOKENS] * n_heads;
    const int u0 = blockIdx.x * share, u1 = min(total, u0 + share);
    const int *seq_of = sh.seq_of, *lo_of = sh.lo_of, *hi_of = sh.hi_of;
    auto &sm_m = sh.m;
    auto &sm_l = sh.l;
    auto &sm_o = sh.o;
    decode_unseeing<QO, HEAD>(p, sh);
    if (u0 >= u1) return;

    /* the loads run two steps ahead of the arithmetic, across segments: page, then K and V */
    decode_segment ahead, narrow;
    decode_segment &seg =
        WIDE ? sh.seg[warp] : narrow; /* rarely read: no place in full registers */
    ahead.token = seg.token = sh.start_token;
    decode_segment_at(sh, n_heads, p.seg_cost, u0, u1, &ahead);
    int u = ahead.begin + warp, next_lo = 0, next_hi = 0, next_head = 0, next_from = 0;
    decode_where next_where = {};
    regs next, other, later;
    regs &cur = WIDE ? next : other, &into = DEEP ? later : next;
    auto fetch_page = [&] {
        while (u >= ahead.end && ahead.last < u1) {
            decode_segment_at(sh, n_heads, p.seg_cost, ahead.last, u1, &ahead);
            u = ahead.begin + warp;
        }
        next_hi = 0;
        if (u < ahead.end) {
            const int lo = lo_of[ahead.token];
            const int key = (lo / UNIT + u - ahead.first) * UNIT;
            const int hi = hi_of[ahead.token];
            next_where =
                decode_find(p, p.a.table + (int64_t)seq_of[ahead.token] * p.table_stride, key, hi);
            next_lo = lo - key;
            next_hi = min((int)UNIT, hi - key);
            next_head = ahead.head / p.parts;
            next_from = key - (hi - 1);
            u += WARPS;
        }
    };
    auto fetch_k = [&] {
        into.lo = next_lo;
        into.hi = next_hi;
        into.at = next_from;
        if (next_hi > 0) decode_fetch_k<FIXED, HEAD, sizeof(C)>(p, into, next_where, next_head);
    };
    auto fetch_v = [&] {
        if (next_hi > 0) decode_fetch_v<FIXED, HEAD, sizeof(C)>(p, into, next_where, next_head);
    };
    if constexpr (DEEP) {
        fetch_page();
        fetch_k();
        fetch_v();
        next = later;
    }
    fetch_page();
    fetch_k();
    fetch_v();
    fetch_page();

    uint32_t qf[HEAD / 8];
    float by[2] = {},
          of_values = 1; /* codes: see decode_unit(); what the results are multiplied with */
    auto fetch_q = [&] {
        const int i = seg.head % p.parts * GROUP + g; /* of the group */
        const bool live = i < p.group;
        const QO *q = (const QO *)p.a.q + seg.token * p.q_stride +
                      (seg.head / p.parts * p.group + i) * p.q_head;
        if constexpr (CODES) {
            const float power = decode_query_codes<HEAD>(qf, q, live);
            const float scale = p.a.k_scales[seg.head / p.parts];
            for (int r = 0; r < 2; r++) by[r] = scale * __shfl_sync(~0u, power, 4 * (2 * t + r));
            of_values = p.a.v_scales[seg.head / p.parts];
        } else if constexpr (
            WIDE) { /* a chunk of each lane's is a warp's work; HEAD / 32 <= WARPS */
            uint32_t x[4];
            if (warp >= HEAD / 32) return;
            decode_query<T, 4>(x, q + (t + 4 * warp) * 8, live);
            sh.q[warp][lane] = {x[0], x[1], x[2], x[3]};
        } else {
#pragma unroll
            for (int c = 0; c < HEAD / 32; c++)
                decode_query<T, 4>(qf + 4 * c, q + (t + 4 * c) * 8, live);
            if (HEAD % 32) decode_query<T, 2>(qf + HEAD / 8 - 2, q + HEAD - 16 + 4 * t, live);
        }
    };
    float slope[2]; /* of heads 2t and 2t + 1 of the piece, in units of the scores */
    auto next_segment =
        [&](int at) { /* false: no unit left for this CTA */
                      if (at >= u1) return false;
                      decode_segment_at(sh, n_heads, p.seg_cost, at, u1, &seg);
                      if (seg.begin >= seg.end) return false;
                      for (int r = 0; ALIBI && r < 2; r++) {
                          const int i = seg.head % p.parts * GROUP + 2 * t + r;
                          slope[r] = i < p.group ? p.a.slopes[seg.head / p.parts * p.group + i] : 0;
                          slope[r] *= p.cap > 0 ? 1.44269504f : 1 / p.scale;
                      }
                      return true;
        };
    bool more = next_segment(u0);
    if (more) fetch_q();
    if (WIDE) __syncthreads();
    enum { D = decode_own<HEAD>::D };
    decode_end end = {0, 0, -1};
    int token = 0;
    float top, den, y[D];
    while (more) {
        float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};

#pragma unroll UNROLL
        for (int x = seg.begin + warp; x < seg.end; x += WARPS) {
            if constexpr (!WIDE) {
                cur = next;
                if (DEEP) next = later;
                fetch_k();
                fetch_v();
                fetch_page();
            }
            decode_unit<T, C, HEAD, ALIBI>(
                p, cur, slope, by, o, m, l,
                [&](int i) {
                    if constexpr (WIDE) {
                        if (i % 2) return;
                        const uint4 y = decode_again(&sh.q[i / 2][lane]);
                        qf[2 * i] = y.x, qf[2 * i + 1] = y.y;
                        qf[2 * i + 2] = y.z, qf[2 * i + 3] = y.w;
                    }
                },
                qf,
                [&] {
                    if constexpr (WIDE) fetch_k();
                });
            if constexpr (WIDE) {
                fetch_v();
                fetch_page();
            }
        }

        const decode_segment done = seg;
        const float values = of_values;
        if (WIDE) __syncwarp(); /* all lanes have read it */
        more = next_segment(done.last);
        if (!WIDE && more) fetch_q(); /* they come in under the merge */
                                      /* 8 warps into one, by head and by row of the products */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
            if (g == 0) {
                sm_m[warp][2 * t + r] = m[r];
                sm_l[warp][2 * t + r] = l[r];
            }
        }
        __syncthreads();
        if (WIDE && more) fetch_q(); /* no warp needs the last ones */
        top = -INFINITY, den = 0;
#pragma unroll
        for (int i = 0; i < D; i++) y[i] = 0;
#pragma unroll 1
        for (int from = 0; from < WARPS; from += AT_ONCE) {
            if (from) __syncthreads();
#pragma unroll
            for (int r = 0; r < 2 && warp / AT_ONCE * AT_ONCE == from; r++) {
                float *to = sm_o[warp - from] + (2 * t + r) * PITCH;
                float most = -INFINITY;
                for (int w = 0; w < WARPS; w++) most = fmaxf(most, sm_m[w][2 * t + r]);
                const float f = values * decode_exp2((m[r] - most) * k2);
#pragma unroll
                for (int j = 0; j < HEAD / 16; j++) {
                    to[j * 16 + g] = o[j][r] * f;
                    to[j * 16 + g + 8] = o[j][2 + r] * f;
                }
            }
            __syncthreads();
            if (from == 0)
                for (int w = 0; w < WARPS; w++) top = fmaxf(top, sm_m[w][warp]);
#pragma unroll WIDE ? 1 : AT_ONCE
            for (int w = from; w < from + AT_ONCE; w++) {
                den += sm_l[w][warp] * decode_exp2((sm_m[w][warp] - top) * k2);
#pragma unroll
                for (int i = 0; i < D; i++)
                    if (decode_own<HEAD>::live(i))
                        y[i] += sm_o[w - from][warp * PITCH + decode_place<HEAD, sizeof(C)>(
                                                                  decode_own<HEAD>::channel(i))];
            }
        }
        end = decode_end_of(p, done, share, warp);
        token = done.token;
        decode_finish<QO, HEAD, MAIL>(p, end, token, warp, lane, top, den, y);
        __syncthreads(); /* sm_* are free */
    }
    if (MAIL == 0 && end.first < end.last && end.first == (int)blockIdx.x)
        decode_finish<QO, HEAD, MAIL_BEHIND>(p, end, token, warp, lane, top, den, y);
}

template <typename T, typename QO, int HEAD, bool ALIBI, typename C = T>
static __global__ __launch_bounds__(DECODE_WARPS * 32,
                                    1) void sop_decode_sm80(const __grid_constant__ decode_args p)
{
    __shared__ decode_shared<HEAD> sh;
    sop_begin();
    decode_list(p, sh);
    decode_body<T, QO, HEAD, true, ALIBI, C>(p, sh);
}

#endif
