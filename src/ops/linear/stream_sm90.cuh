/* Few tokens, up to 64: the weights' bytes are all that counts. Their rows are the rows of the product:
 * y^T[rows, tokens] = w[rows, k] x[tokens, k]^T. Weights of 16 bits, and of 8 and 4 with scales.
 *
 * The work is cut into units of one tile of rows and K columns, tile after tile. Each CTA has an equal run
 * of them, whatever the shape. Where a tile is shared by CTAs each puts its sums down, and the last to
 * arrive adds them in the order of k.
 *
 *     tiles      0           1           2
 *     units   . . . . | . . . . | . . . .
 *     CTAs    0 0 0 0   0 1 1 1   1 1 2 2
 *
 * Each of WGS warpgroups has 64 rows of the tile and its own ring of their bytes, which its first thread
 * fills by TMA. Weights of 16 bits are multiplied where they lie. Rows of the others lie as in memory, 4
 * words off a multiple of 32, so that the words of 8 rows that a warp reads at once lie in 32 banks; they
 * become 16-bit floats in registers, exactly, while the block of 128 columns before is multiplied from
 * there, and the f32 sums of a block are scaled when it ends. One more warpgroup brings x to shared memory,
 * for these in the order in which lanes have their columns:
 *
 *     place  2 c, 2 c + 1 of 16 columns: 4 c, 4 c + 2       bytes 0 and 2 of a lane's word
 *            2 c + 8, 2 c + 9:           4 c + 1, 4 c + 3   bytes 1 and 3
 *
 * x in f32 is split there into three bf16 that sum to it and meet in one sum: the products are those of
 * f32. Weights are nobody's result: the rings fill with them while the kernel before still runs. */
#ifndef OPS_LINEAR_STREAM_SM90_CUH
#define OPS_LINEAR_STREAM_SM90_CUH

#include <type_traits>

#include "ops/cuda/hopper.cuh"
#include "ops/linear/quant_pair.cuh"
#include "ops/linear/skinny.cuh"

struct stream_maps {
    CUtensorMap w[3]; /* of words of 32 bits */
};

struct stream_args {
    const void *x;
    const float *bias[3]; /* NULL: none */
    const int32_t *live;
    void *y;
    float *partial;                           /* [CTAs][2][COLUMNS / 2][threads that multiply] */
    int *arrived;                             /* [tiles][WGS] */
    int64_t x_stride, y_stride;               /* in elements */
    int32_t y_dtype, tokens, k, n[3], x_wide; /* x in pieces of 16 bytes */
};

// clang-format off
/* d[64, N] = a b^T + (add ? d : 0): a in registers, b K-major in shared memory. */
#define STREAM_MMA_OF(T, TYPE, N, REGS, A0, A1, A2, A3, B, ADD, ...) \
    SOP_DEV void stream_mma(T, float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}" \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define STREAM_MMA(T, TYPE) \
    STREAM_MMA_OF(T, TYPE, 8, R4, 4, 5, 6, 7, 8, 9, F4(0)) \
    STREAM_MMA_OF(T, TYPE, 16, R8, 8, 9, 10, 11, 12, 13, F8(0)) \
    STREAM_MMA_OF(T, TYPE, 32, R16, 16, 17, 18, 19, 20, 21, F8(0), F8(8)) \
    STREAM_MMA_OF(T, TYPE, 64, R32, 32, 33, 34, 35, 36, 37, F32(0))
STREAM_MMA(__nv_bfloat16, "bf16")
STREAM_MMA(__half, "f16")
// clang-format on

/* How x goes into products. */
template <typename X> struct stream_x {
    typedef X type;
    enum { PLANES = 1 };
};
template <> struct stream_x<float> {
    typedef __nv_bfloat16 type;
    enum { PLANES = 3 };
};

/* What a kernel is made for: format of the weights, type and columns of x, warpgroups that multiply,
 * columns of a unit and of a stage of x, CTAs that share a multiprocessor. */
template <int32_t FORMAT_, typename X_, int COLUMNS_, int WGS_, int K_, int X_K_, int CTAS_>
struct stream_shape {
    typedef X_ X;
    static constexpr int32_t FORMAT = FORMAT_;
    enum {
        COLUMNS = COLUMNS_,
        WGS = WGS_,
        K = K_,
        X_K = X_K_,
        CTAS = CTAS_,
        PLAIN = FORMAT == SOP_BF16 || FORMAT == SOP_F16,
        PLANES = stream_x<X>::PLANES,
        ROWS = 64 * WGS,
        THREADS = 128 * (WGS + 1),
        /* of a thread that multiplies, of one that brings x: as many as there are */
        REGS = WGS == 4   ? 104
               : WGS == 3 ? 136
                          : 200,
        X_REGS = WGS == 4 ? 64 : 104,
        BLOCK_WORDS = FORMAT == SOP_I4_128 ? 17 : 33,
        WORDS = K / 128 * BLOCK_WORDS,   /* of a row of a unit */
        PITCH = (WORDS + 3) / 8 * 8 + 4, /* words from row to row, and what a box has of it */
        STAGE = PLAIN ? 64 * K * 2 : 64 * PITCH * 4,
        X_STAGE = PLANES * COLUMNS * X_K * 2,
        X_DEPTH = X_STAGE > 16384 ? 2 : 3,
        ROOM = (CTAS == 1 ? 227 : 113) * 1024 - 1536, /* 1024 to align, barriers */
        DEPTH = (ROOM - X_DEPTH * X_STAGE) / (WGS * STAGE),
        SMEM = 1536 + X_DEPTH * X_STAGE + WGS * DEPTH * STAGE
    };
    static_assert(DEPTH >= 2 && 8 * (WGS * DEPTH + 2 * X_DEPTH) + 4 * WGS <= 512,
                  "rings are rings");
    static_assert(PLAIN ? K == X_K : K % 256 == 0,
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

/* 16 columns of a row of x, as 8 words of two in their own order. */
template <typename X> struct stream_piece {
    uint4 v[sizeof(X)]; /* 2 or 4 */
};

template <typename S>
SOP_DEV void stream_put_x(const stream_piece<typename S::X> &piece, uint32_t to, uint32_t plane)
{
    constexpr int PLANES = S::PLANES;
    uint32_t r[PLANES][8];
    if constexpr (PLANES == 1) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            r[0][4 * i] = piece.v[i].x, r[0][4 * i + 1] = piece.v[i].y,
                     r[0][4 * i + 2] = piece.v[i].z, r[0][4 * i + 3] = piece.v[i].w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4] = {__uint_as_float(piece.v[i].x), __uint_as_float(piece.v[i].y),
                          __uint_as_float(piece.v[i].z), __uint_as_float(piece.v[i].w)};
#pragma unroll
            for (int q = 0; q < PLANES; q++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float lo, hi;
                    r[q][2 * i + h] = sop_pack<__nv_bfloat16>(x[2 * h], x[2 * h + 1]);
                    sop_unpack<__nv_bfloat16>(r[q][2 * i + h], lo, hi);
                    x[2 * h] -= lo, x[2 * h + 1] -= hi;
                }
        }
    }
#pragma unroll
    for (int q = 0; q < PLANES; q++, to += plane)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t o[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                o[c] = S::PLAIN ? r[q][4 * h + c]
                                : __byte_perm(r[q][2 * c], r[q][2 * c + 1], h ? 0x7632 : 0x5410);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to ^ (h << 4)), "r"(o[0]),
                         "r"(o[1]), "r"(o[2]), "r"(o[3])
                         : "memory");
        }
}

/* Columns from `column` on of token t, of which there are n. */
template <typename S>
SOP_DEV stream_piece<typename S::X> stream_get_x(const stream_args &p, int t, int n, int column)
{
    typedef typename S::X X;
    stream_piece<X> piece = {};
    const X *from = (const X *)p.x + t * p.x_stride + column;
    if (n >= 16 && p.x_wide) {
#pragma unroll
        for (int e = 0; e < (int)sizeof(X); e++) piece.v[e] = ((const uint4 *)from)[e];
    } else if (S::PLAIN && n > 0) {
        uint32_t word[4 * sizeof(X)];
#pragma unroll
        for (int e = 0; e < 4 * (int)sizeof(X); e++) {
            if constexpr (sizeof(X) == 4)
                word[e] = e < n ? __float_as_uint(from[e]) : 0;
            else
                word[e] = (2 * e < n ? (uint32_t)((const uint16_t *)from)[2 * e] : 0) |
                          (2 * e + 1 < n ? (uint32_t)((const uint16_t *)from)[2 * e + 1] << 16 : 0);
        }
#pragma unroll
        for (int e = 0; e < (int)sizeof(X); e++)
            piece.v[e] = make_uint4(word[4 * e], word[4 * e + 1], word[4 * e + 2], word[4 * e + 3]);
    }
    return piece;
}

/* The warpgroup that brings x: a warp takes 8 tokens by 64 columns at a time, a lane 16 columns of one. */
template <typename S>
SOP_DEV void stream_load_x(const stream_args &p, uint32_t smem, uint32_t full, uint32_t empty,
                           int begin, int end, int nk)
{
    typedef typename S::X X;
    enum {
        BLOCKS = S::X_K / 64,
        ITEMS = S::COLUMNS / 8 * BLOCKS,
        EACH = (ITEMS + 3) / 4 /* of a warp */
    };
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int tokens = (int)sop_live_rows(p.live, p.tokens);
    const int n = (end - begin) * (S::K / S::X_K);
    int stage = 0, phase = 0, at = begin % nk * S::K;
    stream_piece<X> piece[EACH], next[EACH];
    auto get = [&](stream_piece<X>(&to)[EACH]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int item = warp + 4 * i, t = item / BLOCKS * 8 + lane % 8;
            const int column = at + item % BLOCKS * 64 + lane / 8 * 16;
            to[i] = stream_get_x<S>(p, t, t < tokens && item < ITEMS ? p.k - column : 0, column);
        }
        at += S::X_K;
        if (at >= nk * S::K) at = 0;
    };
    get(piece);
    for (int u = 0; u < n; u++) {
        const uint32_t to = smem + stage * S::X_STAGE;
        if (u + 1 < n) get(next);
        mbar_wait(empty + 8 * stage, phase ^ 1);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int item = warp + 4 * i, t = item / BLOCKS * 8 + lane % 8, block = item % BLOCKS;
            if (item < ITEMS)
                stream_put_x<S>(
                    piece[i], to + (block * S::COLUMNS + t) * 128 + ((lane / 8 * 2 ^ (t & 7)) << 4),
                    S::COLUMNS * S::X_K * 2);
            piece[i] = next[i];
        }
        fence_async();
        mbar_arrive(full + 8 * stage);
        if (++stage == S::X_DEPTH) stage = 0, phase ^= 1;
    }
}

/* A block of 128 columns of the lane's rows g (0) and g + 8 (1): 16-bit floats for 8 products, scales. */
template <typename S>
SOP_DEV void stream_decode(const uint8_t *row, uint32_t (&a)[8][4], float (&scale)[2])
{
    typedef quant_pair<typename S::T> P;
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++, row += 8 * S::PITCH * 4) {
        const uint32_t head = *(const uint32_t *)row;
        const uint32_t *words = (const uint32_t *)row + 1 + c;
        if constexpr (S::FORMAT == SOP_I4_128) {
            const uint32_t zero = __byte_perm(head, 0, 0x4242) | (P::MAGIC | P::SIGNS);
            scale[r] = __half2float(__ushort_as_half((unsigned short)head));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t w = words[4 * i];
                a[2 * i][r] = quant_u4<typename S::T>(w, zero);
                a[2 * i][2 + r] = quant_u4<typename S::T>(w >> 8, zero);
                a[2 * i + 1][r] = quant_u4<typename S::T>(w >> 4, zero);
                a[2 * i + 1][2 + r] = quant_u4<typename S::T>(w >> 12, zero);
            }
        } else {
            scale[r] = __uint_as_float(head);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t w = words[4 * i];
                a[i][r] = S::FORMAT == SOP_F8_128 ? P::f8(w << 8) : P::i8(w);
                a[i][2 + r] = S::FORMAT == SOP_F8_128 ? P::f8(w) : P::i8(w >> 8);
            }
        }
    }
}

/* part = 8 products of a block's registers with x there. */
template <typename S>
SOP_DEV void stream_block(const uint32_t (&a)[8][4], uint32_t x, float (&part)[S::COLUMNS / 2])
{
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; s++)
#pragma unroll
        for (int q = S::PLANES - 1; q >= 0; q--) {
            const uint64_t b = desc_k_major(x + (q * S::X_K / 64 + s / 4) * S::COLUMNS * 128);
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

/* The sums of a tile's part of k, of one warpgroup: to y, or where others have parts too, to where the
 * last of them finds it. flag: a word of shared memory of the warpgroup. */
template <typename S>
SOP_DEV void stream_finish(const stream_args &p, const stream_walk &w, int nk, int n_units,
                           bool whole, int slot, int tokens, int wg, volatile int *flag,
                           float (&acc)[S::COLUMNS / 2])
{
    enum { SUMS = S::COLUMNS / 2, EACH = 128 * S::WGS };
    const int tid = threadIdx.x, lane = tid % 32, c = lane % 4;
    const int used = (tokens + 7) / 8 * 4; /* sums with a token */
    if (!whole) {
        float *mine = p.partial + (int64_t)(blockIdx.x * 2 + slot) * SUMS * EACH + tid;
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (i < used) __stcg(mine + i * EACH, acc[i]);
        const int64_t grid = gridDim.x;
        const int first = (int)((((int64_t)w.tile * nk + 1) * grid - 1) / n_units);
        const int last = (int)((((int64_t)w.tile * nk + nk) * grid - 1) / n_units);
        __threadfence();
        named_sync(1 + wg, 128);
        if (tid % 128 == 0) {
            int *arrived = p.arrived + w.tile * S::WGS + wg;
            const int before = atomicAdd(arrived, 1);
            if (before == last - first) *arrived = 0;
            *flag = before == last - first;
        }
        named_sync(1 + wg, 128);
        if (!*flag) return;
        __threadfence();
#pragma unroll
        for (int i = 0; i < SUMS; i++) acc[i] = 0;
        enum { AHEAD = SUMS <= 16 ? 16 / SUMS : 1 };
        for (int b = first; b <= last; b += AHEAD) {
            float part[AHEAD][SUMS];
#pragma unroll
            for (int e = 0; e < AHEAD; e++) {
                const int theirs = (int)((int64_t)n_units * (b + e) / grid) / nk == w.tile ? 0 : 1;
                const float *from = p.partial + (int64_t)((b + e) * 2 + theirs) * SUMS * EACH + tid;
#pragma unroll
                for (int i = 0; i < SUMS; i++)
                    part[e][i] = i < used && b + e <= last ? __ldcg(from + i * EACH) : 0;
            }
#pragma unroll
            for (int e = 0; e < AHEAD; e++)
#pragma unroll
                for (int i = 0; i < SUMS; i++) acc[i] += part[e][i];
        }
    }
    const int row = w.row + wg * 64 + tid / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= p.n[w.j]) continue;
        const float bias = p.bias[w.j] ? p.bias[w.j][row + 8 * h] : 0;
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) {
            const int t = i / 2 * 8 + 2 * c + i % 2;
            if (t < tokens)
                sop_store_any(p.y, p.y_dtype, t * p.y_stride + w.at + row + 8 * h,
                              acc[i / 2 * 4 + 2 * h + i % 2] + bias);
        }
    }
}

template <typename S>
static __global__ __launch_bounds__(S::THREADS, S::CTAS) void sop_stream_sm90(
    const __grid_constant__ stream_maps maps, const __grid_constant__ stream_args p)
{
    typedef typename S::T T;
    enum { SUMS = S::COLUMNS / 2 };
    extern __shared__ uint8_t smem_raw[];
    const uint32_t x_at = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t w_at = x_at + S::X_DEPTH * S::X_STAGE;
    const uint32_t w_full = w_at + S::WGS * S::DEPTH * S::STAGE,
                   x_full = w_full + 8 * S::WGS * S::DEPTH, x_empty = x_full + 8 * S::X_DEPTH;
    const int nk = (p.k + S::K - 1) / S::K, n_tiles = skinny_tiles(p.n, S::ROWS);
    const int n_units = nk * n_tiles, wg = threadIdx.x / 128;
    const int begin = (int)((int64_t)n_units * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)n_units * (blockIdx.x + 1) / gridDim.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::WGS * S::DEPTH; i++) mbar_init(w_full + 8 * i, 1);
        for (int i = 0; i < S::X_DEPTH; i++) {
            mbar_init(x_full + 8 * i, 128);
            mbar_init(x_empty + 8 * i, 4 * S::WGS);
        }
        fence_mbar_init();
    }
    __syncthreads();
    grid_go();

    if (wg == S::WGS) {
        if (S::CTAS == 1) regs_dec<S::X_REGS>();
        grid_wait();
        stream_load_x<S>(p, x_at, x_full, x_empty, begin, end, nk);
    } else {
        if (S::CTAS == 1) regs_inc<S::REGS>();
        const int tid = threadIdx.x % 128, lane = tid % 32;
        const uint32_t ring = w_at + wg * S::DEPTH * S::STAGE, full = w_full + 8 * wg * S::DEPTH;
        const uint8_t *rows =
            smem_raw + (ring - smem_addr(smem_raw)) + (tid / 32 * 16 + lane / 4) * S::PITCH * 4;
        volatile int *flag =
            (int *)(smem_raw + (x_empty + 8 * S::X_DEPTH - smem_addr(smem_raw))) + wg;
        stream_walk w = {0, begin % nk, 0, 0, 0, 0, 0};
        stream_tile<S>(&w, p, begin / nk);
        stream_walk next = w; /* to be filled */
        const int first_tile = w.tile;
        int from = w.kb, x_stage = 0, x_phase = 0, to_fill = end - begin;
        auto fill = [&] {
            if (tid == 0 && to_fill > 0) {
                const uint32_t bar = full + 8 * next.stage;
                const uint32_t to = ring + next.stage * S::STAGE;
                const int row = next.row + wg * 64;
                mbar_expect_tx(bar, S::STAGE);
                if (S::PLAIN)
                    for (int i = 0; i < S::K / 64; i++)
                        tma_load_2d(to + i * 8192, &maps.w[next.j], next.kb * S::K + i * 64, row,
                                    bar);
                else /* boxes start at multiples of 16 bytes */
                    tma_load_2d(to, &maps.w[next.j], next.kb * S::WORDS & ~3, row, bar);
            }
            to_fill--;
            stream_next<S>(&next, p, nk, n_tiles, S::DEPTH);
        };
        for (int i = 0; i < S::DEPTH; i++) fill();
        grid_wait();
        const int tokens = (int)sop_live_rows(p.live, p.tokens);
        float acc[SUMS] = {};
        /* what was summed from block `from` of the tile of v on, up to v */
        auto finish = [&](const stream_walk &v, int from, float(&acc)[SUMS]) {
            stream_finish<S>(p, v, nk, n_units, from == 0 && v.kb == nk - 1,
                             v.tile == first_tile ? 0 : 1, tokens, wg, flag, acc);
#pragma unroll
            for (int i = 0; i < SUMS; i++) acc[i] = 0;
        };
        if constexpr (S::PLAIN) {
            for (int u = begin; u < end; u++) {
                mbar_wait(full + 8 * w.stage, w.phase);
                mbar_wait(x_full + 8 * x_stage, x_phase);
                stream_plain<S>(ring + w.stage * S::STAGE, x_at + x_stage * S::X_STAGE, acc);
                named_sync(1 + wg, 128); /* all have read the stage */
                fill();
                if (lane == 0) mbar_arrive(x_empty + 8 * x_stage);
                if (w.kb == nk - 1 || u == end - 1) {
                    finish(w, from, acc);
                    from = 0;
                }
                if (++x_stage == S::X_DEPTH) x_stage = 0, x_phase ^= 1;
                stream_next<S>(&w, p, nk, n_tiles, S::DEPTH);
            }
        } else {
            /* the block before is multiplied, also across units, while one becomes floats */
            enum {
                BLOCKS = S::K / 128,
                X_BLOCKS = S::X_K / 128,
                SETS = SUMS * S::PLANES > 8 ? 1 : 2
            };
            uint32_t a[SETS][8][4];
            float scale[2][2] = {}, part[SUMS] = {};
            stream_walk before = w;
            bool ended = false;
            int x_before = 0, from_before = 0;
            /* ends the product of the block before block b of unit u, and what ends with it */
            auto settle = [&](int u, int b) {
                wgmma_wait<0>();
                wgmma_touch(part);
#pragma unroll
                for (int i = 0; i < SUMS; i++)
                    acc[i] = fmaf(scale[(b + 1) % 2][i / 2 % 2], part[i], acc[i]);
                if (b % X_BLOCKS == 0 && (b > 0 || u > begin) && lane == 0)
                    mbar_arrive(x_empty + 8 * x_before);
                if (b == 0 && ended) finish(before, from_before, acc);
            };
            for (int u = begin;; u++) {
                const uint8_t *row = rows + w.stage * S::STAGE + (w.kb * S::WORDS & 3) * 4;
                if (u < end) mbar_wait(full + 8 * w.stage, w.phase);
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    if (SETS == 1) settle(u, b);
                    if (b > 0 || u < end)
                        stream_decode<S>(row + b * S::BLOCK_WORDS * 4, a[b % SETS], scale[b % 2]);
                    if (b == BLOCKS - 1) {
                        named_sync(1 + wg, 128); /* all have read the stage */
                        fill();
                    }
                    if (SETS == 2) settle(u, b);
                    if (b == 0 && u == end) return;
                    if (b % X_BLOCKS == 0) mbar_wait(x_full + 8 * x_stage, x_phase);
                    stream_block<S>(a[b % SETS],
                                    x_at + x_stage * S::X_STAGE + b % X_BLOCKS * S::COLUMNS * 256,
                                    part);
                    if (b % X_BLOCKS == X_BLOCKS - 1) {
                        x_before = x_stage;
                        if (++x_stage == S::X_DEPTH) x_stage = 0, x_phase ^= 1;
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
