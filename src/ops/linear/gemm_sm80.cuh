/* Many tokens, by the products of a warp: y[m, n] = x[m, k] w[n, k]^T + bias in 16-bit elements, sums in f32.
 *
 * A CTA has a tile of BM x BN, each warp WM x WN of it; some stages of BK of k are on their way into shared
 * memory by cp.async: on an H200 more of them gain nothing. Rows of a stage have 64 or 128 bytes, and their
 * 16-byte pieces are swapped so that a matrix of eight rows touches every bank once. What a
 * warp multiplies next, 16 of k, is on its way into registers.
 *
 * CTAs stay: what they multiply next is sent for before sums are written. Tiles that fill all of them alike
 * are whole; those that remain may be shared, each CTA multiplying an equal part of their k. Where a tile has
 * several parts each CTA puts its sums down, and the last to arrive adds them in the order of k. */
#ifndef OPS_LINEAR_GEMM_SM80_CUH
#define OPS_LINEAR_GEMM_SM80_CUH

#include "ops/cuda/mma_at.cuh"
#include "ops/linear/gemm_tiles.cuh"

template <int BM_, int BN_, int BK_, int STAGES_, int WM_, int WN_> struct gemm80_shape {
    enum { BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, WM = WM_, WN = WN_ };
    enum { THREADS = BM / WM * (BN / WN) * 32, SUMS = WM * WN / 32 };
    enum { STAGE = (BM + BN) * BK * 2, SMEM = STAGES * STAGE };
};

struct gemm80_args {
    const int32_t *live;
    const void *x, *w[3];
    const float *bias[3]; /* NULL: none */
    void *y;
    float *partial; /* [slots][2][SUMS][THREADS] */
    int *arrived;   /* [slots], zero before and after */
    int64_t x_stride, w_stride[3], y_stride;
    int tokens, k, n[3], y_f32;
    int slots, least; /* CTAs at one time, 0: all tiles are whole; the least stages of a part */
};

/* Where piece c of 16 bytes of a stage's row lies. */
template <int BK> SOP_DEV uint32_t gemm80_at(int row, int c)
{
    return BK == 32 ? row * 64 + ((c ^ (row >> 1 & 3)) << 4) : row * 128 + ((c ^ (row & 7)) << 4);
}

/* What a CTA multiplies at a time: stages of a tile. */
struct gemm80_work {
    int row, col, j, at;  /* of x, of weight j; where that begins in y */
    int begin, n, shared; /* stages; the number among the tiles that are shared, or -1 */
};

template <typename T, typename S>
static __global__ __launch_bounds__(S::THREADS,
                                    1) void sop_gemm_sm80(const __grid_constant__ gemm80_args p)
{
    enum { BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN };
    enum { STAGES = S::STAGES, STAGE = S::STAGE, THREADS = S::THREADS, SUMS = S::SUMS };
    enum { PIECES = BK / 8, ROWS = THREADS / PIECES, LOADS = (BM + BN) / ROWS }; /* of a stage */
    enum { STEPS = BK / 16, MS = WM / 16, NS = WN / 16 };
    static_assert(BM % ROWS == 0 && BN % ROWS == 0 && STEPS % 2 == 0, "whole");
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ int last;
    const uint32_t stages = sop_shared_at(smem);
    sop_begin();
    const int m = (int)sop_live_rows(p.live, p.tokens);
    const int n_mt = (m + BM - 1) / BM, n_kt = (p.k + BK - 1) / BK;
    const int n_nt = (p.n[0] + BN - 1) / BN + (p.n[1] + BN - 1) / BN + (p.n[2] + BN - 1) / BN;

    /* whole tiles, each gridDim.x-th, and then units: stages of one or two of those that are shared */
    const int tiles = n_mt * n_nt, whole = p.slots ? tiles / p.slots * p.slots : tiles;
    const int units = (tiles - whole) * n_kt;
    const int parts = min(p.slots, max(units / p.least, tiles - whole));
    auto begin_of = [&](int i) { return (int)((int64_t)units * i / parts); };
    const bool shares = (int)blockIdx.x < parts;
    int tile = blockIdx.x, unit = shares ? begin_of(blockIdx.x) : 0;
    const int end = shares ? begin_of(blockIdx.x + 1) : 0;
    auto take = [&](gemm80_work &t) {
        int mt, nt, of = tile;
        if (tile >= whole && unit >= end) return false;
        t = {0, 0, 0, 0, 0, n_kt, -1};
        if (tile >= whole) {
            t.shared = unit / n_kt;
            t.begin = unit - t.shared * n_kt;
            t.n = min(n_kt - t.begin, end - unit);
            unit += t.n;
            of = whole + t.shared;
        }
        tile += gridDim.x;
        gemm_tile<1>(of, n_mt, n_nt, &mt, &nt);
        t.j = gemm_part<BN>(p.n, &nt, &t.at);
        t.row = mt * BM, t.col = nt * BN;
        return true;
    };

    /* this thread's pieces of a stage: every ROWS-th row, the same 16 bytes of each. Nothing is read of
     * rows that are not there: what is multiplied in their place is not written. */
    const T *x, *w;
    uint32_t there;
    int64_t w_stride;
    auto from = [&](int i) {
        return i < BM / ROWS ? x + i * ROWS * p.x_stride : w + (i * ROWS - BM) * w_stride;
    };
    const uint32_t put = stages + gemm80_at<BK>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    /* a stage, in so many turns as it has steps less one */
    auto load = [&](int slot, int turn) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (i * (STEPS - 1) / LOADS == turn)
                sop_copy_async_if_at(there & 1u << i, put + slot * STAGE + i * ROWS * BK * 2,
                                     from(i));
        if (turn == STEPS - 2) x += BK, w += BK;
    };
    /* the first stages, into all slots but the last */
    auto start = [&](const gemm80_work &t) {
        const int r0 = t.row + threadIdx.x / PIECES, c0 = threadIdx.x % PIECES * 8;
        const int r1 = t.col + threadIdx.x / PIECES;
        w_stride = p.w_stride[t.j];
        x = (const T *)p.x + r0 * p.x_stride + t.begin * BK + c0;
        w = (const T *)p.w[t.j] + r1 * w_stride + t.begin * BK + c0;
        there = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (i < BM / ROWS ? r0 + i * ROWS < m : r1 + i * ROWS - BM < p.n[t.j]) there |= 1u << i;
        /* the last block of k, of which there may be a part only, is the first to be multiplied */
        const int left = p.k - (t.begin + t.n - 1) * BK - c0;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            sop_copy_async_at(put + i * ROWS * BK * 2, from(i) + (t.n - 1) * BK,
                              there >> i & 1 ? max(0, min(16, left * 2)) : 0);
        sop_copy_commit();
#pragma unroll
        for (int s = 1; s < STAGES - 1; s++) {
#pragma unroll
            for (int turn = 0; turn < STEPS - 1; turn++)
                if (s < t.n) load(s, turn);
            sop_copy_commit();
        }
    };

    gemm80_work now, next;
    bool more = take(now);
    if (more) start(now);
    for (; more; now = next) {
        float d[MS][WN / 8][4] = {};
        uint32_t fa[2][MS][4], fb[2][NS][4]; /* of a step of 16 k, and of the next */
        const int lane = threadIdx.x % 32, wm = threadIdx.x / 32 / (BN / WN) * WM;
        const int wn = threadIdx.x / 32 % (BN / WN) * WN;
        const uint32_t a0 = stages + gemm80_at<BK>(wm + lane % 16, lane / 16);
        const uint32_t b0 =
            stages + gemm80_at<BK>(BM + wn + lane / 16 * 8 + lane % 8, lane / 8 % 2);
        auto fetch = [&](int slot, int step, int to) {
#pragma unroll
            for (int i = 0; i < MS; i++)
                sop_matrices_at(fa[to][i], (a0 + slot * STAGE ^ step * 32) + i * 16 * BK * 2);
#pragma unroll
            for (int i = 0; i < NS; i++)
                sop_matrices_at(fb[to][i], (b0 + slot * STAGE ^ step * 32) + i * 16 * BK * 2);
        };
        sop_copy_wait<STAGES - 2>();
        __syncthreads();
        fetch(0, 0, 0);
        int slot = 0, into = STAGES - 1;
        for (int kb = 0; kb < now.n; kb++) {
            const int after = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                if (step == STEPS - 1) { /* stage kb + 1 is there, and all have read stage kb */
                    sop_copy_wait<STAGES - 2>();
                    __syncthreads();
                    fetch(after, 0, 0);
                } else { /* a part of stage kb + STAGES - 1 */
                    if (kb + STAGES - 1 < now.n) load(into, step);
                    if (step == STEPS - 2) sop_copy_commit();
                    fetch(slot, step + 1, step + 1 & 1);
                }
#pragma unroll
                for (int c = 0; c < NS; c++) {
                    const uint32_t *f = fb[step & 1][c], lo[2] = {f[0], f[1]}, hi[2] = {f[2], f[3]};
#pragma unroll
                    for (int i = 0; i < MS; i++) {
                        sop_mma(T(), d[i][2 * c], fa[step & 1][i], lo);
                        sop_mma(T(), d[i][2 * c + 1], fa[step & 1][i], hi);
                    }
                }
            }
            slot = after;
            if (++into == STAGES) into = 0;
        }
        sop_copy_wait<0>();
        __syncthreads();
        more = take(next);
        if (more) start(next);

        /* the thread's number again, so that nothing of what follows takes registers before */
        int me;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me));
        const int by = me % 32, wr = me / 32 / (BN / WN) * WM, wc = me / 32 % (BN / WN) * WN;
        if (now.n < n_kt) {
            auto part_of = [&](int u) { return (int)(((int64_t)(u + 1) * parts - 1) / units); };
            const int first = part_of(now.shared * n_kt);
            const int n_parts = part_of(now.shared * n_kt + n_kt - 1) - first + 1;
            auto sums_of = [&](int i) {
                const bool second = begin_of(i) < now.shared * n_kt;
                return p.partial + (int64_t)(i * 2 + second) * SUMS * THREADS + me * 4;
            };
            float *mine = sums_of(blockIdx.x);
#pragma unroll
            for (int i = 0; i < SUMS / 4; i++) {
                const float *e = d[i / (WN / 8)][i % (WN / 8)];
                __stcg((float4 *)(mine + i * 4 * THREADS), make_float4(e[0], e[1], e[2], e[3]));
            }
            __threadfence();
            __syncthreads();
            if (me == 0) {
                last = atomicAdd(p.arrived + now.shared, 1) == n_parts - 1;
                if (last) p.arrived[now.shared] = 0;
            }
            __syncthreads();
            if (!last) continue;
            __threadfence();
            /* of two parts the sum is the same whichever is here; more are added in the order of k */
#pragma unroll
            for (int i = 0; i < SUMS; i++)
                if (n_parts > 2) d[i / 4 / (WN / 8)][i / 4 % (WN / 8)][i % 4] = 0;
            for (int q = first; q < first + n_parts; q++) {
                if (n_parts == 2 && q == (int)blockIdx.x) continue;
                const float *theirs = sums_of(q);
#pragma unroll
                for (int i = 0; i < SUMS / 4; i++) {
                    const float4 v = __ldcg((const float4 *)(theirs + i * 4 * THREADS));
                    float(&e)[4] = d[i / (WN / 8)][i % (WN / 8)];
                    e[0] += v.x, e[1] += v.y, e[2] += v.z, e[3] += v.w;
                }
            }
        }
        /* 16 rows of each warp at a time through shared memory, to be written 16 bytes a lane */
        enum { PITCH = WN + 8, ACROSS = WN / 8 };
        static_assert(THREADS / 32 * 16 * PITCH * 2 <= STAGE, "the last slot holds the rows");
        const int n = p.n[now.j];
        T *const out = (T *)(smem + (STAGES - 1) * STAGE) + me / 32 * 16 * PITCH;
#pragma unroll
        for (int i = 0; i < MS; i++) {
            const int r = now.row + wr + i * 16;
#pragma unroll
            for (int c = 0; c < WN / 8; c++) {
                const int own = c * 8 + by % 4 * 2, col = now.col + wc + own;
                float(&e)[4] = d[i][c];
                if (p.bias[now.j] && col < n) {
                    const float b0 = p.bias[now.j][col], b1 = p.bias[now.j][col + 1];
                    e[0] += b0, e[1] += b1, e[2] += b0, e[3] += b1;
                }
                if (!p.y_f32) {
                    T *to = out + by / 4 * PITCH + own;
                    *(uint32_t *)to = sop_pack<T>(e[0], e[1]);
                    *(uint32_t *)(to + 8 * PITCH) = sop_pack<T>(e[2], e[3]);
                } else if (col < n) { /* 32 bytes of a row at a time */
                    float *y = (float *)p.y + (r + by / 4) * p.y_stride + now.at + col;
                    if (r + by / 4 < m) *(float2 *)y = make_float2(e[0], e[1]);
                    if (r + by / 4 + 8 < m)
                        *(float2 *)(y + 8 * p.y_stride) = make_float2(e[2], e[3]);
                }
            }
            if (p.y_f32) continue;
            __syncwarp();
#pragma unroll
            for (int q = 0; q < ACROSS / 2; q++) {
                const int row = (q * 32 + by) / ACROSS, c = (q * 32 + by) % ACROSS * 8;
                if (r + row < m && now.col + wc + c < n)
                    *(uint4 *)((T *)p.y + (r + row) * p.y_stride + now.at + now.col + wc + c) =
                        *(const uint4 *)(out + row * PITCH + c);
            }
            __syncwarp();
        }
    }
}

#endif
