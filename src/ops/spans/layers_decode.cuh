/* All decoder layers for a few tokens in one launch, for models whose layers are so small that what counts
 * is how often, and through what, the CTAs wait for each other.
 *
 * The CTAs come in clusters of 16, one CTA a multiprocessor. One cluster a KV head does the first half of a
 * layer for its heads: norm, q k v, rope, append, attention, and the output product over the channels of its
 * heads. The other clusters do the second half, each for a share of the channels: norm, gate and up,
 * activation, and down over these channels. So inside a half only CTAs of one cluster wait for each other, by
 * way of their shared memory; between the halves partial sums go through global memory, two times a layer:
 *
 *     heads: sum, norm | q k v  =  rope | scores  =  merge  =  output --.
 *        ^                                                              | mail: [KV heads, tokens, d]
 *        | mail: [clusters, tokens, d]                                  v
 *        '------------------------------- down  =  gate, up | norm, sum :the others
 *
 * = is an exchange among the 16 of a cluster (st.async: the data and its count arrive together). A word of
 * mail is 4 bytes of data and the layer's number, written and read as one, so that who sees the number has
 * the data; it is 0 before and after a launch. A CTA waits for the words of 1/16 of the rows, sums the
 * partial ones in their order, and sends the sums to its cluster, with the sum of their squares for the norm.
 * The residual travels with the first partial sum.
 *
 * A product: a CTA has tiles of 16 rows of the weight. Thread (g = lane / 4, t = lane % 4) takes of rows g and
 * g + 8 the 16 bytes of k from 8 t on, step after step of 32 k; they are mma.m16n8k16 fragments, because the
 * order of k is free. The weights come through a ring of slots, 16 rows of up to 448 of k each, that runs on
 * across products and layers: what comes next is on its way while a CTA waits. Warps of their own ask for
 * it, by bulk copies: where those that compute ask by cp.async, they wait until the memory takes it. */
#ifndef OPS_SPANS_LAYERS_DECODE_CUH
#define OPS_SPANS_LAYERS_DECODE_CUH

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/gated/gated_act.cuh"

enum {
    LAYERS_CLUSTER = 16,
    LAYERS_WARPS = 16,
    LAYERS_THREADS = LAYERS_WARPS * 32,
    LAYERS_TOKENS = 4, /* at most */
    LAYERS_MOST = 32,  /* in a launch */
    LAYERS_ASKERS = 3, /* warps that ask for weights; one more asks for keys and values */
    LAYERS_ALL = LAYERS_THREADS + 32 * (LAYERS_ASKERS + 1),
    LAYERS_WINDOW = 3,         /* slots on their way: what else is asked for waits behind them */
    LAYERS_SQUARES = 128,      /* sums of squares of a token, at most */
    LAYERS_SLOTS = 14,         /* at most */
    LAYERS_PARTS = 20,         /* sums of a product that wait to be added, at most */
    LAYERS_KV_SLOTS = 16,      /* at most */
    LAYERS_SHARED = 224 * 1024 /* what the rest leaves of it */
};
/* A slot of the ring: 16 rows of up to PIECE of k, apart by 64 bytes modulo 128: no conflicts among 8 rows.
 * What a KV head's cluster has of a layer fits in 14 steps of 32 at a time; the others take long copies. */
template <bool HEADS> struct layers_slot {
    enum { PIECE = HEADS ? 448 : 1024, PITCH = 2 * PIECE + 64, BYTES = 16 * PITCH };
};

/* What differs from layer to layer. Weights: q, k, v, output, gate, up, down. */
struct layers_own {
    const void *w[7];
    const float *bias[7];
    const float *norm[2];
    void *k_pool, *v_pool;
};

struct layers_args {
    decode_args attention;
    const int32_t *live_tokens, *pos, *slots;
    const float *freqs;
    float *x;          /* [tokens, d], the residual */
    const void *first; /* [tokens, d], what is still to be added to it; NULL: nothing */
    void *y;           /* [tokens, d], what is to be added to it after the last layer */
    int64_t x_stride, first_stride, y_stride, pages;
    unsigned long long *mail; /* [KV heads + other clusters, tokens, d] */
    float mscale, eps[2], offset[2];
    int layers, tokens, d, channels, kv_heads, act;
    int window, ring[2],
        kv_ring; /* slots: of the others, of those with heads, of keys and values */
    layers_own own[LAYERS_MOST];
};

/* Bytes of a row of k elements of 16 bits in shared memory: neighbours differ by 64 bytes modulo 128. */
static inline __host__ __device__ int layers_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

/* A unit of keys and values: 16 rows each, apart so that reads of fragments meet no conflicts. */
template <int HEAD> struct layers_kv {
    enum { K = 2 * HEAD + 64, V = 2 * HEAD + 16, BYTES = 16 * (K + V) };
    enum { WARPS = HEAD > 64 ? 4 : 8 }; /* that attend: their results take shared memory too */
};

/* Offsets into dynamic shared memory. */
struct layers_map {
    int ring, own, x, squares, xs, part, kv, turns, qkv, fresh, sent, factors, bytes;
};
template <int HEAD, int TOKENS, bool HEADS>
static inline __host__ __device__ layers_map layers_map_of(int layers, int ring, int kv_ring, int d,
                                                           int group, int slice)
{
    layers_map m = {};
    int at = 0;
    const int normed = TOKENS * layers_pitch(d), q = TOKENS * 8 * layers_kv<HEAD>::K;
    const int part = LAYERS_PARTS * TOKENS * 16 * 4;
    const int merge = layers_kv<HEAD>::WARPS * 8 * (HEAD + 4) * 4;
    m.ring = at, at += ring * layers_slot<HEADS>::BYTES;
    m.own = at, at += (layers * (int)sizeof(layers_own) + 15) / 16 * 16;
    m.x = at, at += TOKENS * d * 4;
    m.squares = at, at += TOKENS * LAYERS_SQUARES * 4;
    m.xs = at, at += HEADS && q > normed ? q : normed;       /* then the queries */
    m.part = at, at += HEADS && merge > part ? merge : part; /* and what of them is to be merged */
    if (HEADS) {
        m.kv = at, at += kv_ring * layers_kv<HEAD>::BYTES;
        m.turns = at, at += TOKENS * HEAD * 4;
        m.qkv = at, at += TOKENS * (group + 2) * HEAD * 4;
        m.fresh = at, at += layers_kv<HEAD>::BYTES;
        m.sent = at, at += TOKENS * group * HEAD * 8;
    }
    m.factors = at,
    at += TOKENS * layers_pitch(HEADS ? group * HEAD : slice); /* of the second product */
    m.bytes = at;
    return m;
}

/* Channels [first, end) of cluster i among n, in steps of 32. */
static inline __host__ __device__ int layers_slice(int channels, int i, int n)
{
    return (int)((int64_t)(channels / 32) * i / n) * 32;
}

static inline __host__ __device__ int layers_slice_most(int channels, int n)
{
    return (channels / 32 + n - 1) / n * 32;
}

/* ---- clusters ---- */

SOP_DEV int layers_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}
SOP_DEV uint32_t layers_at(uint32_t addr, int cta)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
    return r;
}
/* Data into the shared memory of a CTA of the cluster; its barrier counts the bytes. */
SOP_DEV void layers_send(uint32_t to, uint32_t bar, uint32_t x)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(x), "r"(bar)
        : "memory");
}
SOP_DEV void layers_send4(uint32_t to, uint32_t bar, const float (&x)[4])
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(to),
        "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])),
        "r"(__float_as_uint(x[3])), "r"(bar)
        : "memory");
}
/* The warps that compute. */
SOP_DEV void layers_sync(void)
{
    named_sync(1, LAYERS_THREADS);
}
SOP_DEV void layers_arrive(uint32_t bar, int count)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
SOP_DEV void layers_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

/* ---- mail ---- */

SOP_DEV void layers_post(unsigned long long *to, float x, uint32_t stamp)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to),
                 "l"((unsigned long long)stamp << 32 | __float_as_uint(x))
                 : "memory");
}
/* The sum of n words, stride apart, in their order, once all are there. */
SOP_DEV float layers_collect(const unsigned long long *from, int n, int64_t stride, uint32_t stamp)
{
    float sum = 0;
    for (int i = 0; i < n; i += 8) {
        unsigned long long w[8];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < n)
                    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                                 : "=l"(w[j])
                                 : "l"(from + (i + j) * stride)
                                 : "memory");
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < n) all &= (uint32_t)(w[j] >> 32) == stamp;
        } while (!all);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j < n) sum += __uint_as_float((uint32_t)w[j]);
    }
    return sum;
}

/* ---- products ---- */

SOP_DEV uint4 layers_shared(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* What a CTA has of its role: heads: q k v and output; the others: gate and up, and down. */
struct layers_place {
    int group, first, rows; /* KV head or share; of d: rows [first, first + rows) are this CTA's */
    int from, n;            /* rows of q k v of the group, or channels: [from, from + n) */
    int k_from, k;          /* of the second product's k */
};

/* What a CTA has of a product: rows in tiles of 16, k in pieces; a slot of the ring each, tile by tile; sub
 * warps share a slot. */
struct layers_part {
    int tiles, pieces, steps, sub; /* steps: of 32 k */
};
SOP_DEV layers_part layers_part_of(int tiles, int k, int piece)
{
    layers_part p = {tiles, (k + piece - 1) / piece, k / 32, 1};
    while (2 * p.sub * p.tiles * p.pieces <= LAYERS_WARPS) p.sub *= 2;
    return p;
}
/* The first step of a piece. */
SOP_DEV int layers_step(const layers_part &p, int piece)
{
    return piece * p.steps / p.pieces;
}

/* Row of this CTA's part; NULL: none. */
template <typename T, int HEAD, bool HEADS>
SOP_DEV const T *layers_row(const layers_args &p, const layers_own &own, const layers_place &at,
                            int product, int row)
{
    if (product) {
        if (row >= at.rows) return NULL;
        return (const T *)own.w[HEADS ? 3 : 6] + at.k_from +
               (int64_t)(at.first + row) * (HEADS ? p.attention.heads * HEAD : p.channels);
    }
    if (HEADS) {
        const int q = p.attention.group * HEAD, r = at.from + row;
        if (row >= at.n) return NULL;
        if (r < q) return (const T *)own.w[0] + ((int64_t)at.group * q + r) * p.d;
        return (const T *)own.w[r < q + HEAD ? 1 : 2] +
               ((int64_t)at.group * HEAD + (r - q) % HEAD) * p.d;
    }
    const int channel = row / 16 * 8 + row % 8; /* gate and up side by side */
    if (channel >= at.n) return NULL;
    return (const T *)own.w[row % 16 < 8 ? 4 : 5] + (int64_t)(at.from + channel) * p.d;
}

/* A ring of slots: where it lies, its mbarriers, and which slot is next. */
struct layers_ring {
    uint32_t at, full, empty;
    int n, slot, done; /* done: slots before it, of all that there are */
    uint32_t phase;
    volatile int *tags; /* which of all each slot has */
};
SOP_DEV void layers_turn(layers_ring &r, int slots)
{
    r.done += slots;
    for (r.slot += slots; r.slot >= r.n; r.slot -= r.n) r.phase ^= 1;
}

/* A warp that asks for weights: every third row of each slot, of all products of all layers. part(i): what
 * the CTA has of product i of a layer; row(l, i, r): its row r there, NULL when there is none. No more than a
 * window of slots, less than the ring has, is on its way. */
template <bool HEADS, typename Part, typename Row>
SOP_DEV void layers_ask(int layers, int products, int window, layers_ring r, Part part, Row row)
{
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 - LAYERS_WARPS + LAYERS_ASKERS * lane;
    layers_ring behind = r;
#pragma unroll 1
    for (int l = 0; l < layers; l++)
#pragma unroll 1
        for (int i = 0; i < products; i++) {
            const layers_part n = part(i);
#pragma unroll 1
            for (int tile = 0; tile < n.tiles; tile++) {
                const char *from = own < 16 ? (const char *)row(l, i, tile * 16 + own) : NULL;
                const int rows = __popc(__ballot_sync(~0u, from != NULL));
#pragma unroll 1
                for (int piece = 0, s = 0; piece < n.pieces; piece++) {
                    const int to = layers_step(n, piece + 1), bytes = (to - s) * 64;
                    mbar_wait(r.empty + r.slot * 8, r.phase ^ 1);
                    if (r.done >= window) {
                        mbar_wait(behind.full + behind.slot * 8, behind.phase);
                        layers_turn(behind, 1);
                    }
                    if (lane == 0) {
                        mbar_expect_tx(r.full + r.slot * 8, (uint32_t)(rows * bytes));
                        if (own == 0) r.tags[r.slot] = r.done;
                    }
                    __syncwarp();
                    if (from)
                        layers_bulk(r.at + r.slot * layers_slot<HEADS>::BYTES +
                                        own * layers_slot<HEADS>::PITCH,
                                    from + s * 64, (uint32_t)bytes, r.full + r.slot * 8);
                    layers_turn(r, 1);
                    s = to;
                }
            }
        }
}

/* The product of what comes through the ring; sums: [tile][piece][sub][token][16 rows]. All warps that
 * compute; ends in a meeting. */
template <typename T, int TOKENS, bool HEADS>
SOP_DEV void layers_product(const layers_part &part, layers_ring &r, uint32_t xs, int pitch,
                            int tokens, float *sums)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int slots = part.tiles * part.pieces, n = slots * part.sub;
#pragma unroll 1
    for (int item = warp; item < n; item += LAYERS_WARPS) {
        const int i = item / part.sub, j = item - i * part.sub, piece = i % part.pieces;
        const int s0 = layers_step(part, piece), count = layers_step(part, piece + 1) - s0;
        const int a = j * count / part.sub, b = (j + 1) * count / part.sub;
        int slot = r.slot + i;
        uint32_t phase = r.phase, w, x;
        for (; slot >= r.n; slot -= r.n) phase ^= 1;
        /* of this product another had the slot before: until it is gone, the barrier says nothing */
        while (i >= r.n && r.tags[slot] != r.done + i) continue;
        w = r.at + slot * layers_slot<HEADS>::BYTES + g * layers_slot<HEADS>::PITCH + a * 64 +
            t * 16;
        x = xs + g * pitch + (s0 + a) * 64 + t * 16;
        float d[4] = {}, d1[4] = {};
        mbar_wait(r.full + slot * 8, phase);
#pragma unroll 2
        for (int s = a; s < b; s++, w += 64, x += 64) {
            const uint4 lo = layers_shared(w),
                        hi = layers_shared(w + 8 * layers_slot<HEADS>::PITCH);
            uint4 v = {0, 0, 0, 0};
            if (g < tokens) v = layers_shared(x);
            decode_mma(T(), d, lo.x, hi.x, lo.y, hi.y, v.x, v.y);
            decode_mma(T(), d1, lo.z, hi.z, lo.w, hi.w, v.z, v.w);
        }
        __syncwarp();
        if (lane == 0) layers_arrive(r.empty + slot * 8, LAYERS_WARPS / part.sub);
        float *to = sums + item * TOKENS * 16;
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (2 * t + k < TOKENS) {
                to[(2 * t + k) * 16 + g] = d[k] + d1[k];
                to[(2 * t + k) * 16 + g + 8] = d[2 + k] + d1[2 + k];
            }
    }
    layers_turn(r, slots);
    layers_sync();
}

/* A row of a tile: the sum of the shares of k, in their order; V: float, float2, float4 for as many rows. */
SOP_DEV void layers_plus(float &a, float b)
{
    a += b;
}
SOP_DEV void layers_plus(float2 &a, float2 b)
{
    a.x += b.x, a.y += b.y;
}
SOP_DEV void layers_plus(float4 &a, float4 b)
{
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
}
template <int TOKENS, typename V>
SOP_DEV V layers_sum(const float *sums, const layers_part &part, int row, int tok)
{
    const int sub = part.pieces * part.sub;
    const V *from = (const V *)(sums + (row / 16 * sub * TOKENS + tok) * 16 + row % 16);
    V sum = {};
#pragma unroll 1
    for (int i = 0; i < sub; i++, from += TOKENS * 16 * sizeof(float) / sizeof(V))
        layers_plus(sum, *from);
    return sum;
}

/* ---- what both roles do first ---- */

/* This CTA's rows of the residual, from words or for the first layer from memory, to all CTAs of the
 * cluster, with the sums of their squares. A warp has up to 32 rows of a token. */
template <typename T>
SOP_DEV void layers_gather(const layers_args &p, int d, const layers_place &at,
                           const unsigned long long *mail, int n, uint32_t stamp, int tokens,
                           uint32_t x, uint32_t squares, uint32_t bar)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = (at.rows + 31) / 32;
    const int tok = warp / each, chunk = warp % each, i = chunk * 32 + lane, row = at.first + i;
    if (tok >= tokens) return;
    float v = 0, quad[4];
    if (i < at.rows) {
        if (mail) {
            v = layers_collect(mail + (int64_t)tok * d + row, n, (int64_t)p.tokens * d, stamp);
        } else {
            v = __ldcg(p.x + tok * p.x_stride + row);
            if (p.first) v += sop_to_float(((const T *)p.first)[tok * p.first_stride + row]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) quad[j] = __shfl_sync(~0u, v, lane / 4 * 4 + j);
    if (i < at.rows) { /* whole quads: rows are a multiple of 4 */
        const uint32_t to = x + (uint32_t)(tok * d + row / 4 * 4) * 4;
#pragma unroll
        for (int c = 0; c < LAYERS_CLUSTER; c += 4)
            layers_send4(layers_at(to, c + lane % 4), layers_at(bar, c + lane % 4), quad);
    }
    const float square = sop_warp_sum(v * v);
    const uint32_t to =
        squares + (uint32_t)(tok * LAYERS_SQUARES + layers_rank() * each + chunk) * 4;
    if (lane < LAYERS_CLUSTER)
        layers_send(layers_at(to, lane), layers_at(bar, lane), __float_as_uint(square));
}

/* The norm; a warp has one token. Weights are asked for before what they multiply is there. */
template <int TOKENS> struct layers_normer {
    enum { KEPT = 2, WARPS = LAYERS_WARPS / TOKENS, STEP = 128 * WARPS };
    float4 w[KEPT];
    int tok, from;
};
template <int TOKENS> SOP_DEV layers_normer<TOKENS> layers_norm_start(const float *w, int d)
{
    typedef layers_normer<TOKENS> normer;
    normer n;
    n.tok = threadIdx.x / 32 / normer::WARPS;
    n.from = (threadIdx.x / 32 % normer::WARPS * 32 + threadIdx.x % 32) * 4;
#pragma unroll
    for (int j = 0; j < normer::KEPT; j++)
        if (n.from + j * normer::STEP < d)
            n.w[j] = *(const float4 *)(w + n.from + j * normer::STEP);
    return n;
}
template <typename T, int TOKENS>
SOP_DEV void layers_norm(const layers_normer<TOKENS> &n, const float *x, const float *squares,
                         int parts, uint8_t *xs, int d, float eps, float offset)
{
    typedef layers_normer<TOKENS> normer;
    const int lane = threadIdx.x % 32;
    if (n.from < d) {
        float sum = 0;
        for (int i = lane; i < parts; i += 32) sum += squares[n.tok * LAYERS_SQUARES + i];
        const float scale = rsqrtf(sop_warp_sum(sum) / (float)d + eps);
#pragma unroll
        for (int j = 0; j < normer::KEPT; j++) {
            const int i = n.from + j * normer::STEP;
            if (i >= d) continue;
            const float4 v = *(const float4 *)(x + n.tok * d + i), w = n.w[j];
            const uint2 y = {
                sop_pack<T>(v.x * (offset + w.x) * scale, v.y * (offset + w.y) * scale),
                sop_pack<T>(v.z * (offset + w.z) * scale, v.w * (offset + w.w) * scale)};
            *(uint2 *)(xs + n.tok * layers_pitch(d) + i * 2) = y;
        }
    }
    layers_sync();
}

/* ---- attention ---- */

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
    __syncthreads();
    if (t == 0) {
        int n = 0;
        for (int i = 0; i < tokens; i++) {
            k.before[i] = n;
            n += (k.units[i] + LAYERS_CLUSTER - 1 - rank) /
                 LAYERS_CLUSTER; /* units rank, rank + 16, ... */
        }
        for (int i = tokens; i <= LAYERS_TOKENS; i++) k.before[i] = n;
    }
    __syncthreads();
}

/* The warp that asks for the cached keys and values of all layers: a lane a row. */
template <typename T, int HEAD>
SOP_DEV void layers_ask_kv(const layers_args &p, const layers_own *own, int head, int rank,
                           int tokens, const layers_keys &k, layers_ring r)
{
    typedef layers_kv<HEAD> unit;
    const decode_args &a = p.attention;
    const int lane = threadIdx.x % 32, row = lane % 16;
#pragma unroll 1
    for (int l = 0; l < p.layers; l++)
#pragma unroll 1
        for (int tok = 0; tok < tokens; tok++)
#pragma unroll 1
            for (int u = rank; u < k.units[tok]; u += LAYERS_CLUSTER) {
                const int key = (k.lo[tok] / 16 + u) * 16;
                const bool live = key + row >= k.lo[tok] && key + row < k.old[tok];
                const int64_t page = a.a.table[(int64_t)k.seq[tok] * a.table_stride + key / a.page];
                const int64_t place = key % a.page + row;
                const int rows = __popc(__ballot_sync(~0u, live));
                mbar_wait(r.empty + r.slot * 8, r.phase ^ 1);
                if (lane == 0) {
                    mbar_expect_tx(r.full + r.slot * 8, (uint32_t)(rows * HEAD * 2));
                    r.tags[r.slot] = r.done;
                }
                __syncwarp();
                const uint32_t to = r.at + r.slot * unit::BYTES;
                if (live && lane < 16)
                    layers_bulk(to + row * unit::K,
                                (const T *)own[l].k_pool + page * a.kp_page + place * a.kp_token +
                                    head * a.kp_head,
                                HEAD * 2, r.full + r.slot * 8);
                else if (live)
                    layers_bulk(to + 16 * unit::K + row * unit::V,
                                (const T *)own[l].v_pool + page * a.vp_page + place * a.vp_token +
                                    head * a.vp_head,
                                HEAD * 2, r.full + r.slot * 8);
                layers_turn(r, 1);
            }
}

/* One unit into a warp's result, as in decode_body(): m16n8k16 with keys as rows, heads as columns, then channels as
 * rows. Keys [lo, hi) of the unit count. */
template <typename T, int HEAD>
SOP_DEV void layers_unit(const decode_args &p, uint32_t unit, const uint32_t (&qf)[HEAD / 8],
                         int lo, int hi, float (&o)[HEAD / 16][4], float (&m)[2], float (&l)[2])
{
    typedef layers_kv<HEAD> kv;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    uint32_t v[4][HEAD / 16];
    float s[4] = {}, s1[4] = {};
#pragma unroll
    for (int c = 0; c < HEAD / 32; c++) {
        const uint4 a = layers_shared(unit + g * kv::K + (t + 4 * c) * 16);
        const uint4 b = layers_shared(unit + (g + 8) * kv::K + (t + 4 * c) * 16);
        decode_mma(T(), s, a.x, b.x, a.y, b.y, qf[4 * c], qf[4 * c + 1]);
        decode_mma(T(), s1, a.z, b.z, a.w, b.w, qf[4 * c + 2], qf[4 * c + 3]);
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = 2 * t + r % 2 + r / 2 * 8;
        const bool live = row >= lo && row < hi;
#pragma unroll
        for (int c = 0; c < HEAD / 64; c++) {
            const uint4 x = layers_shared(unit + 16 * kv::K + row * kv::V + (g + 8 * c) * 16);
            v[r][4 * c] = live ? x.x : 0, v[r][4 * c + 1] = live ? x.y : 0;
            v[r][4 * c + 2] = live ? x.z : 0, v[r][4 * c + 3] = live ? x.w : 0;
        }
    }
    float alpha[2];
#pragma unroll
    for (int r = 0; r < 2; r++) { /* head 2t + r; keys g and g + 8 */
        float a = s[r] + s1[r], b = s[2 + r] + s1[2 + r];
        if (p.cap > 0) { /* cap tanh(scale z / cap) log2 e */
            const float in = 2 * 1.44269504f * p.scale / p.cap, out = p.cap * 1.44269504f;
            a = out - __fdividef(2 * out, decode_exp2(in * a) + 1);
            b = out - __fdividef(2 * out, decode_exp2(in * b) + 1);
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
#pragma unroll
    for (int j = 0; j < HEAD / 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[j][i] *= alpha[i % 2];
    const uint32_t b0 = decode_transpose(sop_pack<T>(s[0], s[1]));
    const uint32_t b1 = decode_transpose(sop_pack<T>(s[2], s[3]));
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        const int j = i + HEAD / 16, w = i / 2, w1 = j / 2;
        const uint32_t sel = i % 2 ? 0x7632 : 0x5410, sel1 = j % 2 ? 0x7632 : 0x5410;
        decode_mma(T(), o[i], __byte_perm(v[0][w], v[1][w], sel),
                   __byte_perm(v[0][w1], v[1][w1], sel1), __byte_perm(v[2][w], v[3][w], sel),
                   __byte_perm(v[2][w1], v[3][w1], sel1), b0, b1);
    }
}

/* The queries of all tokens over this CTA's units. A unit i of a token, the step's own keys after those of
 * the cache, is CTA i % 16's; warps share those of a CTA. To merge: [warp][head][HEAD, then maximum, sum]. */
template <typename T, int HEAD>
SOP_DEV void layers_attend(const layers_args &p, const layers_keys &k, int rank, int tokens,
                           int wpt, uint32_t q, uint32_t fresh, const layers_ring &r, int base,
                           float *merge)
{
    typedef layers_kv<HEAD> unit;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int tok = warp / wpt, n = tok < tokens ? k.units[tok] + 1 : 0;
    const float k2 = p.attention.cap > 0 ? 1 : p.attention.scale * 1.44269504f;
    float o[HEAD / 16][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
    if (warp >= unit::WARPS || tok >= tokens) return;
    uint32_t qf[HEAD / 8];
#pragma unroll
    for (int c = 0; c < HEAD / 32; c++) {
        const uint4 x = layers_shared(q + (tok * 8 + g) * unit::K + (t + 4 * c) * 16);
        qf[4 * c] = x.x, qf[4 * c + 1] = x.y, qf[4 * c + 2] = x.z, qf[4 * c + 3] = x.w;
    }
    for (int j = warp % wpt, u = rank + j * LAYERS_CLUSTER; u < n;
         j += wpt, u += wpt * LAYERS_CLUSTER) {
        if (u == n - 1) {
            layers_unit<T, HEAD>(p.attention, fresh, qf, k.fresh_lo[tok], k.fresh_hi[tok], o, m, l);
            continue;
        }
        const int at = base + k.before[tok] + j, slot = at % r.n;
        const int key = (k.lo[tok] / 16 + u) * 16;
        while (r.tags[slot] != at) continue;
        mbar_wait(r.full + slot * 8, (uint32_t)(at / r.n) & 1);
        layers_unit<T, HEAD>(p.attention, r.at + slot * unit::BYTES, qf, k.lo[tok] - key,
                             k.old[tok] - key, o, m, l);
        __syncwarp();
        if (lane == 0) mbar_arrive(r.empty + slot * 8);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = merge + (warp * 8 + 2 * t + h) * (HEAD + 4);
        for (int z = 4; z < 32; z *= 2) l[h] += __shfl_xor_sync(~0u, l[h], z);
        if (g == 0) to[HEAD] = m[h] * k2, to[HEAD + 1] = l[h];
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++) {
            to[8 * g + j % 8] = o[j][h]; /* see decode_place() */
            to[HEAD == 64 ? 8 * g + 4 + j : 64 + 8 * g + j] = o[j][2 + h];
        }
    }
}

/* Queries, keys and values of the step, f32: they round to the cache's type, then turn, as single modules do;
 * queries to q, keys and values to a unit of their own, and, by two of the CTAs, to the cache. */
template <typename T, int HEAD, int TOKENS>
SOP_DEV void layers_rope(const layers_args &p, const layers_own &own, int group, int head, int rank,
                         int tokens, const int *slots, const float2 *turns, const float *qkv,
                         uint8_t *q, uint8_t *fresh)
{
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

/* What this CTA's warps have of two channels, and the logarithm of its weight, to the CTA that has them. */
template <int HEAD, int TOKENS>
SOP_DEV void layers_merge(const layers_keys &keys, int group, int rank, int tokens,
                          const float *merge, uint32_t sent, uint32_t bar)
{
    enum { C = LAYERS_CLUSTER, WARPS = layers_kv<HEAD>::WARPS / TOKENS, PITCH = HEAD + 4 };
    const int pairs = group * HEAD / 2, mine = pairs / C;
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * pairs; i += LAYERS_THREADS) {
        const int tok = TOKENS == 1 ? 0 : i / pairs, e = i - tok * pairs;
        const int h = e / (HEAD / 2), c = e % (HEAD / 2) * 2, dst = e / mine;
        const int n = min((int)WARPS, (keys.units[tok] + C - rank) / C);
        const float *from = merge + (tok * WARPS * 8 + h) * PITCH;
        float top = -INFINITY, den = 0, y = 0, z = 0;
#pragma unroll 1
        for (int w = 0; w < n; w++) top = fmaxf(top, from[w * 8 * PITCH + HEAD]);
#pragma unroll 1
        for (int w = 0; w < n; w++) {
            const float *f = from + w * 8 * PITCH;
            const float by = decode_exp2(f[HEAD] - top);
            const float2 v = *(const float2 *)(f + c);
            den += f[HEAD + 1] * by;
            y += v.x * by, z += v.y * by;
        }
        const float over = den > 0 ? __fdividef(1, den) : 0;
        const float out[4] = {y * over, z * over, den > 0 ? top + __log2f(den) : -INFINITY, 0};
        layers_send4(layers_at(sent + ((tok * C + rank) * mine + e - dst * mine) * 16, dst),
                     layers_at(bar, dst), out);
    }
}

/* What all CTAs have of this one's channels: half a warp merges two, a lane a CTA's; out(token, pair, both), by
 * all 16 lanes. */
template <typename T, int TOKENS, typename Out>
SOP_DEV void layers_merged(const float4 *sent, int mine, int tokens, Out out)
{
    enum { C = LAYERS_CLUSTER };
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i0 = threadIdx.x / 32 * 2; i0 < tokens * mine; i0 += LAYERS_WARPS * 2) {
        const int i = i0 + lane / C, tok = TOKENS == 1 ? 0 : i / mine, pair = i - tok * mine;
        float4 v = make_float4(0, 0, -INFINITY, 0);
        if (i < tokens * mine) v = sent[(tok * C + lane % C) * mine + pair];
        float top = v.z;
        for (int z = 1; z < C; z *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, z));
        float by = v.z > -INFINITY ? decode_exp2(v.z - top) : 0, y0 = v.x * by, y1 = v.y * by;
        for (int z = 1; z < C; z *= 2) {
            by += __shfl_xor_sync(~0u, by, z);
            y0 += __shfl_xor_sync(~0u, y0, z);
            y1 += __shfl_xor_sync(~0u, y1, z);
        }
        const float over = by > 0 ? __fdividef(1, by) : 0;
        if (i < tokens * mine) out(tok, pair, sop_pack<T>(y0 * over, y1 * over));
    }
}

/* ---- the roles ---- */

/* What a model is like, told at run time, or where the kernel is compiled for it: most of a layer's time such a
 * kernel waits for instructions, and divisions by what is not known take many. */
struct layers_any {
    SOP_DEV int d(const layers_args &p)
    {
        return p.d;
    }
    SOP_DEV int group(const layers_args &p)
    {
        return p.attention.group;
    }
    SOP_DEV int channels(const layers_args &p)
    {
        return p.channels;
    }
    SOP_DEV int others(const layers_args &p)
    {
        return (int)gridDim.x / LAYERS_CLUSTER - p.kv_heads;
    }
};
template <int D, int GROUP, int CHANNELS, int OTHERS> struct layers_known {
    static __device__ __forceinline__ constexpr int d(const layers_args &)
    {
        return D;
    }
    static __device__ __forceinline__ constexpr int group(const layers_args &)
    {
        return GROUP;
    }
    static __device__ __forceinline__ constexpr int channels(const layers_args &)
    {
        return CHANNELS;
    }
    static __device__ __forceinline__ constexpr int others(const layers_args &)
    {
        return OTHERS;
    }
};

/* Barriers: full and empty slots, the same of keys and values, and what comes from the cluster. */
enum { LAYERS_BARS = 2 * LAYERS_SLOTS + 2 * LAYERS_KV_SLOTS + 6 };
SOP_DEV void layers_begin(uint64_t *bars, int *tags)
{
    const int i = threadIdx.x;
    if (i < LAYERS_BARS) {
        mbar_init(smem_addr(bars + i), i < LAYERS_SLOTS       ? LAYERS_ASKERS
                                       : i < 2 * LAYERS_SLOTS ? LAYERS_WARPS
                                                              : 1);
        fence_mbar_init();
    }
    if (i < LAYERS_KV_SLOTS + LAYERS_SLOTS) tags[i] = -1;
    grid_go();
    __syncthreads();
    cluster_sync();
}

/* Gate and up of this CTA's channels, activated, to all CTAs of the cluster: two channels a thread, to one. */
template <typename T, int TOKENS>
SOP_DEV void layers_act(const layers_args &p, const layers_own &own, const layers_place &at,
                        const layers_part &part, int tokens, const float *sums, int rank,
                        uint32_t other, uint32_t to, int pitch, uint32_t bar)
{
    const int pairs = at.n / 2;
#pragma unroll 1
    for (int i = threadIdx.x / LAYERS_CLUSTER; i < tokens * pairs;
         i += LAYERS_THREADS / LAYERS_CLUSTER) {
        const int tok = TOKENS == 1 ? 0 : i / pairs, ch = (i - tok * pairs) * 2;
        const int row = ch / 8 * 16 + ch % 8;
        float2 g = layers_sum<TOKENS, float2>(sums, part, row, tok);
        float2 u = layers_sum<TOKENS, float2>(sums, part, row + 8, tok);
        if (own.bias[4]) layers_plus(g, *(const float2 *)(own.bias[4] + at.from + ch));
        if (own.bias[5]) layers_plus(u, *(const float2 *)(own.bias[5] + at.from + ch));
        float v[2] = {g.x, g.y};
#pragma unroll 1
        for (int j = 0; j < 2; j++) {
            const float y = sop_act_of(p.act, v[0]);
            v[0] = v[1], v[1] = y;
        }
        layers_send(to + other + tok * pitch + (rank * at.n + ch) * 2, bar + other,
                    sop_pack<T>(v[0] * u.x, v[1] * u.y));
    }
}

template <typename T, int HEAD, int TOKENS, typename SHAPE, bool HEADS>
SOP_DEV void layers_role(const layers_args &p, uint8_t *shared, uint64_t *bars, layers_keys &keys,
                         float *bias, int *slots, int *tags)
{
    enum { C = LAYERS_CLUSTER };
    typedef layers_kv<HEAD> unit;
    const decode_args &a = p.attention;
    const int tid = threadIdx.x, warp = tid / 32, rank = layers_rank();
    const int cluster = blockIdx.x / C, others = SHAPE::others(p), d = SHAPE::d(p);
    const int group = SHAPE::group(p), channels = SHAPE::channels(p);
    const int slice = HEADS ? 0 : layers_slice(channels, cluster - p.kv_heads, others);
    const int slice_n =
        HEADS ? 0 : layers_slice(channels, cluster - p.kv_heads + 1, others) - slice;
    const int most = layers_slice_most(channels, others);
    const int tokens = TOKENS == 1 ? 1 : (int)sop_live_rows(p.live_tokens, p.tokens);
    const layers_map map =
        layers_map_of<HEAD, TOKENS, HEADS>(p.layers, p.ring[HEADS], p.kv_ring, d, group, slice_n);
    const uint32_t base = smem_addr(shared);
    const uint32_t bar = smem_addr(bars);
    layers_ring ring = {base + map.ring,       bar, bar + LAYERS_SLOTS * 8, p.ring[HEADS], 0, 0, 0,
                        tags + LAYERS_KV_SLOTS};
    layers_ring kv = {base + map.kv,
                      bar + 2 * LAYERS_SLOTS * 8,
                      bar + (2 * LAYERS_SLOTS + LAYERS_KV_SLOTS) * 8,
                      p.kv_ring,
                      0,
                      0,
                      0,
                      tags};
    /* x; q k v or activations; parts; attention */
    const uint32_t came = bar + 2 * (LAYERS_SLOTS + LAYERS_KV_SLOTS) * 8;
    layers_place at;
    at.group = HEADS ? cluster : cluster - p.kv_heads;
    at.rows = d / C;
    at.first = rank * at.rows;
    at.n = HEADS ? (group + 2) * HEAD / C : slice_n / C;
    at.from = HEADS ? rank * at.n : slice + rank * at.n;
    at.k = HEADS ? group * HEAD : slice_n;
    at.k_from = HEADS ? cluster * at.k : slice;
    layers_own *own = (layers_own *)(shared + map.own);
    for (int i = tid; i < p.layers * (int)(sizeof *own / 8); i += LAYERS_ALL)
        ((uint64_t *)own)[i] = ((const uint64_t *)p.own)[i];
    if (HEADS) layers_list(a, tokens, rank, keys);
    __syncthreads();
    layers_part part[2] = {
        layers_part_of(HEADS ? ((group + 2) * HEAD / C + 15) / 16 : (most / C + 7) / 8, d,
                       layers_slot<HEADS>::PIECE),
        layers_part_of((d / C + 15) / 16, HEADS ? group * HEAD : most, layers_slot<HEADS>::PIECE)};
    part[1].steps = at.k / 32;
    if (warp >= LAYERS_WARPS) {
        regs_dec<56>();
        if (warp < LAYERS_WARPS + LAYERS_ASKERS) {
            layers_ask<HEADS>(
                p.layers, 2, p.window, ring, [&](int i) { return i ? part[1] : part[0]; },
                [&](int l, int i, int row) {
                    return layers_row<T, HEAD, HEADS>(p, own[l], at, i, row);
                });
        } else if (HEADS) {
            grid_wait();
            layers_ask_kv<T, HEAD>(p, own, cluster, rank, tokens, keys, kv);
        }
        return;
    }
    regs_inc<104>();
    const int64_t plane = (int64_t)p.tokens * d;
    const int each = (at.rows + 31) / 32, pitch = layers_pitch(d), pitch2 = layers_pitch(at.k);
    unsigned long long *const up = p.mail, *const down = p.mail + p.kv_heads * plane;
    float *const x = (float *)(shared + map.x), *const sums = (float *)(shared + map.part);
    const float *const squares = (const float *)(shared + map.squares);
    float2 *const turns = (float2 *)(shared + map.turns);
    const uint32_t factors = base + map.factors, other = layers_at(base, tid % C) - base;
    const int units = HEADS ? keys.before[LAYERS_TOKENS] : 0; /* of a layer */
    if (HEADS) {
        if (tid < tokens) slots[tid] = p.slots[tid];
        for (int i = tid; i < tokens * (HEAD / 2); i += LAYERS_THREADS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)p.pos[i / (HEAD / 2)], p.freqs[i % (HEAD / 2)]), &sine,
                    &cosine);
            turns[i] = make_float2(cosine * p.mscale, sine * p.mscale);
        }
    }
    grid_wait();
#pragma unroll 1
    for (int l = 0; l < p.layers; l++) {
        const layers_own &my = own[l];
        const uint32_t phase = l & 1;
        const bool last = l == p.layers - 1;
        if (tid == 0) {
            mbar_expect_tx(came, (uint32_t)(tokens * (d + C * each) * 4));
            mbar_expect_tx(came + 8,
                           (uint32_t)(tokens * (HEADS ? (group + 2) * HEAD * 4 : at.k * 2)));
            if (HEADS) mbar_expect_tx(came + 16, (uint32_t)(tokens * group * HEAD * 8));
            if (HEADS) mbar_expect_tx(came + 24, (uint32_t)(tokens * group * HEAD * 2));
        }
        const layers_normer<TOKENS> norm = layers_norm_start<TOKENS>(my.norm[!HEADS], d);
        if (HEADS && tid >= LAYERS_THREADS - at.n) {
            const int r = tid - (LAYERS_THREADS - at.n), i = at.from + r, q = group * HEAD;
            const int j = i < q ? 0 : i < q + HEAD ? 1 : 2;
            const int row = j == 0 ? cluster * q + i : cluster * HEAD + (i - q) % HEAD;
            bias[r] = my.bias[j] ? my.bias[j][row] : 0;
        }
        layers_gather<T>(p, d, at, HEADS ? l ? down : NULL : up, HEADS ? others : p.kv_heads,
                         (uint32_t)l + !HEADS, tokens, base + map.x, base + map.squares, came);
        mbar_wait(came, phase);
        layers_norm<T, TOKENS>(norm, x, squares, C * each, shared + map.xs, d, p.eps[!HEADS],
                               p.offset[!HEADS]);
        layers_product<T, TOKENS, HEADS>(part[0], ring, base + map.xs, pitch, tokens, sums);
        if (HEADS) {
            /* q k v: four rows a thread, to one CTA each */
            const int quads = at.n / 4, row_n = (group + 2) * HEAD;
#pragma unroll 1
            for (int i = tid / C; i < tokens * quads; i += LAYERS_THREADS / C) {
                const int tok = TOKENS == 1 ? 0 : i / quads, quad = i - tok * quads;
                float4 v = layers_sum<TOKENS, float4>(sums, part[0], quad * 4, tok);
                layers_plus(v, *(const float4 *)(bias + quad * 4));
                const float y[4] = {v.x, v.y, v.z, v.w};
                layers_send4(base + other + map.qkv + (tok * row_n + at.from + quad * 4) * 4,
                             came + 8 + other, y);
            }
            mbar_wait(came + 8, phase);
            layers_rope<T, HEAD, TOKENS>(p, my, group, cluster, rank, tokens, slots, turns,
                                         (const float *)(shared + map.qkv), shared + map.xs,
                                         shared + map.fresh);
            layers_sync();
            layers_attend<T, HEAD>(p, keys, rank, tokens, unit::WARPS / TOKENS, base + map.xs,
                                   base + map.fresh, kv, l * units, sums);
            layers_sync();
            layers_merge<HEAD, TOKENS>(keys, group, rank, tokens, sums, base + map.sent, came + 16);
            mbar_wait(came + 16, phase);
            const int mine = group * HEAD / 2 / C;
            layers_merged<T, TOKENS>((const float4 *)(shared + map.sent), mine, tokens,
                                     [&](int tok, int pair, uint32_t y) {
                                         layers_send(factors + other + tok * pitch2 +
                                                         (rank * mine + pair) * 4,
                                                     came + 24 + other, y);
                                     });
            mbar_wait(came + 24, phase);
        } else {
            if (last && at.group == 0) /* the residual stays where it was */
                for (int i = tid; i < tokens * at.rows; i += LAYERS_THREADS) {
                    const int tok = TOKENS == 1 ? 0 : i / at.rows,
                              row = at.first + i - tok * at.rows;
                    p.x[tok * p.x_stride + row] = x[tok * d + row];
                }
            layers_act<T, TOKENS>(p, my, at, part[0], tokens, sums, rank, other, factors, pitch2,
                                  came + 8);
            mbar_wait(came + 8, phase);
        }
        layers_product<T, TOKENS, HEADS>(part[1], ring, factors, pitch2, tokens, sums);
        if (tid < tokens * at.rows) {
            const int tok = TOKENS == 1 ? 0 : tid / at.rows, row = tid - tok * at.rows;
            const int to = at.first + row;
            float v = layers_sum<TOKENS, float>(sums, part[1], row, tok);
            if (at.group == 0) { /* bias and residual come once */
                const float *b = my.bias[HEADS ? 3 : 6];
                if (b) v += b[to];
                if (HEADS || !last) v += x[tok * d + to];
            }
            layers_post((HEADS ? up : down) + at.group * plane + (int64_t)tok * d + to, v,
                        (uint32_t)l + 1);
        }
    }
    /* the last words: y; then they are cleared, with those that were read before them */
    if (HEADS && cluster == 0 && tid < tokens * at.rows) {
        const int tok = TOKENS == 1 ? 0 : tid / at.rows, row = at.first + tid - tok * at.rows;
        unsigned long long *word = p.mail + (int64_t)tok * d + row;
        const float v =
            layers_collect(word + p.kv_heads * plane, others, plane, (uint32_t)p.layers);
        ((T *)p.y)[tok * p.y_stride + row] = sop_from_float<T>(v);
        for (int j = 0; j < others + p.kv_heads; j++) word[j * plane] = 0;
    }
}

template <typename T, int HEAD, int TOKENS, typename SHAPE>
static __global__ __launch_bounds__(LAYERS_ALL, 1) void sop_layers_decode_sm90(
    const __grid_constant__ layers_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t bars[LAYERS_BARS];
    __shared__ layers_keys keys;
    __shared__ __align__(16) float bias[128];
    __shared__ int slots[LAYERS_TOKENS], tags[LAYERS_KV_SLOTS + LAYERS_SLOTS];
    layers_begin(bars, tags);
    if (sop_live_rows(p.live_tokens, p.tokens) > 0) {
        if ((int)blockIdx.x / LAYERS_CLUSTER < p.kv_heads)
            layers_role<T, HEAD, TOKENS, SHAPE, true>(p, shared, bars, keys, bias, slots, tags);
        else
            layers_role<T, HEAD, TOKENS, SHAPE, false>(p, shared, bars, keys, bias, slots, tags);
    }
    __syncthreads();
    cluster_sync(); /* none is gone while another's words are on their way */
}

#endif
