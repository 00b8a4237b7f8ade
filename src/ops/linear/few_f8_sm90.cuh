/* Few tokens of codes, up to 64, and weights of codes with rows enough for each multiprocessor to have some
 * of its own: the weights' bytes are all that counts. Their rows are the rows of the product:
 * y^T[rows, tokens] = w[rows, k] x[tokens, k]^T, blocks of 128 columns, each with a scale (f8_128).
 *
 * Each CTA has a tile of rows, so that no sums meet in memory and all end at the same moment. Rows come
 * in pieces of 128 bytes, from multiples of 128 on, whatever blocks of 33 words they hold, swizzled by TMA:
 *
 *     units of the ring   [rows][32 words] [rows][32 words] [rows][32 words] ...
 *     blocks in them      0 . . . . . . .0 1 . . . . . . 1 2 . . . . . .  2 3
 *
 * Block b begins at word b % 32 of a unit and ends in the next one; with b % 32 = 31 it ends that too. A lane
 * reads a word here and one 4 words on for each product: 4 lanes have 4 words side by side, 8 rows have them
 * in 8 different chunks, so 32 lanes read 32 banks, wherever a block begins. Two units side by side are asked
 * for at once, in boxes of up to 32 rows.
 *
 * Four warpgroups multiply 64 rows each, a quarter of the tile's; where they have less they read rows of the
 * next one, the last those of the one before, and leave them alone. Codes go from registers to the tensor
 * cores as they are, x is there in shared memory. Words of the next block are on their way while the sums of
 * this one are scaled. Of a fifth warpgroup one warp asks for w and one for x, two bring biases and scales
 * of tokens. The CTAs of a cluster of two have neighbouring tiles, and each loads half of x for both.
 *
 * Weights are nobody's result: the ring fills with them while the kernel before still runs.
 *
 * Source: the PTX ISA, sections "wgmma.mma_async" and "cp.async.bulk.tensor". */
#ifndef OPS_LINEAR_FEW_F8_SM90_CUH
#define OPS_LINEAR_FEW_F8_SM90_CUH

#include "ops/linear/stream_sm90.cuh"

enum {
    FEW_F8_THREADS = 640,
    FEW_F8_MOST_ROWS = 256, /* of a tile, a multiple of 16 or 24 from 64 on */
    FEW_F8_LEAST_X = 4,     /* stages of x */
    FEW_F8_MOST = 16,       /* of them, and units of w */
    FEW_F8_SMEM = 227 << 10
};

struct few_f8_maps {
    CUtensorMap x, w[3]; /* of codes; of words of 32 bits */
};

struct few_f8_args {
    const float *bias[3], *x_scale; /* NULL: none */
    const int32_t *live;
    void *y;
    int64_t y_stride;
    int32_t y_dtype, tokens, k, n[3];
    int32_t rows, units, x_stages; /* of a tile; of the rings */
};

/* All threads of a cluster, which have nothing to hand over but barriers, by fence_mbar_init(). */
SOP_DEV void few_f8_meet(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Behind the rings. */
struct few_f8_sides {
    uint64_t w_full[FEW_F8_MOST], w_empty[FEW_F8_MOST], x_full[FEW_F8_MOST], x_empty[FEW_F8_MOST];
    float bias[FEW_F8_MOST_ROWS];
    float x_scale[64];
    int32_t tokens; /* that live */
};

/* C columns of x, CTAs of a cluster. */
template <int C_, int CL_> struct few_f8_shape {
    enum {
        C = C_,
        CL = CL_,
        X_STAGE = C * 128,
        ROOM = FEW_F8_SMEM - (int)sizeof(few_f8_sides) /* of the rings */
    };
    /* Two units are left after the next two have come, and the last of these may wait for one more to be
     * asked for beside it. */
    static_assert((ROOM - FEW_F8_LEAST_X * X_STAGE) / (FEW_F8_MOST_ROWS * 128) >= 5,
                  "a ring turns");
};

/* Rows that a box of w has: what divides a tile's, up to 32; 8: none of use. */
static inline __host__ __device__ int few_f8_box(int rows)
{
    return rows % 32 == 0 ? 32 : rows % 24 == 0 ? 24 : rows % 16 == 0 ? 16 : 8;
}
static inline __host__ __device__ int few_f8_unit(int rows)
{
    return rows * 128;
}

/* No instruction; keeps the compiler from making x anew where it is used. */
SOP_DEV void few_f8_keep(uint32_t &x)
{
    asm volatile("" : "+r"(x));
}

/* y of the lane's row there and of that 8 behind it; own: which of them are the warpgroup's to write. */
template <typename T, int C>
SOP_DEV void few_f8_store(T *y, int64_t stride, const float (&sum)[C / 2], const bool (&own)[2],
                          const float *bias, const few_f8_sides &sides)
{
    const int tokens = sides.tokens;
    const float by[2] = {bias[0], bias[8]};
#pragma unroll
    for (int i = 0; i < C / 2; i++) {
        const int token = stream_token(i, threadIdx.x), r = i / 2 % 2;
        if (own[r] && token < tokens)
            y[token * stride + r * 8] =
                sop_from_float<T>(fmaf(sides.x_scale[token], sum[i], by[r]));
    }
}

template <typename S>
static __global__ __launch_bounds__(FEW_F8_THREADS, 1) void sop_few_f8_sm90(
    const __grid_constant__ few_f8_maps maps, const __grid_constant__ few_f8_args p)
{
    enum { C = S::C, CL = S::CL, SUMS = C / 2, X_STAGE = S::X_STAGE };
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const int unit = few_f8_unit(p.rows);
    const uint32_t base = smem_addr(smem_raw), x_at = base + p.units * unit;
    few_f8_sides *sides = (few_f8_sides *)(smem_raw + p.units * unit + p.x_stages * X_STAGE);
    const uint32_t w_full = smem_addr(sides->w_full), w_empty = smem_addr(sides->w_empty);
    const uint32_t x_full = smem_addr(sides->x_full), x_empty = smem_addr(sides->x_empty);
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int rank = CL == 1 ? 0 : blockIdx.x % CL;
    const int nk = p.k / 128, n_units = (nk * 33 + 31) / 32;
    int row = p.n[0], at = 0, j = 0; /* no rows, where a cluster has a CTA too many */
    if ((int)blockIdx.x < skinny_tiles(p.n, p.rows))
        j = skinny_part(p.n, p.rows, blockIdx.x, &row, &at);

    /* of the thread that asks for w: unit u goes to place `to` of the ring */
    int u = 0, to = 0, phase = 1;
    auto after = [&](int of) { return of + 1 == p.units ? 0 : of + 1; };
    /* two side by side stream faster, when the same rows of both come at once */
    auto side_by_side = [&] { return u % 2 == 0 && u + 1 < n_units ? 2 : 1; };
    auto ask = [&](int n) {
        const int box = few_f8_box(p.rows), next = after(to);
        mbar_expect_tx(w_full + 8 * to, unit);
        if (n == 2) mbar_expect_tx(w_full + 8 * next, unit);
        for (int r = 0; r < p.rows; r += box) {
            tma_load_2d(base + to * unit + r * 128, &maps.w[j], u * 32, row + r, w_full + 8 * to);
            if (n == 2)
                tma_load_2d(base + next * unit + r * 128, &maps.w[j], u * 32 + 32, row + r,
                            w_full + 8 * next);
        }
        for (int i = 0; i < n; i++) {
            to = after(to);
            if (to == 0) phase ^= 1;
        }
        u += n;
    };
    if (tid == 512) {
        for (int i = 0; i < p.units; i++) {
            mbar_init(w_full + 8 * i, 1);
            mbar_init(w_empty + 8 * i, 16);
        }
        for (int i = 0; i < p.x_stages; i++) {
            mbar_init(x_full + 8 * i, 1);
            mbar_init(x_empty + 8 * i, 16 * CL);
        }
        fence_mbar_init();
        grid_go();
        for (int n, i = 0; i < p.units && u < n_units; i += n) {
            n = min(side_by_side(), p.units - i);
            ask(n);
        }
    }
    __syncthreads();
    if (CL > 1) few_f8_meet(); /* the peer's barriers are there */

    if (tid >= 512) regs_dec<32>();
    if (tid == 512) {
        while (u < n_units) {
            const int n = side_by_side(), next = after(to);
            mbar_wait(w_empty + 8 * to, phase);
            if (n == 2) mbar_wait(w_empty + 8 * next, next ? phase : phase ^ 1);
            ask(n);
        }
    } else if (tid == 544) { /* not behind weights that the other asks for */
        asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.x) : "memory");
        grid_wait();
        int s = 0, x_phase = 1;
        for (int b = 0; b < nk; b++) {
            const uint32_t stage = x_at + s * X_STAGE, bar = x_full + 8 * s;
            mbar_wait(x_empty + 8 * s, x_phase);
            mbar_expect_tx(bar, X_STAGE);
            if (CL == 1)
                tma_load_2d(stage, &maps.x, b * 128, 0, bar);
            else
                tma_load_2d_multicast(stage + rank * (X_STAGE / CL), &maps.x, b * 128,
                                      rank * (C / CL), bar, (1 << CL) - 1);
            if (++s == p.x_stages) s = 0, x_phase ^= 1;
        }
        /* no CTA leaves while its peer may still arrive on its barriers */
        for (int i = 0; CL > 1 && i < p.x_stages; i++) {
            mbar_wait(x_empty + 8 * s, x_phase);
            if (++s == p.x_stages) s = 0, x_phase ^= 1;
        }
    } else if (tid >= 576) {
        const int i = tid - 576;
        grid_wait();
        sides->x_scale[i] = p.x_scale && i < p.tokens ? p.x_scale[i] : 1;
        if (i == 0) sides->tokens = (int)sop_live_rows(p.live, p.tokens);
        for (int r = i; r < p.rows; r += 64)
            sides->bias[r] = p.bias[j] && row + r < p.n[j] ? p.bias[j][row + r] : 0;
        named_sync(1, 576);
    } else if (tid < 512) {
        regs_inc<112>();
        const int wg = warp / 4, c = lane % 4;
        /* rows that the warpgroup writes; the lane's row, the other one is 8 behind it; its chunk 0 */
        const int low = wg * p.rows / 4, high = (wg + 1) * p.rows / 4;
        const int mine = min(low, p.rows - 64) + warp % 4 * 16 + lane / 4;
        uint32_t w_row = base + mine * 128 + (mine & 7) * 16;
        float acc[SUMS], part[SUMS], scale[2];
        uint32_t a[4][4];
        int s = 0, next = 1, w_phase = 0, next_phase = 0, xs = 0, x_phase = 0;
        few_f8_keep(w_row);
        grid_wait();
        /* unit s and the next one, which are there when block b is */
        auto step = [&] {
            s = next, w_phase = next_phase;
            if (++next == p.units) next = 0, next_phase ^= 1;
        };
        auto wait_block = [&](int b) {
            if (b % 32 == 0) mbar_wait(w_full + 8 * s, w_phase);
            mbar_wait(w_full + 8 * next, next_phase);
        };
        auto load_block = [&](int b) {
            const uint32_t head = b % 32, word = head + 1 + c; /* of unit s */
            const uint32_t unit0 = w_row + s * unit, unit1 = w_row + next * unit;
            uint32_t in0 = unit0 + word % 4 * 4, in1 = unit1 + word % 4 * 4, first = word / 4 * 16;
            few_f8_keep(in0), few_f8_keep(in1), few_f8_keep(first);
            auto word_at = [](uint32_t from) {
                uint32_t v;
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
                return v;
            };
            /* first: what is there when the codes are has been there as long */
            const uint32_t from = (unit0 + head % 4 * 4) ^ (head / 4 * 16);
            scale[0] = __uint_as_float(word_at(from));
            scale[1] = __uint_as_float(word_at(from + 1024));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t chunk = first + i * 16;
                const uint32_t at = (chunk & 128 ? in1 : in0) ^ (chunk & 112);
                a[i / 2][i % 2 * 2] = word_at(at);
                a[i / 2][i % 2 * 2 + 1] = word_at(at + 1024);
            }
        };
#pragma unroll
        for (int i = 0; i < SUMS; i++) acc[i] = 0;
        wait_block(0);
        load_block(0);
        for (int b = 0; b < nk; b++) {
            const float by[2] = {scale[0], scale[1]};
            const uint64_t x = desc_k_major(x_at + xs * X_STAGE);
            mbar_wait(x_full + 8 * xs, x_phase);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                stream_mma(uint8_t(), part, a[i], desc_advance(x, i * 32), i > 0);
            wgmma_commit();
            /* the units that end with the block, left when its sums are made */
            const bool two = b % 32 == 31 || b == nk - 1;
            const uint32_t left = w_empty + 8 * (lane ? next : s);
            step();
            if (two) step();
            if (b + 1 < nk) wait_block(b + 1);
            wgmma_wait<0>();
            if (lane < CL) {
                if (CL == 1)
                    mbar_arrive(x_empty + 8 * xs);
                else
                    mbar_arrive_remote(x_empty + 8 * xs, lane);
            }
            if (++xs == p.x_stages) xs = 0, x_phase ^= 1;
            if (b + 1 < nk) load_block(b + 1);
            wgmma_touch(part);
#pragma unroll
            for (int i = 0; i < SUMS; i++) acc[i] = fmaf(by[i / 2 % 2], part[i], acc[i]);
            wgmma_touch(acc);
            if (lane < 1 + two) mbar_arrive(left);
        }
        named_sync(1, 576);
        bool own[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = mine + r * 8;
            own[r] = i >= low && i < high && row + i < p.n[j];
        }
        const int64_t column = at + row + mine;
        const float *bias = sides->bias + mine;
        switch (p.y_dtype) {
        case SOP_BF16:
            few_f8_store<__nv_bfloat16, C>((__nv_bfloat16 *)p.y + column, p.y_stride, acc, own,
                                           bias, *sides);
            break;
        case SOP_F16:
            few_f8_store<__half, C>((__half *)p.y + column, p.y_stride, acc, own, bias, *sides);
            break;
        default: few_f8_store<float, C>((float *)p.y + column, p.y_stride, acc, own, bias, *sides);
        }
    }
}

#endif
