/* Few tokens, up to 64: the weights' bytes are all that counts. Their rows are the rows of the product:
 * y^T[rows, tokens] = w[rows, k] x[tokens, k]^T. Weights of 16 bits, and of 8 and 4 with scales.
 *
 * The work is cut into units of one tile of rows and K columns, tile after tile. Each CTA has an equal run
 * of them, whatever the shape. Where a tile is shared by CTAs each puts its sums down; with few columns the
 * last to arrive adds them, with many each a share of them, in the order of k.
 *
 *     tiles      0           1           2
 *     units   . . . . | . . . . | . . . .
 *     CTAs    0 0 0 0   0 1 1 1   1 1 2 2
 *
 * Each of WGS warpgroups has 64 rows of the tile and its own ring of their bytes, which its first thread
 * fills by TMA; the first of all fills that of x. Weights of 16 bits are multiplied where they lie. Rows of
 * the others lie as in memory, 4 words off a multiple of 32, so that the words of 8 rows that a warp reads at
 * once lie in 32 banks; they become 16-bit floats in registers, exactly, while the block of 128 columns
 * before is multiplied from there, and the f32 sums of a block are scaled when it ends. A lane has columns
 * 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of each 16, halves of two words. Where x has codes too, those of weights
 * are multiplied as they are, 32 columns at a time, of which a lane has two words.
 *
 * x in f32 comes as three bf16 that sum to it and meet in one sum: the products are those of f32. Weights
 * are nobody's result: the rings fill with them while the kernel before still runs. */
#ifndef OPS_LINEAR_STREAM_SM90_CUH
#define OPS_LINEAR_STREAM_SM90_CUH

#include <type_traits>

#include "ops/cuda/hopper.cuh"
#include "ops/linear/quant_pair.cuh"
#include "ops/linear/skinny.cuh"

struct stream_maps {
    CUtensorMap x,
        w[3]; /* of 16-bit elements, x also of codes; narrower weights as words of 32 bits */
};

struct stream_args {
    const float *bias[3]; /* NULL: none */
    const float *x_scale; /* of the tokens of codes; NULL: 1 */
    const int32_t *live;
    void *y;
    float *partial;    /* [CTAs][2][WGS][COLUMNS / 2][128] */
    uint32_t *arrived; /* [tiles][WGS][2] */
    int64_t y_stride;  /* in elements */
    int32_t y_dtype, tokens, k, n[3];
};

// clang-format off
/* d[64, N] = a b^T + (add ? d : 0): a in registers, b K-major in shared memory. */
#define STREAM_MMA_OF(T, TYPE, K, TURNED, N, REGS, A0, A1, A2, A3, B, ADD, ...) \
    SOP_DEV void stream_mma(T, float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" K ".f32." TYPE "." TYPE " {" REGS \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1" TURNED ";\n}" \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define STREAM_MMA(T, TYPE, K, TURNED) \
    STREAM_MMA_OF(T, TYPE, K, TURNED, 8, R4, 4, 5, 6, 7, 8, 9, F4(0)) \
    STREAM_MMA_OF(T, TYPE, K, TURNED, 16, R8, 8, 9, 10, 11, 12, 13, F8(0)) \
    STREAM_MMA_OF(T, TYPE, K, TURNED, 32, R16, 16, 17, 18, 19, 20, 21, F8(0), F8(8)) \
    STREAM_MMA_OF(T, TYPE, K, TURNED, 64, R32, 32, 33, 34, 35, 36, 37, F32(0))
STREAM_MMA(__nv_bfloat16, "bf16", "16", ", 0")
STREAM_MMA(__half, "f16", "16", ", 0")
STREAM_MMA(uint8_t, "e4m3", "32", "")
// clang-format on

/* How x goes into products. Of codes its type is uint8_t. */
template <typename X> struct stream_x {
    typedef X type;
    enum { PLANES = 1 };
};
template <> struct stream_x<float> {
    typedef __nv_bfloat16 type;
    enum { PLANES = 3 };
};

/* What a kernel is made for: format of the weights, type and columns of x, warpgroups that multiply,
 * columns of a unit and of a stage of x, stages of x, sets of registers of weights that are not of 16 bits,
 * CTAs that share a multiprocessor. */
template <int32_t FORMAT_, typename X_, int COLUMNS_, int WGS_, int K_, int X_K_, int X_DEPTH_,
          int SETS_, int CTAS_>
struct stream_shape {
    typedef X_ X;
    static constexpr int32_t FORMAT = FORMAT_;
    enum {
        COLUMNS = COLUMNS_,
        WGS = WGS_,
        K = K_,
        X_K = X_K_,
        X_DEPTH = X_DEPTH_,
        SETS = SETS_,
        CTAS = CTAS_,
        PLAIN = FORMAT == SOP_BF16 || FORMAT == SOP_F16,
        CODES = sizeof(X) == 1, /* e4m3, as are those of the weights */
        STEPS = CODES ? 4 : 8,  /* products of a block */
        PLANES = stream_x<X>::PLANES,
        ROWS = 64 * WGS,
        THREADS = 128 * WGS,
        BLOCK_WORDS = FORMAT == SOP_I4_128 ? 17 : 33,
        WORDS = K / 128 * BLOCK_WORDS,   /* of a row of a unit */
        PITCH = (WORDS + 3) / 8 * 8 + 4, /* words from row to row, and what a box has of it */
        STAGE = PLAIN ? 64 * K * 2 : 64 * PITCH * 4,
        X_BOX = CODES ? 128 : 64, /* columns of 128 bytes */
        X_STAGE = PLANES * COLUMNS * X_K / X_BOX * 128,
        ROOM = (CTAS == 1 ? 227 : 113) * 1024 - 512, /* of barriers */
        DEPTH = (ROOM - X_DEPTH * X_STAGE) / (WGS * STAGE),
        SMEM = 512 + X_DEPTH * X_STAGE + WGS * DEPTH * STAGE
    };
    static_assert(DEPTH >= 2 && X_DEPTH >= 2, "rings are rings");
    static_assert(8 * (WGS * DEPTH + 2 * X_DEPTH) + 16 * WGS <= 512, "barriers have their room");
    static_assert(!CODES || FORMAT == SOP_F8_128, "codes meet codes");
    static_assert(PLAIN ? K == X_K : K % 256 == 0 && K % X_K == 0,
                  "blocks alternate between two sets of registers");
    /* of products */
    typedef
        typename std::conditional<FORMAT == SOP_F16, __half, typename stream_x<X>::type>::type T;
};

/* A walk through units: tile, block of K columns; weight, first row, column of y of the weight's first
 * row; stage of the ring. */
struct stream_walk {
    int tile, kb, j, row, at, stage, phase;
};

template <typename S> SOP_DEV void stream_tile(stream_walk *w, const stream_args &p, int tile)
{
    w->tile = tile;
    w->j = skinny_part(p.n, S::ROWS, tile, &w->row, &w->at);
}
template <typename S>
SOP_DEV void stream_next(stream_walk *w, const stream_args &p, int nk, int n_tiles, int depth)
{
    if (++w->stage == depth) w->stage = 0, w->phase ^= 1;
    if (++w->kb < nk) return;
    w->kb = 0;
    if (w->tile + 1 < n_tiles) stream_tile<S>(w, p, w->tile + 1);
}

/* One thread: a stage of x, from column `at` on. */
template <typename S>
SOP_DEV void stream_load_x(const stream_maps &maps, const stream_args &p, uint32_t to, uint32_t bar,
                           int at)
{
    mbar_expect_tx(bar, S::X_STAGE);
    for (int q = 0; q < S::PLANES; q++)
        for (int i = 0; i < S::X_K / S::X_BOX; i++, to += S::COLUMNS * 128)
            tma_load_2d(to, &maps.x, at + i * S::X_BOX, q * p.tokens, bar);
}

/* A block of 128 columns of the lane's rows g (0) and g + 8 (1): 16-bit floats for 8 products, or codes as
 * they are for 4, and scales. */
template <typename S>
SOP_DEV void stream_decode(const uint8_t *row, uint32_t (&a)[S::STEPS][4], float (&scale)[2])
{
    typedef quant_pair<typename S::T> P;
    const int c = threadIdx.x % 4;
    const uint32_t mine = c % 2 ? 0x7362 : 0x5140;
#pragma unroll
    for (int r = 0; r < 2; r++, row += 8 * S::PITCH * 4) {
        const uint32_t head = *(const uint32_t *)row;
        const uint32_t *words = (const uint32_t *)row + 1 + (S::CODES ? c : c / 2);
        if constexpr (S::FORMAT == SOP_I4_128) {
            const uint32_t zero = __byte_perm(head, 0, 0x4242) | (P::MAGIC | P::SIGNS);
            scale[r] = __half2float(__ushort_as_half((unsigned short)head));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t w = __byte_perm(words[4 * i], words[4 * i + 2], mine);
                a[2 * i][r] = quant_u4<typename S::T>(w, zero);
                a[2 * i][2 + r] = quant_u4<typename S::T>(w >> 8, zero);
                a[2 * i + 1][r] = quant_u4<typename S::T>(w >> 4, zero);
                a[2 * i + 1][2 + r] = quant_u4<typename S::T>(w >> 12, zero);
            }
        } else if constexpr (S::CODES) {
            scale[r] = __uint_as_float(head);
#pragma unroll
            for (int i = 0; i < 4; i++) a[i][r] = words[8 * i], a[i][2 + r] = words[8 * i + 4];
        } else {
            scale[r] = __uint_as_float(head);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t w = __byte_perm(words[4 * i], words[4 * i + 2], mine);
                a[i][r] = S::FORMAT == SOP_F8_128 ? P::f8(w << 8) : P::i8(w);
                a[i][2 + r] = S::FORMAT == SOP_F8_128 ? P::f8(w) : P::i8(w >> 8);
            }
        }
    }
}

/* part = the products of a block's registers with x there. */
template <typename S>
SOP_DEV void stream_block(const uint32_t (&a)[S::STEPS][4], uint32_t x,
                          float (&part)[S::COLUMNS / 2])
{
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < S::STEPS; s++)
#pragma unroll
        for (int q = S::PLANES - 1; q >= 0; q--) {
            const uint64_t b = desc_k_major(x + (q * S::X_K / S::X_BOX + s / 4) * S::COLUMNS * 128);
            stream_mma(typename S::T(), part, a[s], desc_advance(b, s % 4 * 32),
                       s > 0 || q < S::PLANES - 1);
        }
    wgmma_commit();
}

/* acc += a unit of weights of 16 bits times x. */
template <typename S>
SOP_DEV void stream_plain(uint32_t w, uint32_t x, float (&acc)[S::COLUMNS / 2])
{
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < S::K / 16; s++)
#pragma unroll
        for (int q = S::PLANES - 1; q >= 0; q--) {
            const uint64_t da = desc_k_major(w + s / 4 * 8192);
            const uint64_t db = desc_k_major(x + (q * S::K / 64 + s / 4) * S::COLUMNS * 128);
            wgmma<typename S::T>::ss(acc, desc_advance(da, s % 4 * 32),
                                     desc_advance(db, s % 4 * 32), 1);
        }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_touch(acc);
}

/* Sum i of thread tid of the warpgroup: row and token. */
SOP_DEV int stream_row(int i, int tid)
{
    return tid / 32 * 16 + tid % 32 / 4 + i / 2 % 2 * 8;
}
SOP_DEV int stream_token(int i, int tid)
{
    return i / 4 * 8 + tid % 4 * 2 + i % 2;
}
/* y of a row of the warpgroup's part of the tile of w. */
template <typename S>
SOP_DEV void stream_store(const stream_args &p, const stream_walk &w, int row, int token,
                          int tokens, float sum)
{
    if (row >= p.n[w.j] || token >= tokens) return;
    if (S::CODES && p.x_scale) sum *= p.x_scale[token];
    if (p.bias[w.j]) sum += p.bias[w.j][row];
    sop_store_any(p.y, p.y_dtype, token * p.y_stride + w.at + row, sum);
}

/* The CTAs that have parts of a tile. Units times CTAs fit an int, which divides in a tenth of the time of
 * 64 bits. */
struct stream_parts {
    int first, n;
};
SOP_DEV stream_parts stream_parts_of(int tile, int nk, int n_units)
{
    const int grid = gridDim.x, unit = tile * nk, first = ((unit + 1) * grid - 1) / n_units;
    return {first, ((unit + nk) * grid - 1) / n_units + 1 - first};
}

/* The word of a tile: parts that have arrived, and behind 8 bits the CTAs that have gone and left their
 * share of the sums to who comes last. */
enum { STREAM_SHARES = 24, STREAM_TRIES = 64 };

/* Whether the CTAs of a tile sum it together. With few columns the last to arrive does it alone, which
 * saves a look at the word. */
template <typename S> SOP_DEV bool stream_shared(const stream_parts &part)
{
    return S::COLUMNS >= 32 && part.n <= STREAM_SHARES;
}

template <typename S> SOP_DEV float *stream_place(const stream_args &p, int cta, int slot, int wg)
{
    return p.partial + (int64_t)((cta * 2 + slot) * S::WGS + wg) * (S::COLUMNS / 2 * 128);
}

/* Puts the sums of a part of a tile down. One thread for each slot gets what the tile's word was. */
template <typename S>
SOP_DEV void stream_put(const stream_args &p, int tile, int slot, int tokens, int wg,
                        uint32_t &before, const float (&acc)[S::COLUMNS / 2])
{
    const int tid = threadIdx.x % 128, used = (tokens + 7) / 8 * 4; /* sums with a token */
    float *to = stream_place<S>(p, blockIdx.x, slot, wg) + tid;
#pragma unroll
    for (int i = 0; i < S::COLUMNS / 2; i++)
        if (i < used) __stcg(to + i * 128, acc[i]);
    named_sync(1 + wg, 128);
    if (tid == 32 * slot)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(p.arrived + (tile * S::WGS + wg) * 2)
                     : "memory");
}

/* Sums number `share` of `shares` of a tile's shares in the order of k. */
template <typename S>
SOP_DEV void stream_sum(const stream_args &p, const stream_walk &w, const stream_parts &part,
                        int share, int shares, int nk, int n_units, int tokens, int wg)
{
    enum {
        AHEAD = S::COLUMNS < 64 ? 8 : 4,
        PLACE = S::WGS * S::COLUMNS / 2 * 32
    };                                         /* of a part; in float4 */
    const int all = (tokens + 7) / 8 * 4 * 32; /* of 4 threads' sums */
    const float4 *from = (const float4 *)stream_place<S>(p, part.first, 0, wg);
    /* where the first one's lie: it may have begun before the tile */
    const int first = n_units * part.first / (int)gridDim.x == w.tile * nk ? 0 : (int)PLACE;
    for (int v = all * share / shares + threadIdx.x % 128; v < all * (share + 1) / shares;
         v += 128) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int b = 0; b < part.n; b += AHEAD) {
            float4 x[AHEAD];
#pragma unroll
            for (int e = 0; e < AHEAD; e++) {
                x[e] = make_float4(0, 0, 0, 0);
                if (b + e < part.n)
                    x[e] = __ldcg(from + v + (b + e > 0 ? (b + e) * 2 * PLACE : first));
            }
#pragma unroll
            for (int e = 0; e < AHEAD; e++)
                sum.x += x[e].x, sum.y += x[e].y, sum.z += x[e].z, sum.w += x[e].w;
        }
        const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = v / 32, tid = v % 32 * 4 + e;
            stream_store<S>(p, w, w.row + wg * 64 + stream_row(i, tid), stream_token(i, tid),
                            tokens, of[e]);
        }
    }
}

/* What is left of a tile when the CTA has done its own, in two steps. First: one thread, which has what the
 * tile's word was; returns the shares to be summed, 1 bit each. It waits for the other parts, which end at
 * the same time. Where they do not, as another kernel holds their places, it goes, and who comes last has
 * its share too. */
template <typename S>
SOP_DEV uint32_t stream_wait(const stream_args &p, int tile, int nk, int n_units, int wg,
                             uint32_t before)
{
    const stream_parts part = stream_parts_of(tile, nk, n_units);
    uint32_t *word = p.arrived + (tile * S::WGS + wg) * 2, seen = before + 1, shares = 0;
    if (!stream_shared<S>(part)) {
        if (seen == part.n) *word = 0;
        return seen == part.n;
    }
    if ((seen & 255) == part.n) shares = seen >> 8;
    for (int i = 0; i < STREAM_TRIES && (seen & 255) != part.n; i++)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    const uint32_t mine = 1u << (blockIdx.x - part.first);
    if ((seen & 255) != part.n) seen = atomicOr(word, mine << 8);
    return (seen & 255) == part.n ? shares | mine : shares;
}

/* Second: all of the warpgroup. Whoever leaves a shared tile last clears its words. */
template <typename S>
SOP_DEV void stream_end(const stream_args &p, int tile, int slot, int nk, int n_units, int tokens,
                        int wg, uint32_t shares)
{
    const stream_parts part = stream_parts_of(tile, nk, n_units);
    stream_walk w;
    stream_tile<S>(&w, p, tile);
    if (!stream_shared<S>(part)) {
        if (shares) stream_sum<S>(p, w, part, 0, 1, nk, n_units, tokens, wg);
        return;
    }
    for (int i = 0; i < part.n; i++)
        if (shares >> i & 1) stream_sum<S>(p, w, part, i, part.n, nk, n_units, tokens, wg);
    uint32_t *word = p.arrived + (tile * S::WGS + wg) * 2;
    if (threadIdx.x % 128 == 32 * slot && atomicAdd(word + 1, 1) == part.n - 1)
        word[0] = word[1] = 0;
}

template <typename S>
static __global__ __launch_bounds__(S::THREADS, S::CTAS) void sop_stream_sm90(
    const __grid_constant__ stream_maps maps, const __grid_constant__ stream_args p)
{
    enum { SUMS = S::COLUMNS / 2 };
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const uint32_t x_at = smem_addr(smem_raw);
    const uint32_t w_at = x_at + S::X_DEPTH * S::X_STAGE;
    const uint32_t w_full = w_at + S::WGS * S::DEPTH * S::STAGE,
                   x_full = w_full + 8 * S::WGS * S::DEPTH, x_empty = x_full + 8 * S::X_DEPTH;
    const int nk = (p.k + S::K - 1) / S::K, n_tiles = skinny_tiles(p.n, S::ROWS);
    const int n_units = nk * n_tiles, wg = threadIdx.x / 128;
    const int begin = n_units * (int)blockIdx.x / (int)gridDim.x;
    const int end = n_units * ((int)blockIdx.x + 1) / (int)gridDim.x;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::WGS * S::DEPTH; i++) mbar_init(w_full + 8 * i, 1);
        for (int i = 0; i < S::X_DEPTH; i++) {
            mbar_init(x_full + 8 * i, 1);
            mbar_init(x_empty + 8 * i, 4 * S::WGS);
        }
        fence_mbar_init();
    }
    __syncthreads();
    grid_go();

    const int tid = threadIdx.x % 128, lane = tid % 32;
    const uint32_t ring = w_at + wg * S::DEPTH * S::STAGE, full = w_full + 8 * wg * S::DEPTH;
    const uint8_t *rows =
        smem_raw + (ring - smem_addr(smem_raw)) + (tid / 32 * 16 + lane / 4) * S::PITCH * 4;
    volatile uint32_t *flag =
        (uint32_t *)(smem_raw + (x_empty + 8 * S::X_DEPTH - smem_addr(smem_raw))) + 2 * wg;
    stream_walk w = {0, begin % nk, 0, 0, 0, 0, 0};
    stream_tile<S>(&w, p, begin / nk);
    stream_walk next = w; /* to be filled */
    int from = w.kb, x_stage = 0, x_phase = 0, to_fill = end - begin;
    int x_column = w.kb * S::K, x_to_fill = (end - begin) * (S::K / S::X_K);
    auto fill = [&] {
        if (tid == 0 && to_fill > 0) {
            const uint32_t bar = full + 8 * next.stage;
            const uint32_t to = ring + next.stage * S::STAGE;
            const int row = next.row + wg * 64;
            mbar_expect_tx(bar, S::STAGE);
            if (S::PLAIN)
                for (int i = 0; i < S::K / 64; i++)
                    tma_load_2d_once(to + i * 8192, &maps.w[next.j], next.kb * S::K + i * 64, row,
                                     bar);
            else /* boxes start at multiples of 16 bytes */
                tma_load_2d_once(to, &maps.w[next.j], next.kb * S::WORDS & ~3, row, bar);
        }
        to_fill--;
        stream_next<S>(&next, p, nk, n_tiles, S::DEPTH);
    };
    auto load_x = [&](int stage, bool me) {
        if (me) stream_load_x<S>(maps, p, x_at + stage * S::X_STAGE, x_full + 8 * stage, x_column);
        x_column += S::X_K;
        if (x_column >= nk * S::K) x_column = 0;
        x_to_fill--;
    };
    /* the stage before, once all have left it */
    auto fill_x = [&](bool any) {
        if (threadIdx.x != 0 || !any || x_to_fill <= 0) return;
        const int stage = x_stage ? x_stage - 1 : S::X_DEPTH - 1;
        mbar_wait(x_empty + 8 * stage, x_stage ? x_phase : x_phase ^ 1);
        load_x(stage, true);
    };
    for (int i = 0; i < S::DEPTH; i++) fill();
    grid_wait();
    /* not behind what the first warp has asked for */
    for (int i = 0; i < S::X_DEPTH && x_to_fill > 0; i++) load_x(i, threadIdx.x == 32);
    const int tokens = (int)sop_live_rows(p.live, p.tokens);
    float acc[SUMS] = {};
    uint32_t before_part = 0; /* of the threads 0 and 32, for each slot */
    /* what was summed from block `from` of the tile of v on, up to v */
    auto finish = [&](const stream_walk &v, int from) {
        if (from == 0 && v.kb == nk - 1) {
#pragma unroll
            for (int i = 0; i < SUMS; i++)
                stream_store<S>(p, v, v.row + wg * 64 + stream_row(i, tid), stream_token(i, tid),
                                tokens, acc[i]);
        } else {
            const int slot = v.tile != begin / nk;
            stream_put<S>(p, v.tile, slot, tokens, wg, before_part, acc);
        }
#pragma unroll
        for (int i = 0; i < SUMS; i++) acc[i] = 0;
    };
    auto share = [&] {
        const int tiles[2] = {begin / nk, (end - 1) / nk};
        const bool any[2] = {begin % nk != 0 || end < (tiles[0] + 1) * nk,
                             tiles[1] != tiles[0] && end % nk != 0};
        if (tid == 0 && any[0]) flag[0] = stream_wait<S>(p, tiles[0], nk, n_units, wg, before_part);
        if (tid == 32 && any[1])
            flag[1] = stream_wait<S>(p, tiles[1], nk, n_units, wg, before_part);
        named_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (any[i]) stream_end<S>(p, tiles[i], i, nk, n_units, tokens, wg, flag[i]);
    };
    if constexpr (S::PLAIN) {
        for (int u = begin; u < end; u++) {
            mbar_wait(full + 8 * w.stage, w.phase);
            mbar_wait(x_full + 8 * x_stage, x_phase);
            stream_plain<S>(ring + w.stage * S::STAGE, x_at + x_stage * S::X_STAGE, acc);
            named_sync(1 + wg, 128); /* all have read the stage */
            fill();
            if (lane == 0) mbar_arrive(x_empty + 8 * x_stage);
            fill_x(u > begin);
            if (w.kb == nk - 1 || u == end - 1) {
                finish(w, from);
                from = 0;
            }
            if (++x_stage == S::X_DEPTH) x_stage = 0, x_phase ^= 1;
            stream_next<S>(&w, p, nk, n_tiles, S::DEPTH);
        }
        share();
    } else {
        enum {
            BLOCKS = S::K / 128,
            X_BLOCKS = S::X_K / 128,
            X_BLOCK = 128 / S::X_BOX * S::COLUMNS * 128, /* bytes */
            SETS = S::SETS
        };
        uint32_t a[SETS][S::STEPS][4];
        float scale[2][2] = {}, part[SUMS] = {};
        /* ends the product of block b */
        auto settle = [&](int b) {
            wgmma_wait<0>();
            wgmma_touch(part);
#pragma unroll
            for (int i = 0; i < SUMS; i++) acc[i] = fmaf(scale[b % 2][i / 2 % 2], part[i], acc[i]);
        };
        /* A load that is still on its way when the others meet would find what TMA writes: it took scales
         * from there. The fence waits for loads. */
        auto give_back = [&] {
            fence_async();
            named_sync(1 + wg, 128);
            fill();
        };
        auto next_x = [&] {
            if (++x_stage == S::X_DEPTH) x_stage = 0, x_phase ^= 1;
        };
        if constexpr (SETS == 1) {
            for (int u = begin; u < end; u++) {
                const uint8_t *row = rows + w.stage * S::STAGE + (w.kb * S::WORDS & 3) * 4;
                mbar_wait(full + 8 * w.stage, w.phase);
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    stream_decode<S>(row + b * S::BLOCK_WORDS * 4, a[0], scale[b % 2]);
                    if (b == BLOCKS - 1) {
                        give_back();
                    }
                    if (b % X_BLOCKS == 0) mbar_wait(x_full + 8 * x_stage, x_phase);
                    stream_block<S>(a[0], x_at + x_stage * S::X_STAGE + b % X_BLOCKS * X_BLOCK,
                                    part);
                    settle(b);
                    if (b % X_BLOCKS < X_BLOCKS - 1) continue;
                    if (lane == 0) mbar_arrive(x_empty + 8 * x_stage);
                    fill_x(b >= X_BLOCKS || u > begin);
                    next_x();
                }
                if (w.kb == nk - 1 || u == end - 1) {
                    finish(w, from);
                    from = 0;
                }
                stream_next<S>(&w, p, nk, n_tiles, S::DEPTH);
            }
            share();
        } else {
            /* the block before is multiplied, also across units, while one becomes floats */
            stream_walk before = w;
            bool ended = false;
            int x_before = 0, from_before = 0;
            for (int u = begin;; u++) {
                const uint8_t *row = rows + w.stage * S::STAGE + (w.kb * S::WORDS & 3) * 4;
                if (u < end) mbar_wait(full + 8 * w.stage, w.phase);
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    if (b > 0 || u < end)
                        stream_decode<S>(row + b * S::BLOCK_WORDS * 4, a[b % SETS], scale[b % 2]);
                    if (b == BLOCKS - 1) {
                        give_back();
                    }
                    settle(b + 1);
                    if (b % X_BLOCKS == 0 && (b > 0 || u > begin) && lane == 0)
                        mbar_arrive(x_empty + 8 * x_before);
                    if (b == 0 && ended) finish(before, from_before);
                    if (b == 0 && u == end) {
                        share();
                        return;
                    }
                    if (b % X_BLOCKS == 0) mbar_wait(x_full + 8 * x_stage, x_phase);
                    stream_block<S>(a[b % SETS],
                                    x_at + x_stage * S::X_STAGE + b % X_BLOCKS * X_BLOCK, part);
                    if (b % X_BLOCKS == 0) fill_x(b > 0 || u > begin);
                    if (b % X_BLOCKS == X_BLOCKS - 1) {
                        x_before = x_stage;
                        next_x();
                    }
                }
                before = w;
                from_before = from;
                ended = w.kb == nk - 1 || u == end - 1;
                if (ended) from = 0;
                stream_next<S>(&w, p, nk, n_tiles, S::DEPTH);
            }
        }
    }
}

#endif
