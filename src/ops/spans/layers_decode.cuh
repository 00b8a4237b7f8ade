/* All decoder layers for a token or two in one launch, for models whose layers are so small that what counts
 * is how often, and through what, the CTAs wait for each other.
 *
 * The CTAs come in clusters of 16, one CTA a multiprocessor. One cluster a KV head does the first half of a
 * layer for its heads: norm, q k v, rope, append, attention, and the output product over the channels of its
 * heads. All clusters do the second half, each for a share of the channels: norm, gate and up, activation, and
 * down over these channels; the shares are such that all CTAs read about as many bytes of a layer. So inside a
 * half only CTAs of one cluster wait for each other, by way of their shared memory; between the halves partial
 * sums go through global memory, two times a layer:
 *
 *     sum, norm | q k v  =  rope | scores  =  merge  =  output --.             heads
 *        ^                                                       | up: [KV heads, tokens, d]
 *        | down: [clusters, tokens, d]                           v
 *        '----------------------- down  =  gate, up | norm, sum                all
 *
 * = is an exchange among the 16 of a cluster (st.async: the data and its count arrive together). A word of
 * mail is 4 bytes of data and the layer's number, written and read as one, so that who sees the number has
 * the data; it is 0 before and after a launch. A CTA waits for the words of 1/16 of the rows, sums the
 * partial ones in their order, and sends the sums to its cluster, with the sum of their squares for the norm.
 * The residual travels with the first partial sum.
 *
 * Why no word or buffer is written before all have read what it held: up of a layer is posted by a CTA whose
 * cluster has summed the down of the layer before, and so has heard of every CTA; and down by one whose
 * cluster has heard of every CTA with a head. A CTA posts when all its warps have met after they read.
 *
 * Why all waits end:
 * - All CTAs run at once: the launch is cooperative, and the plan refuses where fewer clusters have room. What
 *   may start early behind it starts when all its CTAs have, and what it started early behind ends without it.
 * - A word is 0 or has the number of a layer that is over until it is this layer's: mail is the queue's own,
 *   whose launches follow each other, and the last reader of a launch clears it, whatever the batch.
 * - Every CTA counts on the same bytes: what they follow from, the step's inputs, is read when all launches
 *   before have ended.
 * - Slots are asked for in order, by a warp that waits for those who read what the slot had, for the slot a
 *   window before, and for the down that this CTA has posted last; none of them needs the slot. */
#ifndef OPS_SPANS_LAYERS_DECODE_CUH
#define OPS_SPANS_LAYERS_DECODE_CUH

#include "ops/gated/gated_act.cuh"
#include "ops/spans/layers_attention.cuh"

/* ---- what both halves do first ---- */

/* This CTA's rows of the residual, from words or for the first layer from memory, to all CTAs of the
 * cluster, with the sums of their squares. A warp has up to 32 rows of a token. */
template <typename T, typename M, int WORDS>
SOP_DEV void layers_gather(const layers_args &p, int rank, const unsigned long long *mail,
                           uint32_t stamp, int tokens, uint32_t x, uint32_t squares, uint32_t bar)
{
    enum { EACH = (M::ROWS + 31) / 32 };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tok = warp / EACH, chunk = warp % EACH, i = chunk * 32 + lane;
    const int row = rank * M::ROWS + i;
    if (tok >= tokens) return;
    float v = 0, quad[4];
    if (i < M::ROWS) {
        if (mail) {
            v = layers_collect<WORDS>(mail + (int64_t)tok * M::D + row, (int64_t)p.tokens * M::D,
                                      stamp);
        } else {
            v = __ldcg(p.x + tok * p.x_stride + row);
            if (p.first) v += sop_to_float(((const T *)p.first)[tok * p.first_stride + row]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) quad[j] = __shfl_sync(~0u, v, lane / 4 * 4 + j);
    if (i < M::ROWS) { /* whole quads */
        const uint32_t to = x + (uint32_t)(tok * M::D + row / 4 * 4) * 4;
#pragma unroll
        for (int c = 0; c < LAYERS_CLUSTER; c += 4)
            layers_send4(layers_at(to, c + lane % 4), layers_at(bar, c + lane % 4), quad);
    }
    const float square = sop_warp_sum(v * v);
    const uint32_t to = squares + (uint32_t)((tok * LAYERS_CLUSTER + rank) * EACH + chunk) * 4;
    if (lane < LAYERS_CLUSTER)
        layers_send(layers_at(to, lane), layers_at(bar, lane), __float_as_uint(square));
}

/* The norm; a warp has one token. Weights are asked for before what they multiply is there. */
template <typename M, int TOKENS> struct layers_normer {
    enum { WARPS = LAYERS_WARPS / TOKENS, STEP = 128 * WARPS, KEPT = (M::D + STEP - 1) / STEP };
    float4 w[KEPT];
    int tok, from;
};
template <typename M, int TOKENS> SOP_DEV layers_normer<M, TOKENS> layers_norm_start(const float *w)
{
    typedef layers_normer<M, TOKENS> normer;
    normer n;
    n.tok = threadIdx.x / 32 / normer::WARPS;
    n.from = (threadIdx.x / 32 % normer::WARPS * 32 + threadIdx.x % 32) * 4;
#pragma unroll
    for (int j = 0; j < normer::KEPT; j++)
        if (n.from + j * normer::STEP < M::D)
            n.w[j] = *(const float4 *)(w + n.from + j * normer::STEP);
    return n;
}
template <typename T, typename M, int TOKENS>
SOP_DEV void layers_norm(const layers_normer<M, TOKENS> &n, const float *x, const float *squares,
                         uint8_t *xs, float eps, float offset)
{
    typedef layers_normer<M, TOKENS> normer;
    const int lane = threadIdx.x % 32;
    if (n.from < M::D) {
        enum { PARTS = LAYERS_CLUSTER * ((M::ROWS + 31) / 32) };
        static_assert(PARTS == 32, "a lane each");
        const float sum = squares[n.tok * PARTS + lane];
        const float scale = rsqrtf(sop_warp_sum(sum) / (float)M::D + eps);
#pragma unroll
        for (int j = 0; j < normer::KEPT; j++) {
            const int i = n.from + j * normer::STEP;
            if (i >= M::D) continue;
            const float4 v = *(const float4 *)(x + n.tok * M::D + i), w = n.w[j];
            const uint2 y = {
                sop_pack<T>(v.x * (offset + w.x) * scale, v.y * (offset + w.y) * scale),
                sop_pack<T>(v.z * (offset + w.z) * scale, v.w * (offset + w.w) * scale)};
            *(uint2 *)(xs + n.tok * layers_pitch(M::D) + i * 2) = y;
        }
    }
    layers_sync();
}
/* ---- the kernel ---- */

/* Barriers: full and empty slots, the same of keys and values, and what comes from the cluster. */
enum { LAYERS_X, LAYERS_X2, LAYERS_HEADS, LAYERS_SENT, LAYERS_MERGED, LAYERS_ACT, LAYERS_CAME };
enum { LAYERS_BARS = 2 * LAYERS_SLOTS + 2 * LAYERS_KV_SLOTS + LAYERS_CAME };
SOP_DEV void layers_begin(uint64_t *bars, int *tags)
{
    const int i = threadIdx.x;
    if (i < LAYERS_BARS) {
        const int kv = i - 2 * LAYERS_SLOTS;
        mbar_init(smem_addr(bars + i), i >= LAYERS_SLOTS && kv < 0       ? LAYERS_WARPS
                                       : kv >= 0 && kv < LAYERS_KV_SLOTS ? 32
                                                                         : 1);
        fence_mbar_init();
    }
    if (i < LAYERS_KV_SLOTS) tags[i] = -1;
    grid_go();
    __syncthreads();
    cluster_sync();
}

/* Gate and up of this CTA's channels, activated, to all CTAs of the cluster: four channels a thread, to one. */
template <typename T, typename M, int TOKENS, bool HEADS>
SOP_DEV void layers_act(const layers_own &own, int first, int tokens, const float *sums, int rank,
                        uint32_t other, uint32_t to, uint32_t bar)
{
    enum {
        SHARE = HEADS ? M::HEADS_SHARE : M::SHARE,
        EACH = SHARE / LAYERS_CLUSTER,
        QUADS = EACH / 4
    };
#pragma unroll 1
    for (int i = threadIdx.x / LAYERS_CLUSTER; i < tokens * QUADS;
         i += LAYERS_THREADS / LAYERS_CLUSTER) {
        const int tok = TOKENS == 1 ? 0 : i / QUADS, ch = (i - tok * QUADS) * 4;
        const int row = ch / 8 * 16 + ch % 8, channel = first + rank * EACH + ch;
        float4 g = layers_sum<M, TOKENS, HEADS, LAYERS_GATE_UP, float4>(sums, row, tok);
        float4 u = layers_sum<M, TOKENS, HEADS, LAYERS_GATE_UP, float4>(sums, row + 8, tok);
        if (own.bias[4]) layers_plus(g, *(const float4 *)(own.bias[4] + channel));
        if (own.bias[5]) layers_plus(u, *(const float4 *)(own.bias[5] + channel));
        const uint32_t y[2] = {
            sop_pack<T>(sop_act_of(M::ACT, g.x) * u.x, sop_act_of(M::ACT, g.y) * u.y),
            sop_pack<T>(sop_act_of(M::ACT, g.z) * u.z, sop_act_of(M::ACT, g.w) * u.w)};
        layers_send2(to + other + tok * layers_pitch(SHARE) + (rank * EACH + ch) * 2, bar + other,
                     __uint_as_float(y[0]), __uint_as_float(y[1]));
    }
}

/* What the kernel has of static shared memory. */
struct layers_static {
    uint64_t bars[LAYERS_BARS];
    layers_keys keys;
    __align__(16) float bias[128];
    int slots[LAYERS_TOKENS], tags[LAYERS_KV_SLOTS]; /* which unit a slot has */
    layers_posted posted;
};

template <typename T, typename M, int TOKENS, bool HEADS>
SOP_DEV void layers_role(const layers_args &p, uint8_t *shared, layers_static &st)
{
    enum { C = LAYERS_CLUSTER, HEAD = M::HEAD, D = M::D, ROWS = M::ROWS, ATT = M::ATT };
    enum { SHARE = HEADS ? M::HEADS_SHARE : M::SHARE, EACH = (ROWS + 31) / 32 };
    const int tid = threadIdx.x, warp = tid / 32, rank = layers_rank(), cluster = blockIdx.x / C;
    const int first = HEADS ? cluster * SHARE /* of the channels of the second half */
                            : M::KV_HEADS * M::HEADS_SHARE + (cluster - M::KV_HEADS) * SHARE;
    typedef layers_room<M, TOKENS, HEADS> room;
    constexpr layers_map map = layers_map_of<M, TOKENS, HEADS>(room::RING, room::KV);
    const uint32_t base = smem_addr(shared), bar = smem_addr(st.bars);
    layers_ring<room::RING> ring = {base + map.ring, bar, bar + LAYERS_SLOTS * 8, 0, 0};
    layers_ring<room::KV> kv = {base + map.kv, bar + 2 * LAYERS_SLOTS * 8,
                                bar + (2 * LAYERS_SLOTS + LAYERS_KV_SLOTS) * 8, 0, 0};
    layers_wanted<M, HEADS> *const wanted = (layers_wanted<M, HEADS> *)(shared + map.wanted);
    layers_own *own = (layers_own *)(shared + map.own);
    for (int i = tid; i < p.layers * (int)(sizeof *own / 8); i += LAYERS_ALL)
        ((uint64_t *)own)[i] = ((const uint64_t *)p.own)[i];
    layers_make<M, HEADS>(wanted, cluster, rank, first);
    __syncthreads();
    if (warp >= LAYERS_WARPS) {
        regs_dec<56>();
        if (warp < LAYERS_WARPS + LAYERS_ASKERS) {
            layers_ask<M, HEADS>(wanted, own, p.layers, p.window[HEADS], p.pause, &st.posted, ring,
                                 [&] {
                                     grid_wait();
                                     return sop_live_rows(p.live_tokens, p.tokens) > 0;
                                 });
        } else if (HEADS) {
            grid_wait();
            named_sync(2, LAYERS_THREADS + 32); /* the list is there */
            layers_ask_kv<T, M>(p, own, cluster, rank, st.keys, kv, st.tags);
        }
        return;
    }
    regs_inc<104>();
    const int64_t plane = (int64_t)p.tokens * D;
    unsigned long long *const up = p.mail, *const down = p.mail + M::KV_HEADS * plane;
    float *const sums = (float *)(shared + map.part);
    float2 *const turns = (float2 *)(shared + map.turns);
    const uint32_t other = layers_at(base, tid % C) - base;
    const auto came = [&](int i) { return bar + (2 * (LAYERS_SLOTS + LAYERS_KV_SLOTS) + i) * 8; };
    /* the step's inputs: the launch before this one may have written them, or the one before that */
    grid_wait();
    const int live = (int)sop_live_rows(p.live_tokens, p.tokens), tokens = TOKENS == 1 ? 1 : live;
    if (HEADS) {
        layers_list(p.attention, live, rank, st.keys);
        named_sync(2, LAYERS_THREADS + 32);
    }
    if (live == 0) return;
    const int units = HEADS ? st.keys.before[LAYERS_TOKENS] : 0; /* of a layer */
    int parts = 0;                                               /* bytes of what is to be merged */
    for (int tok = 0; HEADS && tok < tokens; tok++)
        parts += layers_merge<M, TOKENS>::bytes(st.keys.units[tok], rank);
    if (HEADS) {
        if (tid < tokens) st.slots[tid] = p.slots[tid];
        for (int i = tid; i < tokens * (HEAD / 2); i += LAYERS_THREADS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)p.pos[i / (HEAD / 2)], p.freqs[i % (HEAD / 2)]), &sine,
                    &cosine);
            turns[i] = make_float2(cosine * p.mscale, sine * p.mscale);
        }
    }
    /* the residual after a half, of which this CTA has a partial sum for some rows, to those that sum it */
    const auto post = [&](unsigned long long *to, int l, int half, const float *b, bool residual,
                          auto sum) {
        if (tid >= tokens * ROWS) return;
        const int tok = TOKENS == 1 ? 0 : tid / ROWS, row = tid - tok * ROWS;
        const int at = rank * ROWS + row;
        float v = sum(row, tok);
        if (cluster == 0) { /* bias and residual come once */
            if (b) v += b[at];
            if (residual) v += ((const float *)(shared + map.x[half]))[tok * D + at];
        }
        layers_post(to + cluster * plane + (int64_t)tok * D + at, v, (uint32_t)l + 1);
    };
#pragma unroll 1
    for (int l = 0; l < p.layers; l++) {
        const layers_own &my = own[l];
        const uint32_t phase = l & 1;
        const bool last = l == p.layers - 1;
        if (tid == 0) {
            mbar_expect_tx(came(LAYERS_X2), (uint32_t)(tokens * (D + C * EACH) * 4));
            mbar_expect_tx(came(LAYERS_ACT), (uint32_t)(tokens * SHARE * 2));
            if (HEADS) {
                mbar_expect_tx(came(LAYERS_X), (uint32_t)(tokens * (D + C * EACH) * 4));
                mbar_expect_tx(came(LAYERS_HEADS), (uint32_t)(tokens * M::QKV * 4));
                mbar_expect_tx(came(LAYERS_SENT), (uint32_t)parts);
                mbar_expect_tx(came(LAYERS_MERGED), (uint32_t)(tokens * ATT * 2));
            }
        }
        if (HEADS) {
            enum { MINE = M::QKV / C, QUADS = MINE / 4 };
            const layers_normer<M, TOKENS> norm = layers_norm_start<M, TOKENS>(my.norm[0]);
            if (tid >= LAYERS_THREADS - MINE) {
                const int r = tid - (LAYERS_THREADS - MINE), i = rank * MINE + r;
                const int j = i < ATT ? 0 : i < ATT + HEAD ? 1 : 2;
                const int row = j == 0 ? cluster * ATT + i : cluster * HEAD + (i - ATT) % HEAD;
                st.bias[r] = my.bias[j] ? my.bias[j][row] : 0;
            }
            layers_gather<T, M, M::CLUSTERS>(p, rank, l ? down : NULL, (uint32_t)l, tokens,
                                             base + map.x[0], base + map.squares[0],
                                             came(LAYERS_X));
            mbar_wait(came(LAYERS_X), phase);
            layers_norm<T>(norm, (const float *)(shared + map.x[0]),
                           (const float *)(shared + map.squares[0]), shared + map.xs, p.eps[0],
                           p.offset[0]);
            layers_product<T, M, TOKENS, HEADS, LAYERS_QKV>(ring, base + map.xs, tokens, sums);
            /* q k v: four rows a thread, to one CTA each */
#pragma unroll 1
            for (int i = tid / C; i < tokens * QUADS; i += LAYERS_THREADS / C) {
                const int tok = TOKENS == 1 ? 0 : i / QUADS, quad = i - tok * QUADS;
                float4 v = layers_sum<M, TOKENS, HEADS, LAYERS_QKV, float4>(sums, quad * 4, tok);
                layers_plus(v, *(const float4 *)(st.bias + quad * 4));
                const float y[4] = {v.x, v.y, v.z, v.w};
                layers_send4(base + other + map.qkv + (tok * M::QKV + rank * MINE + quad * 4) * 4,
                             came(LAYERS_HEADS) + other, y);
            }
            mbar_wait(came(LAYERS_HEADS), phase);
            layers_rope<T, M, TOKENS>(p, my, cluster, rank, tokens, st.slots, turns,
                                      (const float *)(shared + map.qkv), shared + map.xs,
                                      shared + map.fresh);
            layers_sync();
            layers_attend<T, M, TOKENS>(st.keys, rank, tokens, p.attention.scale * 1.44269504f,
                                        base + map.xs, base + map.fresh, kv, st.tags, l * units,
                                        base + map.sent, came(LAYERS_SENT));
            mbar_wait(came(LAYERS_SENT), phase);
            layers_merged<M, TOKENS>(
                st.keys, shared + map.sent, rank, tokens, [&](int tok, int quad, const float *y) {
                    const uint32_t to = base + map.factors[0] + tok * layers_pitch(ATT) +
                                        (rank * layers_merge<M, TOKENS>::QUADS + quad) * 8;
                    if (tid % 32 < C)
                        layers_send2(to + other, came(LAYERS_MERGED) + other,
                                     __uint_as_float(sop_pack<T>(y[0], y[1])),
                                     __uint_as_float(sop_pack<T>(y[2], y[3])));
                });
            mbar_wait(came(LAYERS_MERGED), phase);
            layers_product<T, M, TOKENS, HEADS, LAYERS_OUTPUT>(ring, base + map.factors[0], tokens,
                                                               sums);
            post(up, l, 0, my.bias[3], true, [&](int row, int tok) {
                return layers_sum<M, TOKENS, HEADS, LAYERS_OUTPUT, float>(sums, row, tok);
            });
        }
        const layers_normer<M, TOKENS> norm = layers_norm_start<M, TOKENS>(my.norm[1]);
        layers_gather<T, M, M::KV_HEADS>(p, rank, up, (uint32_t)l + 1, tokens, base + map.x[1],
                                         base + map.squares[1], came(LAYERS_X2));
        mbar_wait(came(LAYERS_X2), phase);
        layers_norm<T>(norm, (const float *)(shared + map.x[1]),
                       (const float *)(shared + map.squares[1]), shared + map.xs, p.eps[1],
                       p.offset[1]);
        layers_product<T, M, TOKENS, HEADS, LAYERS_GATE_UP>(ring, base + map.xs, tokens, sums);
        if (last && cluster == 0) /* the residual stays where it was */
            for (int i = tid; i < tokens * ROWS; i += LAYERS_THREADS) {
                const int tok = TOKENS == 1 ? 0 : i / ROWS, row = rank * ROWS + i - tok * ROWS;
                p.x[tok * p.x_stride + row] = ((const float *)(shared + map.x[1]))[tok * D + row];
            }
        layers_act<T, M, TOKENS, HEADS>(my, first, tokens, sums, rank, other, base + map.factors[1],
                                        came(LAYERS_ACT));
        mbar_wait(came(LAYERS_ACT), phase);
        layers_product<T, M, TOKENS, HEADS, LAYERS_DOWN>(ring, base + map.factors[1], tokens, sums);
        post(down, l, 1, my.bias[6], !last, [&](int row, int tok) {
            return layers_sum<M, TOKENS, HEADS, LAYERS_DOWN, float>(sums, row, tok);
        });
        if (!HEADS && tid == 0) st.posted.when = (uint32_t)clock(), st.posted.layers = l + 1;
    }
    /* the last words: y; then they are cleared, with those that were read before them */
    if (HEADS && cluster == 0 && tid < tokens * ROWS) {
        const int tok = TOKENS == 1 ? 0 : tid / ROWS, row = rank * ROWS + tid - tok * ROWS;
        unsigned long long *word = p.mail + (int64_t)tok * D + row;
        const float v =
            layers_collect<M::CLUSTERS>(word + M::KV_HEADS * plane, plane, (uint32_t)p.layers);
        ((T *)p.y)[tok * p.y_stride + row] = sop_from_float<T>(v);
        for (int j = 0; j < M::KV_HEADS + M::CLUSTERS; j++) word[j * plane] = 0;
    }
}

template <typename T, typename M, int TOKENS>
static __global__ __launch_bounds__(LAYERS_ALL, 1) void sop_layers_decode_sm90(
    const __grid_constant__ layers_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ layers_static st;
    if (threadIdx.x == 0) st.posted.layers = 0;
    layers_begin(st.bars, st.tags);
    if ((int)blockIdx.x / LAYERS_CLUSTER < M::KV_HEADS)
        layers_role<T, M, TOKENS, true>(p, shared, st);
    else
        layers_role<T, M, TOKENS, false>(p, shared, st);
    __syncthreads();
    cluster_sync(); /* none is gone while another's words are on their way */
}

#endif
