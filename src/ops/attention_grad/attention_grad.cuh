/* The floor, in two kernels of one thing: a block has one row, a query with its head or a key with its KV
 * head, and up to 256 channels of what that row gets; it passes along the rows of the other side that it
 * sees, 64 at a time. Warps make their p and e, threads add them up by channels. Queries go first, and leave
 * their sum of do * o in scratch. Any types, strides, head sizes. */
#ifndef OPS_ATTENTION_GRAD_CUH
#define OPS_ATTENTION_GRAD_CUH

#include "ops/cuda/elements.cuh"
#include "sop/grad.h"

/* The pointers of a call, as a kernel takes them. */
struct sop_attention_grad_args {
    const void *q, *k, *v, *o, *go;
    const int32_t *q_start, *k_start;
    const float *lse;
    float *delta; /* [tokens, heads], scratch */
    void *dq, *dk, *dv;
    int by_tiles; /* of attention_grad_tiles.cuh */
};

/* The last sequence that starts at or before i. */
SOP_DEV int sop_sequence_at(const int32_t *start, int seqs, int64_t i)
{
    int lo = 0, hi = seqs;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (start[mid] > i)
            hi = mid;
        else
            lo = mid;
    }
    return lo;
}

/* a . b over n channels, by a warp; in all lanes. */
SOP_DEV float sop_warp_dot(const void *a, int32_t a_dtype, int64_t a_at, const void *b,
                           int32_t b_dtype, int64_t b_at, int64_t n)
{
    float dot = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        dot = fmaf(sop_load_any(a, a_dtype, a_at + i), sop_load_any(b, b_dtype, b_at + i), dot);
    return sop_warp_sum(dot);
}

/* By a warp: p of token t, query head h and a key, and the gradient of its score. */
SOP_DEV float2 sop_attention_grad_pair(const sop_attention_grad_desc &d,
                                       const sop_attention_grad_args &a, int64_t t, int64_t h,
                                       int64_t key, int64_t g, float delta)
{
    float z = d.scale * sop_warp_dot(a.q, d.q_dtype, t * d.q_stride + h * d.q_head, a.k, d.q_dtype,
                                     key * d.k_stride + g * d.k_head, d.k);
    const float arrives = sop_warp_dot(a.go, d.o_dtype, t * d.do_stride + h * d.do_head, a.v,
                                       d.q_dtype, key * d.v_stride + g * d.v_head, d.v);
    float slope = 1;
    if (d.cap > 0) {
        const float th = tanhf(z / d.cap);
        z = d.cap * th;
        slope = 1 - th * th;
    }
    const float p = expf(z - a.lse[t * d.heads + h]);
    return make_float2(p, p * (arrives - delta) * slope);
}

static __global__ __launch_bounds__(256) void sop_attention_grad_queries(
    const sop_attention_grad_desc d, const sop_attention_grad_args a)
{
    enum { TILE = 64, CHANNELS = 256 };
    __shared__ float weight[TILE], part[256];
    sop_begin();
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int64_t t = blockIdx.x, h = blockIdx.y, g = h / (d.heads / d.kv_heads);
    const int s = sop_sequence_at(a.q_start, (int)d.seqs, t);
    const int64_t k0 = a.k_start[s], n = a.k_start[s + 1] - k0, pos = t + n - a.q_start[s + 1];
    const int64_t end = !d.causal ? n : pos < 0 ? 0 : min(pos + 1, n);
    const int64_t first = d.window > 0 && pos - d.window + 1 > 0 ? pos - d.window + 1 : 0;
    const float delta = sop_warp_dot(a.go, d.o_dtype, t * d.do_stride + h * d.do_head, a.o,
                                     d.o_dtype, t * d.o_stride + h * d.o_head, d.v);
    if (tid == 0 && blockIdx.z == 0) a.delta[t * d.heads + h] = delta;
    /* thread: channel c, every n_parts-th key of a tile */
    const int c0 = blockIdx.z * CHANNELS, channels = (int)min((int64_t)CHANNELS, d.k - c0);
    const int n_parts = 256 / channels, c = tid % channels, own = tid / channels;
    float sum = 0;
    for (int64_t j0 = first; j0 < end; j0 += TILE) {
        for (int r = warp; r < TILE && j0 + r < end; r += 8) {
            const float2 pair = sop_attention_grad_pair(d, a, t, h, k0 + j0 + r, g, delta);
            if (lane == 0) weight[r] = pair.y;
        }
        __syncthreads();
        for (int r = own; r < TILE && j0 + r < end && own < n_parts; r += n_parts)
            sum = fmaf(
                weight[r],
                sop_load_any(a.k, d.q_dtype, (k0 + j0 + r) * d.k_stride + g * d.k_head + c0 + c),
                sum);
        __syncthreads();
    }
    part[tid] = sum;
    __syncthreads();
    if (tid >= channels) return;
    for (int p = 1; p < n_parts; p++) sum += part[p * channels + tid];
    sop_store_any(a.dq, d.dq_dtype, t * d.dq_stride + h * d.dq_head + c0 + tid, d.scale * sum);
}

/* Channels of dk, then of dv. */
static __global__ __launch_bounds__(256) void sop_attention_grad_keys(
    const sop_attention_grad_desc d, const sop_attention_grad_args a)
{
    enum { TILE = 64, CHANNELS = 256 };
    __shared__ float2 weight[TILE];
    __shared__ float part[256];
    sop_begin();
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int64_t key = blockIdx.x, g = blockIdx.y, group = d.heads / d.kv_heads;
    const int s = sop_sequence_at(a.k_start, (int)d.seqs, key);
    const int64_t q0 = a.q_start[s], length = a.q_start[s + 1] - q0;
    const int64_t at = a.k_start[s + 1] - a.k_start[s] - length; /* the first query's position */
    const int64_t j = key - a.k_start[s];
    const int64_t first = (d.causal && j - at > 0 ? j - at : 0) * group;
    const int64_t end =
        (d.window > 0 ? max((int64_t)0, min(length, j + d.window - at)) : length) * group;
    const int c0 = blockIdx.z * CHANNELS, channels = (int)min((int64_t)CHANNELS, d.k + d.v - c0);
    const int n_parts = 256 / channels, c = c0 + tid % channels, own = tid / channels;
    float sum = 0;
    for (int64_t i0 = first; i0 < end; i0 += TILE) {
        for (int r = warp; r < TILE && i0 + r < end; r += 8) {
            const int64_t t = q0 + (i0 + r) / group, h = g * group + (i0 + r) % group;
            const float2 pair =
                sop_attention_grad_pair(d, a, t, h, key, g, a.delta[t * d.heads + h]);
            if (lane == 0) weight[r] = pair;
        }
        __syncthreads();
        for (int r = own; r < TILE && i0 + r < end && own < n_parts; r += n_parts) {
            const int64_t t = q0 + (i0 + r) / group, h = g * group + (i0 + r) % group;
            sum =
                c < d.k
                    ? fmaf(weight[r].y,
                           sop_load_any(a.q, d.q_dtype, t * d.q_stride + h * d.q_head + c), sum)
                    : fmaf(weight[r].x,
                           sop_load_any(a.go, d.o_dtype, t * d.do_stride + h * d.do_head + c - d.k),
                           sum);
        }
        __syncthreads();
    }
    part[tid] = sum;
    __syncthreads();
    if (tid >= channels) return;
    for (int p = 1; p < n_parts; p++) sum += part[p * channels + tid];
    if (c < d.k)
        sop_store_any(a.dk, d.dq_dtype, key * d.dk_stride + g * d.dk_head + c, d.scale * sum);
    else
        sop_store_any(a.dv, d.dq_dtype, key * d.dv_stride + g * d.dv_head + c - d.k, sum);
}

#endif
