/* Many tokens of codes: y[m, n] = x_scale[m] * x[m, k] w[n, k]^T + bias, x and w in e4m3, w in blocks of 128
 * columns behind a scale each (f8_128).
 *
 * Rows of w are the rows of the products, so that a lane has two scales for all of its sums of a block:
 * part[64 rows, 64 tokens] = 128 columns of codes times codes, then acc += scale * part in f32, as the tensor
 * cores' own sums of codes are short. Each of two warpgroups does 64 rows of a tile, PARTS times 64 tokens;
 * while one part is scaled, the next one is multiplied.
 *
 *     a block of w in memory    [scale | 128 codes] = 33 words, 132 bytes from block to block
 *     a row of w in a stage     36 words from the last multiple of 16 bytes on, where boxes have to begin
 *
 * So codes of w lie anywhere and become operands by way of registers, a word a load: words of 8 rows that
 * are 36 apart lie in 32 banks. Those of the next block are loaded while the last part of this one is scaled.
 *
 * Persistent, one CTA a multiprocessor, 384 threads: one thread of warpgroup 0 loads by TMA. The CTAs of a
 * cluster of 2 have neighbouring rows and the same tokens: each loads half of the x tile for both. What lies
 * beyond k, n and the tokens is 0, tokens beyond the live ones are not written. */
#ifndef OPS_LINEAR_GEMM_F8_SM90_CUH
#define OPS_LINEAR_GEMM_F8_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/linear/gemm_tiles.cuh"

enum {
    F8_THREADS = 384,
    F8_ROWS = 128,
    F8_PIECE = 32, /* tokens of y that leave at a time */
    F8_PITCH = 36  /* words from row to row of a stage */
};

/* PARTS parts of 64 tokens. */
template <int PARTS> struct f8_tile {
    enum {
        TOKENS = 64 * PARTS,
        X_STAGE = TOKENS * 128,
        W_STAGE = F8_ROWS * F8_PITCH * 4,
        OUT = 4 * F8_PIECE * 128,  /* 2 pieces a warpgroup */
        SIDES = (64 + TOKENS) * 4, /* of a warpgroup: biases, scales of tokens */
        STAGES = (232448 - OUT - 2 * SIDES) / (X_STAGE + W_STAGE + 16),
        BYTES = STAGES * (X_STAGE + W_STAGE + 16) + OUT + 2 * SIDES
    };
};

struct f8_maps {
    CUtensorMap x, w[3];
};

struct f8_args {
    const float *bias[3], *x_scale; /* NULL: none */
    const int32_t *live;
    void *y;
    int64_t y_stride;
    int32_t first, tokens, k, n[3]; /* tokens from first on, up to tokens */
};

// clang-format off
/* d[64, 64] = a b^T + (add ? d : 0), 32 columns of codes: a in registers, b K-major in shared memory. */
SOP_DEV void f8_mma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" R32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : F32(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// clang-format on

/* 4 bytes into shared memory, there after copies_wait(). */
SOP_DEV void copy_word(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
SOP_DEV void copies_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
SOP_DEV float shared_float(uint32_t at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
SOP_DEV void shared_floats(uint32_t at, float &a, float &b)
{
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(at) : "memory");
}
SOP_DEV uint4 shared_words(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
/* Four 8 x 8 tiles in accumulator layout, turned: lane l has the address of column l % 8 of tile l / 8. */
SOP_DEV void stmatrix_turned_x4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}
static __device__ const float f8_none[2] = {0, 1}; /* bias and scale where there is none */

/* What a warpgroup's sums of 64 rows from `row` on and 64 tokens from token0 on become; y: of those rows, n
 * of them in all; bias: of them, x_scale: of the tokens, out: two pieces, all in shared memory. */
template <typename T>
SOP_DEV void f8_store(T *y, int64_t y_stride, float (&d)[32], int n, int token0, int m,
                      uint32_t bias, uint32_t x_scale, uint32_t out)
{
    const int tid = threadIdx.x % 128, warp = tid / 32, lane = tid % 32, w = threadIdx.x / 128 - 1;
    const float b0 = shared_float(bias + (warp * 16 + lane / 4) * 4);
    const float b1 = shared_float(bias + (warp * 16 + lane / 4 + 8) * 4);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float s0, s1;
        shared_floats(x_scale + (8 * i + lane % 4 * 2) * 4, s0, s1);
        d[4 * i] = fmaf(s0, d[4 * i], b0), d[4 * i + 1] = fmaf(s1, d[4 * i + 1], b0);
        d[4 * i + 2] = fmaf(s0, d[4 * i + 2], b1), d[4 * i + 3] = fmaf(s1, d[4 * i + 3], b1);
    }
    if constexpr (sizeof(T) == 4) { /* 32 bytes of a token at a time */
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int r = warp * 16 + lane / 4 + i / 2 % 2 * 8;
            const int t = token0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (r < n && t < m) y[t * y_stride + r] = d[i];
        }
    } else { /* 128 bytes of a token at a time, in pieces of 32 tokens */
        const int c = tid % 8, from = tid / 8;
        T *to = y + (token0 + from) * y_stride + c * 8;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const uint32_t buf = out + q * F8_PIECE * 128;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = d + q * 16 + i * 8;
                const int t = i * 16 + lane / 16 * 8 + lane % 8, at = warp * 2 + lane / 8 % 2;
                stmatrix_turned_x4(buf + t * 128 + ((at ^ (t & 7)) << 4), sop_pack<T>(x[0], x[1]),
                                   sop_pack<T>(x[2], x[3]), sop_pack<T>(x[4], x[5]),
                                   sop_pack<T>(x[6], x[7]));
            }
            named_sync(1 + w, 128);
#pragma unroll
            for (int i = 0; i < 2; i++, to += 16 * y_stride) {
                const int t = i * 16 + from;
                if (token0 + q * F8_PIECE + t < m && c * 8 < n)
                    *(uint4 *)to = shared_words(buf + t * 128 + ((c ^ (t & 7)) << 4));
            }
        }
    }
}

/* A block of codes of the lane's rows g (0) and g + 8 (1) for 4 products, and scales. */
SOP_DEV void f8_load(uint32_t at, uint32_t (&a)[4][4], float (&scale)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            a[i][e] = __float_as_uint(shared_float(
                at + (e % 2 * 8 * F8_PITCH + 1 + 8 * i + e / 2 * 4 + threadIdx.x % 4) * 4));
    scale[0] = shared_float(at), scale[1] = shared_float(at + 8 * F8_PITCH * 4);
}

template <int PARTS, int CL, typename T>
static __global__ __launch_bounds__(F8_THREADS,
                                    1) void sop_gemm_f8_sm90(const __grid_constant__ f8_maps maps,
                                                             const __grid_constant__ f8_args p)
{
    typedef f8_tile<PARTS> S;
    enum {
        STAGES = S::STAGES,
        TOKENS = S::TOKENS,
        ROWS = F8_ROWS * CL, /* of a cluster */
        N = 64               /* tokens of a part */
    };
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const uint32_t base = smem_addr(smem_raw); /* x of all stages, y, w of all stages, sides */
    const uint32_t out = base + STAGES * S::X_STAGE, w_base = out + S::OUT;
    const uint32_t sides = w_base + STAGES * S::W_STAGE;
    const uint32_t full = sides + 2 * S::SIDES, empty = full + STAGES * 8;
    const int wg = threadIdx.x / 128, rank = CL == 1 ? 0 : blockIdx.x % CL;
    const int nk = p.k / 128;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 * CL); /* one arrival per consumer warp per CTA */
        }
        fence_mbar_init();
    }
    __syncthreads();
    if (CL > 1) cluster_sync(); /* no remote arrival before the peer's barriers exist */
    sop_begin();
    const int m = (int)sop_live_rows(p.live, p.tokens),
              n_mp = (max(m - p.first, 0) + TOKENS - 1) / TOKENS;
    const int n_nt =
        (p.n[0] + ROWS - 1) / ROWS + (p.n[1] + ROWS - 1) / ROWS + (p.n[2] + ROWS - 1) / ROWS;
    const int n_tiles = n_mp * n_nt;

    if (wg == 0) {
        regs_dec<40>();
        if (threadIdx.x == 0) {
            int s = 0, phase = 1;
            for (int t = blockIdx.x / CL; t < n_tiles; t += gridDim.x / CL) {
                int mp, nt, at;
                gemm_tile<1>(t, n_mp, n_nt, &mp, &nt);
                const CUtensorMap *map_w = &maps.w[gemm_part<ROWS>(p.n, &nt, &at)];
                const int row = nt * ROWS + rank * F8_ROWS, token = p.first + mp * TOKENS;
                for (int kb = 0; kb < nk; kb++) {
                    const uint32_t x = base + s * S::X_STAGE, bar = full + 8 * s;
                    mbar_wait(empty + 8 * s, phase);
                    mbar_expect_tx(bar, S::X_STAGE + S::W_STAGE);
                    tma_load_2d(w_base + s * S::W_STAGE, map_w, kb * 33 & ~3, row, bar);
                    if (CL == 1)
                        tma_load_2d(x, &maps.x, kb * 128, token, bar);
                    else
                        tma_load_2d_multicast(x + rank * (S::X_STAGE / CL), &maps.x, kb * 128,
                                              token + rank * (TOKENS / CL), bar, (1 << CL) - 1);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
    } else {
        regs_inc<232>();
        const int w = wg - 1, tid = threadIdx.x % 128, lane = tid % 32;
        const uint32_t bias = sides + w * S::SIDES, x_scale = bias + 64 * 4;
        const uint32_t mine =
            w_base + (w * 64 + tid / 32 * 16 + lane / 4) * F8_PITCH * 4; /* first row */
        float acc[PARTS][N / 2], part[2][N / 2], scale[2];
        uint32_t a[4][4];
        int s = 0, phase = 0;
        auto settle = [&](float(&sum)[N / 2], float(&of)[N / 2], const float(&by)[2]) {
            wgmma_touch(of);
#pragma unroll
            for (int i = 0; i < N / 2; i++) sum[i] = fmaf(by[i / 2 % 2], of[i], sum[i]);
        };
        if ((int)blockIdx.x / CL < n_tiles) {
            mbar_wait(full, 0);
            f8_load(mine, a, scale);
        }
        for (int t = blockIdx.x / CL; t < n_tiles; t += gridDim.x / CL) {
            int mp, nt, at;
            gemm_tile<1>(t, n_mp, n_nt, &mp, &nt);
            const int j = gemm_part<ROWS>(p.n, &nt, &at), token = p.first + mp * TOKENS;
            const int row = nt * ROWS + rank * F8_ROWS + w * 64;
            const bool last = t + (int)gridDim.x / CL >= n_tiles;
            named_sync(1 + w, 128); /* all have read the sides of the tile before */
            for (int i = tid; i < 64; i += 128)
                copy_word(bias + i * 4, p.bias[j] ? p.bias[j] + min(row + i, p.n[j] - 1) : f8_none);
            for (int i = tid; i < TOKENS; i += 128)
                copy_word(x_scale + i * 4,
                          p.x_scale ? p.x_scale + min(token + i, m - 1) : f8_none + 1);
#pragma unroll
            for (int q = 0; q < PARTS; q++)
#pragma unroll
                for (int i = 0; i < N / 2; i++) acc[q][i] = 0;
            for (int kb = 0; kb < nk; kb++) {
                const uint64_t db = desc_k_major(base + s * S::X_STAGE);
                const int next = s + 1 == STAGES ? 0 : s + 1;
                const float before[2] = {scale[0], scale[1]};
#pragma unroll
                for (int q = 0; q < PARTS; q++) {
                    wgmma_fence();
#pragma unroll
                    for (int kk = 0; kk < 4; kk++)
                        f8_mma(part[q % 2], a[kk], desc_advance(db, q * N * 128 + 32 * kk), kk > 0);
                    wgmma_commit();
                    if (q == 0) continue;
                    wgmma_wait<1>();
                    settle(acc[q - 1], part[(q - 1) % 2], before);
                }
                const bool more = !last || kb + 1 < nk;
                if (more) mbar_wait(full + 8 * next, next ? phase : phase ^ 1);
                wgmma_wait<0>();
                if (more)
                    f8_load(mine + next * S::W_STAGE + (kb + 1 < nk ? (kb + 1) & 3 : 0) * 4, a,
                            scale);
                settle(acc[PARTS - 1], part[(PARTS - 1) % 2], before);
                /* the scales have gone into sums: the stage is free */
                asm volatile("" : "+f"(acc[PARTS - 1][0]), "+f"(acc[PARTS - 1][2])::"memory");
                if (CL == 1) {
                    if (lane == 0) mbar_arrive(empty + 8 * s);
                } else if (lane < CL) {
                    mbar_arrive_remote(empty + 8 * s, lane);
                }
                s = next;
                if (s == 0) phase ^= 1;
            }
            copies_wait();
            named_sync(1 + w, 128);
#pragma unroll
            for (int q = 0; q < PARTS; q++)
                f8_store((T *)p.y + at + row, p.y_stride, acc[q], p.n[j] - row, token + q * N, m,
                         bias, x_scale + q * N * 4, out + w * 2 * F8_PIECE * 128);
        }
    }
    __syncwarp();
    if (CL > 1) cluster_sync(); /* no CTA leaves while its peer may still arrive on its barriers */
}

#endif
