/* Few queries of long sequences, heads of 64 or 128: the bytes of the cache are all that counts. Keys and
 * values in 16-bit elements, sums in f32.
 *
 * The work is the list (query, KV head, unit of 16 keys), where each (query, head) counts `seg_cost`
 * units more, for its merge. A fixed grid shares it equally, by a scan of the live lengths: a graph
 * serves any lengths. The 8 warps of a CTA take units in turn and merge in shared memory; per query head
 * the last CTA to arrive merges the partial results, in the order of the list.
 *
 * No shared memory in the main loop: 16-byte global loads already give mma.m16n8k16 fragments, because
 * the order of d inside a dot product, and of d among output rows, is free. Up to 8 query heads of a
 * group are the n = 8 of both products (P^T by movmatrix):
 *     S^T[16 keys, 8 heads] = K Q^T,    O^T[d, 8 heads] += V^T P^T
 * Thread (g = lane / 4, t = lane % 4) holds
 *     K: keys g, g + 8;                      16-byte chunks t, t + 4, ...
 *     V: keys 2t, 2t + 1, 2t + 8, 2t + 9;    16-byte chunks g, g + 8 (g alone for heads of 64) */
#ifndef OPS_ATTENTION_DECODE_SM80_CUH
#define OPS_ATTENTION_DECODE_SM80_CUH

#include "ops/attention/attention.cuh"

enum { DECODE_WARPS = 8, DECODE_UNIT = 16, DECODE_GROUP = 8, DECODE_MOST_TOKENS = 256 };

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
/* FIXED: nothing writes it while the kernel runs. */
template <bool FIXED> SOP_DEV uint4 decode_load(const void *p, bool live)
{
    uint4 x = {0, 0, 0, 0};
    if (live && FIXED)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "l"(p));
    if (live && !FIXED)
        asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "l"(p)
                     : "memory");
    return x;
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
SOP_DEV uint32_t decode_part(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
SOP_DEV float decode_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int HEAD> struct decode_regs {
    enum { K = HEAD / 32, V = HEAD / 64 };
    uint4 k[2][K], v[4][V];
    int lo, hi; /* keys of the unit that count; hi 0: no unit */
};

/* What the warps of a CTA share. */
template <int HEAD> struct decode_shared {
    enum { MOST = DECODE_MOST_TOKENS, PITCH = HEAD + 4 };
    int prefix[MOST + 1], warp_sum[DECODE_WARPS], start_token; /* costs of one head before a query */
    int seq_of[MOST], lo_of[MOST], hi_of[MOST];                /* the keys that each query sees */
    float m[DECODE_WARPS][DECODE_GROUP], l[DECODE_WARPS][DECODE_GROUP];
    float o[DECODE_WARPS][DECODE_GROUP * PITCH];
};

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
            cost = hi > sh.lo_of[tid] ? (hi + UNIT - 1) / UNIT - sh.lo_of[tid] / UNIT + p.seg_cost : 0;
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

/* What follows the list, for a block of DECODE_WARPS. Q and O are T or float. FIXED: nothing writes keys
 * and values while the kernel runs. */
template <typename T, typename QO, int HEAD, bool FIXED>
SOP_DEV void decode_body(const decode_args &p, decode_shared<HEAD> &sh)
{
    enum { WARPS = DECODE_WARPS, UNIT = DECODE_UNIT, GROUP = DECODE_GROUP };
    enum { PITCH = decode_shared<HEAD>::PITCH };
    typedef decode_regs<HEAD> regs;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
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
            p.a.lse[(int64_t)i * p.heads + h] = -INFINITY;
    }
    if (u0 >= u1) return;

    /* the loads run two steps ahead of the arithmetic, across segments: page, then K and V */
    decode_segment ahead, seg;
    ahead.token = seg.token = sh.start_token;
    decode_segment_at(prefix, n_heads, p.seg_cost, u0, u1, &ahead);
    int u = ahead.begin + warp, next_page = 0, next_at = 0, next_lo = 0, next_hi = 0, next_head = 0;
    regs next, cur;
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
            u += WARPS;
        }
    };
    auto fetch_kv = [&] {
        next.lo = next_lo;
        next.hi = next_hi;
        if (next_hi == 0) return;
        const T *k = (const T *)p.a.k_pool + next_page * p.kp_page + next_at * p.kp_token +
                     next_head * p.kp_head;
        const T *v = (const T *)p.a.v_pool + next_page * p.vp_page + next_at * p.vp_token +
                     next_head * p.vp_head;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int c = 0; c < regs::K; c++)
                next.k[r][c] = decode_load<FIXED>(k + (g + 8 * r) * p.kp_token + (t + 4 * c) * 8,
                                           g + 8 * r >= next_lo && g + 8 * r < next_hi);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int slot = 2 * t + r % 2 + r / 2 * 8;
#pragma unroll
            for (int c = 0; c < regs::V; c++)
                next.v[r][c] = decode_load<FIXED>(v + slot * p.vp_token + (g + 8 * c) * 8,
                                           slot >= next_lo && slot < next_hi);
        }
    };
    fetch_page();
    fetch_kv();
    fetch_page();

    uint4 qf[regs::K];
    auto next_segment =
        [&](int at) { /* false: no unit left for this CTA */
                      if (at >= u1) return false;
                      decode_segment_at(prefix, n_heads, p.seg_cost, at, u1, &seg);
                      if (seg.begin >= seg.end) return false;
                      const int i = seg.head % p.parts * GROUP + g; /* of the group */
                      const QO *q = (const QO *)p.a.q + seg.token * p.q_stride +
                                    (seg.head / p.parts * p.group + i) * p.q_head;
#pragma unroll
                      for (int c = 0; c < regs::K; c++) {
                          qf[c] = {0, 0, 0, 0};
                          if (i >= p.group) continue;
                          const QO *from = q + (t + 4 * c) * 8;
                          if (sizeof(QO) == 2) {
                              qf[c] = *(const uint4 *)from;
                          } else {
                              const float4 x = ((const float4 *)from)[0],
                                           y = ((const float4 *)from)[1];
                              qf[c] = {sop_pack<T>(x.x, x.y), sop_pack<T>(x.z, x.w),
                                       sop_pack<T>(y.x, y.y), sop_pack<T>(y.z, y.w)};
                          }
                      }
                      return true;
        };
    for (bool more = next_segment(u0); more;) {
        float o[HEAD / 16][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};

#pragma unroll FIXED ? 4 : 1 /* beside other code it must stay small */
        for (int x = seg.begin + warp; x < seg.end; x += WARPS) {
            cur = next;
            fetch_kv();
            fetch_page();
            float s[4] = {}, s1[4] = {};
#pragma unroll
            for (int c = 0; c < regs::K; c++) {
                decode_mma(T(), s, cur.k[0][c].x, cur.k[1][c].x, cur.k[0][c].y, cur.k[1][c].y,
                           qf[c].x, qf[c].y);
                decode_mma(T(), s1, cur.k[0][c].z, cur.k[1][c].z, cur.k[0][c].w, cur.k[1][c].w,
                           qf[c].z, qf[c].w);
            }
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
                if (!(g >= cur.lo && g < cur.hi)) a = -INFINITY;
                if (!(g + 8 >= cur.lo && g + 8 < cur.hi)) b = -INFINITY;
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
            /* rows of the product: d = 8g + j and, 64 or 4 further on, its partner; pairs of keys */
#pragma unroll
            for (int j = 0; j < HEAD / 16; j++) {
                const uint32_t sel = j % 2 ? 0x7632 : 0x5410;
                const int c1 = HEAD == 64 ? 0 : 1, j1 = HEAD == 64 ? j / 2 + 2 : j / 2;
                decode_mma(
                    T(), o[j],
                    __byte_perm(decode_part(cur.v[0][0], j / 2), decode_part(cur.v[1][0], j / 2),
                                sel),
                    __byte_perm(decode_part(cur.v[0][c1], j1), decode_part(cur.v[1][c1], j1), sel),
                    __byte_perm(decode_part(cur.v[2][0], j / 2), decode_part(cur.v[3][0], j / 2),
                                sel),
                    __byte_perm(decode_part(cur.v[2][c1], j1), decode_part(cur.v[3][c1], j1), sel),
                    b0, b1);
            }
        }

        const decode_segment done = seg;
        more = next_segment(seg.end); /* its queries come in under the merge */
        /* 8 warps into one, by head and by j * 16 + g + 8 half: see the order of d above */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
            if (g == 0) {
                sm_m[warp][2 * t + r] = m[r];
                sm_l[warp][2 * t + r] = l[r];
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -INFINITY;
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, sm_m[w][2 * t + r]);
            const float f = decode_exp2((m[r] - top) * k2);
#pragma unroll
            for (int j = 0; j < HEAD / 16; j++) {
                sm_o[warp][(2 * t + r) * PITCH + j * 16 + g] = o[j][r] * f;
                sm_o[warp][(2 * t + r) * PITCH + j * 16 + g + 8] = o[j][2 + r] * f;
            }
        }
        __syncthreads();
        /* thread: head `warp` of the piece, D channels from D * lane on */
        enum { D = HEAD / 32 };
        float top = -INFINITY, den = 0, y[D] = {};
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, sm_m[w][warp]);
        for (int w = 0; w < WARPS; w++) {
            den += sm_l[w][warp] * decode_exp2((sm_m[w][warp] - top) * k2);
#pragma unroll
            for (int i = 0; i < D; i++) {
                const int d = lane * D + i, j = HEAD == 64 ? d % 4 : d % 8;
                const int half = HEAD == 64 ? d / 4 % 2 : d / 64;
                y[i] += sm_o[w][warp * PITCH + j * 16 + d % 64 / 8 + 8 * half];
            }
        }
        const int first = done.first / share, last = (done.last - 1) / share;
        bool write = first == last;
        if (!write) {
            const int64_t slot = ((int64_t)blockIdx.x * 2 + (done.first >= u0)) * GROUP + warp;
#pragma unroll
            for (int i = 0; i < D; i++) p.part_o[slot * HEAD + lane * D + i] = y[i];
            if (lane == 0) p.part_ml[slot] = make_float2(top, den);
            __threadfence();
            __syncwarp();
            int before = 0; /* each query head has its own count: no barrier among the warps */
            if (lane == 0) {
                int *arrived = p.arrived + (done.token * n_heads + done.head) * GROUP + warp;
                before = atomicAdd(arrived, 1);
                if (before == last - first) *arrived = 0;
            }
            write = __shfl_sync(~0u, before, 0) == last - first;
            if (write) {
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
                        const float *o_of = p.part_o + slot_of(from + i) * HEAD + lane * D;
                        const float by = __shfl_sync(~0u, f, i);
#pragma unroll
                        for (int e = 0; e < D; e++) y[e] += __ldcg(o_of + e) * by;
                    }
                    top = up;
                }
            }
        }
        const int in_group = done.head % p.parts * GROUP + warp;
        if (write && in_group < p.group) {
            const int head = done.head / p.parts * p.group + in_group;
            QO *to = (QO *)p.a.o + done.token * p.o_stride + head * p.o_head + lane * D;
#pragma unroll
            for (int i = 0; i < D; i++) to[i] = sop_from_float<QO>(y[i] / den);
            if (p.a.lse && lane == 0)
                p.a.lse[(int64_t)done.token * p.heads + head] =
                    (top * k2 + log2f(den)) * 0.693147181f;
        }
        __syncthreads(); /* sm_* are free */
    }
}

template <typename T, typename QO, int HEAD>
static __global__ __launch_bounds__(DECODE_WARPS * 32,
                                    1) void sop_decode_sm80(const __grid_constant__ decode_args p)
{
    __shared__ decode_shared<HEAD> sh;
    sop_begin();
    decode_list(p, sh);
    decode_body<T, QO, HEAD, true>(p, sh);
}

#endif
