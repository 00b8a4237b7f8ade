/* Few tokens, up to 64, and weights whose rows the card takes at once: the weights' bytes are all that
 * counts. Their rows are the rows of the product: y^T[rows, tokens] = w[rows, k] x[tokens, k]^T.
 *
 * Each CTA, or a cluster of two that halve k, has one tile of rows, so that all end at the same moment and
 * no sums meet in memory. A stage of the ring is BLOCKS of 64 columns of the rows and of x, each by one
 * load:
 *
 *     [block][row][64]    w, 128 bytes a row, swizzled by TMA by the address
 *     [block][token][64]  x, the same
 *
 * Blocks begin at multiples of 128 bytes alone, so rings hold rows and nothing else. Eight warps multiply:
 * TOKEN_WARPS share the tokens, GROUPS take stages in turn, so that a full ring is gone through at once when
 * x has come, the others share the columns of a stage. Their sums meet in shared memory, that of the cluster
 * where there is one, as fragments of 16 rows and 8 tokens that lie as in registers: each is added by one
 * warp of one CTA, in one order.
 *
 * Weights are nobody's result: the ring fills with them while the kernel before still runs. Where a CTA has
 * few of them its ring has half of the shared memory, and the next kernel, whose ring has the other half, may
 * begin when all weights but `late` stages have been asked for: its own do not come before these. Else the
 * ring has all of it.
 *
 * Source: the PTX ISA, sections "mma.m16n8k16", "ldmatrix" and "cp.async.bulk.tensor". */
#ifndef OPS_LINEAR_FEW_SM90_CUH
#define OPS_LINEAR_FEW_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mma.cuh"

enum { FEW_THREADS = 320, FEW_MOST_STAGES = 32, FEW_BARRIERS = 16 * FEW_MOST_STAGES };

struct few_maps {
    CUtensorMap x, w[3]; /* [k / 64][rows][64] */
};

struct few_args {
    const int32_t *live;
    const float *bias[3]; /* NULL: none */
    void *y;
    int64_t y_stride;
    int32_t y_dtype, tokens, k, n[3];
    int32_t tile[3], at[3]; /* of the weights: first tile, first column of y */
    int32_t rows, stages;   /* of a tile; of the ring */
    int32_t late;           /* loads of w left when the next kernel may begin */
};

/* What a kernel is made for: columns of x, tiles of 16 rows, CTAs that share k, blocks of a stage, groups of
 * warps that take stages in turn. */
template <typename T_, int COLUMNS_, int TILES_, int CL_, int BLOCKS_, int GROUPS_>
struct few_shape {
    typedef T_ T;
    enum {
        COLUMNS = COLUMNS_,
        TILES = TILES_,
        CL = CL_,
        BLOCKS = BLOCKS_,
        GROUPS = GROUPS_,
        TOKEN_WARPS = COLUMNS <= 16 ? 1 : COLUMNS / 16,
        TOKENS = COLUMNS / TOKEN_WARPS, /* of a warp */
        K_WARPS = 8 / TOKEN_WARPS,
        STEPS = BLOCKS * 4 * GROUPS / K_WARPS, /* of 16 k, of a warp in a stage */
        PIECES = TOKENS / 8,                   /* of a tile: fragments of 8 tokens */
        FRAGMENTS = TILES * PIECES,
        PARTS = K_WARPS * CL,              /* of a sum */
        LOCAL = (FRAGMENTS + CL - 1) / CL, /* fragments that a CTA adds: i is that of CTA i % CL */
        SUMS = PARTS * LOCAL * TOKEN_WARPS * 512, /* [part][local][token warp][lane] of 16 bytes */
        IN_RING = SUMS > 16384,                   /* where all have left it; else behind */
        BEHIND = FEW_BARRIERS + (IN_RING ? 0 : SUMS)
    };
    static_assert(STEPS >= 1 && K_WARPS % GROUPS == 0, "each warp has a share of a stage");
};

template <typename S> static inline __host__ __device__ int few_stage_bytes(int rows, int tokens)
{
    return S::BLOCKS * 128 * (rows + tokens);
}
template <typename S>
static inline __host__ __device__ int few_ring_bytes(int rows, int tokens, int stages)
{
    const int ring = stages * few_stage_bytes<S>(rows, tokens);
    return S::IN_RING && ring < S::SUMS ? S::SUMS : ring;
}
/* All threads of a cluster, in two halves: what was written before is seen behind. */
SOP_DEV void few_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
SOP_DEV void few_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four matrices of 8 x 16 bytes, as sop_matrices(), of rows of 128 bytes that TMA has swizzled. */
SOP_DEV void few_matrices(uint32_t (&x)[4], uint32_t row, int chunk)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row + ((chunk ^ (row >> 7 & 7)) << 4))
                 : "memory");
}

template <typename S>
static __global__ __launch_bounds__(FEW_THREADS) void sop_few_sm90(
    const __grid_constant__ few_maps maps, const __grid_constant__ few_args p)
{
    typedef typename S::T T;
    enum { BLOCKS = S::BLOCKS, TILES = S::TILES, PIECES = S::PIECES, K_WARPS = S::K_WARPS };
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const uint32_t base = smem_addr(smem_raw);
    const int block = p.rows * 128, x_block = p.tokens * 128;
    const int stage = few_stage_bytes<S>(p.rows, p.tokens);
    const uint32_t full = base + few_ring_bytes<S>(p.rows, p.tokens, p.stages),
                   empty = full + 8 * FEW_MOST_STAGES;
    const uint32_t sums = S::IN_RING ? base : full + FEW_BARRIERS;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int rank = S::CL == 1 ? 0 : blockIdx.x % S::CL;
    const int nk = (p.k + 64 * BLOCKS - 1) / (64 * BLOCKS), first = nk * rank / S::CL;
    const int total = nk * (rank + 1) / S::CL - first, ahead = min(total, p.stages);
    const int tile = blockIdx.x / S::CL, j = (tile >= p.tile[1]) + (tile >= p.tile[2]);
    const int row = (tile - p.tile[j]) * p.rows; /* first of the tile */
    auto load_w = [&](int i, int s) {
        mbar_expect_tx(full + 8 * s, stage);
        tma_load_3d_once(base + s * stage, &maps.w[j], 0, row, (first + i) * BLOCKS, full + 8 * s);
    };
    auto load_x = [&](int i, int s) {
        tma_load_3d(base + s * stage + BLOCKS * block, &maps.x, 0, 0, (first + i) * BLOCKS,
                    full + 8 * s);
    };
    if (tid == 256) {
        for (int s = 0; s < p.stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 / S::GROUPS);
        }
        fence_mbar_init();
        if (total - ahead < p.late) grid_go();
        for (int i = 0; i < ahead; i++) load_w(i, i);
    }
    __syncthreads();
    if (S::CL > 1) few_cluster_arrive(); /* the peer's memory is there when all have */

    float d[TILES][PIECES][4] = {};
    const int token_warp = warp % S::TOKEN_WARPS, k_warp = warp / S::TOKEN_WARPS;
    int32_t live = p.tokens;
    if (tid == 256) {
        grid_wait();
        for (int i = ahead, s = 0, phase = 0; i < total; i++) {
            mbar_wait(empty + 8 * s, phase);
            if (total - i == p.late) grid_go();
            load_w(i, s);
            load_x(i, s);
            if (++s == p.stages) s = 0, phase ^= 1;
        }
    } else if (tid == 288) { /* x's first stages, not behind weights that the other asks for */
        asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.x) : "memory");
        grid_wait();
        for (int i = 0; i < ahead; i++) load_x(i, i);
    } else if (tid < 256) {
        const int share = k_warp % (K_WARPS / S::GROUPS) * S::STEPS;
        const int group = k_warp / (K_WARPS / S::GROUPS);
        const int x_row = min(token_warp * 16 + lane % 8 + lane / 16 * 8, p.tokens - 1) * 128;
        int w_row[TILES]; /* lanes past the last row or token read it */
#pragma unroll
        for (int t = 0; t < TILES; t++) w_row[t] = min(t * 16 + lane % 16, p.rows - 1) * 128;
        grid_wait();
        if (p.live) live = *p.live; /* nobody waits for it here */
        for (int i = group, s = group, phase = 0; i < total; i += S::GROUPS) {
            const uint32_t w_at = base + s * stage, x_at = w_at + BLOCKS * block + x_row;
            mbar_wait(full + 8 * s, phase);
#pragma unroll
            for (int q = 0; q < S::STEPS; q++) {
                const int b = (share + q) / 4, chunk = (share + q) % 4 * 2;
                uint32_t x[4];
                few_matrices(x, x_at + b * x_block, chunk + lane / 8 % 2);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    uint32_t a[4];
                    few_matrices(a, w_at + b * block + w_row[t], chunk + lane / 16);
#pragma unroll
                    for (int c = 0; c < PIECES; c++) {
                        const uint32_t of[2] = {x[2 * c], x[2 * c + 1]};
                        sop_mma(T(), d[t][c], a, of);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) mbar_arrive(empty + 8 * s);
            s += S::GROUPS;
            if (s >= p.stages) s -= p.stages, phase ^= 1;
        }
        if (S::IN_RING && S::CL == 1) named_sync(1, 256); /* the ring is free */
    }
    __syncwarp();
    if (S::CL > 1) {
        few_cluster_wait();
        if (S::IN_RING) few_cluster_arrive(), few_cluster_wait(); /* both rings are free */
    }
    if (tid < 256) {
        uint32_t peer = sums;
        if (S::CL > 1)
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(sums), "r"(rank ^ 1));
#pragma unroll
        for (int i = 0; i < S::FRAGMENTS; i++) {
            const float(&v)[4] = d[i / PIECES][i % PIECES];
            const int to = ((rank * K_WARPS + k_warp) * S::LOCAL + i / S::CL) * S::TOKEN_WARPS;
            asm volatile(
                "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                    (i % S::CL == rank ? sums : peer) + (to + token_warp) * 512 + lane * 16),
                "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                : "memory");
        }
        if (S::CL == 1) named_sync(1, 256);
    }
    __syncwarp();
    if (S::CL > 1) few_cluster_arrive(), few_cluster_wait();
    if (tid >= 256) return;
    const int tokens = (int)sop_live_rows(&live, p.tokens);
#pragma unroll
    for (int l = 0; l < S::LOCAL; l += K_WARPS) {
        const int i = (l + k_warp) * S::CL + rank; /* the fragment */
        if (l + k_warp >= S::LOCAL || i >= S::FRAGMENTS) break;
        float v[4] = {};
#pragma unroll
        for (int q = 0; q < S::PARTS; q++) {
            const int from = (q * S::LOCAL + l + k_warp) * S::TOKEN_WARPS + token_warp;
            const float4 u = *(const float4 *)(smem_raw + (sums - base) + from * 512 + lane * 16);
            v[0] += u.x, v[1] += u.y, v[2] += u.z, v[3] += u.w;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = i / PIECES * 16 + lane / 4 + e / 2 * 8;
            const int t = token_warp * 16 + i % PIECES * 8 + lane % 4 * 2 + e % 2;
            if (r >= p.rows || row + r >= p.n[j] || t >= tokens) continue;
            const float bias = p.bias[j] ? p.bias[j][row + r] : 0;
            sop_store_any(p.y, p.y_dtype, t * p.y_stride + p.at[j] + row + r, v[e] + bias);
        }
    }
}

#endif
