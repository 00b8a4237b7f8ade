/* The attention of one KV head's heads by the CTAs of its cluster, a token or two of the step. */
#ifndef OPS_SPANS_LAYERS_ATTENTION_CUH
#define OPS_SPANS_LAYERS_ATTENTION_CUH

#include "ops/spans/layers_product.cuh"

/* Which keys the tokens see: of the cache [lo, old), and of the tokens of the step [fresh_lo, fresh_hi). */
struct layers_keys {
    int seq[LAYERS_TOKENS], lo[LAYERS_TOKENS], old[LAYERS_TOKENS];
    int fresh_lo[LAYERS_TOKENS], fresh_hi[LAYERS_TOKENS];
    int units[LAYERS_TOKENS];      /* of the cache */
    int before[LAYERS_TOKENS + 1]; /* this CTA's units of the cache, of all tokens before */
};
SOP_DEV void layers_list(const decode_args &p, int tokens, int rank, layers_keys &k)
{
    const int t = threadIdx.x;
    if (t < tokens) {
        const int s = sop_sequence_of(p.a.q_start, (int)sop_live_rows(p.a.live, p.seqs), t);
        int lo = 0, old = 0, fresh_lo = 0, fresh_hi = 0;
        if (s >= 0) {
            const int q0 = p.a.q_start[s], q1 = p.a.q_start[s + 1], keys = p.a.kv_len[s];
            const int now = keys - (q1 - q0), pos = t - q0 + now,
                      hi = p.causal ? max(pos + 1, 0) : keys;
            lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
            old = max(lo, min(now, hi));
            fresh_lo = q0 + max(lo - now, 0);
            fresh_hi = q0 + max(hi - now, 0);
        }
        k.seq[t] = s, k.lo[t] = lo, k.old[t] = old;
        k.fresh_lo[t] = fresh_lo, k.fresh_hi[t] = fresh_hi;
        k.units[t] = old > lo ? (old + 15) / 16 - lo / 16 : 0;
    }
    layers_sync();
    if (t == 0) {
        int n = 0;
        for (int i = 0; i < tokens; i++) {
            k.before[i] = n;
            n += (k.units[i] + LAYERS_CLUSTER - 1 - rank) /
                 LAYERS_CLUSTER; /* units rank, rank + 16, ... */
        }
        for (int i = tokens; i <= LAYERS_TOKENS; i++) k.before[i] = n;
    }
}

/* The warp that asks for the cached keys and values of all layers, in pieces of 16 bytes: rows of 128 bytes
 * take bulk copies too long. Lane j knows where unit j of 32 lies, in every layer, so that none waits for
 * its entry of the table. */
template <typename T, typename M, int N>
SOP_DEV void layers_ask_kv(const layers_args &p, const layers_own *own, int head, int rank,
                           const layers_keys &k, layers_ring<N> r, volatile int *tags)
{
    enum { PER = M::HEAD / 8, ROWS = 32 / PER }; /* pieces of a row; rows at once */
    typedef layers_kv<M::HEAD> unit;
    const decode_args &a = p.attention;
    const int lane = threadIdx.x % 32, n = k.before[LAYERS_TOKENS], piece = lane % PER;
    const auto key_of = [&](int j, int tok) {
        return (k.lo[tok] / 16 + rank + (j - k.before[tok]) * LAYERS_CLUSTER) * 16;
    };
    int page = 0, place = 0, done = 0;
#pragma unroll 1
    for (int l = 0; l < p.layers; l++) {
        const T *const kp = (const T *)own[l].k_pool + head * a.kp_head + piece * 8;
        const T *const vp = (const T *)own[l].v_pool + head * a.vp_head + piece * 8;
#pragma unroll 1
        for (int j = 0; j < n; j++, done++) {
            if (j % 32 == 0 && (l == 0 || n > 32) && j + lane < n) {
                const int tok = j + lane >= k.before[1], key = key_of(j + lane, tok);
                page = a.a.table[(int64_t)k.seq[tok] * a.table_stride + key / a.page];
                place = key % a.page;
            }
            const int tok = j >= k.before[1], key = key_of(j, tok);
            const int64_t at_page = __shfl_sync(~0u, page, j % 32);
            const int64_t at = __shfl_sync(~0u, place, j % 32) + lane / PER;
            const T *from_k = kp + at_page * a.kp_page + at * a.kp_token;
            const T *from_v = vp + at_page * a.vp_page + at * a.vp_token;
            const uint32_t to = r.at + r.slot * unit::BYTES + piece * 16;
            mbar_wait(r.empty + r.slot * 8, r.phase ^ 1);
            if (lane == 0) tags[r.slot] = done;
#pragma unroll
            for (int row = lane / PER; row < 16; row += ROWS) {
                if (key + row >= k.lo[tok] && key + row < k.old[tok]) {
                    layers_copy(to + row * unit::K, from_k);
                    layers_copy(to + 16 * unit::K + row * unit::V, from_v);
                }
                from_k += ROWS * a.kp_token, from_v += ROWS * a.vp_token;
            }
            layers_copied(r.full + r.slot * 8);
            layers_turn(r, 1);
        }
    }
}

/* 16 keys and values in shared memory, of which rows [lo, hi) count. */
struct layers_unit {
    uint32_t at;
    int lo, hi;
};

/* Two units at once into a warp's result, as in decode_body(): m16n8k16 with keys as rows and heads as columns,
 * then channels as rows. k2: what turns a score into a power of two. */
template <typename T, int HEAD>
SOP_DEV void layers_score(const layers_unit (&unit)[2], const uint32_t (&qf)[HEAD / 8], float k2,
                          bool first, float (&o)[HEAD / 16][4], float (&m)[2], float (&l)[2])
{
    typedef layers_kv<HEAD> kv;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float s[2][4] = {}, s1[2][4] = {}, top[2] = {m[0], m[1]};
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < HEAD / 32; c++) {
            const uint4 a = layers_shared(unit[u].at + g * kv::K + (t + 4 * c) * 16);
            const uint4 b = layers_shared(unit[u].at + (g + 8) * kv::K + (t + 4 * c) * 16);
            decode_mma(T(), s[u], a.x, b.x, a.y, b.y, qf[4 * c], qf[4 * c + 1]);
            decode_mma(T(), s1[u], a.z, b.z, a.w, b.w, qf[4 * c + 2], qf[4 * c + 3]);
        }
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) { /* head 2t + i % 2; keys g and g + 8 */
            const int row = g + i / 2 * 8;
            s[u][i] = row >= unit[u].lo && row < unit[u].hi ? s[u][i] + s1[u][i] : -INFINITY;
            top[i % 2] = fmaxf(top[i % 2], s[u][i]);
        }
    for (int z = 4; z < 32; z *= 2)
#pragma unroll
        for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], z));
    if (!first) {
        const float alpha[2] = {decode_exp2((m[0] - top[0]) * k2),
                                decode_exp2((m[1] - top[1]) * k2)};
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[j][i] *= alpha[i % 2];
        l[0] *= alpha[0], l[1] *= alpha[1];
    }
    m[0] = top[0], m[1] = top[1];
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[u][i] = decode_exp2((s[u][i] - top[i % 2]) * k2);
            l[i % 2] += s[u][i];
        }
        const uint32_t b0 = decode_transpose(sop_pack<T>(s[u][0], s[u][1]));
        const uint32_t b1 = decode_transpose(sop_pack<T>(s[u][2], s[u][3]));
        uint32_t v[4][HEAD / 16];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int row = 2 * t + r % 2 + r / 2 * 8;
            const bool live = row >= unit[u].lo && row < unit[u].hi;
#pragma unroll
            for (int c = 0; c < HEAD / 64; c++) {
                const uint4 x =
                    layers_shared(unit[u].at + 16 * kv::K + row * kv::V + (g + 8 * c) * 16);
                v[r][4 * c] = live ? x.x : 0, v[r][4 * c + 1] = live ? x.y : 0;
                v[r][4 * c + 2] = live ? x.z : 0, v[r][4 * c + 3] = live ? x.w : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            const int j = i + HEAD / 16, w = i / 2, w1 = j / 2;
            const uint32_t sel = i % 2 ? 0x7632 : 0x5410, sel1 = j % 2 ? 0x7632 : 0x5410;
            decode_mma(T(), o[i], __byte_perm(v[0][w], v[1][w], sel),
                       __byte_perm(v[0][w1], v[1][w1], sel1), __byte_perm(v[2][w], v[3][w], sel),
                       __byte_perm(v[2][w1], v[3][w1], sel1), b0, b1);
        }
    }
}

/* How the results of the cluster's warps are merged: each sends what it has, four channels of a head at a time,
 * to the CTA that merges these, with the maximum and the sum of the head. Parts of a token lie in order of
 * the warp, then of the CTA. */
template <typename M, int TOKENS> struct layers_merge {
    enum {
        C = LAYERS_CLUSTER,
        WARPS = layers_kv<M::HEAD>::WARPS / TOKENS, /* of a token */
        QUADS = M::ATT / 4 / C,                     /* of a CTA */
        PER = M::HEAD / 4,                          /* of a head */
        PARTS = WARPS * C,
        SUMS = PARTS * QUADS * 16, /* bytes before maxima and sums: of two heads at most */
        BYTES = SUMS + PARTS * 2 * 8
    };
    static_assert(M::ATT % (4 * C) == 0 && QUADS < PER && M::HEAD == 64, "quads, of two heads");
    static __device__ __forceinline__ int first_head(int cta)
    {
        return cta * QUADS / PER;
    }
    /* Pairs of cached units, and one warp for the step's own keys, which CTA units % 16 has. */
    static __device__ __forceinline__ int pairs_of(int units, int cta)
    {
        return ((units + C - 1 - cta) / C + 1) / 2;
    }
    static __device__ __forceinline__ int warps_of(int units, int cta)
    {
        return min((int)WARPS, pairs_of(units, cta) + (units % C == cta));
    }
    /* Warps of the CTA that has most. */
    static __device__ __forceinline__ int rows_of(int units)
    {
        return max(warps_of(units, 0), warps_of(units, units % C));
    }
    /* Bytes that come to a CTA of all parts of a token. */
    static __device__ __forceinline__ int bytes(int units, int cta)
    {
        int n = 0;
        for (int c = 0; c < C; c++) n += warps_of(units, c);
        const int heads = (cta * QUADS + QUADS - 1) / PER - first_head(cta) + 1;
        return n * (QUADS * 16 + heads * 8);
    }
};

/* The queries of all tokens over this CTA's units, two at a time. Unit i of the cache is CTA i % 16's; warps
 * share those of a CTA. What comes of it goes to those that merge it. */
template <typename T, typename M, int TOKENS, int N>
SOP_DEV void layers_attend(const layers_keys &k, int rank, int tokens, float k2, uint32_t q,
                           uint32_t fresh, const layers_ring<N> &r, volatile int *tags, int base,
                           uint32_t sent, uint32_t bar)
{
    enum { HEAD = M::HEAD, C = LAYERS_CLUSTER };
    typedef layers_merge<M, TOKENS> merge;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int tok = warp / merge::WARPS, own = warp % merge::WARPS;
    float o[HEAD / 16][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
    if (tok >= tokens || own >= merge::warps_of(k.units[tok], rank)) return;
    const int units = k.units[tok], mine = (units + C - 1 - rank) / C;
    const int last = merge::pairs_of(units, rank) + (units % C == rank); /* with the own keys */
    uint32_t qf[HEAD / 8];
#pragma unroll
    for (int c = 0; c < HEAD / 32; c++) {
        const uint4 x = layers_shared(q + (tok * 8 + g) * layers_kv<HEAD>::K + (t + 4 * c) * 16);
        qf[4 * c] = x.x, qf[4 * c + 1] = x.y, qf[4 * c + 2] = x.z, qf[4 * c + 3] = x.w;
    }
#pragma unroll 1
    for (int pair = own; pair < last; pair += merge::WARPS) {
        layers_unit unit[2] = {{fresh, k.fresh_lo[tok], k.fresh_hi[tok]}, {fresh, 0, 0}};
        int slot[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * pair + i, at = base + k.before[tok] + j;
            const int key = (k.lo[tok] / 16 + rank + j * C) * 16;
            slot[i] = -1;
            if (j >= mine) continue;
            slot[i] = at % N;
            while (tags[slot[i]] != at) continue;
            mbar_wait(r.full + slot[i] * 8, (uint32_t)(at / N) & 1);
            unit[i] = {r.at + slot[i] * layers_kv<HEAD>::BYTES, k.lo[tok] - key, k.old[tok] - key};
        }
        layers_score<T, HEAD>(unit, qf, k2, pair == own, o, m, l);
        __syncwarp();
        if (lane < 2 && slot[lane] >= 0) mbar_arrive(r.empty + slot[lane] * 8);
    }
    const int part = tok * merge::PARTS + own * C + rank;
    const uint32_t sums = sent + part * (merge::QUADS * 16);
    const uint32_t tops = sent + TOKENS * merge::SUMS + part * 16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int head = 2 * t + h;
        for (int z = 4; z < 32; z *= 2) l[h] += __shfl_xor_sync(~0u, l[h], z);
        if (head >= M::GROUP) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) { /* channels 8 g + 4 i of the head */
            const int quad = head * merge::PER + 2 * g + i, dst = quad / merge::QUADS;
            const float y[4] = {o[0][h + 2 * i], o[1][h + 2 * i], o[2][h + 2 * i], o[3][h + 2 * i]};
            layers_send4(layers_at(sums + (quad - dst * merge::QUADS) * 16, dst),
                         layers_at(bar, dst), y);
        }
        const int dst = head * merge::PER / merge::QUADS + g;
        if (dst <= (head * merge::PER + merge::PER - 1) / merge::QUADS)
            layers_send2(layers_at(tops + (head - merge::first_head(dst)) * 8, dst),
                         layers_at(bar, dst), m[h] * k2, l[h]);
    }
}

/* This CTA's quads, merged; a warp each, a lane a part; out(token, quad, values), by all lanes. */
template <typename M, int TOKENS, typename Out>
SOP_DEV void layers_merged(const layers_keys &k, const uint8_t *sent, int rank, int tokens, Out out)
{
    typedef layers_merge<M, TOKENS> merge;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tok = warp / merge::QUADS, quad = warp % merge::QUADS;
    static_assert(TOKENS * merge::QUADS <= LAYERS_WARPS, "a warp each");
    if (tok >= tokens) return;
    const int units = k.units[tok], n = merge::rows_of(units) * LAYERS_CLUSTER;
    const int head = (rank * merge::QUADS + quad) / merge::PER - merge::first_head(rank);
    const float4 *sums = (const float4 *)sent + tok * merge::PARTS * merge::QUADS + quad;
    const float2 *tops =
        (const float2 *)(sent + TOKENS * merge::SUMS) + tok * merge::PARTS * 2 + head;
    float top = -1e30f, den = 0, y[4] = {};
#pragma unroll 1
    for (int i = lane; i < n; i += 32) {
        if (i / LAYERS_CLUSTER >= merge::warps_of(units, i % LAYERS_CLUSTER)) continue;
        const float2 f = tops[i * 2];
        const float4 v = sums[i * merge::QUADS];
        const float most = fmaxf(top, f.x), was = decode_exp2(top - most);
        const float by = decode_exp2(f.x - most);
        top = most;
        den = den * was + f.y * by;
        y[0] = y[0] * was + v.x * by, y[1] = y[1] * was + v.y * by;
        y[2] = y[2] * was + v.z * by, y[3] = y[3] * was + v.w * by;
    }
    float most = top;
    for (int z = 1; z < 32; z *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, z));
    const float by = decode_exp2(top - most);
    den *= by;
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] *= by;
    for (int z = 1; z < 32; z *= 2) {
        den += __shfl_xor_sync(~0u, den, z);
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] += __shfl_xor_sync(~0u, y[i], z);
    }
    const float over = den > 0 ? __fdividef(1, den) : 0;
    for (int i = 0; i < 4; i++) y[i] *= over;
    out(tok, quad, y);
}

/* Queries, keys and values of the step, f32: they round to the cache's type, then turn, as single modules do;
 * queries to q, keys and values to a unit of their own, and, by two of the CTAs, to the cache. */
template <typename T, typename M, int TOKENS>
SOP_DEV void layers_rope(const layers_args &p, const layers_own &own, int head, int rank,
                         int tokens, const int *slots, const float2 *turns, const float *qkv,
                         uint8_t *q, uint8_t *fresh)
{
    enum { HEAD = M::HEAD };
    constexpr int group = M::GROUP;
    typedef layers_kv<HEAD> unit;
    const decode_args &a = p.attention;
    const int turned = (group + 1) * (HEAD / 2), all = turned + HEAD / 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * all; i += LAYERS_THREADS) {
        const int tok = TOKENS == 1 ? 0 : i / all, e = i - tok * all;
        const int h = e / (HEAD / 2), c = e % (HEAD / 2);
        const float *from = qkv + tok * (group + 2) * HEAD + h * HEAD + c;
        T u = sop_from_float<T>(from[0]), w = sop_from_float<T>(from[HEAD / 2]);
        if (e < turned) {
            const float2 cs = turns[tok * (HEAD / 2) + c];
            const float y = sop_to_float(u), z = sop_to_float(w);
            u = sop_from_float<T>(y * cs.x - z * cs.y);
            w = sop_from_float<T>(z * cs.x + y * cs.y);
        }
        uint8_t *row = q + (tok * 8 + h) * unit::K;
        if (h == group) row = fresh + tok * unit::K;
        if (h > group) row = fresh + 16 * unit::K + tok * unit::V;
        ((T *)row)[c] = u;
        ((T *)row)[c + HEAD / 2] = w;
        if (h < group || rank != h - group) continue;
        const int page = slots[tok] / a.page, place = slots[tok] % a.page;
        if (slots[tok] < 0 || page >= p.pages) continue;
        T *to = h == group
                    ? (T *)own.k_pool + page * a.kp_page + place * a.kp_token + head * a.kp_head
                    : (T *)own.v_pool + page * a.vp_page + place * a.vp_token + head * a.vp_head;
        to[c] = u;
        to[c + HEAD / 2] = w;
    }
}

#endif
