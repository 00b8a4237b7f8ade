/* A linear over experts, elements of 16 bits, sums in f32: y^T[n, rows of e] = w[e] x[rows of e]^T.
 *
 * The counts are read where the kernel runs: each CTA sums them up and takes one tile after the other from
 * a counter, so one grid serves any counts. The rows of an expert are dealt evenly to as few tiles as hold
 * `most` each, in a width that is a multiple of 16, or 8. A tile is 128 rows of a weight, which is the wide
 * side, so that few rows of x cost few products; or 256 where it is over 96 wide, by multiples of 8: those
 * bring a third less to shared memory for the same products.
 *
 * 384 threads: warpgroup 0 loads a ring of stages of 64 k, warpgroups 1 and 2 each own 64 rows of the
 * weight, or twice 64. Weights come by TMA; so does x where its rows are sorted, else they are gathered by
 * cp.async:
 *
 *     stage: [w: 128 or 256 rows of 128 bytes | x: `most` rows of 128 bytes], swizzled by 128 bytes
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
    EXPERTS_MOST = 160, /* rows of x in a tile: two times 80 sums a thread */
    EXPERTS_MOST_STAGES = 12,
    EXPERTS_W_BYTES = EXPERTS_BN * 128,
    EXPERTS_OUT_BYTES = 32 * 128 /* rows of y on their way, two buffers a warpgroup */
};

struct experts_maps {
    CUtensorMap w, x[5]; /* boxes of 128, 64, ... 8 rows of x; not for gather */
};

struct experts_args {
    const int32_t *counts, *perm;
    const void *x;
    void *y;
    int64_t x_stride, y_stride;
    int32_t rows, experts, n, k, gather, scatter, y_f32;
    int32_t most, high, stages; /* of a tile: rows of x, 128 rows of a weight; of the ring */
    int *taken; /* zero before and after: tiles that were taken; behind them CTAs that are done */
};

struct experts_tile {
    int e, column;   /* expert, -1 behind the last; first row of its weight */
    int row, live;   /* first row of x, how many there are */
    int width, high; /* as how many they are multiplied; by how many times 128 rows of the weight */
};

static inline __host__ __device__ int experts_stage_bytes(int most, int high)
{
    return high * EXPERTS_W_BYTES + most * 128;
}
/* Behind the ring: rows of y; of each stage its barriers, and which tile begins in it; first row and first
 * tile of each expert; what gather takes next. */
static inline __host__ __device__ int experts_smem_bytes(int most, int high, int stages,
                                                         int experts)
{
    const int stage = experts_stage_bytes(most, high) + 16 + (int)sizeof(experts_tile);
    return 1024 + stages * stage + 4 * EXPERTS_OUT_BYTES + (experts + 1) * 8 + 4;
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

/* How the rows of an expert are dealt: evenly, to as few tiles as hold them. */
struct experts_deal {
    int tiles, width, high;
};
SOP_DEV experts_deal experts_dealt(const experts_args &p, int count)
{
    experts_deal d;
    d.tiles = (count + p.most - 1) / p.most;
    const int each = count ? (count + d.tiles - 1) / d.tiles : 0;
    d.high = each > 96 ? p.high : 1;
    d.width = d.high > 1 ? max((each + 7) / 8 * 8, 112) : each <= 8 ? 8 : (each + 15) / 16 * 16;
    return d;
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
        const experts_deal d = experts_dealt(p, live);
        const int mine = d.tiles * ((strips + d.high - 1) / d.high), sum = experts_scan(mine);
        if (e < p.experts) first_row[e] = from, first_tile[e] = tiles + sum - mine;
        rows = __shfl_sync(~0u, end, 31);
        tiles += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) {
        first_row[p.experts] = (int)min(rows, (long long)p.rows);
        first_tile[p.experts] = tiles;
    }
}

/* Tile t, not below the one that was asked for before. In groups of 8 tiles of x, strips of the weight
 * outside: what the CTAs work on at one time comes mostly from L2. */
SOP_DEV void experts_find(experts_tile *o, int t, const experts_args &p, const int *first_row,
                          const int *first_tile)
{
    while (t >= first_tile[o->e + 1]) o->e++;
    const int from = first_row[o->e], count = first_row[o->e + 1] - from;
    const experts_deal d = experts_dealt(p, count);
    const int strips = (p.n + EXPERTS_BN - 1) / EXPERTS_BN, across = (strips + d.high - 1) / d.high;
    const int r = t - first_tile[o->e], group = r / (8 * across), in = r % (8 * across);
    const int deep = min(8, d.tiles - 8 * group), at = (8 * group + in % deep) * d.width;
    const int strip = in / deep * d.high;
    o->column = strip * EXPERTS_BN;
    o->high = min(d.high, strips - strip);
    o->width = d.width;
    o->row = from + at;
    o->live = min(d.width, count - at);
}

/* 16 bytes to shared memory, of which what is past `bytes` is 0 and not read. */
SOP_DEV void experts_copy(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
template <int N> SOP_DEV void experts_copied(void) /* all but the last N groups of copies */
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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

/* What a warpgroup keeps from tile to tile. */
struct experts_ring {
    uint32_t base, full, empty;
    experts_tile *tiles; /* that begin in its stages */
    int stage, phase;
    uint32_t out; /* of products: two buffers of its own */
    int flip;
};
SOP_DEV void experts_next(const experts_args &p, experts_ring &ring)
{
    if (++ring.stage == p.stages) ring.stage = 0, ring.phase ^= 1;
}

/* The sums of 64 rows of the weight, from `column` of y on. */
template <typename T, int N>
static __device__ __forceinline__ void experts_put(const experts_args &p, const experts_tile &tile,
                                                   int column, int w, const float (&d)[N / 2],
                                                   experts_ring &ring, const uint8_t *smem_raw)
{
    const int tid = threadIdx.x % 128, warp = tid / 32, lane = tid % 32;
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
            const bool two = height - i * 16 > 8;
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

template <typename T, int N, int H>
static __device__ __forceinline__ void experts_multiply(const experts_args &p,
                                                        const experts_tile &tile, int w,
                                                        experts_ring &ring, const uint8_t *smem_raw)
{
    const int lane = threadIdx.x % 32;
    const int nk = (p.k + EXPERTS_BK - 1) / EXPERTS_BK;
    float d[H][N / 2] = {}; /* else the compiler keeps those of all widths from tile to tile */
    int before = 0;         /* the stage before */
    for (int kb = 0; kb < nk; kb++) {
        const uint32_t a = ring.base + ring.stage * experts_stage_bytes(p.most, p.high);
        const uint64_t da = desc_k_major(a + w * 64 * 128),
                       db = desc_k_major(a + p.high * EXPERTS_W_BYTES);
        mbar_wait(ring.full + 8 * ring.stage, ring.phase);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < H; h++)
                wgmma<T>::ss(d[h], desc_advance(da, h * EXPERTS_W_BYTES + 32 * kk),
                             desc_advance(db, 32 * kk), 1);
        wgmma_commit();
        if (kb > 0) {
            wgmma_wait<1>();
            if (lane == 0) mbar_arrive(ring.empty + 8 * before);
        }
        before = ring.stage;
        experts_next(p, ring);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < H; h++) wgmma_touch(d[h]);
    if (lane == 0) mbar_arrive(ring.empty + 8 * before);
#pragma unroll
    for (int h = 0; h < H; h++)
        experts_put<T, N>(p, tile, tile.column + h * EXPERTS_BN + w * 64, w, d[h], ring, smem_raw);
}

/* Load one tile after the other, as the CTAs take them: by one thread, or, to gather, by 128. Those copy 16
 * bytes of each 16th row a step, and tell of a step once the two behind it are on their way. */
template <typename T>
SOP_DEV void experts_load(const experts_maps &maps, const experts_args &p, const int *first_row,
                          const int *first_tile, int *said, experts_ring ring)
{
    const int tid = threadIdx.x, c = tid % 8, nk = (p.k + EXPERTS_BK - 1) / EXPERTS_BK;
    const int n_tiles = first_tile[p.experts];
    experts_tile tile = {0, 0, 0, 0, 0, 0};
    uint32_t before[2] = {0, 0}; /* barriers of the steps before, of which nothing was told */
    auto tell = [&](uint32_t bar) {
        fence_async(); /* cp.async wrote as threads do */
        if (before[0]) mbar_arrive(before[0]);
        before[0] = before[1];
        before[1] = bar;
    };
    for (int t = blockIdx.x; t < n_tiles;) {
        int next = 0;
        int from[EXPERTS_MOST / 16];                            /* rows of x */
        if (tid == 0) next = gridDim.x + atomicAdd(p.taken, 1); /* there when the tile is loaded */
        experts_find(&tile, t, p, first_row, first_tile);
#pragma unroll
        for (int i = 0; i < EXPERTS_MOST / 16; i++) {
            const int r = tid / 8 + 16 * i;
            if (!p.gather || r >= tile.live) break;
            from[i] = p.perm[tile.row + r] / p.gather;
        }
        for (int kb = 0; kb < nk; kb++) {
            const uint32_t w = ring.base + ring.stage * experts_stage_bytes(p.most, p.high);
            const uint32_t x = w + p.high * EXPERTS_W_BYTES, bar = ring.full + 8 * ring.stage;
            const int k = kb * EXPERTS_BK;
            mbar_wait(ring.empty + 8 * ring.stage, ring.phase);
            if (tid == 0) {
                if (kb == 0) ring.tiles[ring.stage] = tile;
                mbar_expect_tx(bar,
                               tile.high * EXPERTS_W_BYTES + (p.gather ? 0 : tile.width * 128));
                for (int h = 0; h < tile.high; h++)
                    tma_load_3d(w + h * EXPERTS_W_BYTES, &maps.w, k, tile.column + h * EXPERTS_BN,
                                tile.e, bar);
            }
            if (p.gather) {
                const int left = min(max(p.k - k - c * 8, 0), 8);
#pragma unroll
                for (int i = 0; i < EXPERTS_MOST / 16; i++) {
                    const int r = tid / 8 + 16 * i;
                    if (r >= tile.live) break;
                    experts_copy(x + r * 128 + ((c ^ (r & 7)) << 4),
                                 (const T *)p.x + from[i] * p.x_stride + (left ? k + c * 8 : 0),
                                 left * 2);
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                experts_copied<2>();
                tell(bar);
            } else {
                int r = 0;
#pragma unroll
                for (int i = 0; i < 5; i++)
                    for (; r + (128 >> i) <= tile.width; r += 128 >> i)
                        tma_load_2d(x + r * 128, &maps.x[i], k, tile.row + r, bar);
            }
            experts_next(p, ring);
        }
        if (p.gather) {
            if (tid == 0) *said = next;
            named_sync(3, 128);
            next = *said;
            named_sync(3, 128);
        }
        t = next;
    }
    if (p.gather) {
        experts_copied<0>();
        tell(0);
        tell(0);
    }
    const uint32_t bar = ring.full + 8 * ring.stage;
    mbar_wait(ring.empty + 8 * ring.stage, ring.phase);
    if (tid == 0) {
        ring.tiles[ring.stage].e = -1;
        mbar_arrive(bar);
        if (atomicAdd(p.taken + 1, 1) == (int)gridDim.x - 1) p.taken[0] = p.taken[1] = 0;
    }
    if (p.gather) mbar_arrive(bar);
}

template <typename T>
static __global__ __launch_bounds__(EXPERTS_THREADS, 1) void sop_experts_gemm_sm90(
    const __grid_constant__ experts_maps maps, const __grid_constant__ experts_args p)
{
    extern __shared__ uint8_t smem_raw[];
    const int tid = threadIdx.x, w = tid / 128 - 1; /* which of the warpgroups of products */
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t out = base + p.stages * experts_stage_bytes(p.most, p.high);
    const uint32_t full = out + 4 * EXPERTS_OUT_BYTES, empty = full + 8 * p.stages;
    experts_tile *tiles = (experts_tile *)(smem_raw + (empty + 8 * p.stages - smem_addr(smem_raw)));
    int *first_row = (int *)(tiles + p.stages), *first_tile = first_row + p.experts + 1;
    experts_ring ring = {base, full, empty, tiles, 0, w < 0, out + w * 2 * EXPERTS_OUT_BYTES, 0};

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

    if (w < 0) {
        regs_dec<88>();
        if (p.gather || tid == 0)
            experts_load<T>(maps, p, first_row, first_tile, first_tile + p.experts + 1, ring);
    } else {
        regs_inc<208>();
        for (;;) {
            mbar_wait(full + 8 * ring.stage, ring.phase);
            const experts_tile tile = tiles[ring.stage];
            if (tile.e < 0) break;
#define EXPERTS_WIDTH(N, H) \
    case N: experts_multiply<T, N, H>(p, tile, w, ring, smem_raw); break
            if (tile.high == 2) {
                switch (tile.width) {
                    EXPERTS_WIDTH(112, 2);
                    EXPERTS_WIDTH(120, 2);
                    EXPERTS_WIDTH(128, 2);
                    EXPERTS_WIDTH(136, 2);
                    EXPERTS_WIDTH(144, 2);
                    EXPERTS_WIDTH(152, 2);
                default: experts_multiply<T, 160, 2>(p, tile, w, ring, smem_raw);
                }
                continue;
            }
            switch (tile.width > 8 ? (tile.width + 15) / 16 * 16 : 8) {
                EXPERTS_WIDTH(8, 1);
                EXPERTS_WIDTH(16, 1);
                EXPERTS_WIDTH(32, 1);
                EXPERTS_WIDTH(48, 1);
                EXPERTS_WIDTH(64, 1);
                EXPERTS_WIDTH(80, 1);
                EXPERTS_WIDTH(96, 1);
                EXPERTS_WIDTH(112, 1);
                EXPERTS_WIDTH(128, 1);
                EXPERTS_WIDTH(144, 1);
            default: experts_multiply<T, 160, 1>(p, tile, w, ring, smem_raw);
            }
#undef EXPERTS_WIDTH
        }
    }
}

#endif
