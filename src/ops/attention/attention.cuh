/* The floor: one block a query, a head and up to 256 channels of the result; keys in tiles of 64 from
 * the start of the sequence, so that a query's bits do not depend on how its prompt was cut. Any types,
 * strides, head sizes, page sizes, windows. */
#ifndef OPS_ATTENTION_CUH
#define OPS_ATTENTION_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* The pointers of a call, as a kernel takes them. */
struct sop_attention_args {
    const void *q, *k_pool, *v_pool;
    const int32_t *table, *q_start, *kv_len, *live;
    void *o;
    float *lse; /* or NULL */
};

/* The sequence of token t among n: the last that starts at or before it; -1 when there is none. */
SOP_DEV int sop_sequence_of(const int32_t *q_start, int n, int64_t t)
{
    int lo = 0, hi = n + 1; /* the first i with q_start[i] > t is in [lo, hi] */
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (q_start[mid] > t)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo == n + 1 ? -1 : lo - 1;
}

/* The keys [lo, hi) that the query at position pos sees of n. */
SOP_DEV void sop_keys_seen(const sop_attention_desc &d, int64_t n, int64_t pos, int64_t *lo,
                           int64_t *hi)
{
    *hi = !d.causal ? n : pos < 0 ? 0 : pos + 1;
    *lo = d.window > 0 && pos - d.window + 1 > 0 ? pos - d.window + 1 : 0;
    if (*lo > *hi) *lo = *hi;
}

static __global__ __launch_bounds__(256) void sop_attention_any(const sop_attention_desc d,
                                                                const sop_attention_args a)
{
    enum { TILE = 64, CHANNELS = 256 };
    __shared__ float score[TILE], weight[TILE], part[256];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int64_t t = blockIdx.x, h = blockIdx.y, g = h / (d.heads / d.kv_heads);
    const int seqs = (int)sop_live_rows(a.live, d.seqs);
    const int s = sop_sequence_of(a.q_start, seqs, t);
    if (s < 0) return;
    const int32_t *table = a.table + s * d.table_stride;
    const int page = (int)d.page;
    const int64_t n = a.kv_len[s], length = a.q_start[s + 1] - a.q_start[s];
    int64_t lo, hi;
    sop_keys_seen(d, n, t - a.q_start[s] + n - length, &lo, &hi);

    /* thread: channel c, every n_parts-th key of a tile */
    const int c0 = blockIdx.z * CHANNELS, channels = (int)min((int64_t)CHANNELS, d.v - c0);
    const int n_parts = 256 / channels, c = tid % channels, own = tid / channels;
    const int64_t qa = t * d.q_stride + h * d.q_head;
    float m = -INFINITY, l = 0, sum = 0;
    for (int64_t j0 = lo / TILE * TILE; j0 < hi; j0 += TILE) {
        for (int r = warp; r < TILE; r += 8) {
            const int j = (int)j0 + r;
            float z = -INFINITY;
            if (j >= lo && j < hi) {
                const int64_t ka =
                    table[j / page] * d.kp_page + j % page * d.kp_token + g * d.kp_head;
                float dot = 0;
                for (int64_t i = lane; i < d.k; i += 32)
                    dot = fmaf(sop_load_any(a.q, d.q_dtype, qa + i),
                               sop_load_any(a.k_pool, d.kv_dtype, ka + i), dot);
                z = d.scale * sop_warp_sum(dot);
                if (d.cap > 0) z = d.cap * tanhf(z / d.cap);
            }
            if (lane == 0) score[r] = z;
        }
        __syncthreads();
        const float top = fmaxf(m, sop_warp_max(fmaxf(score[lane], score[lane + 32])));
        const float alpha = expf(m - top);
        m = top;
        if (tid < TILE) weight[tid] = expf(score[tid] - top);
        __syncthreads();
        l = l * alpha + sop_warp_sum(weight[lane] + weight[lane + 32]);
        sum *= alpha;
        for (int r = own; r < TILE && own < n_parts; r += n_parts) {
            const int j = (int)j0 + r;
            if (j < lo || j >= hi) continue;
            const int64_t va = table[j / page] * d.vp_page + j % page * d.vp_token + g * d.vp_head;
            sum = fmaf(weight[r], sop_load_any(a.v_pool, d.kv_dtype, va + c0 + c), sum);
        }
    }
    part[tid] = sum;
    __syncthreads();
    if (tid < channels) {
        for (int p = 1; p < n_parts; p++) sum += part[p * channels + tid];
        sop_store_any(a.o, d.o_dtype, t * d.o_stride + h * d.o_head + c0 + tid,
                      hi > lo ? sum / l : 0);
    }
    if (a.lse && tid == 0 && blockIdx.z == 0)
        a.lse[t * d.heads + h] = hi > lo ? m + logf(l) : -INFINITY;
}

#endif
