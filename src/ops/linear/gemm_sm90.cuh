/* Many tokens: y[m, n] = x[m, k] w[n, k]^T + bias in 16-bit elements, sums in f32.
 *
 * Persistent, one CTA a multiprocessor, 384 threads: warpgroup 0 loads by TMA into a ring of 4 to 8
 * stages of 64 k, warpgroups 1 and 2 each own 64 rows of the 128 x BN tile. In a cluster of 2 the CTAs
 * take neighbouring row tiles of the same columns: each loads half of the w tile for both. TMA reads 0
 * beyond k, n and the bound of m; rows beyond the live ones are not written. */
#ifndef OPS_LINEAR_GEMM_SM90_CUH
#define OPS_LINEAR_GEMM_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/linear/gemm_tiles.cuh"

enum { GEMM_BM = 128, GEMM_BK = 64, GEMM_THREADS = 384 };

template <int BN> struct gemm_smem {
    enum {
        stage = (GEMM_BM + BN) * GEMM_BK * 2,
        stages = 4 * 49152 / stage, /* 4 of 128 x 256, 8 of 128 x 64 */
        bytes = 1024 + stages * stage + 4 * 8192 + 2 * stages * 8
    };
};

struct gemm_maps {
    CUtensorMap x, w[3], y[3]; /* y: not of f32 */
};

struct gemm_args {
    const int32_t *live;
    const float *bias[3]; /* NULL: none */
    void *y;
    int64_t y_stride;
    int tokens, k, n[3], y_f32;
};

template <typename T, int BN, int CL>
static __global__ __launch_bounds__(GEMM_THREADS,
                                    1) void sop_gemm_sm90(const __grid_constant__ gemm_maps maps,
                                                          const __grid_constant__ gemm_args p)
{
    enum { STAGES = gemm_smem<BN>::stages };
    extern __shared__ uint8_t smem_raw[];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t stage_y = base + STAGES * gemm_smem<BN>::stage;
    const uint32_t full = stage_y + 4 * 8192, empty = full + STAGES * 8;
    const int wg = threadIdx.x / 128, nk = (p.k + GEMM_BK - 1) / GEMM_BK;
    const int rank = CL == 1 ? 0 : blockIdx.x % CL;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 * CL); /* one arrival per consumer warp per CTA */
        }
        fence_mbar_init();
    }
    sop_begin();
    const int m = (int)sop_live_rows(p.live, p.tokens);
    const int n_mp = ((m + GEMM_BM - 1) / GEMM_BM + CL - 1) / CL;
    const int n_nt = (p.n[0] + BN - 1) / BN + (p.n[1] + BN - 1) / BN + (p.n[2] + BN - 1) / BN;
    const int n_tiles = n_mp * n_nt;
    __syncthreads();
    if (CL > 1) cluster_sync(); /* no remote arrival before the peer's barriers exist */

    if (wg == 0) {
        regs_dec<40>();
        if (threadIdx.x == 0) {
            int it = 0;
            for (int t = blockIdx.x / CL; t < n_tiles; t += gridDim.x / CL) {
                int mp, nt, at;
                gemm_tile<CL>(t, n_mp, n_nt, &mp, &nt);
                const CUtensorMap *map_w = &maps.w[gemm_part<BN>(p.n, &nt, &at)];
                const int row = (mp * CL + rank) * GEMM_BM;
                for (int kb = 0; kb < nk; kb++, it++) {
                    const int s = it % STAGES;
                    const uint32_t a = base + s * gemm_smem<BN>::stage;
                    const uint32_t b = a + GEMM_BM * GEMM_BK * 2;
                    mbar_wait(empty + 8 * s, ((it / STAGES) & 1) ^ 1);
                    mbar_expect_tx(full + 8 * s, gemm_smem<BN>::stage);
                    tma_load_2d(a, &maps.x, kb * GEMM_BK, row, full + 8 * s);
                    if (CL == 1)
                        tma_load_2d(b, map_w, kb * GEMM_BK, nt * BN, full + 8 * s);
                    else
                        tma_load_2d_multicast(b + rank * (BN / CL) * GEMM_BK * 2, map_w,
                                              kb * GEMM_BK, nt * BN + rank * (BN / CL),
                                              full + 8 * s, (1 << CL) - 1);
                }
            }
        }
    } else {
        regs_inc<232>();
        const int w = wg - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float d[BN / 2];
        int it = 0;
        for (int t = blockIdx.x / CL; t < n_tiles; t += gridDim.x / CL) {
            int mp, nt, at;
            gemm_tile<CL>(t, n_mp, n_nt, &mp, &nt);
            const int j = gemm_part<BN>(p.n, &nt, &at);
            for (int kb = 0; kb < nk; kb++, it++) {
                const int s = it % STAGES;
                const uint32_t a = base + s * gemm_smem<BN>::stage;
                const uint64_t da = desc_k_major(a + w * 64 * 128);
                const uint64_t db = desc_k_major(a + GEMM_BM * GEMM_BK * 2);
                mbar_wait(full + 8 * s, (it / STAGES) & 1);
                wgmma_fence();
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    wgmma<T>::ss(d, desc_advance(da, 32 * kk), desc_advance(db, 32 * kk),
                                 kb > 0 || kk > 0);
                wgmma_commit();
                if (kb > 0) {
                    wgmma_wait<1>(); /* the block before is done: its stage is free */
                    if (CL == 1) {
                        if (lane == 0) mbar_arrive(empty + 8 * ((it - 1) % STAGES));
                    } else if (lane < CL) {
                        mbar_arrive_remote(empty + 8 * ((it - 1) % STAGES), lane);
                    }
                }
            }
            wgmma_wait<0>();
            wgmma_touch(d);
            if (CL == 1) {
                if (lane == 0) mbar_arrive(empty + 8 * ((it - 1) % STAGES));
            } else if (lane < CL) {
                mbar_arrive_remote(empty + 8 * ((it - 1) % STAGES), lane);
            }

            const int row = (mp * CL + rank) * GEMM_BM + w * 64, n = p.n[j];
            if (p.bias[j]) {
#pragma unroll
                for (int i = 0; i < BN / 8; i++) {
                    const int c = nt * BN + 8 * i + lane % 4 * 2;
                    if (c >= n) continue;
                    const float b0 = p.bias[j][c], b1 = p.bias[j][c + 1];
                    d[4 * i] += b0, d[4 * i + 1] += b1;
                    d[4 * i + 2] += b0, d[4 * i + 3] += b1;
                }
            }
            if (p.y_f32) { /* 32 bytes of a row at a time */
                float *y = (float *)p.y + at;
#pragma unroll
                for (int i = 0; i < BN / 8; i++) {
                    const int c = nt * BN + 8 * i + lane % 4 * 2, r = row + warp * 16 + lane / 4;
                    if (c >= n) continue;
                    if (r < m)
                        *(float2 *)(y + r * p.y_stride + c) = make_float2(d[4 * i], d[4 * i + 1]);
                    if (r + 8 < m)
                        *(float2 *)(y + (r + 8) * p.y_stride + c) =
                            make_float2(d[4 * i + 2], d[4 * i + 3]);
                }
                continue;
            }
            /* 64 x 64 pieces through two buffers per warpgroup; TMA clips what is past n */
            const bool whole = row + 64 <= m;
            if (row >= m) continue;
#pragma unroll
            for (int q = 0; q < (BN + 63) / 64; q++) {
                enum { LAST = BN % 64 ? BN % 64 : 64 }; /* columns of the last piece */
                const int width = q == (BN - 1) / 64 ? LAST : 64;
                const uint32_t buf = stage_y + (w * 2 + q % 2) * 8192;
                if (threadIdx.x % 128 == 0) tma_store_wait_read<1>();
                named_sync(1 + w, 128);
#pragma unroll
                for (int i = 0; i < width / 16; i++) {
                    const float *x = d + q * 32 + i * 8;
                    const int r = warp * 16 + lane % 16, c = i * 2 + lane / 16;
                    stmatrix_x4(buf + r * 128 + ((c ^ (r & 7)) << 4), sop_pack<T>(x[0], x[1]),
                                sop_pack<T>(x[2], x[3]), sop_pack<T>(x[4], x[5]),
                                sop_pack<T>(x[6], x[7]));
                }
                if (whole && width == 64) {
                    fence_async();
                    named_sync(1 + w, 128);
                    if (threadIdx.x % 128 == 0) {
                        tma_store_2d(&maps.y[j], buf, nt * BN + q * 64, row);
                        tma_store_commit();
                    }
                    continue;
                }
                named_sync(1 + w, 128);
                const uint8_t *from = smem_raw + (buf - smem_addr(smem_raw));
#pragma unroll
                for (int i = 0; i < 4; i++) { /* rows that are live, 8 columns a thread */
                    const int r = i * 16 + threadIdx.x % 128 / 8, c = threadIdx.x % 8;
                    const int column = nt * BN + q * 64 + c * 8;
                    if (row + r < m && column < n && c * 8 < width)
                        *(uint4 *)((T *)p.y + (row + r) * p.y_stride + at + column) =
                            *(const uint4 *)(from + r * 128 + ((c ^ (r & 7)) << 4));
                }
                named_sync(1 + w, 128);
            }
        }
        if (threadIdx.x % 128 == 0) tma_store_wait_read<0>(); /* shared memory outlives the reads */
    }
    __syncwarp();
    if (CL > 1) cluster_sync(); /* no CTA leaves while its peer may still arrive on its barriers */
}

#endif
