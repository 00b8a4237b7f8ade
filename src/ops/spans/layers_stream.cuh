/* Large decoder layers for few tokens, all in one launch: norm, q k v, rope, append, attention, output,
 * norm, gate and up, activation, down, again and again. What counts is that the memory never waits: the
 * CTAs, one a multiprocessor, meet five times a layer, and meanwhile the weights of what comes next run on
 * into a ring in shared memory, which three warps of their own keep filled.
 *
 *     norm | q k v, rope, append   meet   attention   meet   output + residual
 *     meet   norm | gate, up, activation   meet   down   meet
 *
 * No more than `window` slots of the ring are on their way at a time, as many as the memory needs to be
 * busy: a meeting waits behind all that is, and of more the memory gives less. The rest of the ring is how
 * long a meeting may last.
 *
 * A norm is computed by every CTA for itself: it costs less than a meeting. So the residual is read by all,
 * and written only by the product after the attention, each row by the one CTA that has it: what the layer
 * before left to add is added there again.
 *
 * A product: a CTA has an equal run of the rows of the weight, or of pairs of rows whose results meet: gate
 * with up, a channel with the one that rope turns it with. A slot of the ring has a piece of 8 rows:
 *
 *     row 0 of a group, `piece` steps of 32 k | 64 bytes | row 1 | ... | row 7
 *
 * so that thread (g = lane / 4, t = lane % 4) takes of row g the 16 bytes of k from 8 t on, without
 * conflicts; they are a B of mma.m16n8k16, because the order of k is free, and tokens are its rows. Two
 * streams of four warps take slots in turn, a warp every fourth step; when a group of 8 rows ends, one warp
 * after the other, a group each, adds the shares of all and writes what comes of them.
 *
 * The last product has a long k: its slots come piece by piece of k, all groups of a CTA, so that a piece of
 * the tokens' rows is enough in shared memory; a warp brings them.
 *
 * Nothing may be spilled where weights are on their way: beside such a ring the L1 has 28 KB. So what
 * follows from a thread's number is computed anew in each part, or the compiler keeps it across layers. */
#ifndef OPS_SPANS_LAYERS_STREAM_CUH
#define OPS_SPANS_LAYERS_STREAM_CUH

#include <stddef.h>

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

enum {
    LAYER_THREADS = DECODE_WARPS * 32, /* that compute; one more warpgroup brings what they take */
    LAYER_ALL = LAYER_THREADS + 128,
    LAYER_TOKENS = DECODE_NEW,
    LAYER_FEW =
        4, /* tokens of rows up to LAYER_NARROW that it is faster for, half as many of wider */
    LAYER_NARROW = 4096,
    LAYER_ROWS = 8,    /* of a slot */
    LAYER_STEPS = 32,  /* of 32 k, of a slot, at most */
    LAYER_SLOTS = 64,  /* at most */
    LAYER_SUMS = 4,    /* groups whose sums wait to be added */
    LAYER_DEEP = 8,    /* groups of a CTA of the last product, at most */
    LAYER_X = 8,       /* pieces of the tokens' rows there, at most */
    LAYER_MOST = 32,   /* layers of a launch */
    LAYER_ASKERS = 3,  /* warps that ask for weights */
    LAYER_STREAMS = 2, /* slots that are computed at once */
    LAYER_APART = 4,   /* slots of the ring that are not on their way: a warp may skip so many */
    LAYER_LEAST = LAYER_APART + 2, /* slots */
    LAYER_WINDOW = 56 * 1024,      /* bytes on their way: bench/gpu/h200.md */
    LAYER_SHARED = 226 * 1024,
    LAYER_SMALL = 100 << 20 /* weights of gate, up and down */
};

/* What differs from layer to layer. Weights: q, k, v, output, gate, up, down. */
struct layer_own {
    const void *w[7];
    const float *bias[7], *norm[2];
    void *k_pool, *v_pool;
};

/* A product of every layer: rows of its weights, of which the first is w[at]; columns. */
struct layer_shape {
    int n[3], k, at;
};

/* Barriers: of the slots of the ring, of sums, of pieces of x; and that x of the last product is there. */
enum {
    LAYER_FULL = 0,
    LAYER_EMPTY = LAYER_FULL + LAYER_SLOTS,
    LAYER_SUMS_FULL = LAYER_EMPTY + LAYER_SLOTS,
    LAYER_SUMS_EMPTY = LAYER_SUMS_FULL + LAYER_SUMS,
    LAYER_X_FULL = LAYER_SUMS_EMPTY + LAYER_SUMS,
    LAYER_X_EMPTY = LAYER_X_FULL + LAYER_X,
    LAYER_X_THERE = LAYER_X_EMPTY + LAYER_X,
    LAYER_BARS
};

/* Dynamic shared memory. */
struct layer_map {
    int turns, sums, own, bias, list, rows, ring, bars, slot, bytes;
    int x_slot, x_slots; /* of the last product's factors */
};
struct layer_args {
    decode_args attention; /* its q is qkv, which is not turned yet */
    const int32_t *live_tokens, *pos, *slots;
    const float *freqs;
    float mscale;
    float *x;          /* [tokens, d], the residual */
    const void *first; /* [tokens, d], what is still to be added to it; NULL: nothing */
    int64_t x_stride, first_stride;
    float eps[2], offset[2];
    layer_shape shape[4]; /* q k v, output, gate and up, down */
    void *q_out, *act_out, *y;
    int64_t q_stride, act_stride, y_stride, att_stride;
    int64_t pages;
    int tokens, d, heads, kv_heads, act;
    int piece, ring, window; /* steps of a slot; slots; of them on their way, at most */
    int *met;                /* [2], zero before and after */
    layer_map map;
    int layers;
    layer_own own[LAYER_MOST];
};

/* Bytes of a row of k elements of 16 bits in shared memory: neighbours differ by 64 bytes modulo 128. */
static inline __host__ __device__ int layer_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

/* Units of a CTA at most. */
static inline __host__ __device__ int layer_most(int n, int grid)
{
    return (n + grid - 1) / grid;
}

template <int HEAD>
static inline __host__ __device__ layer_map layer_map_of(int tokens, int d, int qkv, int widest,
                                                         int piece, int ring, int grid)
{
    layer_map m = {};
    int at = 0;
    m.bars = at, at += LAYER_BARS * 8;                     /* full, empty; of slots, of sums */
    m.turns = at, at += tokens * (HEAD / 2) * 8;           /* cosines and sines */
    m.sums = at, at += LAYER_SUMS * DECODE_WARPS * 64 * 4; /* [sums][warp][row][token] */
    m.bias = at, at += layer_most(qkv / 2, grid) * 8;      /* of q k v */
    m.own = at, at += tokens * layer_most(d, grid) * 4;    /* the residual of its rows */
    m.list = at = (at + 15) / 16 * 16;                     /* of the attention */
    at += (int)offsetof(decode_shared<HEAD>, o);
    m.rows = at = (at + 15) / 16 * 16; /* of tokens; what the attention merges */
    const int rows = tokens * layer_pitch(widest), merge = (int)sizeof(decode_shared<HEAD>::o);
    const int room = rows > merge ? rows : merge;
    m.x_slot = tokens * layer_pitch(piece * 32);
    m.x_slots = room / m.x_slot < LAYER_X ? room / m.x_slot : LAYER_X;
    m.ring = at = (at + room + 127) / 128 * 128;
    m.slot = LAYER_ROWS * layer_pitch(piece * 32);
    m.bytes = at + ring * m.slot;
    return m;
}

/* ---- meetings ---- */

SOP_DEV void layer_arrive(int *met)
{
    const int tid = decode_thread();
    decode_sync();
    if (tid == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(met) : "memory");
}

SOP_DEV void layer_wait(const int *met, int target)
{
    const int tid = decode_thread();
    if (tid == 0) {
        int n;
        do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(met) : "memory");
        } while (n < target);
    }
    decode_sync();
}

/* ---- products ---- */

/* This CTA's share of something small, into the L2. One warp. */
SOP_DEV void layer_prefetch(const void *p, int bytes)
{
    enum { PIECE = 2048 };
    const int end = bytes / 16 * 16;
    int at = ((int)blockIdx.x * 32 + (int)threadIdx.x % 32) * PIECE;
    for (; at < end; at += (int)gridDim.x * 32 * PIECE)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)p + at),
                     "r"(min((int)PIECE, end - at))
                     : "memory");
}

/* The two rows of a unit: of two weights, half a head apart; or it has one. */
enum { LAYER_SINGLE, LAYER_PAIRS, LAYER_HALVES };

/* What a CTA has of a product. */
struct layer_part {
    int kind, first, last, each; /* units; of a group of 8 rows */
    int steps, piece;            /* of 32 k: all, of a slot */
};
SOP_DEV layer_part layer_part_of(const layer_args &p, int product)
{
    const layer_shape &w = p.shape[product];
    layer_part part;
    part.kind = product == 0 ? LAYER_HALVES : product == 2 ? LAYER_PAIRS : LAYER_SINGLE;
    part.each = part.kind == LAYER_SINGLE ? LAYER_ROWS : LAYER_ROWS / 2;
    const int64_t n = part.kind == LAYER_HALVES ? (w.n[0] + w.n[1] + w.n[2]) / 2 : w.n[0];
    part.first = (int)(n * blockIdx.x / gridDim.x);
    part.last = (int)(n * (blockIdx.x + 1) / gridDim.x);
    part.steps = w.k / 32;
    const int pieces = (part.steps + p.piece - 1) / p.piece;
    part.piece = (part.steps + pieces - 1) / pieces;
    return part;
}

/* Row `half` of a unit of a layer's product. */
template <typename T, int HEAD>
SOP_DEV const char *layer_row(const layer_args &p, int layer, int product, int unit, int half)
{
    const layer_shape &shape = p.shape[product];
    int j = 0, row = unit;
    if (product == 2) j = half;
    if (product == 0) {
        row = unit / (HEAD / 2) * HEAD + unit % (HEAD / 2) + half * (HEAD / 2);
        for (; j < 2 && row >= shape.n[j]; j++) row -= shape.n[j];
    }
    return (const char *)((const T *)p.own[layer].w[shape.at + j] + (int64_t)row * shape.k);
}

/* Where a warp is in the ring. */
struct layer_ring {
    int slot, phase, turn;
};
SOP_DEV void layer_turn(layer_ring &r, int slots)
{
    r.turn = (r.turn + 1) % LAYER_STREAMS;
    if (++r.slot == slots) r.slot = 0, r.phase ^= 1;
}
SOP_DEV uint32_t layer_bar(const layer_args &p, uint32_t base, int i)
{
    return base + p.map.bars + 8 * i;
}

/* A warp that asks for weights, every third row of a slot: all of all layers, in the order in which they
 * are used. What it does for a slot is all that lies between one and the next. */
template <typename T, int HEAD> SOP_DEV void layer_ask(const layer_args &p, uint32_t base)
{
    const int lane = threadIdx.x % 32, live = (int)sop_live_rows(p.live_tokens, p.tokens);
    const int row = (int)threadIdx.x / 32 - DECODE_WARPS + LAYER_ASKERS * lane;
    const uint32_t bars = base + p.map.bars;
    layer_ring r = {0, 0, 0}, came = r; /* came: behind r by the window */
    int left = p.window;
    /* mine: of `rows` a row of this warp's that is there */
    auto ask = [&](bool mine, int rows, const char *from, int bytes, int pitch) {
        if (left > 0)
            left--;
        else {
            mbar_wait(bars + 8 * (LAYER_FULL + came.slot), came.phase);
            layer_turn(came, p.ring);
        }
        const uint32_t full = bars + 8 * (LAYER_FULL + r.slot);
        mbar_wait(bars + 8 * (LAYER_EMPTY + r.slot), r.phase ^ 1);
        if (lane == 0) mbar_expect_tx(full, rows * bytes);
        __syncwarp();
        if (mine)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                "[%3];" ::"r"(base + p.map.ring + r.slot * p.map.slot + row * pitch),
                "l"(from), "r"(bytes), "r"(full)
                : "memory");
        layer_turn(r, p.ring);
    };
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++)
#pragma unroll 1
        for (int product = 0; product < 4; product++) {
            const layer_part part = layer_part_of(p, product);
            const int pitch = layer_pitch(part.piece * 32), all = part.steps * 64;
            const int piece = part.piece * 64, own = row % part.each, half = row / part.each;
            const bool is = row < LAYER_ROWS;
            auto at = [&](int u) {
                return is ? layer_row<T, HEAD>(p, layer, product, min(u + own, part.last - 1), half)
                          : NULL;
            };
            if (product == 3) { /* piece by piece of k */
                const char *from = at(part.first);
#pragma unroll 1
                for (int s = 0; s < all; s += piece, from += piece) {
                    const char *group = from;
#pragma unroll 1
                    for (int u = part.first + own; u - own < part.last;
                         u += LAYER_ROWS, group += LAYER_ROWS * (int64_t)all) {
                        const bool mine = is && u < part.last;
                        if (live == 0 && left == 0) break;
                        ask(mine, __popc(__ballot_sync(~0u, mine)), group, min(piece, all - s),
                            pitch);
                    }
                }
                continue;
            }
#pragma unroll 1
            for (int u = part.first; u < part.last; u += part.each) {
                const bool mine = is && u + own < part.last;
                const int rows = __popc(__ballot_sync(~0u, mine));
                const char *from = at(u);
#pragma unroll 1
                for (int s = 0; s < all; s += piece, from += piece) {
                    if (live == 0 && left == 0) break;
                    ask(mine, rows, from, min(piece, all - s), pitch);
                }
            }
        }
    if (live > 0) return;
    for (int i = p.window - left; i > 0; i--, layer_turn(came, p.ring)) /* nobody takes them */
        mbar_wait(bars + 8 * (LAYER_FULL + came.slot), came.phase);
}

SOP_DEV uint4 layer_shared(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* The warps' sums of 8 rows, d[0] and d[1] for token lane / 4 and rows lane % 4 * 2 and the next: added, by
 * one warp. group: counts them, of all products. out(unit, token, sum of that unit's row, sum of its other
 * row). */
template <typename Out>
SOP_DEV void layer_add(const layer_args &p, const layer_part &part, uint8_t *shared, int &group,
                       int unit, int tokens, float d0, float d1, Out out)
{
    const int tid = decode_thread();
    const int warp = tid / 32, lane = tid % 32;
    const int slot = group % LAYER_SUMS, phase = group / LAYER_SUMS % 2;
    const uint32_t bars = smem_addr(shared) + p.map.bars;
    const uint32_t full = bars + 8 * (LAYER_SUMS_FULL + slot);
    const uint32_t empty = bars + 8 * (LAYER_SUMS_EMPTY + slot);
    float *all = (float *)(shared + p.map.sums) + slot * DECODE_WARPS * 64;
    mbar_wait(empty, phase ^ 1);
    if (lane / 4 < tokens) *(float2 *)(all + warp * 64 + 2 * lane) = make_float2(d0, d1);
    __syncwarp();
    if (lane == 0) mbar_arrive(full);
    if (group++ % DECODE_WARPS != warp) return;
    mbar_wait(full, phase);
    for (int i = lane; i < part.each * tokens; i += 32) {
        const int tok = i / part.each, r = i % part.each;
        if (unit + r >= part.last) continue;
        float x = 0, y = 0;
#pragma unroll
        for (int k = 0; k < DECODE_WARPS; k++) x += all[k * 64 + tok * 8 + r];
        if (part.kind != LAYER_SINGLE) {
#pragma unroll
            for (int k = 0; k < DECODE_WARPS; k++) y += all[k * 64 + tok * 8 + r + 4];
        }
        out(unit + r, tok, x, y);
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(empty);
}

/* 16 bytes of 8 rows of a weight times 16 bytes of x, whose words lie 0, 2, 1, 3, so that they are an A as
 * they are: d[0] and d[1] sum words 0 and 1, of token lane / 4, d1[2] and d1[3] words 2 and 3. The other
 * halves of both, and the rows of tokens that are not there, are nobody's. */
template <typename T>
SOP_DEV void layer_mma(T, float (&d)[4], float (&d1)[4], const uint4 &w, const uint4 &x)
{
    decode_mma(T(), d, x.x, x.y, x.z, x.w, w.x, w.y);
    decode_mma(T(), d1, x.x, x.y, x.z, x.w, w.z, w.w);
}

/* Where a value of x is among those of its row. */
SOP_DEV int layer_place(int i)
{
    return i / 8 * 8 + i / 2 % 2 * 4 + i / 4 % 2 * 2 + i % 2;
}

/* Warps take turns, a stream of them a slot; of a slot a warp has every fourth step. */
enum {
    LAYER_SHARE = DECODE_WARPS / LAYER_STREAMS,
    LAYER_EACH = LAYER_STEPS / LAYER_SHARE,
    LAYER_NEXT = LAYER_SHARE * 64 /* bytes from step to step of a warp */
};

/* n steps of a row at `from`, of which this warp has every LAYER_SHARE-th; the first again where there is
 * none, so that no register keeps what was in it before. */
SOP_DEV void layer_steps(uint4 (&to)[LAYER_EACH], uint32_t from, int n)
{
#pragma unroll
    for (int i = 0; i < LAYER_EACH; i++)
        to[i] = layer_shared(from + (i * LAYER_SHARE < n ? i * LAYER_NEXT : 0));
}

/* A product of what comes through the ring, group by group; the tokens' rows are in shared memory. */
template <typename T, typename Out>
SOP_DEV void layer_run(const layer_args &p, const layer_part &part, uint8_t *shared, layer_ring &r,
                       int &group, int x_pitch, int tokens, Out out)
{
    const int tid = decode_thread();
    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int own = warp % LAYER_SHARE;
    const uint32_t base = smem_addr(shared), at = own * 64 + t * 16;
    const uint32_t ws = base + p.map.ring + g * layer_pitch(part.piece * 32) + at;
    const uint32_t xs = base + p.map.rows + (g < tokens ? g : 0) * x_pitch + at;
#pragma unroll 1
    for (int u = part.first; u < part.last; u += part.each) {
        float d[4] = {}, d1[4] = {};
#pragma unroll 1
        for (int s = 0; s < part.steps; s += part.piece, layer_turn(r, p.ring)) {
            if (r.turn != warp / LAYER_SHARE) continue;
            const int n = min(part.piece, part.steps - s) - own;
            uint4 w[LAYER_EACH], x[LAYER_EACH];
            layer_steps(x, xs + s * 64, n);
            mbar_wait(layer_bar(p, base, LAYER_FULL + r.slot), r.phase);
            layer_steps(w, ws + r.slot * p.map.slot, n);
            __syncwarp();
            if (lane == 0) mbar_arrive(layer_bar(p, base, LAYER_EMPTY + r.slot));
#pragma unroll
            for (int i = 0; i < LAYER_EACH; i++)
                if (i * LAYER_SHARE < n) layer_mma(T(), d, d1, w[i], x[i]);
        }
        layer_add(p, part, shared, group, u, tokens, d[0] + d1[2], d[1] + d1[3], out);
    }
}

/* The warp that brings the tokens' rows of the last product, a piece at a time. */
template <typename T> SOP_DEV void layer_bring(const layer_args &p, uint32_t base)
{
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    if (tokens == 0) return;
    const layer_part part = layer_part_of(p, 3);
    const int pitch = layer_pitch(part.piece * 32);
    layer_ring r = {0, 0, 0};
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++) {
        mbar_wait(layer_bar(p, base, LAYER_X_THERE), layer % 2);
#pragma unroll 1
        for (int s = 0; s < part.steps; s += part.piece) {
            const int n = min(part.piece, part.steps - s) * 4; /* 16 bytes each */
            const uint32_t to = base + p.map.rows + r.slot * p.map.x_slot;
            mbar_wait(layer_bar(p, base, LAYER_X_EMPTY + r.slot), r.phase ^ 1);
            for (int tok = 0; tok < tokens; tok++) {
                const T *from = (const T *)p.act_out + tok * p.act_stride + s * 32;
                for (int i = threadIdx.x % 32; i < n; i += 32)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                     to + tok * pitch + i * 16),
                                 "l"(from + i * 8)
                                 : "memory");
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                             layer_bar(p, base, LAYER_X_FULL + r.slot))
                         : "memory");
            layer_turn(r, p.map.x_slots);
        }
    }
}

/* The last product, whose k is long: piece by piece of it, all groups, with sums of each. A stream of warps
 * takes every second group. */
template <typename T, typename Out>
SOP_DEV void layer_run_deep(const layer_args &p, const layer_part &part, uint8_t *shared,
                            layer_ring &r, layer_ring &xr, int &group, int tokens, Out out)
{
    enum { OWN = LAYER_DEEP / LAYER_STREAMS, ROWS = LAYER_ROWS * LAYER_STREAMS };
    const int tid = decode_thread();
    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int own = warp % LAYER_SHARE, stream = warp / LAYER_SHARE;
    const int pitch = layer_pitch(part.piece * 32), at = own * 64 + t * 16;
    const uint32_t base = smem_addr(shared), ws = base + p.map.ring + g * pitch + at;
    const uint32_t xs = base + p.map.rows + (g < tokens ? g : 0) * pitch + at;
    float d[OWN][4] = {}, d1[OWN][4] = {};
#pragma unroll 1
    for (int s = 0; s < part.steps; s += part.piece) {
        const int n = min(part.piece, part.steps - s) - own;
        uint4 x[LAYER_EACH];
        mbar_wait(layer_bar(p, base, LAYER_X_FULL + xr.slot), xr.phase);
        layer_steps(x, xs + xr.slot * p.map.x_slot, n);
        __syncwarp();
        if (lane == 0) mbar_arrive(layer_bar(p, base, LAYER_X_EMPTY + xr.slot));
        layer_turn(xr, p.map.x_slots);
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int left = part.last - part.first - j * ROWS; /* rows */
            if (left <= 0) break;
            layer_ring mine = r;
            if (stream) layer_turn(mine, p.ring);
            if (left > stream * LAYER_ROWS) {
                uint4 w[LAYER_EACH];
                mbar_wait(layer_bar(p, base, LAYER_FULL + mine.slot), mine.phase);
                layer_steps(w, ws + mine.slot * p.map.slot, n);
                __syncwarp();
                if (lane == 0) mbar_arrive(layer_bar(p, base, LAYER_EMPTY + mine.slot));
#pragma unroll
                for (int i = 0; i < LAYER_EACH; i++)
                    if (i * LAYER_SHARE < n) layer_mma(T(), d[j], d1[j], w[i], x[i]);
            }
            layer_turn(r, p.ring);
            if (left > LAYER_ROWS) layer_turn(r, p.ring);
        }
    }
#pragma unroll 1
    for (int i = 0; part.first + i * LAYER_ROWS < part.last; i++) {
        float lo = 0, hi = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++)
            if (i == j * LAYER_STREAMS + stream) lo = d[j][0] + d1[j][2], hi = d[j][1] + d1[j][3];
        layer_add(p, part, shared, group, part.first + i * LAYER_ROWS, tokens, lo, hi, out);
    }
}

SOP_DEV float layer_bias(const layer_own &own, int at, int row)
{
    return own.bias[at] ? own.bias[at][row] : 0;
}

/* ---- what comes into shared memory ---- */

/* Rows that other CTAs wrote: not through the L1. */
template <typename T>
SOP_DEV void layer_copy(uint8_t *xs, int pitch, const void *from, int64_t stride, int k, int tokens)
{
    const int tid = decode_thread();
    enum { AT_ONCE = 4 };
    const int pieces = k / 8, size = AT_ONCE * LAYER_THREADS;
    for (int tok = 0; tok < tokens; tok++)
        for (int i = tid; i < pieces; i += size) {
            const uint4 *of = (const uint4 *)((const T *)from + tok * stride) + i;
            uint4 v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * LAYER_THREADS < pieces) v[j] = __ldcg(of + j * LAYER_THREADS);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * LAYER_THREADS < pieces)
                    *(uint4 *)(xs + tok * pitch + (i + j * LAYER_THREADS) * 16) =
                        make_uint4(v[j].x, v[j].z, v[j].y, v[j].w);
        }
    decode_sync();
}

/* A run of four values every 4 LAYER_THREADS of a token's row: what the norm has of it, and where. */
struct layer_run_of {
    const float *x, *w;
    const void *first;
    uint8_t *to;
    int n; /* values from there on */
};

template <typename T> SOP_DEV float4 layer_residual(const layer_run_of &r, int at)
{
    float4 v = __ldcg((const float4 *)(r.x + at));
    if (r.first) {
        const uint2 raw = __ldcg((const uint2 *)((const T *)r.first + at));
        const T *e = (const T *)&raw;
        v.x += sop_to_float(e[0]), v.y += sop_to_float(e[1]);
        v.z += sop_to_float(e[2]), v.w += sop_to_float(e[3]);
    }
    return v;
}

/* The norm of all tokens, two at a time where their rows are short. sums: [2][DECODE_WARPS] */
template <typename T>
SOP_DEV void layer_normed(uint8_t *xs, int pitch, const layer_args &p, const float *weights,
                          float eps, float offset, const void *first, int tokens, float *sums)
{
    enum { HALF = 4, SIZE = 4 * LAYER_THREADS };
    const int tid = decode_thread(), from = tid * 4;
    const bool two = p.d <= HALF * SIZE; /* else the second half is the same token's */
#pragma unroll 1
    for (int tok = 0; tok < tokens; tok += two ? 2 : 1) {
        layer_run_of run[2];
        float4 kept[2][HALF], weight[2][HALF];
        float sum[2] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int of = two ? tok + h : tok, at = from + (two ? 0 : h * HALF * SIZE);
            run[h].x = p.x + of * p.x_stride + at;
            run[h].first = first ? (const T *)first + of * p.first_stride + at : NULL;
            run[h].w = weights + at;
            run[h].to = xs + of * pitch + at / 8 * 16 + at / 4 % 2 * 4;
            run[h].n = of < tokens ? p.d - at : 0;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < HALF; j++) {
                kept[h][j] = weight[h][j] = make_float4(0, 0, 0, 0);
                if (j * SIZE >= run[h].n) continue;
                weight[h][j] = *(const float4 *)(run[h].w + j * SIZE);
                kept[h][j] = layer_residual<T>(run[h], j * SIZE);
            }
        auto square = [](const float4 &v) {
            return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        };
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < HALF; j++) sum[h] += square(kept[h][j]);
#pragma unroll 1
        for (int i = HALF * SIZE; !two && i < run[1].n; i += SIZE)
            sum[1] += square(layer_residual<T>(run[1], i));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] = sop_warp_sum(sum[h]);
            if (tid % 32 == 0) sums[h * DECODE_WARPS + tid / 32] = sum[h];
        }
        decode_sync();
        sum[0] = sum[1] = 0;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            sum[0] += sums[w];
            sum[1] += sums[DECODE_WARPS + w];
        }
        if (!two) sum[0] = sum[1] = sum[0] + sum[1];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float scale = rsqrtf(sum[h] / (float)p.d + eps);
            auto put = [&](const float4 &v, const float4 &w, int at) {
                uint32_t *to = (uint32_t *)(run[h].to + at * 2);
                to[0] = sop_pack<T>(v.x * (offset + w.x) * scale, v.y * (offset + w.y) * scale);
                to[2] = sop_pack<T>(v.z * (offset + w.z) * scale, v.w * (offset + w.w) * scale);
            };
#pragma unroll
            for (int j = 0; j < HALF; j++)
                if (j * SIZE < run[h].n) put(kept[h][j], weight[h][j], j * SIZE);
#pragma unroll 1
            for (int i = HALF * SIZE; h == 1 && !two && i < run[1].n; i += SIZE)
                put(layer_residual<T>(run[1], i), *(const float4 *)(run[1].w + i), i);
        }
        decode_sync(); /* the sums are free, the rows are there */
    }
}

/* What a CTA's rows of the output add to: the residual with what the layer before left, [tokens, most]. */
template <typename T>
SOP_DEV void layer_kept(const layer_args &p, const void *first, int tokens, int most, float *own)
{
    const int tid = decode_thread();
    const layer_part part = layer_part_of(p, 1);
    const int row = part.first + tid % most;
    for (int tok = tid / most; tok < tokens; tok += LAYER_THREADS / most) {
        if (row >= part.last || tid >= LAYER_THREADS / most * most) break;
        float x = __ldcg(p.x + tok * p.x_stride + row);
        if (first) x += sop_to_float(((const T *)first)[tok * p.first_stride + row]);
        own[tok * most + row - part.first] = x;
    }
}

/* ---- the layer ---- */

/* A channel and its partner of a head: into the queries, or into a page of the cache. */
template <typename T, int HEAD>
SOP_DEV void layer_put_qkv(const layer_args &p, int layer, const float2 *turns, int slot, int unit,
                           int tok, float x, float y)
{
    const decode_args &a = p.attention;
    const int head = unit / (HEAD / 2), i = unit % (HEAD / 2);
    const int j = head < p.heads ? 0 : head < p.heads + p.kv_heads ? 1 : 2;
    const int own = j == 0 ? head : j == 1 ? head - p.heads : head - p.heads - p.kv_heads;
    T *to = (T *)p.q_out + tok * p.q_stride + own * HEAD;
    if (j < 2) { /* both round to the cache's type before they turn, as single modules do */
        const float2 cs = turns[tok * (HEAD / 2) + i];
        const float u = sop_to_float(sop_from_float<T>(x)), v = sop_to_float(sop_from_float<T>(y));
        x = u * cs.x - v * cs.y;
        y = v * cs.x + u * cs.y;
    }
    if (j > 0) {
        const int page = slot / a.page, place = slot % a.page;
        if (slot < 0 || page >= p.pages) return;
        to = j == 1 ? (T *)p.own[layer].k_pool + page * a.kp_page + place * a.kp_token +
                          own * a.kp_head
                    : (T *)p.own[layer].v_pool + page * a.vp_page + place * a.vp_token +
                          own * a.vp_head;
    }
    to[i] = sop_from_float<T>(x);
    to[i + HEAD / 2] = sop_from_float<T>(y);
}

/* The biases of a CTA's units of q k v. */
template <int HEAD> SOP_DEV void layer_biases(const layer_args &p, int layer, float2 *bias)
{
    const int tid = decode_thread();
    const layer_part part = layer_part_of(p, 0);
    for (int u = part.first + tid; u < part.last; u += LAYER_THREADS) {
        int j = 0, row = u / (HEAD / 2) * HEAD + u % (HEAD / 2);
        for (; j < 2 && row >= p.shape[0].n[j]; j++) row -= p.shape[0].n[j];
        bias[u - part.first] = make_float2(layer_bias(p.own[layer], j, row),
                                           layer_bias(p.own[layer], j, row + HEAD / 2));
    }
}

/* What the warps that compute do. */
template <typename T, int HEAD>
SOP_DEV void layer_compute(const layer_args &p, uint8_t *shared, int *slots, float *squares)
{
    const int tid = threadIdx.x, warp = tid / 32, grid = gridDim.x;
    /* What a step brings, counts, lengths, positions, slots, was there before its first kernel began. */
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    float2 *turns = (float2 *)(shared + p.map.turns), *bias = (float2 *)(shared + p.map.bias);
    float *kept = (float *)(shared + p.map.own);
    decode_shared<HEAD> &sh = *(decode_shared<HEAD> *)(shared + p.map.list);
    uint8_t *xs = shared + p.map.rows;
    const int most = layer_most(p.d, grid);
    layer_ring ring = {0, 0, 0}, x_ring = ring;
    int met = 0, group = 0;
    if (warp < 2) layer_prefetch(p.own[0].norm[warp], 4 * p.d);
    if (tid < tokens) slots[tid] = p.slots[tid];
    for (int i = tid; i < tokens * (HEAD / 2); i += LAYER_THREADS) {
        float sine, cosine;
        sincosf(__fmul_rn((float)p.pos[i / (HEAD / 2)], p.freqs[i % (HEAD / 2)]), &sine, &cosine);
        turns[i] = make_float2(cosine * p.mscale, sine * p.mscale);
    }
    layer_biases<HEAD>(p, 0, bias);
    decode_list(p.attention, sh);
    grid_wait();
    if (tokens == 0) return;
#pragma unroll 1
    for (int layer = 0, product = 0; layer < p.layers;) {
        const layer_own &own = p.own[layer];
        const int k = p.shape[product].k, pitch = layer_pitch(k);
        const layer_part part = layer_part_of(p, product);
        if (product % 2 == 0) {
            const void *first = product ? NULL : layer ? p.y : p.first;
            layer_normed<T>(xs, pitch, p, own.norm[product / 2], p.eps[product / 2],
                            p.offset[product / 2], first, tokens, squares);
        } else if (product == 1) {
            layer_copy<T>(xs, pitch, p.attention.a.o, p.att_stride, k, tokens);
        } else if (tid == 0) {
            mbar_arrive(layer_bar(p, smem_addr(shared), LAYER_X_THERE));
        }
        /* what the next norm takes of it */
        if (warp == 0 && product == 1) layer_prefetch(own.norm[1], 4 * p.d);
        if (warp == 0 && product == 3 && layer + 1 < p.layers)
            layer_prefetch(p.own[layer + 1].norm[0], 4 * p.d);
        if (product == 3)
            layer_run_deep<T>(p, part, shared, ring, x_ring, group, tokens,
                              [&](int unit, int tok, float x, float) {
                                  ((T *)p.y)[tok * p.y_stride + unit] =
                                      sop_from_float<T>(x + layer_bias(own, 6, unit));
                              });
        else
            layer_run<T>(p, part, shared, ring, group, pitch, tokens,
                         [&](int unit, int tok, float x, float y) {
                             const int at = unit - part.first;
                             if (product == 0) {
                                 layer_put_qkv<T, HEAD>(p, layer, turns, slots[tok], unit, tok,
                                                        x + bias[at].x, y + bias[at].y);
                             } else if (product == 1) {
                                 p.x[tok * p.x_stride + unit] =
                                     kept[tok * most + at] + x + layer_bias(own, 3, unit);
                             } else {
                                 x += layer_bias(own, 4, unit);
                                 y += layer_bias(own, 5, unit);
                                 ((T *)p.act_out)[tok * p.act_stride + layer_place(unit)] =
                                     sop_from_float<T>(sop_act_of(p.act, x) * y);
                             }
                         });
        if (product == 3 && ++layer == p.layers) break;
        layer_arrive(p.met);
        met += grid;
        if (product == 0) {
            layer_kept<T>(p, layer ? p.y : p.first, tokens, most, kept);
            decode_body<T, T, HEAD, false, false, true, T>(p.attention, own.k_pool, own.v_pool, sh,
                                                           [&] { layer_wait(p.met, met); });
            layer_arrive(p.met);
            met += grid;
        } else if (product == 3) {
            layer_biases<HEAD>(p, layer, bias);
        }
        layer_wait(p.met, met);
        product = (product + 1) % 4;
    }
    if (tid == 0 && atomicAdd(p.met + 1, 1) == grid - 1)
        p.met[0] = p.met[1] = 0; /* all are through */
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(LAYER_ALL, 1) void sop_layers_stream_sm90(
    const __grid_constant__ layer_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float squares[2 * DECODE_WARPS];
    __shared__ int slots[LAYER_TOKENS];
    const int tid = threadIdx.x;
    const uint32_t base = smem_addr(shared);
    grid_go();
    if (tid < LAYER_BARS) {
        const int i = tid;
        mbar_init(layer_bar(p, base, i), i < LAYER_EMPTY        ? LAYER_ASKERS
                                         : i < LAYER_SUMS_FULL  ? LAYER_SHARE
                                         : i < LAYER_SUMS_EMPTY ? DECODE_WARPS
                                         : i < LAYER_X_FULL     ? 1
                                         : i < LAYER_X_EMPTY    ? 32
                                         : i < LAYER_X_THERE    ? DECODE_WARPS
                                                                : 1);
    }
    fence_mbar_init();
    __syncthreads();
    if (tid >= LAYER_THREADS) {
        regs_dec<40>();
        if (tid < LAYER_THREADS + 32 * LAYER_ASKERS)
            layer_ask<T, HEAD>(p, base);
        else
            layer_bring<T>(p, base);
    } else {
        regs_inc<232>();
        layer_compute<T, HEAD>(p, shared, slots, squares);
    }
}

#endif
