/* What the rows by tensor cores share: tiles of 64 x 64. A block owns 64 rows, of keys for dk and dv or of
 * queries for dq, and passes along the columns of the other side:
 *
 *     rows are       S = X x^T     T = Y y^T     out
 *     keys           X = k, x = q  Y = v, y = do dk += e q, dv += p do; over the query heads of a KV head
 *     queries        X = q, x = k  Y = do, y = v dq += e k
 *
 * p = exp(S - lse) and e = p (T - delta) are rounded to bfloat16 for the products that follow. lse, in powers of
 * two, and delta, the sum of do * o, come from a kernel before: stats [heads, tokens] in scratch. No part of a
 * sum is another block's, so bits do not change from run to run. Heads have up to D channels, 64 or 128: those
 * that are not there are 0. */
#ifndef OPS_ATTENTION_GRAD_TILES_CUH
#define OPS_ATTENTION_GRAD_TILES_CUH

#include "ops/attention_grad/attention_grad.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/gated/gated_act.cuh"

enum { SOP_GRAD_SIDE = 64 };

/* stats of each query and head, by a warp. */
static __global__ __launch_bounds__(256) void sop_attention_grad_stats(
    const sop_attention_grad_desc d, const __nv_bfloat16 *o, const __nv_bfloat16 *go,
    const float *lse, float2 *stats)
{
    sop_begin();
    const int64_t t = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, h = blockIdx.y;
    if (t >= d.tokens) return;
    float sum = 0;
    for (int i = threadIdx.x % 32 * 2; i < d.v; i += 64) {
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

/* What a block of a tile kernel does: a tile of a head of a sequence. Those with most to do go first. KEYS: rows
 * are keys. */
template <bool KEYS, int ROWS> struct grad_work {
    int64_t q0, k0; /* the first of the sequence */
    int64_t ahead;  /* of query i's position */
    int64_t rows, cols, r0, lo;
    int64_t own_head, g, group;
    int tiles, steps; /* tiles of columns, and those of all heads */

    /* false: nothing. */
    __device__ __forceinline__ bool find(const sop_attention_grad_desc &d,
                                         const sop_attention_grad_args &a)
    {
        /* by tiles: a head after another; else a tile of all heads after another */
        const int s = a.by_tiles ? blockIdx.z : blockIdx.y;
        const int tile = a.by_tiles ? blockIdx.x : blockIdx.z;
        const int tiles_most = a.by_tiles ? gridDim.x : gridDim.z;
        own_head = a.by_tiles ? blockIdx.y : blockIdx.x;
        q0 = a.q_start[s];
        k0 = a.k_start[s];
        const int64_t length = a.q_start[s + 1] - q0, keys = a.k_start[s + 1] - k0;
        ahead = keys - length;
        rows = KEYS ? keys : length;
        cols = KEYS ? length : keys;
        r0 = (int64_t)(KEYS ? tile : tiles_most - 1 - tile) * ROWS;
        if (r0 >= rows) return false;
        group = d.heads / d.kv_heads;
        g = KEYS ? own_head : own_head / group;
        lo = 0;
        int64_t hi = cols;
        if (KEYS) {
            if (d.causal && r0 > ahead) lo = r0 - ahead;
            if (d.window > 0) hi = min(hi, r0 + ROWS - 1 + d.window - ahead);
        } else {
            if (d.window > 0 && r0 + ahead + 1 > d.window) lo = r0 + ahead + 1 - d.window;
            if (d.causal) hi = min(hi, r0 + ROWS + ahead);
        }
        lo = lo / SOP_GRAD_SIDE * SOP_GRAD_SIDE;
        tiles = hi > lo ? (int)((hi - lo + SOP_GRAD_SIDE - 1) / SOP_GRAD_SIDE) : 0;
        steps = tiles * (KEYS ? (int)group : 1);
        return true;
    }
    __device__ __forceinline__ int64_t head(int step) const
    {
        return KEYS ? g * group + step / tiles : own_head;
    }
    __device__ __forceinline__ int64_t column(int step) const /* the first of a step */
    {
        return lo + (int64_t)(step % tiles) * SOP_GRAD_SIDE;
    }
    /* The rows by put(which, from, stride, n, channels): X is 0, Y is 1, the first n are there. */
    template <typename F>
    __device__ __forceinline__ void own(const sop_attention_grad_desc &d,
                                        const sop_attention_grad_args &a, const F &put) const
    {
        typedef const __nv_bfloat16 T;
        if (KEYS) {
            put(0, (T *)a.k + (k0 + r0) * d.k_stride + g * d.k_head, d.k_stride, rows - r0, d.k);
            put(1, (T *)a.v + (k0 + r0) * d.v_stride + g * d.v_head, d.v_stride, rows - r0, d.v);
        } else {
            const int64_t h = own_head;
            put(0, (T *)a.q + (q0 + r0) * d.q_stride + h * d.q_head, d.q_stride, rows - r0, d.k);
            put(1, (T *)a.go + (q0 + r0) * d.do_stride + h * d.do_head, d.do_stride, rows - r0,
                d.v);
        }
    }
    /* The columns of a step, x and y. */
    template <typename F>
    __device__ __forceinline__ void other(const sop_attention_grad_desc &d,
                                          const sop_attention_grad_args &a, int step,
                                          const F &put) const
    {
        typedef const __nv_bfloat16 T;
        const int64_t c = column(step), h = head(step);
        if (KEYS) {
            put(0, (T *)a.q + (q0 + c) * d.q_stride + h * d.q_head, d.q_stride, cols - c, d.k);
            put(1, (T *)a.go + (q0 + c) * d.do_stride + h * d.do_head, d.do_stride, cols - c, d.v);
        } else {
            put(0, (T *)a.k + (k0 + c) * d.k_stride + g * d.k_head, d.k_stride, cols - c, d.k);
            put(1, (T *)a.v + (k0 + c) * d.v_stride + g * d.v_head, d.v_stride, cols - c, d.v);
        }
    }
    /* stats of a query: no weight where there is none. */
    __device__ __forceinline__ float2 stat(const sop_attention_grad_desc &d, const float2 *stats,
                                           int64_t h, int64_t i) const
    {
        return i < (KEYS ? cols : rows) ? stats[h * d.tokens + q0 + i] : make_float2(INFINITY, 0);
    }
    /* How far position and key of a corner, row r of the block, are apart: seen when from 0 to below the
     * window. */
    __device__ __forceinline__ int64_t apart(int64_t c0, int r) const
    {
        return KEYS ? c0 + ahead - r0 - r : r0 + r + ahead - c0;
    }
    /* Whether all of a tile, 64 rows from r on, is there and seen. */
    __device__ __forceinline__ bool whole(const sop_attention_grad_desc &d, int64_t c0, int r) const
    {
        const int64_t far = apart(c0, r);
        return c0 + SOP_GRAD_SIDE <= cols && (!d.causal || far >= SOP_GRAD_SIDE - 1) &&
               (d.window == 0 || far + SOP_GRAD_SIDE - 1 < d.window);
    }
    __device__ __forceinline__ bool seen(const sop_attention_grad_desc &d, int64_t c0, int row,
                                         int col) const
    {
        const int64_t far = apart(c0, row) + (KEYS ? col : -col);
        return c0 + col < cols && (!d.causal || far >= 0) && (d.window == 0 || far < d.window);
    }
};

/* p of a product q . k; slope: of the score with a cap. by: scale to powers of two. */
template <bool CAP>
SOP_DEV float grad_weight(const sop_attention_grad_desc &d, float dot, float by, float lse,
                          float &slope)
{
    float z = dot * by;
    slope = 1;
    if (CAP) {
        /* off by 2^-23, which the rounding of p hides; tanhf branches, and wgmma waits for branches */
        const float t = 1 - __fdividef(2.0f, sop_exp2_near(dot * (2 * by / d.cap)) + 1);
        slope = 1 - t * t;
        z = d.cap * 1.44269504f * t;
    }
    return sop_exp2_near(fminf(z - lse, 0));
}

/* Rows r of 16 from accumulators, as far as there are n rows and channels. */
template <int D, typename G>
SOP_DEV void grad_store(G *to, int64_t stride, const float (&out)[D / 2], float scale, int64_t r,
                        int64_t n, int64_t channels)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = r + lane / 4 + 8 * half;
        if (row >= n) continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            if (8 * i >= channels) break;
            G *at = to + row * stride + 8 * i + lane % 4 * 2;
            const float a = scale * out[4 * i + 2 * half], b = scale * out[4 * i + 2 * half + 1];
            if constexpr (sizeof(G) == 4)
                *(float2 *)at = make_float2(a, b);
            else
                *(uint32_t *)at = sop_pack<G>(a, b);
        }
    }
}
template <int D, typename G, bool KEYS, int ROWS, int P>
SOP_DEV void grad_store_all(const sop_attention_grad_desc &d, const sop_attention_grad_args &a,
                            const grad_work<KEYS, ROWS> &w, const float (&e_out)[D / 2],
                            const float (&p_out)[P])
{
    const int64_t r = threadIdx.x / 32 * 16, left = w.rows - w.r0;
    if constexpr (KEYS) {
        const int64_t key = w.k0 + w.r0;
        grad_store<D>((G *)a.dk + key * d.dk_stride + w.g * d.dk_head, d.dk_stride, e_out, d.scale,
                      r, left, d.k);
        grad_store<D>((G *)a.dv + key * d.dv_stride + w.g * d.dv_head, d.dv_stride, p_out, 1.0f, r,
                      left, d.v);
    } else {
        grad_store<D>((G *)a.dq + (w.q0 + w.r0) * d.dq_stride + w.own_head * d.dq_head, d.dq_stride,
                      e_out, d.scale, r, left, d.k);
    }
}

#endif
