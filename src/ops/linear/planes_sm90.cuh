/* i4_128 with up to 16 tokens: the weights' bytes are all that counts, and what becomes of them has to be
 * done in few instructions. sop_planes_of() makes of each block of 128 of x integers of 16 bits times a step,
 * 1/32639 of the block's largest, as two planes of 8 bits. Then words of weights need but a mask each for
 * four products of integers:
 *
 *     y = sum over blocks of scale step (256 high + low - zero sum of x's integers)
 *
 * A block of x is a row of 128 bytes for each token's high and low part, swizzled as products want them.
 *
 * A CTA has RG tiles of up to 64 rows, as many rows as make the tiles a whole number for each
 * multiprocessor. Parts of k of a tile are shared by 4 / RG warpgroups of each CTA of a cluster, each with
 * its own ring of weights. Each sends every other one its share of the sums, to a slot for each part, and adds
 * up its own in the order of k. The product of a block runs while the sums of the one before are made.
 *
 * Asking for a stage of x takes longer than a block's sums: where APART, warps beside the warpgroups ask. */
#ifndef OPS_LINEAR_PLANES_SM90_CUH
#define OPS_LINEAR_PLANES_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/linear/skinny.cuh"

struct planes_maps {
    CUtensorMap w[3], steps; /* [blocks][COLUMNS] of step and sum */
};
struct planes_args {
    const float *bias[3]; /* NULL: none */
    const int32_t *live;
    const uint8_t *planes; /* [blocks][2 COLUMNS][128] */
    void *y;
    int64_t y_stride; /* in elements */
    int32_t y_dtype, tokens, k, n[3];
    int32_t rows, x_depth; /* of a tile; stages of x */
};

/* Blocks of a stage of w; steps of a block's largest x. */
enum { PLANES_BLOCKS = 4, PLANES_MOST = 127 * 256 + 127 };

/* Columns of x, tiles of a CTA, CTAs of a cluster, which share these tiles. */
template <int COLUMNS_, int RG_, int CL_, int APART_> struct planes_shape {
    enum {
        COLUMNS = COLUMNS_,
        RG = RG_,
        CL = CL_,
        APART = APART_,
        THREADS = 512 + 128 * APART,
        DEPTH = 2,   /* stages of w: beside three there is little room for x, and all wait for it */
        KW = 4 / RG, /* parts of k in a CTA */
        PARTS = KW * CL,            /* of k */
        PITCH = 17 * PLANES_BLOCKS, /* words of a row of a stage of w */
        XB = COLUMNS == 4 ? 2 : 1,  /* blocks of a stage of x */
        TILE = 2 * COLUMNS * 128,   /* a block of x */
        STEPS = COLUMNS * 8,        /* its steps and sums */
        X_STAGE = XB * TILE,
        X_STEPS = 128, /* room for its steps and sums */
        X_MOST = 8,    /* stages of x */
        LAG = 2 / XB,  /* stages that are left before one of them is asked for again */
        SHARE = 64 * COLUMNS / PARTS,      /* sums that a part adds up */
        SLOT = (SHARE + 63) / 64 * 72 * 4, /* bytes of a part's sums of a share */
        SLOTS = 4 * PARTS * SLOT,
        BARS = 8 * (4 * DEPTH + 2 * KW * X_MOST + 4 + RG),
        ROOM = 226 * 1024 - BARS - SLOTS /* beside it there is a place for a CTA of sop_planes_of */
    };
};
/* Bytes of a stage of w. */
template <typename S> static inline __host__ __device__ int planes_stage(int rows)
{
    return (rows * S::PITCH * 4 + 127) / 128 * 128;
}
/* Stages of x that have room; shared memory of it all. */
template <typename S> static inline int planes_x_depth(int rows)
{
    const int depth = (S::ROOM - (4 * S::DEPTH * planes_stage<S>(rows) + 1023) / 1024 * 1024) /
                      (S::KW * (S::X_STAGE + S::X_STEPS));
    return depth < S::X_MOST ? depth : (int)S::X_MOST;
}
template <typename S> static inline int planes_smem(int rows)
{
    return (4 * S::DEPTH * planes_stage<S>(rows) + 1023) / 1024 * 1024 +
           S::KW * planes_x_depth<S>(rows) * (S::X_STAGE + S::X_STEPS) + S::SLOTS + S::BARS;
}

/* A warp has a block of a token. blocks: those of k, in whole stages. */
template <int COLUMNS>
static __global__ __launch_bounds__(128) void sop_planes_of(const void *x, int32_t dtype,
                                                            int64_t x_stride, int tokens, int k,
                                                            int blocks, uint8_t *planes,
                                                            int2 *steps)
{
    const int i = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, t = i % tokens,
              b = i / tokens;
    sop_begin();
    if (b >= blocks) return;
    float f[4] = {};
    if (b * 128 < k)
#pragma unroll
        for (int e = 0; e < 4; e++)
            f[e] = sop_load_any(x, dtype, t * x_stride + b * 128 + lane * 4 + e);
    const float most = fmaxf(fmaxf(fabsf(f[0]), fabsf(f[1])), fmaxf(fabsf(f[2]), fabsf(f[3])));
    const float m = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    uint8_t *to = planes + (int64_t)b * COLUMNS * 256;
    const float up = m < 0x1p-90f ? 0x1p64f : 1; /* where a step's inverse would be infinite */
    const float per = m > 0 ? (float)PLANES_MOST / (m * up) : 0;
    int v[4], h[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        v[e] = __float2int_rn(f[e] * up * per);
        h[e] = (v[e] + 128) >> 8;
    }
    const int sum = __reduce_add_sync(~0u, v[0] + v[1] + v[2] + v[3]);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        const int *o = q ? v : h, row = 2 * t + q;
        *(uint32_t *)(to + row * 128 + ((lane / 4 ^ row % 8) << 4) + lane % 4 * 4) =
            __byte_perm(__byte_perm(o[0], o[1], 0x0040), __byte_perm(o[2], o[3], 0x0040), 0x5410);
    }
    if (lane == 0)
        steps[(int64_t)b * COLUMNS + t] = make_int2(__float_as_int(m / (float)PLANES_MOST), sum);
}

// clang-format off
#define PLANES_MMA(N, REGS, A0, A1, A2, A3, B, ADD, ...) \
    SOP_DEV void planes_mma(int (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.u8.s8 {" REGS \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p;\n}" \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define PLANES_D(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
PLANES_MMA(8, R4, 4, 5, 6, 7, 8, 9, PLANES_D(0))
PLANES_MMA(16, R8, 8, 9, 10, 11, 12, 13, PLANES_D(0), PLANES_D(4))
PLANES_MMA(32, R16, 16, 17, 18, 19, 20, 21, PLANES_D(0), PLANES_D(4), PLANES_D(8), PLANES_D(12))
// clang-format on

SOP_DEV uint32_t planes_rank(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
SOP_DEV uint32_t planes_at(uint32_t addr, uint32_t cta)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
    return r;
}
SOP_DEV void planes_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
/* One arrival on a CTA's barrier, releases this thread's writes to the cluster; waits and acquires. */
SOP_DEV void planes_give(uint32_t bar, uint32_t cta)
{
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(planes_at(bar, cta))
        : "memory");
}
SOP_DEV void planes_take(uint32_t bar, uint32_t parity)
{
    asm volatile(
        "{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra W;\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
}
/* Masks are done by here, while the product before is on its way. */
SOP_DEV void planes_pin(uint32_t (&a)[4][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
/* A word of another CTA; 4 bytes arrive at its barrier. */
SOP_DEV void planes_send(uint32_t addr, float v, uint32_t bar, uint32_t cta)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            planes_at(addr, cta)),
        "f"(v), "r"(planes_at(bar, cta))
        : "memory");
}

template <typename S>
static __global__ __launch_bounds__(S::THREADS, 1) void sop_planes_sm90(
    const __grid_constant__ planes_maps maps, const __grid_constant__ planes_args p)
{
    enum { SUMS = S::COLUMNS / 2 };
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    const int stage_bytes = planes_stage<S>(p.rows);
    const uint32_t base = smem_addr(smem_raw),
                   x_all = (base + 4 * S::DEPTH * stage_bytes + 1023) & ~1023u;
    const uint32_t slots = x_all + S::KW * p.x_depth * (S::X_STAGE + S::X_STEPS),
                   bars = slots + S::SLOTS;
    const int tid = threadIdx.x % 128, lane = tid % 32, warp = tid / 32,
              wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* the same for a warp */
    const int rg = wg % S::RG, kw = wg / S::RG, rank = S::CL > 1 ? planes_rank() : 0,
              part = rank * S::KW + kw;
    const int cluster = blockIdx.x / S::CL, n_clusters = gridDim.x / S::CL;
    const uint32_t full = bars + 8 * wg * S::DEPTH,
                   x_full = bars + 8 * (4 * S::DEPTH + kw * S::X_MOST),
                   x_empty = x_full + 8 * S::KW * S::X_MOST,
                   ready = bars + 8 * (4 * S::DEPTH + 2 * S::KW * S::X_MOST),
                   done = ready + 8 * (4 + rg);
    if (threadIdx.x == 0) {
        const int x = 4 * S::DEPTH, e = x + S::KW * S::X_MOST, r = e + S::KW * S::X_MOST;
        for (int i = 0; i < e; i++) mbar_init(bars + 8 * i, 1);
        for (int i = e; i < r; i++) mbar_init(bars + 8 * i, 4 * S::RG);
        for (int i = r; i < r + 4; i++) mbar_init(bars + 8 * i, 1);
        for (int i = r + 4; i < r + 4 + S::RG; i++) mbar_init(bars + 8 * i, S::PARTS);
        fence_mbar_init();
    }
    __syncthreads();
    if (S::CL > 1)
        asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); /* barriers exist */
    grid_go();

    const int nk = (p.k + 128 * PLANES_BLOCKS - 1) / (128 * PLANES_BLOCKS);
    const int k0 = nk * part / S::PARTS, k_units = nk * (part + 1) / S::PARTS - k0;
    const int n_tiles = skinny_tiles(p.n, p.rows), round = n_clusters * S::RG;
    const int rounds = (n_tiles + round - 1) / round;
    const uint32_t ring = base + wg * S::DEPTH * stage_bytes,
                   x_at = x_all + kw * p.x_depth * S::X_STAGE,
                   info_at = x_all + p.x_depth * (S::KW * S::X_STAGE + kw * S::X_STEPS);
    const uint32_t row_at[2] = {ring - base + min(warp * 16 + lane / 4, p.rows - 1) * S::PITCH * 4,
                                ring - base +
                                    min(warp * 16 + lane / 4 + 8, p.rows - 1) * S::PITCH * 4};
    int tile = cluster * S::RG + rg, f_row, f_at, f_tile = tile, f_k = 0, f_stage = 0,
        to_fill = rounds * k_units;
    int f_j = skinny_part(p.n, p.rows, min(f_tile, n_tiles - 1), &f_row, &f_at);
    auto fill = [&] {
        if (tid != 0 || to_fill <= 0) return;
        mbar_expect_tx(full + 8 * f_stage, p.rows * S::PITCH * 4);
        tma_load_2d_once(ring + f_stage * stage_bytes, &maps.w[f_j], (k0 + f_k) * S::PITCH, f_row,
                         full + 8 * f_stage);
        to_fill--;
        if (++f_stage == S::DEPTH) f_stage = 0;
        if (++f_k == k_units && to_fill > 0) {
            f_k = 0;
            f_tile += round;
            f_j = skinny_part(p.n, p.rows, min(f_tile, n_tiles - 1), &f_row, &f_at);
        }
    };
    auto load_x = [&](uint32_t at, uint32_t info, int block, uint32_t bar) {
        const uint32_t bytes = S::XB > 1 ? S::X_STAGE : 256 * p.tokens;
        mbar_expect_tx(bar, bytes + S::XB * S::STEPS);
        planes_copy(at, p.planes + (int64_t)block * S::TILE, bytes, bar);
        tma_load_2d(info, &maps.steps, 0, block, bar);
    };
    if (S::APART && wg == 4) { /* a warp asks for the x of a part */
        regs_dec<32>();
        if (S::CL > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
        if (lane || warp >= S::KW) return;
        const int own = rank * S::KW + warp, from = nk * own / S::PARTS,
                  blocks = (nk * (own + 1) / S::PARTS - from) * PLANES_BLOCKS;
        const uint32_t at = x_all + warp * p.x_depth * S::X_STAGE,
                       info = x_all + p.x_depth * (S::KW * S::X_STAGE + warp * S::X_STEPS),
                       asked = bars + 8 * (4 * S::DEPTH + warp * S::X_MOST),
                       left = asked + 8 * S::KW * S::X_MOST;
        int stage = 0, phase = 1;
        grid_wait();
        for (int r = 0; r < rounds; r++)
            for (int b = 0; b < blocks; b += S::XB) {
                mbar_wait(left + 8 * stage, phase);
                load_x(at + stage * S::X_STAGE, info + stage * S::X_STEPS, from * PLANES_BLOCKS + b,
                       asked + 8 * stage);
                if (++stage == p.x_depth) stage = 0, phase ^= 1;
            }
        return;
    }
    if (S::APART) regs_inc<112>();
    int x_block = 0, x_to_fill = rounds * k_units * PLANES_BLOCKS / S::XB;
    auto next_x = [&](int to, bool me) {
        if (me)
            load_x(x_at + to * S::X_STAGE, info_at + to * S::X_STEPS, k0 * PLANES_BLOCKS + x_block,
                   x_full + 8 * to);
        x_block += S::XB;
        if (x_block == k_units * PLANES_BLOCKS) x_block = 0;
        x_to_fill--;
    };
    for (int i = 0; i < S::DEPTH; i++) fill();
    grid_wait();
    /* not behind what the first warp has asked for */
    for (int i = 0; !S::APART && i < p.x_depth && x_to_fill > 0; i++)
        next_x(i, tid == 32 && rg == 0);
    const int tokens = (int)sop_live_rows(p.live, p.tokens);
    if (S::CL > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");

    int stage = 0, phase = 0, d[2][S::COLUMNS] = {};
    int x_stage = 0, x_phase = 0, x_left = 0, x_gone = 0, x_again = 0, x_again_phase = 0;
    for (int r = 0; r < rounds; r++, tile += round) {
        uint32_t a[2][4][4];
        if (S::CL > 1 && tid == 0) mbar_expect_tx(ready + 8 * wg, S::PARTS * S::SHARE * 4);
        float acc[SUMS] = {}, scale[2][2];
        int zero[2][2];
        /* Ends the product of block b, while the next one is on its way unless this is the last. */
        auto settle = [&](int b, bool alone) {
            int(&sums)[S::COLUMNS] = d[b % 2];
            if (alone)
                wgmma_wait<0>();
            else
                wgmma_wait<1>();
#pragma unroll
            for (int i = 0; i < S::COLUMNS; i++) asm volatile("" : "+r"(sums[i])::"memory");
            const int2 *info = (const int2 *)(smem_raw + (info_at - base) + x_left * S::X_STEPS +
                                              b % S::XB * S::STEPS);
#pragma unroll
            for (int i = 0; i < SUMS; i++) { /* token 4 (i / 2) + lane % 4, row of i % 2 */
                const int2 of = info[i / 2 * 4 + lane % 4];
                const int sum = sums[2 * i] * 256 + sums[2 * i + 1] - zero[b % 2][i % 2] * of.y;
                acc[i] = fmaf(scale[b % 2][i % 2] * __int_as_float(of.x), (float)sum, acc[i]);
            }
#pragma unroll
            for (int i = 0; i < SUMS; i++)
                asm volatile("" : "+f"(acc[i])); /* sums are read by here */
            if (b % S::XB != S::XB - 1) return;
            __syncwarp();
            if (lane == 0) mbar_arrive(x_empty + 8 * x_left);
            if (++x_left == p.x_depth) x_left = 0;
            /* by a warp in turn, and late: who fills waits for those that are behind */
            if (S::APART || x_gone++ < S::LAG || x_to_fill <= 0) return;
            const bool me = tid == b % 4 * 32 && rg == 0;
            if (me) mbar_wait(x_empty + 8 * x_again, x_again_phase);
            next_x(x_again, me);
            if (++x_again == p.x_depth) x_again = 0, x_again_phase ^= 1;
        };
        for (int u = 0; u < k_units; u++) {
            const uint8_t *unit = smem_raw + stage * stage_bytes;
            mbar_wait(full + 8 * stage, phase);
#pragma unroll
            for (int b = 0; b < PLANES_BLOCKS; b++) {
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    const uint32_t *row = (const uint32_t *)(unit + row_at[q]) + b * 17,
                                   head = row[0];
                    scale[b % 2][q] = __half2float(__ushort_as_half((unsigned short)head));
                    zero[b % 2][q] = head >> 16 & 255;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint32_t w = row[1 + i * 4 + lane % 4];
                        a[b % 2][i][q] = w & 0x0f0f0f0f;
                        a[b % 2][i][2 + q] = w >> 4 & 0x0f0f0f0f;
                    }
                }
                if (b == PLANES_BLOCKS - 1) {
                    fence_async(); /* waits for loads */
                    named_sync(1 + wg, 128);
                    fill();
                }
                if (b % S::XB == 0) mbar_wait(x_full + 8 * x_stage, x_phase);
                planes_pin(a[b % 2]);
                const uint64_t x = desc_k_major(x_at + x_stage * S::X_STAGE + b % S::XB * S::TILE);
                if (b % S::XB == S::XB - 1 && ++x_stage == p.x_depth) x_stage = 0, x_phase ^= 1;
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; i++)
                    planes_mma(d[b % 2], a[b % 2][i], desc_advance(x, i * 32), i > 0);
                wgmma_commit();
                if (b > 0) settle(b - 1, false);
            }
            settle(PLANES_BLOCKS - 1, true); /* none is on its way where the loop begins again */
            if (++stage == S::DEPTH) stage = 0, phase ^= 1;
        }
        if (S::CL > 1 && r > 0) planes_take(done, (r - 1) & 1); /* slots have been read */
        uint32_t slot = slots + (rg * S::PARTS + part) * S::SLOT, bar = ready + 8 * rg;
        int first = lane % 4 * 64 + warp * 16 + lane / 4;
        asm volatile(""
                     : "+r"(slot), "+r"(bar), "+r"(first)); /* not held while registers are few */
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int q = first + i / 2 * 256 + i % 2 * 8, owner = q / S::SHARE, at = q % S::SHARE;
            const uint32_t to =
                slot + owner % S::KW * S::RG * S::PARTS * S::SLOT + (at / 64 * 72 + at % 64) * 4;
            if (S::CL > 1)
                planes_send(to, acc[i], bar + owner % S::KW * S::RG * 8, owner / S::KW);
            else
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(acc[i]) : "memory");
        }
        int row0, at;
        const int j = skinny_part(p.n, p.rows, min(tile, n_tiles - 1), &row0, &at),
                  row = (part * S::SHARE + tid) % 64;
        const bool mine = tile < n_tiles && row < p.rows && row0 + row < p.n[j];
        const float bias = mine && p.bias[j] ? p.bias[j][row0 + row] : 0;
        const float *from = (const float *)(smem_raw + (slots - base) + wg * S::PARTS * S::SLOT) +
                            tid / 64 * 72 + tid % 64;
        if (S::CL > 1)
            planes_take(ready + 8 * wg, r & 1);
        else
            named_sync(5 + rg, 128 * S::KW);
#pragma unroll
        for (int e = 0; e < (S::SHARE + 127) / 128; e++) {
            const int t = (part * S::SHARE + e * 128 + tid) / 64;
            if (!mine || e * 128 + tid >= S::SHARE || t >= tokens) break;
            float sum = bias;
#pragma unroll
            for (int c = 0; c < S::PARTS; c++) sum += from[c * S::SLOT / 4 + e * 144];
            sop_store_any(p.y, p.y_dtype, t * p.y_stride + at + row0 + row, sum);
        }
        if (r + 1 == rounds) return;
        if (S::CL > 1) {
            named_sync(1 + wg, 128);
            if (tid < S::CL) planes_give(done, tid);
        } else {
            named_sync(5 + rg, 128 * S::KW);
        }
    }
}

#endif
