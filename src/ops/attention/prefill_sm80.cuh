/* Many queries, by the products of a warp: o = softmax(scale q k^T) v for heads of 64 to 256 in 16-bit
 * elements, sums in f32; ragged sequences without padding, pages of any size, any prefix before the
 * queries.
 *
 * A CTA has a tile of queries of one head, 16 a warp, and goes through its keys from the last that is seen
 * to the first; one tile of keys and values is computed while the next is on its way by cp.async. Where a
 * key lies is found one tile ahead. Keys behind the sequence are zeros. Queries, keys and values are in
 * shared memory, rows such that a matrix of eight of them touches every bank once; all of it fits the 99 KB
 * of 8.9. 32 queries a warp, which read a key half as often, were no faster on an H200. */
#ifndef OPS_ATTENTION_PREFILL_SM80_CUH
#define OPS_ATTENTION_PREFILL_SM80_CUH

#include "ops/attention/attention.cuh"
#include "ops/cuda/mma.cuh"

template <int HEAD> struct prefill80 {
    enum {
        WIDE = HEAD > 128,
        THREADS = WIDE ? 128 : 256,
        QUERIES = THREADS / 2,
        KEYS = WIDE ? 32 : 64,
        PITCH = HEAD % 64 ? 2 * HEAD + 16 : 2 * HEAD,
        tile = KEYS * PITCH,
        bytes = 4 * tile + QUERIES * PITCH /* K, V of two stages; queries */
    };
};

/* Where piece c of 16 bytes of a row lies: rows are a piece longer than a head, or their pieces are
 * swapped. */
template <int HEAD> SOP_DEV int prefill80_at(int row, int c)
{
    return row * prefill80<HEAD>::PITCH + (HEAD % 64 ? c : c ^ (row & 7)) * 16;
}

struct prefill80_args {
    sop_attention_args a;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    int seqs, heads, group, page, table_stride, window, causal, q_f32;
    float scale, cap;
};

SOP_DEV float prefill80_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Eight channels of a query as T. */
template <typename T> SOP_DEV uint4 prefill80_round(const float *q)
{
    const float4 x = ((const float4 *)q)[0], y = ((const float4 *)q)[1];
    return make_uint4(sop_pack<T>(x.x, x.y), sop_pack<T>(x.z, x.w), sop_pack<T>(y.x, y.y),
                      sop_pack<T>(y.z, y.w));
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(prefill80<HEAD>::THREADS) void sop_prefill_sm80(
    const __grid_constant__ prefill80_args p)
{
    typedef prefill80<HEAD> shape;
    enum { THREADS = shape::THREADS, QUERIES = shape::QUERIES, KEYS = shape::KEYS };
    enum { PIECES = HEAD / 8 };
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ int64_t k_at[2][KEYS], v_at[2][KEYS]; /* elements into the pools; -1: no key */
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    sop_begin();

    /* the tile of queries: the blockIdx.y-th of all sequences, a sequence's last tile first */
    const int seqs = (int)sop_live_rows(p.a.live, p.seqs), head = blockIdx.x;
    int seq = -1, tile = blockIdx.y;
    for (int s0 = 0; s0 < seqs; s0 += 32) {
        const int s = s0 + lane;
        const int n = s < seqs ? (p.a.q_start[s + 1] - p.a.q_start[s] + QUERIES - 1) / QUERIES : 0;
        int sum = n;
        for (int o = 1; o < 32; o *= 2) {
            const int x = __shfl_up_sync(~0u, sum, o);
            if (lane >= o) sum += x;
        }
        const unsigned past = __ballot_sync(~0u, sum > tile);
        if (past) {
            const int l = __ffs(past) - 1;
            seq = s0 + l;
            tile = __shfl_sync(~0u, sum, l) - 1 - tile;
            break;
        }
        tile -= __shfl_sync(~0u, sum, 31);
    }
    if (seq < 0) return;
    const int first = p.a.q_start[seq], length = p.a.q_start[seq + 1] - first;
    const int keys = p.a.kv_len[seq], row0 = first + tile * QUERIES;
    const int rows = min((int)QUERIES, length - tile * QUERIES);
    const int off = keys - length + tile * QUERIES;           /* the position of row0 */
    const int seen = p.causal ? min(off + rows, keys) : keys; /* keys in front of this one */
    const int high = max(seen - 1, 0) / KEYS;
    const int low = p.window > 0 ? max(off - p.window + 1, 0) / KEYS : 0;
    const int n_kv = max(high - low, 0) + 1;

    const T *k_pool = (const T *)p.a.k_pool + head / p.group * p.kp_head;
    const T *v_pool = (const T *)p.a.v_pool + head / p.group * p.vp_head;
    auto find = [&](int j) { /* the places of the keys of tile high - j */
                             const int key = (high - j) * KEYS + tid;
                             if (tid >= KEYS || j >= n_kv) return;
                             k_at[j & 1][tid] = v_at[j & 1][tid] = -1;
                             if (key >= keys) return;
                             const int64_t page =
                                 p.a.table[(int64_t)seq * p.table_stride + key / p.page];
                             k_at[j & 1][tid] = page * p.kp_page + key % p.page * p.kp_token;
                             v_at[j & 1][tid] = page * p.vp_page + key % p.page * p.vp_token;
    };
    auto load = [&](int j) {
        uint8_t *k = smem + (j & 1) * 2 * shape::tile, *v = k + shape::tile;
        for (int i = tid; i < KEYS * PIECES; i += THREADS) {
            const int r = i / PIECES, c = i % PIECES;
            const int64_t ka = k_at[j & 1][r], va = v_at[j & 1][r];
            const int n = ka < 0 ? 0 : 16;
            sop_copy_async(k + prefill80_at<HEAD>(r, c), k_pool + (n ? ka + c * 8 : 0), n);
            sop_copy_async(v + prefill80_at<HEAD>(r, c), v_pool + (n ? va + c * 8 : 0), n);
        }
    };

    const int t = lane % 4, r0 = warp * 16 + lane / 4; /* this thread's rows: r0, r0 + 8 */
    find(0);
    uint8_t *const q = smem + 4 * shape::tile;
    const int64_t q_at = row0 * p.q_stride + head * p.q_head;
    for (int i = tid; i < QUERIES * PIECES; i += THREADS) {
        const int r = i / PIECES, c = i % PIECES;
        const int64_t from = q_at + r * p.q_stride + c * 8;
        uint8_t *to = q + prefill80_at<HEAD>(r, c);
        if (!p.q_f32)
            sop_copy_async(to, (const T *)p.a.q + from, r < rows ? 16 : 0);
        else
            *(uint4 *)to = r < rows ? prefill80_round<T>((const float *)p.a.q + from) : uint4{};
    }
    __syncthreads();
    load(0);
    sop_copy_commit();
    find(1);

    /* scores to powers of two; with a cap they are so already */
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const float slope = p.a.slopes ? p.a.slopes[head] * (p.cap > 0 ? 1.44269504f : 1 / p.scale) : 0;
    float acc[HEAD / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    for (int j = 0; j < n_kv; j++) {
        __syncthreads(); /* the places of tile j + 1 are there; all have read tile j - 1 */
        if (j + 1 < n_kv) load(j + 1);
        sop_copy_commit();
        sop_copy_wait<1>();
        __syncthreads();
        find(j + 2);
        const uint8_t *k = smem + (j & 1) * 2 * shape::tile, *v = k + shape::tile;
        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < HEAD / 16; kk++) {
            uint32_t fq[4];
            sop_matrices(fq, q + prefill80_at<HEAD>(warp * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                uint32_t x[4];
                sop_matrices(x, k + prefill80_at<HEAD>(i * 16 + lane / 16 * 8 + lane % 8,
                                                       kk * 2 + lane / 8 % 2));
                const uint32_t lo[2] = {x[0], x[1]}, hi[2] = {x[2], x[3]};
                sop_mma(T(), s[2 * i], fq, lo);
                sop_mma(T(), s[2 * i + 1], fq, hi);
            }
        }
        const int j0 = (high - j) * KEYS;
        const bool whole = p.causal ? j0 + KEYS <= off + 1 : j0 + KEYS <= keys;
        const bool cut = !whole || (p.window > 0 && j0 <= off + rows - 1 - p.window);
        uint32_t w[KEYS / 16][4];
        if (p.cap > 0) { /* cap tanh(scale s / cap) log2 e */
            const float in = 2 * 1.44269504f * p.scale / p.cap, out = p.cap * 1.44269504f;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                float &x = s[i / 4][i % 4];
                x = out - __fdividef(2 * out, prefill80_exp2(in * x) + 1);
            }
        }
        if (p.a.slopes || cut) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                float &x = s[i / 4][i % 4];
                const int pos = off + r0 + (i & 2) * 4;
                const int key = j0 + i / 4 * 8 + 2 * t + (i & 1);
                x = fmaf(-slope, fabsf((float)(pos - key)), x);
                if ((p.causal ? key > pos : key >= keys) || (p.window > 0 && key <= pos - p.window))
                    x = -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = m[r];
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++)
                top = fmaxf(top, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float some = top == -INFINITY ? 0 : top; /* nothing seen so far */
            const float alpha = prefill80_exp2((m[r] - some) * k2);
            m[r] = top;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                const float x = prefill80_exp2(fmaf(s[i][2 * r], k2, -some * k2));
                const float y = prefill80_exp2(fmaf(s[i][2 * r + 1], k2, -some * k2));
                w[i / 2][i % 2 * 2 + r] = sop_pack<T>(x, y);
                sum += x + y;
            }
            l[r] = fmaf(l[r], alpha, sum); /* this thread's columns only */
#pragma unroll
            for (int i = 0; i < HEAD / 8; i++) acc[i][2 * r] *= alpha, acc[i][2 * r + 1] *= alpha;
        }
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
#pragma unroll
            for (int c = 0; c < HEAD / 16; c++) {
                uint32_t x[4];
                sop_matrices_across(x,
                                    v + prefill80_at<HEAD>(i * 16 + lane % 16, c * 2 + lane / 16));
                const uint32_t lo[2] = {x[0], x[1]}, hi[2] = {x[2], x[3]};
                sop_mma(T(), acc[2 * c], w[i], lo);
                sop_mma(T(), acc[2 * c + 1], w[i], hi);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = r0 + 8 * r;
        float sum = l[r], base = m[r] * k2, keep = 1;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (p.a.sinks) { /* one key more, whose value is 0 */
            const float sink = p.a.sinks[head] * 1.44269504f, up = fmaxf(base, sink);
            if (up > -INFINITY) {
                keep = prefill80_exp2(base - up);
                sum = fmaf(sum, keep, prefill80_exp2(sink - up));
                base = up;
            }
        }
        if (row >= rows) continue;
        const float inv = sum == 0 ? 0 : keep / sum; /* a NaN stays one */
        const int64_t at = (row0 + row) * p.o_stride + head * p.o_head + 2 * t;
        if (p.a.lse && t == 0)
            p.a.lse[(int64_t)(row0 + row) * p.heads + head] =
                sum == 0 ? -INFINITY : (base + log2f(sum)) * 0.693147181f;
#pragma unroll
        for (int c = 0; c < HEAD / 8; c++) {
            const float x = acc[c][2 * r] * inv, y = acc[c][2 * r + 1] * inv;
            if (p.q_f32)
                *(float2 *)((float *)p.a.o + at + 8 * c) = make_float2(x, y);
            else
                *(uint32_t *)((T *)p.a.o + at + 8 * c) = sop_pack<T>(x, y);
        }
    }
}

#endif
