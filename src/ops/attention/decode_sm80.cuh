/* Few queries of long sequences, heads of 64 to 256: the bytes of the cache are all that counts. Keys and
 * values in 16-bit elements, sums in f32.
 *
 * The work is the list (query, KV head, unit of 16 keys), where each (query, head) counts `seg_cost`
 * units more, for its merge. A fixed grid shares it equally, by a scan of the live lengths: a graph
 * serves any lengths. The 8 warps of a CTA take units in turn and merge in shared memory; per query head
 * the last CTA to arrive merges the partial results, in the order of the list.
 *
 * Keys and values need no shared memory: 16-byte global loads already give mma.m16n8k16 fragments, because
 * the order of d inside a dot product, and of d among output rows, is free. Up to 8 query heads of a
 * group are the n = 8 of both products (P^T by movmatrix):
 *     S^T[16 keys, 8 heads] = K Q^T,    O^T[d, 8 heads] += V^T P^T
 * Thread (g = lane / 4, t = lane % 4) holds
 *     K: keys g, g + 8;                      16-byte chunks t, t + 4, ...
 *     V: keys 2t, 2t + 1, 2t + 8, 2t + 9;    16-byte chunks g, g + 8, ...
 * of as many as fill all t, or all g; what is left of d comes in chunks of 8, then of 4 bytes, by the same
 * rule: nothing is loaded or multiplied in vain.
 *
 * Heads up to 128 have two units in registers, one that is computed and one that is on its way. Of wider
 * ones there is one: its keys are loaded anew as soon as the scores are there, its values as soon as the
 * result is; queries are in shared memory, and the warps merge four at a time. */
#ifndef OPS_ATTENTION_DECODE_SM80_CUH
#define OPS_ATTENTION_DECODE_SM80_CUH

#include "ops/attention/attention.cuh"

enum {
    DECODE_WARPS = 8,
    DECODE_UNIT = 16,
    DECODE_GROUP = 8,
    DECODE_MOST_TOKENS = 256,
    DECODE_NEW = 8
};

struct decode_args {
    sop_attention_args a;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    int tokens, seqs, heads, group, parts; /* parts: pieces of up to 8 heads of a group */
    int page, table_stride, window, causal, seg_cost;
    float scale, cap;
    float *part_o;   /* [grid, 2, 8, HEAD]: not yet divided by the sum */
    float2 *part_ml; /* [grid, 2, 8]: maximum, sum */
    int *arrived;    /* [tokens, KV heads * parts, 8], zero before and after */
};

/* The part of one (query, piece of heads) that a CTA owns; all in units of the global list. */
struct decode_segment {
    int token, head, first, last; /* head: of KV heads * parts; all units of the pair */
    int begin, end;               /* this CTA's; none when begin >= end */
};

SOP_DEV void decode_segment_at(const int *prefix, int heads, int seg_cost, int u, int u_end,
                               decode_segment *s)
{
    while (u >= prefix[s->token + 1] * heads) s->token++;
    const int n = prefix[s->token + 1] - prefix[s->token], base = prefix[s->token] * heads;
    s->head = (u - base) / n;
    s->last = base + (s->head + 1) * n;
    s->first = s->last - n + seg_cost;
    s->begin = max(u, s->first);
    s->end = min(u_end, s->last);
}
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

template <int HEAD> struct decode_regs {
    enum { K = HEAD / 8, V = HEAD / 16 }; /* words of a key, of a value */
    uint32_t k[2][K], v[4][V];
    int lo, hi; /* keys of the unit that count; hi 0: no unit */
    int at;     /* its first key, from the query's position on */
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
template <int HEAD> SOP_DEV int decode_place(int d)
{
    enum { BY8 = HEAD / 64 * 64, BY4 = HEAD / 32 * 32 }; /* chunks of 8 channels end, of 4 */
    int g = d % 64 / 8, e = d / 64 * 8 + d % 8;
    if (HEAD % 64 && d >= BY8) g = (d - BY8) / 4, e = BY8 / 8 + d % 4;
    if (HEAD % 32 && d >= BY4) g = (d - BY4) / 2, e = BY4 / 8 + d % 2;
    return e % (HEAD / 16) * 16 + g + e / (HEAD / 16) * 8;
}

SOP_DEV int decode_heads(const decode_args &p)
{
    return p.heads / p.group * p.parts;
}

/* Units of a CTA. */
SOP_DEV int decode_share(const decode_args &p, const int *prefix)
{
    const int total = prefix[DECODE_MOST_TOKENS] * decode_heads(p);
    return max((int)DECODE_WARPS, (total + (int)gridDim.x - 1) / (int)gridDim.x);
}

/* The thread's number, anew each time: what follows from it is not to be kept in registers. */
SOP_DEV int decode_thread(void)
{
    int tid = threadIdx.x;
    asm volatile("" : "+r"(tid));
    return tid;
}

/* Among the warps that decode: others of the block have other things to do. */
SOP_DEV void decode_sync(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(DECODE_WARPS * 32) : "memory");
}

/* The list of the work, from what a step brings: counts, lengths. */
template <int HEAD> SOP_DEV void decode_list(const decode_args &p, decode_shared<HEAD> &sh)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT };
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int cost = 0;
    if (tid < p.tokens) {
        /* Mostly a sequence has one query, its own: what that takes is read at once. */
        const int seqs = (int)sop_live_rows(p.a.live, p.seqs), guess = min(tid, p.seqs - 1);
        int s = guess, q0 = p.a.q_start[s], q1 = p.a.q_start[s + 1], keys = p.a.kv_len[s];
        if (tid >= seqs || q0 != tid || q1 != tid + 1) {
            s = sop_sequence_of(p.a.q_start, seqs, tid);
            if (s >= 0) q0 = p.a.q_start[s], q1 = p.a.q_start[s + 1], keys = p.a.kv_len[s];
        }
        sh.seq_of[tid] = s;
        sh.lo_of[tid] = sh.hi_of[tid] = 0;
        if (s >= 0) {
            const int pos = tid - q0 + keys - (q1 - q0), hi = !p.causal ? keys : max(pos + 1, 0);
            sh.lo_of[tid] = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
            sh.hi_of[tid] = hi;
            cost =
                hi > sh.lo_of[tid] ? (hi + UNIT - 1) / UNIT - sh.lo_of[tid] / UNIT + p.seg_cost : 0;
        }
    }
    int sum = cost;
    for (int x = 1; x < 32; x *= 2) {
        const int y = __shfl_up_sync(~0u, sum, x);
        if (lane >= x) sum += y;
    }
    if (lane == 31) sh.warp_sum[warp] = sum;
    if (tid == 0) sh.prefix[0] = 0;
    decode_sync();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        if (w < warp) sum += sh.warp_sum[w];
    sh.prefix[tid + 1] = sum;
    decode_sync();
    const int heads = decode_heads(p), u0 = blockIdx.x * decode_share(p, sh.prefix);
    if (u0 < sum * heads && u0 >= (sum - cost) * heads) sh.start_token = tid;
    decode_sync();
}

/* What follows the list, for DECODE_WARPS. Q and O are T or float. FIXED: nothing writes keys and values
 * while the kernel runs. ALIBI: causal only, so that the last key seen is at the query's position. LEAN: one
 * unit in registers instead of two; the last DECODE_NEW keys that a query sees, and the queries, may be
 * written until meet() returns, which is called once, when the first keys and values are on their way. */
template <typename T, typename QO, int HEAD, bool FIXED, bool ALIBI, bool LEAN, typename Meet>
SOP_DEV void decode_body(const decode_args &p, const void *k_pool, const void *v_pool,
                         decode_shared<HEAD> &sh, Meet meet)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    enum { PITCH = decode_shared<HEAD>::PITCH };
    enum { WIDE = decode_shared<HEAD>::WIDE, AT_ONCE = decode_shared<HEAD>::AT_ONCE };
    enum { ONE = WIDE || LEAN };
    /* two would do for cur = next to cost nothing; beside other code it must stay small */
    enum { UNROLL = !FIXED || WIDE ? 1 : HEAD % 64 ? 2 : 4 };
    typedef decode_regs<HEAD> regs;
    const int tid = decode_thread(), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const int n_heads = decode_heads(p), share = decode_share(p, sh.prefix);
    const int total = sh.prefix[DECODE_MOST_TOKENS] * n_heads;
    const int u0 = blockIdx.x * share, u1 = min(total, u0 + share);
    const int *prefix = sh.prefix, *seq_of = sh.seq_of, *lo_of = sh.lo_of, *hi_of = sh.hi_of;
    auto &sm_m = sh.m;
    auto &sm_l = sh.l;
    auto &sm_o = sh.o;
    /* queries that see nothing */
    for (int i = blockIdx.x; i < p.tokens; i += gridDim.x) {
        if (seq_of[i] < 0 || hi_of[i] > lo_of[i]) continue;
        for (int e = tid; e < p.heads * HEAD; e += WARPS * 32)
            ((QO *)p.a.o)[i * p.o_stride + e / HEAD * p.o_head + e % HEAD] = sop_from_float<QO>(0);
        for (int h = tid; p.a.lse && h < p.heads; h += WARPS * 32)
            p.a.lse[(int64_t)i * p.heads + h] = p.a.sinks ? p.a.sinks[h] : -INFINITY;
    }
    if (u0 >= u1) {
        meet();
        return;
    }

    /* the loads run two steps ahead of the arithmetic, across segments: page, then K and V */
    decode_segment ahead, narrow;
    decode_segment &seg =
        WIDE ? sh.seg[warp] : narrow; /* rarely read: no place in full registers */
    ahead.token = seg.token = sh.start_token;
    decode_segment_at(prefix, n_heads, p.seg_cost, u0, u1, &ahead);
    int u = ahead.begin + warp, next_page = 0, next_at = 0, next_lo = 0, next_hi = 0, next_head = 0;
    int next_from = 0;
    regs next, other;
    regs &cur = ONE ? next : other;
    auto fetch_page = [&] {
        while (u >= ahead.end && ahead.end < u1) {
            decode_segment_at(prefix, n_heads, p.seg_cost, ahead.end, u1, &ahead);
            u = ahead.begin + warp;
        }
        next_hi = 0;
        if (u < ahead.end) {
            const int lo = lo_of[ahead.token];
            const int key = (lo / UNIT + u - ahead.first) * UNIT;
            next_page = p.a.table[(int64_t)seq_of[ahead.token] * p.table_stride + key / p.page];
            next_at = key % p.page;
            next_lo = lo - key;
            next_hi = min(UNIT, hi_of[ahead.token] - key);
            next_head = ahead.head / p.parts;
            next_from = key - (hi_of[ahead.token] - 1);
            u += WARPS;
        }
    };
    auto fetch_k = [&] {
        next.lo = next_lo;
        next.hi = next_hi;
        next.at = next_from;
        if (next_hi == 0) return;
        const T *k = (const T *)k_pool + next_page * p.kp_page + next_at * p.kp_token +
                     next_head * p.kp_head;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool live = g + 8 * r >= next_lo && g + 8 * r < next_hi;
            const T *row = k + (g + 8 * r) * p.kp_token;
#pragma unroll
            for (int c = 0; c < HEAD / 32; c++)
                decode_load<FIXED, 4>(next.k[r] + 4 * c, row + (t + 4 * c) * 8, live);
            if (HEAD % 32)
                decode_load<FIXED, 2>(next.k[r] + regs::K - 2, row + HEAD - 16 + 4 * t, live);
        }
    };
    auto fetch_v = [&] {
        if (next_hi == 0) return;
        const T *v = (const T *)v_pool + next_page * p.vp_page + next_at * p.vp_token +
                     next_head * p.vp_head;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            enum { LEFT = HEAD / 64 * 64 };
            const int slot = 2 * t + r % 2 + r / 2 * 8;
            const bool live = slot >= next_lo && slot < next_hi;
            const T *row = v + slot * p.vp_token;
#pragma unroll
            for (int c = 0; c < HEAD / 64; c++)
                decode_load<FIXED, 4>(next.v[r] + 4 * c, row + (g + 8 * c) * 8, live);
            if (HEAD % 64 >= 32)
                decode_load<FIXED, 2>(next.v[r] + LEFT / 16, row + LEFT + 4 * g, live);
            if (HEAD % 32)
                decode_load<FIXED, 1>(next.v[r] + regs::V - 1, row + HEAD - 16 + 2 * g, live);
        }
    };
    fetch_page();
    fetch_k();
    fetch_v();
    meet();
    if (LEAN && next_hi + next_from > 1 - DECODE_NEW) { /* some of them were not there yet */
        fetch_k();
        fetch_v();
    }
    fetch_page();

    uint32_t qf[regs::K];
    auto fetch_q = [&] {
        const int i = seg.head % p.parts * GROUP + g; /* of the group */
        const bool live = i < p.group;
        const QO *q = (const QO *)p.a.q + seg.token * p.q_stride +
                      (seg.head / p.parts * p.group + i) * p.q_head;
        if constexpr (WIDE) { /* a chunk of each lane's is a warp's work; HEAD / 32 <= WARPS */
            uint32_t x[4];
            if (warp >= HEAD / 32) return;
            decode_query<T, 4>(x, q + (t + 4 * warp) * 8, live);
            sh.q[warp][lane] = {x[0], x[1], x[2], x[3]};
        } else {
#pragma unroll
            for (int c = 0; c < HEAD / 32; c++)
                decode_query<T, 4>(qf + 4 * c, q + (t + 4 * c) * 8, live);
            if (HEAD % 32) decode_query<T, 2>(qf + regs::K - 2, q + HEAD - 16 + 4 * t, live);
        }
    };
    float slope[2]; /* of heads 2t and 2t + 1 of the piece, in units of the scores */
    auto next_segment =
        [&](int at) { /* false: no unit left for this CTA */
                      if (at >= u1) return false;
                      decode_segment_at(prefix, n_heads, p.seg_cost, at, u1, &seg);
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
    if (WIDE) decode_sync();
    while (more) {
        float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};

#pragma unroll UNROLL
        for (int x = seg.begin + warp; x < seg.end; x += WARPS) {
            if constexpr (!ONE) {
                cur = next;
                fetch_k();
                fetch_v();
                fetch_page();
            }
            const int lo = cur.lo, hi = cur.hi, at = cur.at;
            float s[4] = {}, s1[4] = {};
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++) {
                if (WIDE && i % 2 == 0) {
                    const uint4 y = decode_again(&sh.q[i / 2][lane]);
                    qf[2 * i] = y.x, qf[2 * i + 1] = y.y, qf[2 * i + 2] = y.z, qf[2 * i + 3] = y.w;
                }
                decode_mma(T(), i % 2 ? s1 : s, cur.k[0][2 * i], cur.k[1][2 * i],
                           cur.k[0][2 * i + 1], cur.k[1][2 * i + 1], qf[2 * i], qf[2 * i + 1]);
            }
            if constexpr (ONE) fetch_k();
            float alpha[2];
#pragma unroll
            for (int r = 0; r < 2; r++) { /* head 2t + r; keys g and g + 8 */
                float a = s[r] + s1[r], b = s[2 + r] + s1[2 + r];
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
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++) {
                const int j = i + HEAD / 16, w = i / 2, w1 = j / 2;
                const uint32_t sel = i % 2 ? 0x7632 : 0x5410, sel1 = j % 2 ? 0x7632 : 0x5410;
                decode_mma(T(), o[i], __byte_perm(cur.v[0][w], cur.v[1][w], sel),
                           __byte_perm(cur.v[0][w1], cur.v[1][w1], sel1),
                           __byte_perm(cur.v[2][w], cur.v[3][w], sel),
                           __byte_perm(cur.v[2][w1], cur.v[3][w1], sel1), b0, b1);
            }
            if constexpr (ONE) {
                fetch_v();
                fetch_page();
            }
        }

        const decode_segment done = seg;
        if (WIDE) __syncwarp(); /* all lanes have read it */
        more = next_segment(done.end);
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
        decode_sync();
        if (WIDE && more) fetch_q(); /* no warp needs the last ones */
        /* thread: head `warp` of the piece, D channels: side by side, or every 32nd */
        enum { D = (HEAD + 31) / 32 };
        auto channel = [&](int i) { return HEAD % 32 ? lane + 32 * i : lane * D + i; };
        float top = -INFINITY, den = 0, y[D] = {};
#pragma unroll 1
        for (int from = 0; from < WARPS; from += AT_ONCE) {
            if (from) decode_sync();
#pragma unroll
            for (int r = 0; r < 2 && warp / AT_ONCE * AT_ONCE == from; r++) {
                float *to = sm_o[warp - from] + (2 * t + r) * PITCH;
                float most = -INFINITY;
                for (int w = 0; w < WARPS; w++) most = fmaxf(most, sm_m[w][2 * t + r]);
                const float f = decode_exp2((m[r] - most) * k2);
#pragma unroll
                for (int j = 0; j < HEAD / 16; j++) {
                    to[j * 16 + g] = o[j][r] * f;
                    to[j * 16 + g + 8] = o[j][2 + r] * f;
                }
            }
            decode_sync();
            if (from == 0)
                for (int w = 0; w < WARPS; w++) top = fmaxf(top, sm_m[w][warp]);
#pragma unroll WIDE ? 1 : AT_ONCE
            for (int w = from; w < from + AT_ONCE; w++) {
                den += sm_l[w][warp] * decode_exp2((sm_m[w][warp] - top) * k2);
#pragma unroll
                for (int i = 0; i < D; i++)
                    if (HEAD % 32 == 0 || channel(i) < HEAD)
                        y[i] += sm_o[w - from][warp * PITCH + decode_place<HEAD>(channel(i))];
            }
        }
        const int first = done.first / share, last = (done.last - 1) / share;
        bool write = first == last;
        if (!write) {
            const int64_t slot = ((int64_t)blockIdx.x * 2 + (done.first >= u0)) * GROUP + warp;
#pragma unroll
            for (int i = 0; i < D; i++)
                if (HEAD % 32 == 0 || channel(i) < HEAD) p.part_o[slot * HEAD + channel(i)] = y[i];
            if (lane == 0) p.part_ml[slot] = make_float2(top, den);
            if (!LEAN) __threadfence();
            __syncwarp();
            int before = 0; /* each query head has its own count: no barrier among the warps */
            if (lane == 0) {
                int *arrived = p.arrived + (done.token * n_heads + done.head) * GROUP + warp;
                if (LEAN) /* a fence of the whole card waits for all that is on its way */
                    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                                 : "=r"(before)
                                 : "l"(arrived)
                                 : "memory");
                else
                    before = atomicAdd(arrived, 1);
                if (before == last - first) *arrived = 0;
            }
            write = __shfl_sync(~0u, before, 0) == last - first;
            if (write) {
                if (LEAN)
                    __syncwarp();
                else
                    __threadfence();
                /* lane i has the weight of partial result i: all their loads go out together */
                const int n = last - first + 1;
                auto slot_of = [&](int i) {
                    const int cta = first + i;
                    return ((int64_t)cta * 2 + (done.first >= cta * share)) * GROUP + warp;
                };
                top = -INFINITY;
                den = 0;
#pragma unroll
                for (int i = 0; i < D; i++) y[i] = 0;
                for (int from = 0; from < n; from += 32) {
                    float2 ml = make_float2(-INFINITY, 0);
                    if (from + lane < n) ml = __ldcg(p.part_ml + slot_of(from + lane));
                    const float up = fmaxf(top, sop_warp_max(ml.x));
                    const float before_f = decode_exp2((top - up) * k2);
                    const float f = decode_exp2((ml.x - up) * k2);
                    den = den * before_f + sop_warp_sum(ml.y * f);
#pragma unroll
                    for (int e = 0; e < D; e++) y[e] *= before_f;
#pragma unroll 4
                    for (int i = 0; i < min(n - from, 32); i++) {
                        const float *o_of = p.part_o + slot_of(from + i) * HEAD;
                        const float by = __shfl_sync(~0u, f, i);
#pragma unroll
                        for (int e = 0; e < D; e++)
                            if (HEAD % 32 == 0 || channel(e) < HEAD)
                                y[e] += __ldcg(o_of + channel(e)) * by;
                    }
                    top = up;
                }
            }
        }
        const int in_group = done.head % p.parts * GROUP + warp;
        if (write && in_group < p.group) {
            const int head = done.head / p.parts * p.group + in_group;
            QO *to = (QO *)p.a.o + done.token * p.o_stride + head * p.o_head;
            float base = top * k2;
            if (p.a.sinks) { /* one key more, whose value is 0 */
                const float sink = p.a.sinks[head] * 1.44269504f, up = fmaxf(base, sink);
                const float keep = decode_exp2(base - up);
                den = den * keep + decode_exp2(sink - up);
#pragma unroll
                for (int i = 0; i < D; i++) y[i] *= keep;
                base = up;
            }
#pragma unroll
            for (int i = 0; i < D; i++)
                if (HEAD % 32 == 0 || channel(i) < HEAD)
                    to[channel(i)] = sop_from_float<QO>(y[i] / den);
            if (p.a.lse && lane == 0)
                p.a.lse[(int64_t)done.token * p.heads + head] = (base + log2f(den)) * 0.693147181f;
        }
        decode_sync(); /* sm_* are free */
    }
}

template <typename T, typename QO, int HEAD, bool ALIBI>
static __global__ __launch_bounds__(DECODE_WARPS * 32,
                                    1) void sop_decode_sm80(const __grid_constant__ decode_args p)
{
    __shared__ decode_shared<HEAD> sh;
    sop_begin();
    decode_list(p, sh);
    decode_body<T, QO, HEAD, true, ALIBI, false>(p, p.a.k_pool, p.a.v_pool, sh, [] {});
}

#endif
