/* attention_grad_tiles.cuh by wgmma: a block is a warpgroup, whose 64 rows are those of one product. p, in
 * registers as the left factor of the next, is made while the second product runs, and dv's while e is. Two
 * blocks a multiprocessor work under each other's waits.
 *
 *     shared -> up to 1023 to align | X | Y | (x | y) twice | stats of the columns twice
 *     a tile of 64 rows is D / 64 pieces [64][128 bytes], swizzled as TMA would (ops/cuda/hopper.cuh) */
#ifndef OPS_ATTENTION_GRAD_SM90_CUH
#define OPS_ATTENTION_GRAD_SM90_CUH

#include "ops/attention_grad/attention_grad_tiles.cuh"
#include "ops/cuda/hopper.cuh"

enum { SOP_GRAD_THREADS = 128, SOP_GRAD_PIECE = SOP_GRAD_SIDE * 128 /* bytes */ };

/* The first n of 64 rows and their channels, and zeros, to the tile at `to`. */
template <int D>
SOP_DEV void grad_fetch_swizzled(uint8_t *to, const __nv_bfloat16 *from, int64_t stride, int64_t n,
                                 int64_t channels)
{
#pragma unroll
    for (int k = 0; k < SOP_GRAD_SIDE * D / 8 / SOP_GRAD_THREADS; k++) {
        const int e = k * SOP_GRAD_THREADS + threadIdx.x, r = e / (D / 8), c = e % (D / 8);
        sop_copy_async(to + c / 8 * SOP_GRAD_PIECE + r * 128 + (c % 8 ^ r % 8) * 16,
                       from + (r < n && c * 8 < channels ? r * stride + c * 8 : 0),
                       r < n && c * 8 < channels ? 16 : 0);
    }
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

template <int D, bool KEYS, bool CAP, typename G>
static __global__ __launch_bounds__(SOP_GRAD_THREADS, 2) void sop_attention_grad_wgmma(
    const sop_attention_grad_desc d, const sop_attention_grad_args a, const float2 *stats)
{
    typedef __nv_bfloat16 T;
    enum { SIDE = SOP_GRAD_SIDE, TILE = SIDE * D * 2 };
    extern __shared__ uint8_t raw[];
    const uint32_t base = (smem_addr(raw) + 1023) & ~1023u;
    uint8_t *const own = raw + (base - smem_addr(raw)), *const ring = own + 2 * TILE;
    float2 *const of_columns = (float2 *)(ring + 4 * TILE);
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    grad_work<KEYS, SIDE> w;
    sop_begin();
    if (!w.find(d, a)) return;
    auto fetch = [&](int step) {
        w.other(d, a, step,
                [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
                    grad_fetch_swizzled<D>(ring + (step % 2 * 2 + which) * TILE, from, stride, n,
                                           channels);
                });
    };
    auto stat_of = [&](int step) { /* of the thread's column */
                                   return w.stat(d, stats, w.head(step), w.column(step) + tid);
    };
    w.own(d, a, [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
        grad_fetch_swizzled<D>(own + which * TILE, from, stride, n, channels);
    });
    float2 of_row[2];
    if (!KEYS)
        for (int half = 0; half < 2; half++)
            of_row[half] = w.stat(d, stats, w.own_head, w.r0 + warp * 16 + lane / 4 + 8 * half);
    if (w.steps > 0) {
        fetch(0);
        if (KEYS && tid < SIDE) of_columns[tid] = stat_of(0);
    }
    sop_copy_commit();

    const float by = d.scale * 1.44269504f;
    const uint64_t own_x = desc_k_major(base), own_y = desc_k_major(base + TILE);
    float p[32], e[32], e_out[D / 2] = {}, p_out[KEYS ? D / 2 : 1] = {};
    for (int step = 0; step < w.steps; step++) {
        float2 next = {};
        if (step + 1 < w.steps) {
            fetch(step + 1);
            if (KEYS && tid < SIDE) next = stat_of(step + 1);
        }
        sop_copy_commit();
        sop_copy_wait<1>();
        fence_async();
        __syncthreads();
        const uint32_t x = base + (2 + step % 2 * 2) * TILE, y = x + TILE;
        const float2 *column = of_columns + step % 2 * SIDE;
        const int64_t c0 = w.column(step);
        const bool whole = w.whole(d, c0, 0);
        uint32_t packed[16];
        wgmma_fence();
        grad_product<D>(p, own_x, desc_k_major(x));
        wgmma_commit();
        grad_product<D>(e, own_y, desc_k_major(y));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_touch(p);
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
        wgmma_wait<0>();
        wgmma_touch(e);
        if constexpr (KEYS) {
            grad_pack(p, packed);
            wgmma_fence();
            grad_add<D>(p_out, packed, desc_mn_major(y, SIDE));
            wgmma_commit();
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int col = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float delta = KEYS ? column[col].y : of_row[i / 2 % 2].y;
            e[i] = p[i] * (e[i] - delta);
            if (CAP) e[i] *= slopes[CAP ? i : 0];
        }
        uint32_t left[16];
        grad_pack(e, left);
        wgmma_fence();
        grad_add<D>(e_out, left, desc_mn_major(x, SIDE));
        wgmma_commit();
        if (KEYS && tid < SIDE) of_columns[(step + 1) % 2 * SIDE + tid] = next;
        wgmma_wait<0>();
        wgmma_touch(e_out);
        if constexpr (KEYS) wgmma_touch(p_out);
        __syncthreads();
    }
    grad_store_all<D, G>(d, a, w, e_out, p_out);
}

#endif
