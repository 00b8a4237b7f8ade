/* The floor: one block a query, a head and up to 256 channels of the result; keys in tiles of 64 from
 * the start of the sequence, so that a query's bits do not depend on how its prompt was cut. Any types,
 * strides, head sizes, page sizes, windows, masks. */
#ifndef OPS_ATTENTION_ANY_CUH
#define OPS_ATTENTION_ANY_CUH

#include "ops/attention/attention.cuh"

/* One code or number of a pool. */
SOP_DEV float sop_load_kv(const void *pool, int32_t dtype, int64_t i)
{
    if (dtype == SOP_I8) return ((const int8_t *)pool)[i];
    if (dtype == SOP_F8) return sop_f8_to_float(((const uint8_t *)pool)[i]);
    return sop_load_any(pool, dtype, i);
}

static __global__ __launch_bounds__(256, 4) void sop_attention_any(const sop_attention_desc d,
                                                                   const sop_attention_args a)
{
    enum { TILE = 64, CHANNELS = 256 };
    __shared__ float score[TILE], weight[TILE], part[256];
    sop_begin();
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int64_t t = blockIdx.x, h = blockIdx.y, g = h / (d.heads / d.kv_heads);
    const int seqs = (int)sop_live_rows(a.live, d.seqs);
    const int s = sop_sequence_of(a.q_start, seqs, t);
    if (s < 0) return;
    const int32_t *table = a.table + s * d.table_stride;
    const int page = (int)d.page;
    const int64_t n = a.kv_len[s], length = a.q_start[s + 1] - a.q_start[s];
    const int64_t pos = t - a.q_start[s] + n - length;
    int64_t lo, hi;
    sop_keys_seen(d, n, pos, &lo, &hi);
    const bool codes = d.kv_dtype == SOP_I8 || d.kv_dtype == SOP_F8;
    const float k_scale = codes ? a.k_scales[g] : 1, v_scale = codes ? a.v_scales[g] : 1;
    const float slope = a.slopes ? a.slopes[h] : 0;
    const int64_t mask_at =
        a.mask ? t * d.mask_stride + h / (d.heads / d.mask_heads) * d.mask_head : 0;

    /* thread: channel c, every n_parts-th key of a tile */
    const int c0 = blockIdx.z * CHANNELS, channels = (int)min((int64_t)CHANNELS, d.v - c0);
    const int n_parts = 256 / channels, c = tid % channels, own = tid / channels;
    const int64_t qa = t * d.q_stride + h * d.q_head;
    /* a sink is a key whose value is 0 */
    float m = a.sinks ? a.sinks[h] : -INFINITY, l = m > -INFINITY, sum = 0;
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
                               sop_load_kv(a.k_pool, d.kv_dtype, ka + i), dot);
                z = d.scale * (k_scale * sop_warp_sum(dot));
                if (d.cap > 0) z = d.cap * tanhf(z / d.cap);
                if (a.slopes) z -= slope * (float)llabs(pos - j);
                if (a.mask) z += sop_mask_at(a.mask, d.mask_dtype, mask_at + j);
            }
            if (lane == 0) score[r] = z;
        }
        __syncthreads();
        const float top = fmaxf(m, sop_warp_max(fmaxf(score[lane], score[lane + 32])));
        const float base = top == -INFINITY ? 0 : top; /* the mask hid all so far */
        const float alpha = expf(m - base);
        m = top;
        if (tid < TILE) weight[tid] = expf(score[tid] - base);
        __syncthreads();
        l = l * alpha + sop_warp_sum(weight[lane] + weight[lane + 32]);
        sum *= alpha;
        for (int r = own; r < TILE && own < n_parts; r += n_parts) {
            const int j = (int)j0 + r;
            if (j < lo || j >= hi) continue;
            const int64_t va = table[j / page] * d.vp_page + j % page * d.vp_token + g * d.vp_head;
            sum = fmaf(weight[r], sop_load_kv(a.v_pool, d.kv_dtype, va + c0 + c), sum);
        }
    }
    part[tid] = sum;
    __syncthreads();
    if (tid < channels) {
        for (int p = 1; p < n_parts; p++) sum += part[p * channels + tid];
        sop_store_any(a.o, d.o_dtype, t * d.o_stride + h * d.o_head + c0 + tid,
                      l == 0 ? 0 : v_scale * (sum / l)); /* a NaN stays one */
    }
    if (a.lse && tid == 0 && blockIdx.z == 0)
        a.lse[t * d.heads + h] = l == 0 ? -INFINITY : m + logf(l);
}

#endif
