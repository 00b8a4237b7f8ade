/* The products of all layers: weights that come through a ring of slots, and what is made of them.
 *
 * A product: a CTA has tiles of 16 rows of the weight. Thread (g = lane / 4, t = lane % 4) takes of rows g and
 * g + 8 the 16 bytes of k from 8 t on, step after step of 32 k; they are mma.m16n8k16 fragments, because the
 * order of k is free. The ring runs on across products and layers: what comes next is on its way while a CTA
 * waits. Warps of their own ask for it, by bulk copies: where those that compute ask by cp.async, they wait
 * until the memory takes it. */
#ifndef OPS_SPANS_LAYERS_PRODUCT_CUH
#define OPS_SPANS_LAYERS_PRODUCT_CUH

#include "ops/spans/layers_args.cuh"

SOP_DEV uint4 layers_shared(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

enum { LAYERS_QKV, LAYERS_OUTPUT, LAYERS_GATE_UP, LAYERS_DOWN, LAYERS_PRODUCTS };

/* What a CTA has of a product: rows in tiles of 16, k in pieces; a slot of the ring each, tile by tile; sub
 * warps share a slot. */
struct layers_part {
    int rows, tiles, k, pieces, sub;
};
template <typename M, bool HEADS>
static inline __host__ __device__ constexpr layers_part layers_part_of(int product)
{
    const int share = HEADS ? M::HEADS_SHARE : M::SHARE;
    const int rows = product == LAYERS_QKV       ? M::QKV / LAYERS_CLUSTER
                     : product == LAYERS_GATE_UP ? 2 * share / LAYERS_CLUSTER
                                                 : M::ROWS;
    const int k = product == LAYERS_OUTPUT ? M::ATT : product == LAYERS_DOWN ? share : M::D;
    const int tiles = (rows + 15) / 16;
    const int pieces = (k + layers_slot<HEADS>::PIECE - 1) / layers_slot<HEADS>::PIECE;
    int sub = 1;
    while (2 * sub * tiles * pieces <= LAYERS_WARPS) sub *= 2;
    /* where not all of a layer fits into the ring, its first slots are to be free soon */
    if (!HEADS && product == LAYERS_GATE_UP) sub = LAYERS_SOON;
    return {rows, tiles, k, pieces, sub};
}
/* The first step of a piece, of 32 k. */
static inline __host__ __device__ constexpr int layers_step(const layers_part &p, int piece)
{
    return piece * (p.k / 32) / p.pieces;
}
/* Slots of a layer. */
template <typename M, bool HEADS>
static inline __host__ __device__ constexpr int layers_slots_of(void)
{
    int n = 0;
    for (int i = HEADS ? LAYERS_QKV : LAYERS_GATE_UP; i < LAYERS_PRODUCTS; i++)
        n += layers_part_of<M, HEADS>(i).tiles * layers_part_of<M, HEADS>(i).pieces;
    return n;
}

/* What is asked for, slot after slot of a layer: of each row the weight and how many 16 bytes into it, and
 * the bytes of a row and of the slot. */
template <typename M, bool HEADS> struct layers_wanted {
    enum { SLOTS = layers_slots_of<M, HEADS>(), NONE = 7 };
    uint32_t from[SLOTS][16], row[SLOTS], all[SLOTS];
};
/* Offsets into dynamic shared memory; x, squares: of both halves of a layer. */
struct layers_map {
    int ring, own, wanted, x[2], squares[2], xs, part, kv, turns, qkv, fresh, sent, factors[2],
        bytes;
};
template <typename M, int TOKENS, bool HEADS>
static inline __host__ __device__ constexpr layers_map layers_map_of(int ring, int kv_ring)
{
    typedef layers_kv<M::HEAD> unit;
    layers_map m = {};
    int at = 0;
    const int normed = TOKENS * layers_pitch(M::D), q = TOKENS * 8 * unit::K;
    const int part = LAYERS_PARTS * TOKENS * 16 * 4;
    m.ring = at, at += ring * layers_slot<HEADS>::BYTES;
    m.own = at, at += LAYERS_MOST * (int)sizeof(layers_own);
    m.wanted = at, at += (int)sizeof(layers_wanted<M, HEADS>);
    for (int half = !HEADS; half < 2; half++) {
        m.x[half] = at, at += TOKENS * M::D * 4;
        m.squares[half] = at, at += TOKENS * 2 * LAYERS_CLUSTER * 4;
    }
    m.xs = at, at += HEADS && q > normed ? q : normed; /* then the queries */
    m.part = at, at += part;
    if (HEADS) {
        m.kv = at, at += kv_ring * unit::BYTES;
        m.turns = at, at += TOKENS * M::HEAD * 4;
        m.qkv = at, at += TOKENS * M::QKV * 4;
        m.fresh = at, at += unit::BYTES;
        m.sent = at, at += unit::WARPS * LAYERS_CLUSTER * (M::ATT / LAYERS_CLUSTER * 4 + 16);
        m.factors[0] = at, at += TOKENS * layers_pitch(M::ATT);
    }
    m.factors[1] = at, at += TOKENS * layers_pitch(HEADS ? M::HEADS_SHARE : M::SHARE);
    m.bytes = at;
    return m;
}

/* The slots that fit beside the rest: of weights, and of keys and values. */
template <typename M, int TOKENS, bool HEADS> struct layers_room {
    static inline __host__ __device__ constexpr int slots(bool kv, int ring, int kv_ring)
    {
        int *const n = kv ? &kv_ring : &ring;
        while (layers_map_of<M, TOKENS, HEADS>(ring, kv_ring).bytes > LAYERS_SHARED) --*n;
        return *n;
    }
    enum {
        RING = slots(false, LAYERS_SLOTS, HEADS ? LAYERS_LEAST_KV : 0),
        KV = HEADS ? slots(true, RING, LAYERS_KV_SLOTS) : 1
    };
};

/* Where a CTA's row of a product begins, from k `column` on: which weight, and how far into it. cluster,
 * rank: the CTA; first: the first channel of its cluster's second half. Weight -1: there is no such row. */
struct layers_from {
    int weight;
    int64_t at;
};
template <typename M, bool HEADS>
SOP_DEV layers_from layers_row(int cluster, int rank, int first, int product, int row, int column)
{
    enum { C = LAYERS_CLUSTER, EACH = (HEADS ? M::HEADS_SHARE : M::SHARE) / C };
    if (row >= layers_part_of<M, HEADS>(product).rows) return {-1, 0};
    if (product == LAYERS_QKV) {
        const int i = rank * (M::QKV / C) + row, j = i < M::ATT ? 0 : i < M::ATT + M::HEAD ? 1 : 2;
        const int at = j ? cluster * M::HEAD + (i - M::ATT) % M::HEAD : cluster * M::ATT + i;
        return {j, (int64_t)at * M::D + column};
    }
    if (product == LAYERS_GATE_UP) /* gate and up side by side */
        return {row % 16 < 8 ? 4 : 5,
                (int64_t)(first + rank * EACH + row / 16 * 8 + row % 8) * M::D + column};
    const int64_t r = rank * M::ROWS + row;
    if (product == LAYERS_OUTPUT)
        return {3, r * (M::KV_HEADS * M::ATT) + cluster * M::ATT + column};
    return {6, r * M::CHANNELS + first + column};
}

template <typename M, bool HEADS>
SOP_DEV void layers_make(layers_wanted<M, HEADS> *wanted, int cluster, int rank, int first)
{
    typedef layers_wanted<M, HEADS> made;
    for (int i = threadIdx.x; i < made::SLOTS * 16; i += LAYERS_ALL) {
        int slot = i / 16, product = HEADS ? LAYERS_QKV : LAYERS_GATE_UP;
        layers_part n = layers_part_of<M, HEADS>(product);
        while (slot >= n.tiles * n.pieces) {
            slot -= n.tiles * n.pieces;
            n = layers_part_of<M, HEADS>(++product);
        }
        const int tile = slot / n.pieces, k = n.k / n.pieces, column = slot % n.pieces * k;
        const layers_from from =
            layers_row<M, HEADS>(cluster, rank, first, product, tile * 16 + i % 16, column);
        wanted->from[i / 16][i % 16] =
            from.weight < 0 ? made::NONE : (uint32_t)(from.at / 8) << 3 | from.weight;
        if (i % 16 == 0) {
            wanted->row[i / 16] = k * 2;
            wanted->all[i / 16] = min(16, n.rows - tile * 16) * k * 2;
        }
    }
}

/* A ring of slots: where it lies, its mbarriers, and which slot is next. */
template <int N_> struct layers_ring {
    enum { N = N_ };
    uint32_t at, full, empty;
    int slot;
    uint32_t phase;
};
template <int N> SOP_DEV void layers_turn(layers_ring<N> &r, int slots)
{
    for (r.slot += slots; r.slot >= N; r.slot -= N) r.phase ^= 1;
}

/* The layers whose down this CTA has posted, and when the last of them. Clusters without a head have time until
 * their next gate and up: while the memory is as busy as it can be, a word takes 2.5 us instead of 0.6. So they
 * ask for them some clocks after they have posted. */
struct layers_posted {
    volatile int layers;
    volatile uint32_t when;
};
SOP_DEV void layers_pause(const layers_posted *p, int layers, int clocks)
{
    while (p->layers < layers) __nanosleep(20);
    while ((uint32_t)clock() - p->when < (uint32_t)clocks) __nanosleep(20);
}

/* A warp that asks for weights: every third slot, of all products of all layers. No more than a window of
 * slots, less than the ring has, is on its way. The ring fills before it is known whether there is a token:
 * live() waits for what says it. */
template <typename M, bool HEADS, int N, typename Live>
SOP_DEV void layers_ask(const layers_wanted<M, HEADS> *wanted, const layers_own *own, int layers,
                        int window, int pause, const layers_posted *posted, layers_ring<N> r,
                        Live live)
{
    enum { SLOTS = layers_wanted<M, HEADS>::SLOTS };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 - LAYERS_WARPS;
    layers_ring<N> behind = r;
    int slot = first, l = 0;
    layers_turn(r, first);
    layers_turn(behind, (first + LAYERS_ASKERS * LAYERS_SLOTS - window) % LAYERS_ASKERS);
#pragma unroll 1
    for (int done = first; l < layers; done += LAYERS_ASKERS) {
        const uint32_t entry = lane < 16 ? wanted->from[slot][lane] : layers_wanted<M, HEADS>::NONE;
        const uint32_t row = wanted->row[slot], all = wanted->all[slot];
        const bool some = entry != layers_wanted<M, HEADS>::NONE;
        const char *from =
            some ? (const char *)own[l].w[entry & 7] + (int64_t)(entry >> 3) * 16 : NULL;
        if (done >= N && done < N + LAYERS_ASKERS && !live()) {
            for (int i = first; i < N; i += LAYERS_ASKERS) mbar_wait(r.full + i * 8, 0);
            return;
        }
        mbar_wait(r.empty + r.slot * 8, r.phase ^ 1);
        if (!HEADS && l > 0 && slot < layers_part_of<M, HEADS>(LAYERS_GATE_UP).tiles)
            layers_pause(posted, l, pause);
        if (done >= window) {
            mbar_wait(behind.full + behind.slot * 8, behind.phase);
            layers_turn(behind, LAYERS_ASKERS);
        }
        if (lane == 0) mbar_expect_tx(r.full + r.slot * 8, all);
        __syncwarp();
        if (some)
            bulk_load_once(r.at + r.slot * layers_slot<HEADS>::BYTES +
                               lane * layers_slot<HEADS>::PITCH,
                           from, row, r.full + r.slot * 8);
        layers_turn(r, LAYERS_ASKERS);
        for (slot += LAYERS_ASKERS; slot >= SLOTS; slot -= SLOTS) l++;
    }
}

/* The product of what comes through the ring, which has more slots than the product; sums: [tile][piece][sub]
 * [token][16 rows]. All warps that compute; ends in a meeting. */
template <typename T, typename M, int TOKENS, bool HEADS, int PRODUCT, int N>
SOP_DEV void layers_product(layers_ring<N> &r, uint32_t xs, int tokens, float *sums)
{
    constexpr layers_part part = layers_part_of<M, HEADS>(PRODUCT);
    constexpr int slots = part.tiles * part.pieces, n = slots * part.sub;
    constexpr int count = part.k / 32 / part.pieces, pitch = layers_pitch(part.k);
    static_assert(slots <= N, "or the barrier of a slot does not say which it has");
    static_assert(n <= LAYERS_PARTS && part.k % (32 * part.pieces) == 0, "pieces of one size");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int item = warp; item < n; item += LAYERS_WARPS) {
        const int i = item / part.sub, j = item % part.sub, piece = i % part.pieces;
        const int a = j * count / part.sub, b = (j + 1) * count / part.sub;
        int slot = r.slot + i;
        uint32_t phase = r.phase, w, x;
        if (slot >= N) slot -= N, phase ^= 1;
        w = r.at + slot * layers_slot<HEADS>::BYTES + g * layers_slot<HEADS>::PITCH + a * 64 +
            t * 16;
        x = xs + g * pitch + (piece * count + a) * 64 + t * 16;
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
template <typename M, int TOKENS, bool HEADS, int PRODUCT, typename V>
SOP_DEV V layers_sum(const float *sums, int row, int tok)
{
    constexpr layers_part part = layers_part_of<M, HEADS>(PRODUCT);
    constexpr int n = part.pieces * part.sub;
    const V *from = (const V *)(sums + (row / 16 * n * TOKENS + tok) * 16 + row % 16);
    V sum = {};
#pragma unroll
    for (int i = 0; i < n; i++, from += TOKENS * 16 * sizeof(float) / sizeof(V))
        layers_plus(sum, *from);
    return sum;
}

#endif
