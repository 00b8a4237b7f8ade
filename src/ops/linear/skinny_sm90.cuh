/* Few tokens, up to 128 columns of x: the weights' bytes are all that counts. Their rows are the rows of
 * the product: y^T[rows, tokens] = w[rows, k] x[tokens, k]^T.
 *
 * Each CTA takes tiles of up to 64 rows, as many rows as make the tiles a whole number for each
 * multiprocessor, and streams all of k through a ring of stages of 128 k, of 256 where there are few rows:
 * no sums meet across CTAs, so bits depend neither on the card's size nor on the batch. Two warps load by
 * TMA, one warpgroup multiplies. A tile of fewer than 64 rows is multiplied as 64: what is behind it makes
 * rows that nobody reads. From 32 columns on x weighs too: the CTAs of a cluster of 2 load a half each, for
 * both. Clusters of 4 would leave pairs of multiprocessors idle, and a CTA more for the others.
 *
 * Weights are nobody's result: the ring fills with them while the kernel before still runs. Where that one
 * is short it takes bandwidth from all of its weights: then the next kernel may begin when nearly all of
 * them have been asked for, which is 2 us before it does. x in f32
 * comes as three planes of bf16 that sum to it, [3 tokens, k]: the products are those of f32, for three
 * times as many columns. The loops count instead of dividing: a stage has 400 ns. */
#ifndef OPS_LINEAR_SKINNY_SM90_CUH
#define OPS_LINEAR_SKINNY_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/linear/skinny.cuh"

enum { SKINNY_THREADS = 192, SKINNY_MOST_STAGES = 24, SKINNY_COLUMNS = 128 };

struct skinny_maps {
    CUtensorMap x, w[3];
};

struct skinny_args {
    const int32_t *live;
    const float *bias[3]; /* NULL: none */
    void *y;
    int64_t y_stride;
    int32_t y_dtype, tokens, planes, k, n[3];
    int32_t rows, stages; /* of a tile; of the ring */
};

/* Bytes of a stage: blocks of 64 k of the tile's rows, as many of x; every block whole atoms of 8 rows. */
static inline __host__ __device__ int skinny_stage_bytes(int rows, int columns, int blocks)
{
    return blocks * 128 * ((rows + 7) / 8 * 8 + columns);
}
/* Behind the ring: what a product may read past a tile, or the result; two barriers a stage. */
static inline __host__ __device__ int skinny_behind(int rows, int columns)
{
    const int past = 8192 - (rows + 7) / 8 * 1024, result = columns * 68 * 4;
    return past > result ? past : result;
}
static inline __host__ __device__ int skinny_smem_bytes(int rows, int columns, int blocks,
                                                        int stages)
{
    return stages * skinny_stage_bytes(rows, columns, blocks) + skinny_behind(rows, columns) +
           16 * SKINNY_MOST_STAGES;
}

/* A walk through the stages of a CTA's tiles. */
struct skinny_walk {
    int tile, kb, stage, phase;
    int j, row, at; /* of the tile: weight, first row, column of y of the weight's first row */
};

SOP_DEV void skinny_tile(skinny_walk *w, const skinny_args &p, int n_tiles, int tile)
{
    w->tile = tile;
    w->j = skinny_part(p.n, p.rows, min(tile, n_tiles - 1), &w->row, &w->at);
}

SOP_DEV void skinny_next(skinny_walk *w, const skinny_args &p, int n_tiles, int nk)
{
    if (++w->stage == p.stages) w->stage = 0, w->phase ^= 1;
    if (++w->kb == nk) w->kb = 0, skinny_tile(w, p, n_tiles, w->tile + gridDim.x);
}

/* CL: CTAs of a cluster; BLOCKS of 64 k a stage. All CTAs take equally many tiles; what is past the last is
 * not written. */
template <typename T, int COLUMNS, int CL, int BLOCKS>
static __global__ __launch_bounds__(SKINNY_THREADS) void sop_skinny_sm90(
    const __grid_constant__ skinny_maps maps, const __grid_constant__ skinny_args p)
{
    enum { SHARE = COLUMNS / CL }; /* rows of x that a CTA loads */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const uint32_t base = smem_addr(smem_raw);
    const int stage = skinny_stage_bytes(p.rows, COLUMNS, BLOCKS),
              block = (p.rows + 7) / 8 * 8 * 128;
    const uint32_t result_at = base + p.stages * stage;
    const uint32_t full = result_at + skinny_behind(p.rows, COLUMNS),
                   empty = full + 8 * SKINNY_MOST_STAGES;
    const int nk = (p.k + 64 * BLOCKS - 1) / (64 * BLOCKS), tid = threadIdx.x;
    const int n_tiles = skinny_tiles(p.n, p.rows);
    const int n_rounds = (n_tiles + (int)gridDim.x - 1) / (int)gridDim.x;
    if (tid == 0) {
        for (int s = 0; s < p.stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 4 * CL);
        }
        fence_mbar_init();
    }
    __syncthreads();
    if (CL > 1) cluster_sync(); /* nobody's barrier is met before it exists */

    skinny_walk w = {0, 0, 0, 0, 0, 0, 0};
    skinny_tile(&w, p, n_tiles, blockIdx.x);
    const int rank = CL == 1 ? 0 : blockIdx.x % CL, total = n_rounds * nk;
    const int ahead = min(total, p.stages);
    auto load_x = [&](const skinny_walk &v) {
        const uint32_t to = base + v.stage * stage + BLOCKS * block, bar = full + 8 * v.stage;
        for (int h = 0; h < BLOCKS; h++) {
            const uint32_t at = to + (h * COLUMNS + rank * SHARE) * 128;
            if (CL == 1)
                tma_load_2d(at, &maps.x, (v.kb * BLOCKS + h) * 64, 0, bar);
            else
                tma_load_2d_multicast(at, &maps.x, (v.kb * BLOCKS + h) * 64, rank * SHARE, bar,
                                      (1 << CL) - 1);
        }
    };
    if (tid == 128) {
        auto load_w = [&](const skinny_walk &v) {
            const uint32_t to = base + v.stage * stage, bar = full + 8 * v.stage;
            mbar_expect_tx(bar, BLOCKS * 128 * (p.rows + COLUMNS));
            for (int h = 0; h < BLOCKS; h++)
                tma_load_2d_once(to + h * block, &maps.w[v.j], (v.kb * BLOCKS + h) * 64, v.row,
                                 bar);
        };
        const int late = total > 4 * p.stages ? total : max(p.stages - 3, 1); /* loads left */
        if (total - ahead < late) grid_go();
        for (int i = 0; i < ahead; i++, skinny_next(&w, p, n_tiles, nk)) load_w(w);
        grid_wait();
        for (int i = ahead; i < total; i++, skinny_next(&w, p, n_tiles, nk)) {
            mbar_wait(empty + 8 * w.stage, w.phase ^ 1);
            if (total - i == late) grid_go();
            load_w(w);
            load_x(w);
        }
    } else if (tid == 160) { /* x's first stages, not behind weights that the other asks for */
        asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.x) : "memory");
        grid_wait();
        for (int i = 0; i < ahead; i++, skinny_next(&w, p, n_tiles, nk)) load_x(w);
    } else if (tid < 128) {
        const int warp = tid / 32, lane = tid % 32;
        float *result = (float *)(smem_raw + (result_at - smem_addr(smem_raw))); /* [column][68] */
        float d[COLUMNS / 2];
        grid_wait();
        const int tokens = (int)sop_live_rows(p.live, p.tokens);
        auto release = [&](int s) {
            if (CL == 1) {
                if (lane == 0) mbar_arrive(empty + 8 * s);
            } else if (lane < CL) {
                mbar_arrive_remote(empty + 8 * s, lane);
            }
        };
        for (int round = 0; round < n_rounds; round++) {
            const skinny_walk t = w;
            int before = 0; /* the stage before */
            for (int kb = 0; kb < nk; kb++) {
                const uint32_t a = base + w.stage * stage;
                mbar_wait(full + 8 * w.stage, w.phase);
                wgmma_fence();
#pragma unroll
                for (int kk = 0; kk < 4 * BLOCKS; kk++) {
                    const uint64_t da = desc_k_major(a + kk / 4 * block);
                    const uint64_t db = desc_k_major(a + BLOCKS * block + kk / 4 * COLUMNS * 128);
                    wgmma<T>::ss(d, desc_advance(da, kk % 4 * 32), desc_advance(db, kk % 4 * 32),
                                 kb > 0 || kk > 0);
                }
                wgmma_commit();
                if (COLUMNS < 32) { /* the product is short, and its stage is wanted */
                    wgmma_wait<0>();
                    wgmma_touch(d);
                    release(w.stage);
                } else if (kb > 0) {
                    wgmma_wait<1>();
                    release(before);
                }
                before = w.stage;
                skinny_next(&w, p, n_tiles, nk);
            }
            if (COLUMNS >= 32) {
                wgmma_wait<0>();
                wgmma_touch(d);
                release(before);
            }

            const int rows = t.tile < n_tiles ? min(p.rows, p.n[t.j] - t.row) : 0;
            named_sync(1, 128); /* the tile before has been read */
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++)
                result[(i / 4 * 8 + lane % 4 * 2 + i % 2) * 68 + warp * 16 + lane / 4 +
                       i / 2 % 2 * 8] = d[i];
            const int r = tid % 64;
            const float bias = r < rows && p.bias[t.j] ? p.bias[t.j][t.row + r] : 0;
            named_sync(1, 128);
            for (int c = tid / 64; c < tokens && r < rows; c += 2) {
                float y = bias;
                for (int q = p.planes - 1; q >= 0; q--) y += result[(q * p.tokens + c) * 68 + r];
                sop_store_any(p.y, p.y_dtype, c * p.y_stride + t.at + t.row + r, y);
            }
        }
    }
    __syncwarp();
    if (CL > 1) cluster_sync(); /* no CTA leaves while its peers may still arrive on its barriers */
}

#endif
