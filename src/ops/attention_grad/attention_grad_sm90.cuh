/* attention_grad_tiles.cuh by wgmma: a warpgroup has 64 rows, those of one product. p, in registers as the left
 * factor of the next, is made while the second product runs, e while dv's does.
 *
 *     channels            64         128
 *     warpgroups a block  1          2: a tile of columns is fetched for both
 *     blocks at a time    2          1
 *
 *     shared -> up to 1023 to align | X | Y, of each warpgroup | x | y, of each tile | stats of its columns
 *     a tile of 64 rows is D / 64 pieces [64][128 bytes], swizzled as TMA would (ops/cuda/hopper.cuh) */
#ifndef OPS_ATTENTION_GRAD_SM90_CUH
#define OPS_ATTENTION_GRAD_SM90_CUH

#include "ops/attention_grad/attention_grad_tiles.cuh"
#include "ops/cuda/hopper.cuh"

enum { SOP_GRAD_PIECE = SOP_GRAD_SIDE * 128 }; /* bytes */

template <int D> struct grad_wgmma {
    enum {
        groups = D == 128 ? 2 : 1,
        threads = 128 * groups,
        rows = SOP_GRAD_SIDE * groups,
        blocks = D == 128 ? 1 : 2,
        stages = 4,                   /* as dk's and dv's product runs on into the next step */
        tile = SOP_GRAD_SIDE * D * 2, /* bytes, as are these */
        ring = 2 * groups * tile,
        stats = ring + stages * 2 * tile,
        bytes = stats + stages * SOP_GRAD_SIDE * 8 + 1024
    };
};

/* The first n of 64 rows and their channels, and zeros, to the tile at `to`. */
template <int D>
SOP_DEV void grad_fetch_swizzled(uint8_t *to, const __nv_bfloat16 *from, int64_t stride, int64_t n,
                                 int64_t channels)
{
    enum { THREADS = grad_wgmma<D>::threads };
#pragma unroll
    for (int k = 0; k < SOP_GRAD_SIDE * D / 8 / THREADS; k++) {
        const int e = k * THREADS + threadIdx.x, r = e / (D / 8), c = e % (D / 8);
        const bool there = r < n && c * 8 < channels;
        sop_copy_async(to + c / 8 * SOP_GRAD_PIECE + r * 128 + (c % 8 ^ r % 8) * 16,
                       from + (there ? r * stride + c * 8 : 0), there ? 16 : 0);
    }
}

/* 8 bytes, or zeros. */
SOP_DEV void grad_fetch_stat(float2 *to, const float2 *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_addr(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}

/* sum = a b^T of two tiles. */
template <int D> SOP_DEV void grad_product(float (&sum)[32], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint32_t on = k / 4 * SOP_GRAD_PIECE + k % 4 * 32;
        wgmma<__nv_bfloat16>::ss(sum, desc_advance(a, on), desc_advance(b, on), k > 0);
    }
}

/* out += w b, w [64, 64] packed as accumulators lie. */
template <int D> SOP_DEV void grad_add(float (&out)[D / 2], const uint32_t (&w)[16], uint64_t b)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma<__nv_bfloat16>::rs(out, w + 4 * k, desc_advance(b, k * 2048), 1);
}

SOP_DEV void grad_pack(const float (&w)[32], uint32_t (&packed)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) packed[i] = sop_pack<__nv_bfloat16>(w[2 * i], w[2 * i + 1]);
}
/* Keeps a left factor where it is until here. */
SOP_DEV void grad_keep(uint32_t (&packed)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(packed[i])::"memory");
}

template <int D, bool KEYS, bool CAP, typename G>
static __global__ __launch_bounds__(
    grad_wgmma<D>::threads,
    grad_wgmma<D>::blocks) void sop_attention_grad_wgmma(const sop_attention_grad_desc d,
                                                         const sop_attention_grad_args a,
                                                         const float2 *stats)
{
    typedef __nv_bfloat16 T;
    typedef grad_wgmma<D> smem;
    enum { SIDE = SOP_GRAD_SIDE, TILE = smem::tile, STAGES = smem::stages, GROUPS = smem::groups };
    extern __shared__ uint8_t raw[];
    const uint32_t base = (smem_addr(raw) + 1023) & ~1023u;
    uint8_t *const at = raw + (base - smem_addr(raw));
    float2 *const of_columns = (float2 *)(at + smem::stats);
    const int tid = threadIdx.x, group = tid / 128, warp = tid / 32, lane = tid % 32;
    grad_work<KEYS, smem::rows> w;
    sop_begin();
    if (!w.find(d, a)) return;
    auto fetch = [&](int step) {
        const int stage = step % STAGES;
        if (step >= w.steps) return;
        w.other(d, a, step,
                [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
                    grad_fetch_swizzled<D>(at + smem::ring + (stage * 2 + which) * TILE, from,
                                           stride, n, channels);
                });
        if (KEYS && tid < SIDE) {
            const int64_t c = w.column(step) + tid;
            const bool there = c < w.cols;
            grad_fetch_stat(of_columns + stage * SIDE + tid,
                            stats + w.head(step) * d.tokens + w.q0 + (there ? c : 0), there);
        }
    };
    w.own(d, a, [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
        for (int s = 0; s < GROUPS; s++) {
            const int64_t left = n - s * SIDE; /* where none is, the first row's address is one */
            grad_fetch_swizzled<D>(at + (which * GROUPS + s) * TILE,
                                   from + (left > 0 ? s * SIDE * stride : 0), stride, left,
                                   channels);
        }
    });
    float2 of_row[2];
    if (!KEYS)
        for (int half = 0; half < 2; half++)
            of_row[half] = w.stat(d, stats, blockIdx.x, w.r0 + warp * 16 + lane / 4 + 8 * half);
    fetch(0);
    sop_copy_commit();
    fetch(1);
    sop_copy_commit();

    const float by = d.scale * 1.44269504f;
    const uint64_t own_x = desc_k_major(base + group * TILE);
    const uint64_t own_y = desc_k_major(base + (GROUPS + group) * TILE);
    float p[32], e[32], e_out[D / 2] = {}, p_out[KEYS ? D / 2 : 1] = {};
    uint32_t p_left[16] = {}, e_left[16] = {};
    for (int step = 0; step < w.steps; step++) {
        sop_copy_wait<1>();
        fence_async();
        __syncthreads();
        fetch(step + 2);
        sop_copy_commit();
        const int64_t c0 = w.column(step);
        if (w.none(d, c0, group * SIDE)) {
            wgmma_wait<0>(); /* the tile of the step before may be fetched over next */
            continue;
        }
        const bool whole = w.whole(d, c0, group * SIDE);
        const uint32_t x = base + smem::ring + step % STAGES * 2 * TILE, y = x + TILE;
        const float2 *column = of_columns + step % STAGES * SIDE;
        wgmma_fence();
        grad_product<D>(p, own_x, desc_k_major(x));
        wgmma_commit();
        grad_product<D>(e, own_y, desc_k_major(y));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_touch(p);
        if (KEYS) grad_keep(p_left);
        grad_keep(e_left);
        float slopes[CAP ? 32 : 1];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int col = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float lse = KEYS ? column[col].x : of_row[i / 2 % 2].x;
            float slope;
            p[i] = grad_weight<CAP>(d, p[i], by, lse, slope);
            if (CAP) slopes[CAP ? i : 0] = slope;
            if (!whole && !w.seen(d, c0, warp * 16 + lane / 4 + i / 2 % 2 * 8, col)) p[i] = 0;
        }
        if (KEYS) grad_pack(p, p_left);
        wgmma_wait<0>();
        wgmma_touch(e);
        wgmma_touch(e_out);
        if constexpr (KEYS) {
            wgmma_touch(p_out);
            wgmma_fence();
            grad_add<D>(p_out, p_left, desc_mn_major(y, SIDE));
            wgmma_commit();
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int col = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float delta = KEYS ? column[col].y : of_row[i / 2 % 2].y;
            e[i] = p[i] * (e[i] - delta);
            if (CAP) e[i] *= slopes[CAP ? i : 0];
        }
        grad_pack(e, e_left);
        wgmma_fence();
        grad_add<D>(e_out, e_left, desc_mn_major(x, SIDE));
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_touch(e_out);
    if constexpr (KEYS) wgmma_touch(p_out);
    grad_store_all<D, G>(d, a, w, e_out, p_out);
}

#endif
