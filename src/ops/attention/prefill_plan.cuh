/* What runs before the kernel of many queries: its list of work, and f32 queries rounded. */
#ifndef OPS_ATTENTION_PREFILL_PLAN_CUH
#define OPS_ATTENTION_PREFILL_PLAN_CUH

#include "ops/attention/prefill_sm90.cuh"

enum { PREFILL_BUCKETS = 4096 };

/* The list of tiles, longest first, so that the last items are short. One block. */
static __global__ __launch_bounds__(1024) void sop_prefill_plan(const sop_attention_args a,
                                                                const int seqs_most,
                                                                const int window, const int causal,
                                                                const int tile, prefill_tile *tiles,
                                                                int *state)
{
    __shared__ int start[PREFILL_BUCKETS + 1], longest;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    sop_begin();
    const int seqs = (int)sop_live_rows(a.live, seqs_most);
    for (int i = threadIdx.x; i <= PREFILL_BUCKETS; i += blockDim.x) start[i] = 0;
    if (threadIdx.x == 0) longest = 0;
    __syncthreads();
    auto tile_of = [&](int s, int i) {
        const int q0 = a.q_start[s], length = a.q_start[s + 1] - q0, keys = a.kv_len[s];
        const int rows = min(PREFILL_ROWS, length - i * PREFILL_ROWS);
        const int off = keys - length + i * PREFILL_ROWS, last = causal ? off + rows - 1 : keys - 1;
        const int high = max(last, 0) / tile;
        const int low = window > 0 ? max(off - window + 1, 0) / tile : 0;
        return prefill_tile{q0 + i * PREFILL_ROWS,  rows, s, off, high,
                            max(high - low, 0) + 1, keys, 0};
    };
    auto bucket_of = [](const prefill_tile &t) { return min(t.n_kv, PREFILL_BUCKETS); };
    for (int s = warp; s < seqs; s += n_warps) {
        const int n = (a.q_start[s + 1] - a.q_start[s] + PREFILL_ROWS - 1) / PREFILL_ROWS;
        for (int i = lane; i < n; i += 32) {
            const int b = bucket_of(tile_of(s, i));
            atomicAdd(&start[b], 1);
            atomicMax(&longest, b);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) { /* start[n] = number of tiles with more than n tiles of keys */
        int sum = 0;
        for (int n = longest; n > 0; n--) {
            const int c = start[n];
            start[n] = sum;
            sum += c;
        }
        state[0] = 0;
        state[1] = sum;
    }
    __syncthreads();
    for (int s = warp; s < seqs; s += n_warps) {
        const int n = (a.q_start[s + 1] - a.q_start[s] + PREFILL_ROWS - 1) / PREFILL_ROWS;
        for (int i = lane; i < n; i += 32) {
            const prefill_tile t = tile_of(s, i);
            tiles[atomicAdd(&start[bucket_of(t)], 1)] = t;
        }
    }
}

/* What a mask does to each tile of keys that some query of a tile may see: a block for each, heads of the
 * mask last. */
static __global__ __launch_bounds__(256) void sop_prefill_classes(const prefill_args p,
                                                                  const int seqs_most,
                                                                  const int tile, uint8_t *classes)
{
    const int id = blockIdx.y, head = blockIdx.z, j0 = blockIdx.x * tile;
    sop_begin();
    const int seqs = (int)sop_live_rows(p.a.live, seqs_most);
    int lo = 0, hi = seqs; /* the last sequence that begins at or before this tile of queries */
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (p.a.q_start[mid] / PREFILL_ROWS + mid <= id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0) return;
    const int q0 = p.a.q_start[lo - 1], length = p.a.q_start[lo] - q0, keys = p.a.kv_len[lo - 1];
    const int at = (id - q0 / PREFILL_ROWS - (lo - 1)) * PREFILL_ROWS,
              rows = min(PREFILL_ROWS, length - at);
    const int off = keys - length + at, wide = min(tile, keys - j0);
    if (rows <= 0 || (p.causal && j0 > max(off + rows - 1, 0))) return;
    if (p.window && j0 + tile <= off - p.window + 1) return;
    bool hidden = wide > 0, live = true;
    const int64_t from = (q0 + at) * p.mask_stride + head * p.mask_head + j0;
    for (int e = threadIdx.x; e < rows * tile; e += blockDim.x) {
        if (e % tile >= wide) continue;
        const float add =
            sop_mask_at(p.a.mask, p.mask_dtype, from + e / tile * p.mask_stride + e % tile);
        hidden = hidden && add < -1e10f;
        live = live && add == 0;
    }
    hidden = __syncthreads_and(hidden);
    live = __syncthreads_and(live);
    if (threadIdx.x == 0)
        classes[(head * p.q_tiles + id) * p.kv_tiles + blockIdx.x] = hidden ? CLASS_HIDDEN
                                                                     : live ? CLASS_LIVE
                                                                            : CLASS_SOME;
}

/* q in f32 as 16-bit elements, dense [tokens, heads, k]. */
template <typename T>
static __global__ void sop_round_q(const float *q, int64_t q_stride, int64_t q_head, int heads,
                                   int k, T *out)
{
    const int64_t t = blockIdx.x;
    sop_begin();
    for (int e = threadIdx.x; e < heads * k; e += blockDim.x)
        out[t * heads * k + e] = sop_from_float<T>(q[t * q_stride + e / k * q_head + e % k]);
}

#endif
