/* By tensor cores, on tiles of 64 x 64: a block owns 64 rows, of keys for dk and dv or of queries for dq, and
 * passes along the columns of the other side. Four warps have 16 rows each; what they make of scores is in
 * registers already as the left factor of the products that follow:
 *
 *     rows are       S = X x^T     T = Y y^T     out
 *     keys           X = k, x = q  Y = v, y = do dk += e q, dv += p do; over the query heads of a KV head
 *     queries        X = q, x = k  Y = do, y = v dq += e k
 *
 * p = exp(S - lse) and e = p (T - delta) are rounded to bfloat16 for it. lse, in powers of two, and delta, the
 * sum of do * o, come from a kernel before: stats [heads, tokens] in scratch. No part of a sum is another
 * block's, so bits do not change from run to run.
 *
 *     shared -> X | Y | (x | y) twice | stats of the columns twice; rows of D in pieces of 16 bytes, piece c of
 *               row r at c ^ r % 8 */
#ifndef OPS_ATTENTION_GRAD_SM80_CUH
#define OPS_ATTENTION_GRAD_SM80_CUH

#include "ops/attention_grad/attention_grad.cuh"
#include "ops/cuda/mma.cuh"

enum { SOP_GRAD_SIDE = 64, SOP_GRAD_THREADS = 128 };

/* Bytes of shared memory for heads of d channels. */
static inline size_t sop_attention_grad_shared(int64_t d)
{
    return 6 * SOP_GRAD_SIDE * (size_t)d * 2 + 2 * SOP_GRAD_SIDE * sizeof(float2);
}

/* stats of each query and head, by a warp. */
template <int D>
static __global__ __launch_bounds__(256) void sop_attention_grad_stats(
    const sop_attention_grad_desc d, const __nv_bfloat16 *o, const __nv_bfloat16 *go,
    const float *lse, float2 *stats)
{
    sop_begin();
    const int64_t t = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, h = blockIdx.y;
    if (t >= d.tokens) return;
    float sum = 0;
#pragma unroll
    for (int i = threadIdx.x % 32 * 2; i < D; i += 64) {
        float a, b, c, e;
        sop_unpack<__nv_bfloat16>(*(const uint32_t *)(o + t * d.o_stride + h * d.o_head + i), a, b);
        sop_unpack<__nv_bfloat16>(*(const uint32_t *)(go + t * d.do_stride + h * d.do_head + i), c,
                                  e);
        sum = fmaf(a, c, fmaf(b, e, sum));
    }
    sum = sop_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        stats[h * d.tokens + t] = make_float2(lse[t * d.heads + h] * 1.44269504f, sum);
}

/* The first n of 64 rows, and zeros. */
template <int D>
SOP_DEV void grad_fetch(__nv_bfloat16 *to, const __nv_bfloat16 *from, int64_t stride, int64_t n)
{
#pragma unroll
    for (int k = 0; k < SOP_GRAD_SIDE * D / 8 / SOP_GRAD_THREADS; k++) {
        const int e = k * SOP_GRAD_THREADS + threadIdx.x, r = e / (D / 8), c = e % (D / 8);
        sop_copy_async(to + r * D + (c ^ r % 8) * 8, from + (r < n ? r * stride : 0) + c * 8,
                       r < n ? 16 : 0);
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
SOP_DEV void grad_gather(float (&out)[D / 8][4], const float (&w)[4][4], const __nv_bfloat16 *b,
                         int c)
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
            sop_mma(__nv_bfloat16(), out[2 * n], left, first);
            sop_mma(__nv_bfloat16(), out[2 * n + 1], left, second);
        }
    }
}

/* Rows r of 16 and their channels, as far as there are n rows. */
template <int D, typename G>
SOP_DEV void grad_store(G *to, int64_t stride, const float (&out)[D / 8][4], float scale, int64_t r,
                        int64_t n)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = r + lane / 4 + 8 * half;
        if (row >= n) continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            G *at = to + row * stride + 8 * i + lane % 4 * 2;
            const float a = scale * out[i][2 * half], b = scale * out[i][2 * half + 1];
            if constexpr (sizeof(G) == 4)
                *(float2 *)at = make_float2(a, b);
            else
                *(uint32_t *)at = sop_pack<G>(a, b);
        }
    }
}

/* KEYS: rows are keys. */
template <int D, bool KEYS, bool CAP, typename G>
static __global__ __launch_bounds__(SOP_GRAD_THREADS) void sop_attention_grad_tiles(
    const sop_attention_grad_desc d, const sop_attention_grad_args a, const float2 *stats)
{
    typedef __nv_bfloat16 T;
    enum { SIDE = SOP_GRAD_SIDE, TILE = SIDE * D };
    extern __shared__ __align__(128) uint8_t shared[];
    T *const own = (T *)shared, *const ring = own + 2 * TILE;
    float2 *const of_columns = (float2 *)(ring + 4 * TILE);
    sop_begin();
    const int s = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t q0 = a.q_start[s], k0 = a.k_start[s];
    const int64_t length = a.q_start[s + 1] - q0, keys = a.k_start[s + 1] - k0;
    const int64_t ahead = keys - length; /* of query i's position */
    const int64_t rows = KEYS ? keys : length, cols = KEYS ? length : keys;
    /* those with most to do go first */
    const int64_t r0 = (int64_t)(KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * SIDE;
    if (r0 >= rows) return;
    const int64_t group = d.heads / d.kv_heads, g = KEYS ? blockIdx.y : blockIdx.y / group;
    int64_t lo = 0, hi = cols;
    if (KEYS) {
        if (d.causal && r0 > ahead) lo = r0 - ahead;
        if (d.window > 0) hi = min(hi, r0 + SIDE - 1 + d.window - ahead);
    } else {
        if (d.window > 0 && r0 + ahead + 1 > d.window) lo = r0 + ahead + 1 - d.window;
        if (d.causal) hi = min(hi, r0 + SIDE + ahead);
    }
    lo = lo / SIDE * SIDE;
    const int tiles = hi > lo ? (int)((hi - lo + SIDE - 1) / SIDE) : 0;
    const int steps = tiles * (KEYS ? (int)group : 1);

    const T *q = (const T *)a.q, *k = (const T *)a.k, *v = (const T *)a.v, *go = (const T *)a.go;
    auto head_of = [&](int step) { return KEYS ? g * group + step / tiles : (int64_t)blockIdx.y; };
    auto fetch =
        [&](int step) { /* the columns of a step */
                        const int64_t c = lo + (int64_t)(step % tiles) * SIDE, h = head_of(step);
                        T *to = ring + step % 2 * 2 * TILE;
                        if (KEYS) {
                            grad_fetch<D>(to, q + (q0 + c) * d.q_stride + h * d.q_head, d.q_stride,
                                          cols - c);
                            grad_fetch<D>(to + TILE, go + (q0 + c) * d.do_stride + h * d.do_head,
                                          d.do_stride, cols - c);
                        } else {
                            grad_fetch<D>(to, k + (k0 + c) * d.k_stride + g * d.k_head, d.k_stride,
                                          cols - c);
                            grad_fetch<D>(to + TILE, v + (k0 + c) * d.v_stride + g * d.v_head,
                                          d.v_stride, cols - c);
                        }
        };
    auto stats_of = [&](int step) { /* of column threadIdx.x: no weight where there is none */
                                    const int64_t c =
                                        lo + (int64_t)(step % tiles) * SIDE + threadIdx.x;
                                    return c < cols ? stats[head_of(step) * d.tokens + q0 + c]
                                                    : make_float2(INFINITY, 0);
    };
    if (KEYS) {
        grad_fetch<D>(own, k + (k0 + r0) * d.k_stride + g * d.k_head, d.k_stride, rows - r0);
        grad_fetch<D>(own + TILE, v + (k0 + r0) * d.v_stride + g * d.v_head, d.v_stride, rows - r0);
    } else {
        const int64_t h = blockIdx.y;
        grad_fetch<D>(own, q + (q0 + r0) * d.q_stride + h * d.q_head, d.q_stride, rows - r0);
        grad_fetch<D>(own + TILE, go + (q0 + r0) * d.do_stride + h * d.do_head, d.do_stride,
                      rows - r0);
    }
    float2 of_row[2];
    if (!KEYS)
        for (int half = 0; half < 2; half++) {
            const int64_t r = r0 + warp * 16 + lane / 4 + 8 * half;
            of_row[half] =
                r < rows ? stats[blockIdx.y * d.tokens + q0 + r] : make_float2(INFINITY, 0);
        }
    if (steps > 0) {
        fetch(0);
        if (KEYS && threadIdx.x < SIDE) of_columns[threadIdx.x] = stats_of(0);
    }
    sop_copy_commit();

    const float by = d.scale * 1.44269504f; /* to powers of two */
    float e_out[D / 8][4] = {}, p_out[KEYS ? D / 8 : 1][4] = {};
    for (int step = 0; step < steps; step++) {
        float2 next = {};
        if (step + 1 < steps) {
            fetch(step + 1);
            if (KEYS && threadIdx.x < SIDE) next = stats_of(step + 1);
        }
        sop_copy_commit();
        sop_copy_wait<1>();
        __syncthreads();
        const T *x = ring + step % 2 * 2 * TILE, *y = x + TILE;
        const float2 *column = of_columns + step % 2 * SIDE;
        const int64_t c0 = lo + (int64_t)(step % tiles) * SIDE;
        /* how far position and key of the corners are apart: seen when from 0 to below the window */
        const int64_t apart = KEYS ? c0 + ahead - r0 : r0 + ahead - c0;
        const bool whole = c0 + SIDE <= cols && (!d.causal || apart >= SIDE - 1) &&
                           (d.window == 0 || apart + SIDE - 1 < d.window);
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
                    float slope = 1, z = p[n][i] * by;
                    if (CAP) {
                        const float th = tanhf(p[n][i] * d.scale / d.cap);
                        slope = 1 - th * th;
                        z = d.cap * 1.44269504f * th;
                    }
                    float w = exp2f(fminf(z - stat.x, 0));
                    if (!whole) {
                        const int row = warp * 16 + lane / 4 + i / 2 * 8;
                        const int64_t far = apart + (KEYS ? col - row : row - col);
                        if (c0 + col >= cols || (d.causal && far < 0) ||
                            (d.window > 0 && far >= d.window))
                            w = 0;
                    }
                    p[n][i] = w;
                    e[n][i] = w * (e[n][i] - stat.y) * slope;
                }
            grad_gather<D>(e_out, e, x, c);
            if constexpr (KEYS) grad_gather<D>(p_out, p, y, c);
        }
        if (KEYS && threadIdx.x < SIDE) of_columns[(step + 1) % 2 * SIDE + threadIdx.x] = next;
        __syncthreads();
    }
    const int64_t r = warp * 16, left = rows - r0;
    if constexpr (KEYS) {
        grad_store<D>((G *)a.dk + (k0 + r0) * d.dk_stride + g * d.dk_head, d.dk_stride, e_out,
                      d.scale, r, left);
        grad_store<D>((G *)a.dv + (k0 + r0) * d.dv_stride + g * d.dv_head, d.dv_stride, p_out, 1.0f,
                      r, left);
    } else {
        grad_store<D>((G *)a.dq + (q0 + r0) * d.dq_stride + blockIdx.y * d.dq_head, d.dq_stride,
                      e_out, d.scale, r, left);
    }
}

#endif
