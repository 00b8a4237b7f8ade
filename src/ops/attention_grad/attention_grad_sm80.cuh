/* attention_grad_tiles.cuh by mma: four warps have 16 rows each, and half the columns of a tile at a time. What
 * they make of scores is in registers already as the left factor of the products that follow.
 *
 *     shared -> X | Y | (x | y) twice | stats of the columns twice; rows of D in pieces of 16 bytes, piece c of
 *               row r at c ^ r % 8 */
#ifndef OPS_ATTENTION_GRAD_SM80_CUH
#define OPS_ATTENTION_GRAD_SM80_CUH

#include "ops/attention_grad/attention_grad_tiles.cuh"

enum { SOP_GRAD_THREADS = 128 };

/* The first n of 64 rows and their channels, and zeros. */
template <int D>
SOP_DEV void grad_fetch(__nv_bfloat16 *to, const __nv_bfloat16 *from, int64_t stride, int64_t n,
                        int64_t channels)
{
#pragma unroll
    for (int k = 0; k < SOP_GRAD_SIDE * D / 8 / SOP_GRAD_THREADS; k++) {
        const int e = k * SOP_GRAD_THREADS + threadIdx.x, r = e / (D / 8), c = e % (D / 8);
        sop_copy_async(to + r * D + (c ^ r % 8) * 8,
                       from + (r < n && c * 8 < channels ? r * stride + c * 8 : 0),
                       r < n && c * 8 < channels ? 16 : 0);
    }
}

SOP_DEV void grad_matrices(uint32_t (&m)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}
SOP_DEV void grad_matrices_down(uint32_t (&m)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}
/* Where this lane's row of four 8 x 8 matrices lies, of 16 rows from r and 16 channels from c on: the second
 * one is 8 rows down (DOWN), or 8 channels on. */
template <int D, bool DOWN> SOP_DEV uint32_t grad_lane(const __nv_bfloat16 *tile, int r, int c)
{
    const int lane = threadIdx.x % 32, m = lane / 8;
    const int row = r + lane % 8 + 8 * (DOWN ? m % 2 : m / 2),
              piece = c / 8 + (DOWN ? m / 2 : m % 2);
    return (uint32_t)__cvta_generic_to_shared(tile + row * D + (piece ^ row % 8) * 8);
}

/* sum[n] += the rows of a, 16 of them from r on, times 16 rows of b each for n / 2 from c on. */
template <int D>
SOP_DEV void grad_scores(float (&sum)[4][4], const __nv_bfloat16 *a, int r, const __nv_bfloat16 *b,
                         int c)
{
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t left[4];
        grad_matrices(left, grad_lane<D, true>(a, r, k));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t right[4];
            grad_matrices(right, grad_lane<D, false>(b, c + 16 * n, k));
            const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
            sop_mma(__nv_bfloat16(), sum[2 * n], left, first);
            sop_mma(__nv_bfloat16(), sum[2 * n + 1], left, second);
        }
    }
}

/* out += w b, w [16, 32] as scores lie, b 32 rows from c on. */
template <int D>
SOP_DEV void grad_gather(float (&out)[D / 2], const float (&w)[4][4], const __nv_bfloat16 *b, int c)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t left[4] = {sop_pack<__nv_bfloat16>(w[2 * k][0], w[2 * k][1]),
                                  sop_pack<__nv_bfloat16>(w[2 * k][2], w[2 * k][3]),
                                  sop_pack<__nv_bfloat16>(w[2 * k + 1][0], w[2 * k + 1][1]),
                                  sop_pack<__nv_bfloat16>(w[2 * k + 1][2], w[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t right[4];
            grad_matrices_down(right, grad_lane<D, true>(b, c + 16 * k, 16 * n));
            const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
            sop_mma(__nv_bfloat16(), *(float(*)[4])(out + 8 * n), left, first);
            sop_mma(__nv_bfloat16(), *(float(*)[4])(out + 8 * n + 4), left, second);
        }
    }
}

template <int D, bool KEYS, bool CAP, typename G>
static __global__ __launch_bounds__(SOP_GRAD_THREADS) void sop_attention_grad_mma(
    const sop_attention_grad_desc d, const sop_attention_grad_args a, const float2 *stats)
{
    typedef __nv_bfloat16 T;
    enum { SIDE = SOP_GRAD_SIDE, TILE = SIDE * D };
    extern __shared__ __align__(128) uint8_t shared[];
    T *const own = (T *)shared, *const ring = own + 2 * TILE;
    float2 *const of_columns = (float2 *)(ring + 4 * TILE);
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    grad_work<KEYS, SIDE> w;
    sop_begin();
    if (!w.find(d, a)) return;
    auto fetch = [&](int step) {
        w.other(d, a, step,
                [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
                    grad_fetch<D>(ring + (step % 2 * 2 + which) * TILE, from, stride, n, channels);
                });
    };
    auto stat_of = [&](int step) { /* of the thread's column */
                                   return w.stat(d, stats, w.head(step), w.column(step) + tid);
    };
    w.own(d, a, [&](int which, const T *from, int64_t stride, int64_t n, int64_t channels) {
        grad_fetch<D>(own + which * TILE, from, stride, n, channels);
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
    float e_out[D / 2] = {}, p_out[KEYS ? D / 2 : 1] = {};
    for (int step = 0; step < w.steps; step++) {
        float2 next = {};
        if (step + 1 < w.steps) {
            fetch(step + 1);
            if (KEYS && tid < SIDE) next = stat_of(step + 1);
        }
        sop_copy_commit();
        sop_copy_wait<1>();
        __syncthreads();
        const T *x = ring + step % 2 * 2 * TILE, *y = x + TILE;
        const float2 *column = of_columns + step % 2 * SIDE;
        const int64_t c0 = w.column(step);
        const bool whole = w.whole(d, c0, 0);
#pragma unroll
        for (int c = 0; c < SIDE; c += 32) {
            float p[4][4] = {}, e[4][4] = {};
            grad_scores<D>(p, own, warp * 16, x, c);
            grad_scores<D>(e, own + TILE, warp * 16, y, c);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int col = c + 8 * n + lane % 4 * 2 + i % 2;
                    const float2 stat = KEYS ? column[col] : of_row[i / 2];
                    float slope;
                    p[n][i] = grad_weight<CAP>(d, p[n][i], by, stat.x, slope);
                    if (!whole && !w.seen(d, c0, warp * 16 + lane / 4 + i / 2 * 8, col))
                        p[n][i] = 0;
                    e[n][i] = p[n][i] * (e[n][i] - stat.y) * slope;
                }
            grad_gather<D>(e_out, e, x, c);
            if constexpr (KEYS) grad_gather<D>(p_out, p, y, c);
        }
        if (KEYS && tid < SIDE) of_columns[(step + 1) % 2 * SIDE + tid] = next;
        __syncthreads();
    }
    grad_store_all<D, G>(d, a, w, e_out, p_out);
}

#endif
