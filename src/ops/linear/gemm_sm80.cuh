/* Many tokens, by the products of a warp: y[m, n] = x[m, k] w[n, k]^T + bias in 16-bit elements, sums in f32.
 *
 * A CTA of 8 warps, two along m and four along n, has a tile of BM x BN; four stages of 32 k are on their
 * way into shared memory by cp.async. Rows of a stage have 64 bytes, and their 16-byte pieces are swapped
 * so that a matrix of eight rows touches every bank once. Zeros stand for what is beyond k, n and the live
 * rows. */
#ifndef OPS_LINEAR_GEMM_SM80_CUH
#define OPS_LINEAR_GEMM_SM80_CUH

#include "ops/cuda/mma.cuh"
#include "ops/linear/gemm_tiles.cuh"

enum { GEMM80_BK = 32, GEMM80_STAGES = 4, GEMM80_THREADS = 256 };

template <int BM, int BN> struct gemm80_smem {
    enum { stage = (BM + BN) * GEMM80_BK * 2, bytes = GEMM80_STAGES * stage };
};

struct gemm80_args {
    const int32_t *live;
    const void *x, *w[3];
    const float *bias[3]; /* NULL: none */
    void *y;
    int64_t x_stride, w_stride[3], y_stride;
    int tokens, k, n[3], y_f32;
};

/* Where piece c of 16 bytes of a stage's row lies. */
SOP_DEV uint32_t gemm80_at(int row, int c)
{
    return row * 64 + ((c ^ (row >> 1 & 3)) << 4);
}

template <typename T, int BM, int BN>
static __global__ __launch_bounds__(GEMM80_THREADS, BM *BN > 128 * 128 ? 1 : 2) void sop_gemm_sm80(
    const __grid_constant__ gemm80_args p)
{
    enum { STAGES = GEMM80_STAGES, BK = GEMM80_BK, STAGE = gemm80_smem<BM, BN>::stage };
    enum { WM = BM / 2, WN = BN / 4, LOADS = (BM + BN) / 64 }; /* of a warp; of a thread a stage */
    extern __shared__ __align__(128) uint8_t smem[];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int wm = warp / 4 * WM, wn = warp % 4 * WN;
    sop_begin();
    const int m = (int)sop_live_rows(p.live, p.tokens);
    const int n_mt = (m + BM - 1) / BM;
    const int n_nt = (p.n[0] + BN - 1) / BN + (p.n[1] + BN - 1) / BN + (p.n[2] + BN - 1) / BN;
    if ((int)blockIdx.x >= n_mt * n_nt) return;
    int mt, nt, at;
    gemm_tile<1>(blockIdx.x, n_mt, n_nt, &mt, &nt);
    const int j = gemm_part<BN>(p.n, &nt, &at), n = p.n[j], row0 = mt * BM, col0 = nt * BN;

    /* this thread's pieces of a stage: every 64th row, the same 16 bytes of each */
    const int r0 = tid / 4, c0 = tid % 4;
    const T *const x0 = (const T *)p.x + (row0 + r0) * p.x_stride + c0 * 8;
    const T *const w0 = (const T *)p.w[j] + (col0 + r0) * p.w_stride[j] + c0 * 8;
    auto load = [&](int kb) {
        uint8_t *to = smem + kb % STAGES * STAGE;
        const int bytes = max(0, min(16, (p.k - kb * BK - c0 * 8) * 2));
#pragma unroll
        for (int i = 0; i < LOADS; i++) { /* nothing is read of what is not there */
            const bool of_x = i < BM / 64;
            const int r = of_x ? i * 64 : i * 64 - BM;
            const T *from = of_x ? x0 + r * p.x_stride : w0 + r * p.w_stride[j];
            const bool there = of_x ? row0 + r + r0 < m : col0 + r + r0 < n;
            sop_copy_async(to + gemm80_at(i * 64 + r0, c0), from + kb * BK, there ? bytes : 0);
        }
    };

    float d[WM / 16][WN / 8][4] = {};
    uint32_t fa[2][WM / 16][4], fb[2][WN / 8][2]; /* of a step of 16 k, and of the next */
    auto fetch = [&](int kb, int kk, int to) {
        const uint8_t *a = smem + kb % STAGES * STAGE, *b = a + BM * BK * 2;
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
            sop_matrices(fa[to][i], a + gemm80_at(wm + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < WN / 16; i++) {
            uint32_t x[4];
            const int r = wn + i * 16 + lane / 16 * 8 + lane % 8;
            sop_matrices(x, b + gemm80_at(r, kk * 2 + lane / 8 % 2));
            fb[to][2 * i][0] = x[0], fb[to][2 * i][1] = x[1];
            fb[to][2 * i + 1][0] = x[2], fb[to][2 * i + 1][1] = x[3];
        }
    };
    auto multiply = [&](int from) {
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int c = 0; c < WN / 8; c++) sop_mma(T(), d[i][c], fa[from][i], fb[from][c]);
    };
    const int nk = (p.k + BK - 1) / BK;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < nk) load(s);
        sop_copy_commit();
    }
    /* one CTA of large tiles reads ahead what it multiplies next; two of small ones wait in turns */
    enum { AHEAD = BM * BN > 128 * 128 };
    sop_copy_wait<STAGES - 2>();
    __syncthreads();
    if (AHEAD) fetch(0, 0, 0);
    for (int kb = 0; kb < nk; kb++) {
        if (!AHEAD) fetch(kb, 0, 0);
        if (AHEAD) fetch(kb, 1, 1);
        if (kb + STAGES - 1 < nk) load(kb + STAGES - 1); /* where all have read stage kb - 1 */
        sop_copy_commit();
        multiply(0);
        if (!AHEAD) fetch(kb, 1, 0), multiply(0);
        sop_copy_wait<STAGES - 2>();
        __syncthreads(); /* stage kb + 1 is there */
        if (AHEAD && kb + 1 < nk) fetch(kb + 1, 0, 0);
        if (AHEAD) multiply(1);
    }

    if (p.bias[j]) {
#pragma unroll
        for (int c = 0; c < WN / 8; c++) {
            const int col = col0 + wn + c * 8 + lane % 4 * 2;
            if (col >= n) continue;
            const float b0 = p.bias[j][col], b1 = p.bias[j][col + 1];
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
                d[i][c][0] += b0, d[i][c][1] += b1;
                d[i][c][2] += b0, d[i][c][3] += b1;
            }
        }
    }
    if (p.y_f32) { /* 32 bytes of a row at a time */
        float *y = (float *)p.y + at;
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int c = 0; c < WN / 8; c++) {
                const int r = row0 + wm + i * 16 + lane / 4, col = col0 + wn + c * 8 + lane % 4 * 2;
                if (col >= n) continue;
                if (r < m)
                    *(float2 *)(y + r * p.y_stride + col) = make_float2(d[i][c][0], d[i][c][1]);
                if (r + 8 < m)
                    *(float2 *)(y + (r + 8) * p.y_stride + col) =
                        make_float2(d[i][c][2], d[i][c][3]);
            }
        return;
    }
    /* through shared memory, so that rows are written 16 bytes a lane */
    enum { PITCH = WN + 8 };
    static_assert(8 * WM * PITCH * 2 <= gemm80_smem<BM, BN>::bytes, "the stages hold the result");
    sop_copy_wait<0>();
    __syncthreads();
    T *out = (T *)smem + warp * WM * PITCH;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int c = 0; c < WN / 8; c++) {
            T *to = out + (i * 16 + lane / 4) * PITCH + c * 8 + lane % 4 * 2;
            *(uint32_t *)to = sop_pack<T>(d[i][c][0], d[i][c][1]);
            *(uint32_t *)(to + 8 * PITCH) = sop_pack<T>(d[i][c][2], d[i][c][3]);
        }
    __syncwarp();
    enum { PIECES = WN / 8, ROWS = 32 / PIECES };
#pragma unroll
    for (int i = 0; i < WM / ROWS; i++) {
        const int r = i * ROWS + lane / PIECES, c = lane % PIECES * 8;
        if (row0 + wm + r < m && col0 + wn + c < n)
            *(uint4 *)((T *)p.y + (int64_t)(row0 + wm + r) * p.y_stride + at + col0 + wn + c) =
                *(const uint4 *)(out + r * PITCH + c);
    }
}

#endif
