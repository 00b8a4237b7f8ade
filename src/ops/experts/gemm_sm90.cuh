/* A linear over experts, elements of 16 bits, sums in f32: y^T[n, rows of e] = w[e] x[rows of e]^T.
 *
 * The counts are read where the kernel runs: each CTA sums them up and takes every gridDim.x-th tile, so
 * one grid serves any counts. A tile is 128 rows of a weight by up to `most` rows of x; the rows of an
 * expert are dealt evenly to as few tiles as hold them, in a width that is a multiple of 16, or 8. As the
 * wide side is the weights', few rows of x cost few products.
 *
 * 384 threads: warpgroup 0 loads a ring of stages of 64 k, warpgroups 1 and 2 each own 64 rows of the
 * weight. Weights come by TMA; so does x where its rows are sorted, else they are gathered by cp.async:
 *
 *     stage: [w: 128 rows of 128 bytes | x: `most` rows of 128 bytes], both swizzled by 128 bytes
 *
 * Where an expert has many rows of x, they are first copied to where they are sorted, since many tiles read
 * each of them, and gathering is slower than TMA.
 *
 * A tile of y^T is turned round on its way through shared memory, 32 rows of y by 64 columns at a time.
 * What lies in x behind a tile's last row makes columns that nobody reads. */
#ifndef OPS_EXPERTS_GEMM_SM90_CUH
#define OPS_EXPERTS_GEMM_SM90_CUH

#include "ops/cuda/hopper.cuh"

enum {
    EXPERTS_BN = 128, /* rows of a weight */
    EXPERTS_BK = 64,
    EXPERTS_THREADS = 384,
    EXPERTS_MOST_STAGES = 12,
    EXPERTS_W_BYTES = EXPERTS_BN * 128,
    EXPERTS_OUT_BYTES = 32 * 128 /* rows of y on their way, two buffers a warpgroup */
};

struct experts_maps {
    CUtensorMap w, x64, x8; /* boxes of so many rows of x; not for gather */
};

struct experts_args {
    const int32_t *counts, *perm;
    const void *x;
    void *y;
    int64_t x_stride, y_stride;
    int32_t rows, experts, n, k, gather, scatter, y_f32;
    int32_t most, stages; /* rows of x in a tile; of the ring */
};

static inline __host__ __device__ int experts_stage_bytes(int most)
{
    return EXPERTS_W_BYTES + most * 128;
}
/* Behind the ring: rows of y, rows of x of a tile, first row and first tile of each expert, barriers. */
static inline __host__ __device__ int experts_smem_bytes(int most, int stages, int experts)
{
    return 1024 + stages * experts_stage_bytes(most) + 4 * EXPERTS_OUT_BYTES + 256 * 4 +
           (experts + 1) * 8 + EXPERTS_MOST_STAGES * 16;
}

/* Sums of x over lanes 0 to this one. */
template <typename I> SOP_DEV I experts_scan(I x)
{
    for (int o = 1; o < 32; o *= 2) {
        const I lower = __shfl_up_sync(~0u, x, o);
        if (threadIdx.x % 32 >= o) x += lower;
    }
    return x;
}

/* Rows of x in the order of their experts, a warp each: to [rows, stride]. */
enum { EXPERTS_COPIERS = 8 };
template <typename T>
static __global__ __launch_bounds__(EXPERTS_COPIERS * 32) void sop_experts_copy_sm90(
    const __grid_constant__ experts_args p, T *to, int stride)
{
    enum { N = 8, AHEAD = 8 };
    const int lane = threadIdx.x % 32, row = blockIdx.x * EXPERTS_COPIERS + threadIdx.x / 32;
    long long live = 0;
    sop_begin();
    for (int e = lane; e < p.experts; e += 32) live += max(p.counts[e], 0);
    for (int o = 16; o > 0; o /= 2) live += __shfl_xor_sync(~0u, live, o);
    if (row >= min(live, (long long)p.rows)) return;
    const T *x = (const T *)p.x + p.perm[row] / p.gather * p.x_stride;
    to += (int64_t)row * stride;
    const int whole = p.k / N * N;
    for (int first = lane * N; first < whole; first += AHEAD * 32 * N) {
        uint4 piece[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * 32 * N < whole) piece[i] = *(const uint4 *)(x + first + i * 32 * N);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * 32 * N < whole) *(uint4 *)(to + first + i * 32 * N) = piece[i];
    }
    if (whole + lane < p.k) to[whole + lane] = x[whole + lane];
}

/* By one warp: the first row and the first tile of each expert, and behind the last. Counts may be
 * nonsense: no row is past the bound. */
SOP_DEV void experts_share(const experts_args &p, int *first_row, int *first_tile)
{
    const int lane = threadIdx.x % 32, strips = (p.n + EXPERTS_BN - 1) / EXPERTS_BN;
    long long rows = 0;
    int tiles = 0;
    for (int e0 = 0; e0 < p.experts; e0 += 32) {
        const int e = e0 + lane;
        const long long count = e < p.experts ? max(p.counts[e], 0) : 0;
        const long long end = rows + experts_scan(count);
        const int from = (int)min(end - count, (long long)p.rows);
        const int live = (int)min(end, (long long)p.rows) - from;
        const int mine = (live + p.most - 1) / p.most * strips, sum = experts_scan(mine);
        if (e < p.experts) first_row[e] = from, first_tile[e] = tiles + sum - mine;
        rows = __shfl_sync(~0u, end, 31);
        tiles += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) {
        first_row[p.experts] = (int)min(rows, (long long)p.rows);
        first_tile[p.experts] = tiles;
    }
}

struct experts_tile {
    int e, column; /* expert; first row of its weight */
    int row, live,
        width; /* first row of x, how many there are, and as how many they are multiplied */
};

/* Tile t, not below the one that was asked for before. In groups of 8 tiles of x, strips of the weight
 * outside: what the CTAs work on at one time comes mostly from L2. */
SOP_DEV void experts_find(experts_tile *o, int t, const experts_args &p, const int *first_row,
                          const int *first_tile)
{
    while (t >= first_tile[o->e + 1]) o->e++;
    const int strips = (p.n + EXPERTS_BN - 1) / EXPERTS_BN, r = t - first_tile[o->e];
    const int from = first_row[o->e], count = first_row[o->e + 1] - from;
    const int tiles = (count + p.most - 1) / p.most, each = (count + tiles - 1) / tiles;
    const int group = r / (8 * strips), in = r % (8 * strips), high = min(8, tiles - 8 * group);
    o->width = each <= 8 ? 8 : (each + 15) / 16 * 16;
    const int at = (8 * group + in % high) * o->width;
    o->column = in / high * EXPERTS_BN;
    o->row = from + at;
    o->live = min(o->width, count - at);
}

/* 16 bytes to shared memory, of which what is past `bytes` is 0 and not read. */
SOP_DEV void experts_copy(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
/* One of the barrier's arrivals, once all copies of this thread are in. */
SOP_DEV void experts_arrive_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

/* stmatrix_x4 with each 8 x 8 tile turned round: lane l gives row l % 8 of tile l / 8, which is a column
 * of the accumulator's tile. */
SOP_DEV void experts_put_turned(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

/* The widest product that hopper.cuh has for the first of n columns. */
template <int n> struct experts_part {
    enum {
        N = n >= 256   ? 256
            : n >= 192 ? 192
            : n == 144 ? 144
            : n >= 128 ? 128
            : n >= 96  ? 96
            : n >= 64  ? 64
            : n >= 32  ? 32
            : n >= 16  ? 16
                       : 8
    };
};

/* 16 of k for N columns from column AT on. */
template <typename T, int N, int AT, int ALL>
SOP_DEV void experts_products(float (&d)[ALL], uint64_t a, uint64_t b)
{
    enum { PART = experts_part<N>::N };
    wgmma<T>::ss(*(float(*)[PART / 2])(d + AT / 2), a, desc_advance(b, AT * 128), 1);
    if constexpr (N > PART) experts_products<T, N - PART, AT + PART>(d, a, b);
}

/* What a warpgroup of products keeps from tile to tile. */
struct experts_ring {
    uint32_t base, full, empty, out; /* out: two buffers of its own */
    int stage, phase, flip;
};

template <typename T, int N>
static __device__ __forceinline__ void experts_multiply(const experts_args &p,
                                                        const experts_tile &tile, int w,
                                                        experts_ring &ring, const uint8_t *smem_raw)
{
    const int tid = threadIdx.x % 128, warp = tid / 32, lane = tid % 32;
    const int nk = (p.k + EXPERTS_BK - 1) / EXPERTS_BK;
    float d[N / 2] = {}; /* else the compiler keeps those of all widths from tile to tile */
    int before = 0;      /* the stage before */
    for (int kb = 0; kb < nk; kb++) {
        const uint32_t a = ring.base + ring.stage * experts_stage_bytes(p.most);
        const uint64_t da = desc_k_major(a + w * 64 * 128), db = desc_k_major(a + EXPERTS_W_BYTES);
        mbar_wait(ring.full + 8 * ring.stage, ring.phase);
        if (p.gather) fence_async(); /* cp.async wrote as threads do */
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            experts_products<T, N, 0>(d, desc_advance(da, 32 * kk), desc_advance(db, 32 * kk));
        wgmma_commit();
        if (kb > 0) {
            wgmma_wait<1>();
            if (lane == 0) mbar_arrive(ring.empty + 8 * before);
        }
        before = ring.stage;
        if (++ring.stage == p.stages) ring.stage = 0, ring.phase ^= 1;
    }
    wgmma_wait<0>();
    wgmma_touch(d);
    if (lane == 0) mbar_arrive(ring.empty + 8 * before);

    const int column = tile.column + w * 64;
    if (p.y_f32) { /* 32 bytes of a row at a time */
        const int c = column + warp * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int r = i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (r >= tile.live) continue;
            const int64_t out = p.scatter ? p.perm[tile.row + r] : tile.row + r;
            float *y = (float *)p.y + out * p.y_stride;
            if (c < p.n) y[c] = d[i / 2 * 4 + i % 2];
            if (c + 8 < p.n) y[c + 8] = d[i / 2 * 4 + i % 2 + 2];
        }
        return;
    }
#pragma unroll
    for (int q = 0; q < (N + 31) / 32; q++) {
        enum { LAST = N % 32 ? N % 32 : 32 }; /* rows of the last piece */
        const int height = q == (N - 1) / 32 ? LAST : 32;
        const uint32_t buf = ring.out + ring.flip * EXPERTS_OUT_BYTES;
#pragma unroll
        for (int i = 0; i < (height + 15) / 16; i++) {
            const float *x = d + q * 16 + i * 8;
            const int r = i * 16 + lane / 16 * 8 + lane % 8, c = warp * 2 + lane / 8 % 2;
            const bool two = height > 8;
            experts_put_turned(buf + r * 128 + ((c ^ (r & 7)) << 4), sop_pack<T>(x[0], x[1]),
                               sop_pack<T>(x[2], x[3]), two ? sop_pack<T>(x[4], x[5]) : 0,
                               two ? sop_pack<T>(x[6], x[7]) : 0);
        }
        named_sync(1 + w, 128); /* all is in, and the other buffer has been read */
        const uint8_t *from = smem_raw + (buf - smem_addr(smem_raw));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = i * 16 + tid / 8, c = tid % 8, at = q * 32 + r;
            if (r >= height || at >= tile.live || column + c * 8 >= p.n) continue;
            const int64_t out = p.scatter ? p.perm[tile.row + at] : tile.row + at;
            *(uint4 *)((T *)p.y + out * p.y_stride + column + c * 8) =
                *(const uint4 *)(from + r * 128 + ((c ^ (r & 7)) << 4));
        }
        ring.flip ^= 1;
    }
}

template <typename T>
static __global__ __launch_bounds__(EXPERTS_THREADS, 1) void sop_experts_gemm_sm90(
    const __grid_constant__ experts_maps maps, const __grid_constant__ experts_args p)
{
    extern __shared__ uint8_t smem_raw[];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const int stage_bytes = experts_stage_bytes(p.most);
    const uint32_t out = base + p.stages * stage_bytes, full = out + 4 * EXPERTS_OUT_BYTES;
    const uint32_t empty = full + 8 * EXPERTS_MOST_STAGES;
    const int tid = threadIdx.x, wg = tid / 128, nk = (p.k + EXPERTS_BK - 1) / EXPERTS_BK;
    int *source = (int *)(smem_raw + (empty + 8 * EXPERTS_MOST_STAGES - smem_addr(smem_raw)));
    int *first_row = source + 256, *first_tile = first_row + p.experts + 1;

    if (tid == 0) {
        for (int s = 0; s < p.stages; s++) {
            mbar_init(full + 8 * s, p.gather ? 129 : 1); /* TMA's, and each thread's copies */
            mbar_init(empty + 8 * s, 8);                 /* one arrival a warp of products */
        }
        fence_mbar_init();
    }
    sop_begin();
    if (tid < 32) experts_share(p, first_row, first_tile);
    __syncthreads();
    const int n_tiles = first_tile[p.experts];
    experts_tile tile = {0, 0, 0, 0, 0};

    if (wg == 0) {
        regs_dec<72>();
        if (!p.gather && tid != 0) return;
        int stage = 0, phase = 1;
        for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
            experts_find(&tile, t, p, first_row, first_tile);
            if (p.gather) {
                named_sync(3, 128); /* the rows of the tile before have been read */
                for (int r = tid; r < tile.live; r += 128)
                    source[r] = p.perm[tile.row + r] / p.gather;
                named_sync(3, 128);
            }
            for (int kb = 0; kb < nk; kb++) {
                const uint32_t w = base + stage * stage_bytes, x = w + EXPERTS_W_BYTES;
                const uint32_t bar = full + 8 * stage;
                mbar_wait(empty + 8 * stage, phase);
                if (tid == 0) {
                    mbar_expect_tx(bar, EXPERTS_W_BYTES + (p.gather ? 0 : tile.width * 128));
                    tma_load_3d(w, &maps.w, kb * EXPERTS_BK, tile.column, tile.e, bar);
                }
                if (p.gather) {
                    const int c = tid % 8, left = min(max(p.k - kb * EXPERTS_BK - c * 8, 0), 8);
                    for (int r = tid / 8; r < tile.live; r += 16) {
                        const T *from = (const T *)p.x + source[r] * p.x_stride;
                        experts_copy(x + r * 128 + ((c ^ (r & 7)) << 4),
                                     left ? from + kb * EXPERTS_BK + c * 8 : from, left * 2);
                    }
                    experts_arrive_copied(bar);
                } else {
                    int r = 0;
                    for (; r + 64 <= tile.width; r += 64)
                        tma_load_2d(x + r * 128, &maps.x64, kb * EXPERTS_BK, tile.row + r, bar);
                    for (; r < tile.width; r += 8)
                        tma_load_2d(x + r * 128, &maps.x8, kb * EXPERTS_BK, tile.row + r, bar);
                }
                if (++stage == p.stages) stage = 0, phase ^= 1;
            }
        }
    } else {
        regs_inc<216>();
        const int w = wg - 1;
        experts_ring ring = {base, full, empty, out + w * 2 * EXPERTS_OUT_BYTES, 0, 0, 0};
        for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
            experts_find(&tile, t, p, first_row, first_tile);
#define EXPERTS_WIDTH(N) \
    case N: experts_multiply<T, N>(p, tile, w, ring, smem_raw); break
            switch (tile.width) {
                EXPERTS_WIDTH(8);
                EXPERTS_WIDTH(16);
                EXPERTS_WIDTH(32);
                EXPERTS_WIDTH(48);
                EXPERTS_WIDTH(64);
                EXPERTS_WIDTH(80);
                EXPERTS_WIDTH(96);
                EXPERTS_WIDTH(112);
                EXPERTS_WIDTH(128);
                EXPERTS_WIDTH(144);
                EXPERTS_WIDTH(160);
                EXPERTS_WIDTH(176);
                EXPERTS_WIDTH(192);
                EXPERTS_WIDTH(208);
                EXPERTS_WIDTH(224);
                EXPERTS_WIDTH(240);
            default: experts_multiply<T, 256>(p, tile, w, ring, smem_raw);
            }
#undef EXPERTS_WIDTH
        }
    }
}

#endif
