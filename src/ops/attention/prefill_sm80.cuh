/* Many queries, by the products of a warp: o = softmax(scale q k^T) v for heads of 64 to 256 in 16-bit
 * elements, sums in f32; ragged sequences without padding, pages of any size, any prefix before the
 * queries.
 *
 * A CTA has a tile of queries of one head, 32 a warp (16 of heads of 256), and goes through its keys from
 * the last that is seen to the first. While queries are multiplied by keys, values of this tile and keys of
 * the next are sent for by cp.async. Where a key lies is found two tiles ahead. Keys behind the sequence are
 * zeros. Queries, keys and values are in shared memory, rows such that a matrix of eight of them touches every
 * bank once. Two CTAs fit the 164 KB of a multiprocessor of 8.0, one the 99 KB of 8.9: while one multiplies
 * the other turns scores into weights. */
#ifndef OPS_ATTENTION_PREFILL_SM80_CUH
#define OPS_ATTENTION_PREFILL_SM80_CUH

#include "ops/attention/attention.cuh"
#include "ops/cuda/mma_at.cuh"

enum { PREFILL80_THREADS = 128 };
template <int HEAD> struct prefill80_shape {
    enum { TILES = HEAD > 128 ? 1 : 2 }; /* of 16 queries, of a warp */
    enum { QUERIES = 64 * TILES, KEYS = HEAD > 128 ? 32 : 64 };
    /* rows are a piece of 16 bytes longer than a head, or their pieces are swapped */
    enum { SWAPPED = HEAD % 64 == 0, PITCH = SWAPPED ? 2 * HEAD : 2 * HEAD + 16 };
    enum { TILE = KEYS * PITCH, SMEM = 3 * TILE + QUERIES * PITCH }; /* V, K of two; queries */
};

struct prefill80_args {
    sop_attention_args a;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    int seqs, heads, group, page, table_stride, window, causal, q_f32;
    uint32_t page_inverse; /* (2^32 - 1) / page */
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

/* Where piece c of 16 bytes of a row lies; from there, the piece 2 n further on. */
template <typename S> SOP_DEV uint32_t prefill80_at(int row, int c)
{
    return row * S::PITCH + (S::SWAPPED ? c ^ (row & 7) : c) * 16;
}
template <typename S> SOP_DEV uint32_t prefill80_along(uint32_t at, int n)
{
    return S::SWAPPED ? at ^ n * 32 : at + n * 32;
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(PREFILL80_THREADS) void sop_prefill_sm80(
    const __grid_constant__ prefill80_args p)
{
    typedef prefill80_shape<HEAD> S;
    enum { THREADS = PREFILL80_THREADS, TILES = S::TILES, QUERIES = S::QUERIES };
    enum { KEYS = S::KEYS, PITCH = S::PITCH, TILE = S::TILE };
    enum { PIECES = HEAD / 8, AHEAD = 2 }; /* matrices that are on their way into registers */
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ uint32_t k_at[2][KEYS], v_at[2][KEYS]; /* pieces into the pools; NONE: no key */
    const uint32_t NONE = ~0u, stages = sop_shared_at(smem), queries = stages + 3 * TILE;
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
    /* the places of the keys of tile high - j */
    auto find = [&](int j) {
        const int key = (high - j) * KEYS + tid;
        if (tid >= KEYS || j >= n_kv) return;
        k_at[j & 1][tid] = v_at[j & 1][tid] = NONE;
        if (key >= keys) return;
        int i = (int)__umulhi((uint32_t)key, p.page_inverse), in = key - i * p.page;
        if (in >= p.page) i++, in -= p.page;
        const int64_t page = p.a.table[(int64_t)seq * p.table_stride + i];
        k_at[j & 1][tid] = (uint32_t)((page * p.kp_page + in * p.kp_token) / 8);
        v_at[j & 1][tid] = (uint32_t)((page * p.vp_page + in * p.vp_token) / 8);
    };
    /* this thread's n-th piece of the keys, or values, of tile high - j */
    enum { EACH = KEYS * PIECES / THREADS };
    enum { EVEN = THREADS % PIECES == 0, STEP = THREADS / PIECES };
    static_assert(!EVEN || STEP % 8 == 0 || STEP == 4, "every second row is swapped alike");
    const uint32_t put = prefill80_at<S>(tid / PIECES, tid % PIECES);
    auto load = [&](const uint32_t(&at)[KEYS], const T *pool, uint32_t to, int n, bool any) {
        int i = tid;
        if (!EVEN) asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i)); /* no places in registers */
        const int r = EVEN ? i / PIECES + n * STEP : (n * THREADS + i) / PIECES;
        const int c = EVEN ? i % PIECES : (n * THREADS + i) % PIECES;
        if (EVEN)
            to += (STEP == 4 && n % 2 ? put ^ 64 : put) + n * STEP * PITCH;
        else
            to += prefill80_at<S>(r, c);
        sop_copy_async_if_at(any, to, pool + c * 8 + (int64_t)at[r] * 8);
    };
    find(0);
    find(1);
    const int64_t q_at = row0 * p.q_stride + head * p.q_head;
    for (int i = tid; i < QUERIES * PIECES; i += THREADS) {
        const int r = i / PIECES, c = i % PIECES;
        const int64_t from = q_at + r * p.q_stride + c * 8;
        const uint32_t to = prefill80_at<S>(r, c);
        if (!p.q_f32)
            sop_copy_async_at(queries + to, (const T *)p.a.q + from, r < rows ? 16 : 0);
        else
            *(uint4 *)(smem + 3 * TILE + to) =
                r < rows ? prefill80_round<T>((const float *)p.a.q + from) : uint4{};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++) { /* the first tile may have keys that are not there */
        const int n = i / 2 * THREADS + tid, r = n / PIECES, c = n % PIECES;
        const uint32_t at = i % 2 ? v_at[0][r] : k_at[0][r];
        sop_copy_async_at(stages + (i % 2 ? 0 : TILE) + prefill80_at<S>(r, c),
                          (i % 2 ? v_pool : k_pool) + (at == NONE ? 0 : (int64_t)at * 8 + c * 8),
                          at == NONE ? 0 : 16);
    }
    sop_copy_commit();

    /* scores to powers of two; with a cap they are so already */
    const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
    const int r0 = warp * 16 * TILES + lane / 4; /* this thread's rows: r0 + 8 i */
    const uint32_t row_k = prefill80_at<S>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const uint32_t row_v = prefill80_at<S>(lane % 16, lane / 16);
    const uint32_t row_q = queries + warp * 16 * TILES * PITCH + row_v;
    float acc[TILES][HEAD / 8][4] = {}, m[TILES][2], l[TILES][2] = {};
#pragma unroll
    for (int e = 0; e < TILES; e++) m[e][0] = m[e][1] = -INFINITY;
    for (int j = 0; j < n_kv; j++) {
        sop_copy_wait<0>();
        __syncthreads(); /* the keys are there, and all have multiplied the values before */
        const uint32_t keys_at = stages + TILE + (j & 1) * TILE;
        const uint32_t next_at = stages + TILE + (j + 1 & 1) * TILE;
        float s[TILES][KEYS / 8][4] = {}; /* queries times keys */
        {
            enum { C = KEYS / 16, N = HEAD / 16 * C };
            const uint32_t k = keys_at + row_k;
            uint32_t f[AHEAD + 1][4], fq[2][TILES][4];
            auto fetch = [&](int n) {
                sop_matrices_at(f[n % (AHEAD + 1)],
                                prefill80_along<S>(k, n / C) + n % C * 16 * PITCH);
            };
            auto fetch_q = [&](int i) {
#pragma unroll
                for (int e = 0; e < TILES; e++)
                    sop_matrices_at(fq[i & 1][e], prefill80_along<S>(row_q, i) + e * 16 * PITCH);
            };
            fetch_q(0);
#pragma unroll
            for (int n = 0; n < AHEAD; n++) fetch(n);
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (n + AHEAD < N) fetch(n + AHEAD);
                if (n % C == 0 && n + C < N) fetch_q(n / C + 1);
                if (n % 2 == 0 && n < N / 2)
                    load(v_at[j & 1], v_pool, stages, n / 2, j > 0);
                else if (n % 2 == 0)
                    load(k_at[j + 1 & 1], k_pool, next_at, n / 2 - EACH, j + 1 < n_kv);
                if (n == N / 2 - 1) sop_copy_commit();
                const uint32_t *x = f[n % (AHEAD + 1)];
                const uint32_t lo[2] = {x[0], x[1]}, hi[2] = {x[2], x[3]};
#pragma unroll
                for (int e = 0; e < TILES; e++) {
                    sop_mma(T(), s[e][n % C * 2], fq[n / C & 1][e], lo);
                    sop_mma(T(), s[e][n % C * 2 + 1], fq[n / C & 1][e], hi);
                }
            }
        }
        sop_copy_commit();
        const int j0 = (high - j) * KEYS;
        if (p.cap > 0) { /* cap tanh(scale s / cap) log2 e */
            const float in = 2 * 1.44269504f * p.scale / p.cap, out = p.cap * 1.44269504f;
#pragma unroll
            for (int i = 0; i < TILES * KEYS / 2; i++) {
                float &x = s[i * 2 / KEYS][i % (KEYS / 2) / 4][i % 4];
                x = out - __fdividef(2 * out, prefill80_exp2(in * x) + 1);
            }
        }
        if (p.a.slopes) {
            const float slope = p.a.slopes[head] * (p.cap > 0 ? 1.44269504f : 1 / p.scale);
            const float to = (float)(off + r0 - j0 - lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < TILES * KEYS / 2; i++) {
                const int e = i * 2 / KEYS, c = i % (KEYS / 2);
                const int less = e * 16 + (c & 2) * 4 - c / 4 * 8 - (c & 1);
                float &x = s[e][c / 4][c % 4];
                x = fmaf(-slope, fabsf(to + (float)less), x);
            }
        }
        const bool seen_by_all = p.causal ? j0 + KEYS <= off + 1 : j0 + KEYS <= keys;
        if (!seen_by_all || (p.window > 0 && j0 <= off + rows - 1 - p.window)) {
#pragma unroll
            for (int r = 0; r < TILES * 2; r++) { /* columns of this thread's row */
                const int its = off + r0 + 8 * r - j0 - lane % 4 * 2;
                const int most = p.causal ? its : keys - 1 - j0 - lane % 4 * 2;
                const int under = p.window > 0 ? its - p.window : -KEYS;
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    const int at = i / 2 * 8 + i % 2;
                    if (at > most || at <= under) s[r / 2][i / 2][r % 2 * 2 + i % 2] = -INFINITY;
                }
            }
        }
        uint32_t w[TILES][KEYS / 16][4];
        float alpha[TILES * 2];
        bool same = true;
#pragma unroll
        for (int r = 0; r < TILES * 2; r++) {
            const int e = r / 2, h = r % 2 * 2;
            float top = m[e][r % 2];
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) top = fmaxf(top, fmaxf(s[e][i][h], s[e][i][h + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float some = top == -INFINITY ? 0 : top; /* nothing seen so far */
            alpha[r] = prefill80_exp2((m[e][r % 2] - some) * k2);
            same = same && alpha[r] == 1;
            m[e][r % 2] = top;
            const float base = -some * k2;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                const float x = prefill80_exp2(fmaf(s[e][i][h], k2, base));
                const float y = prefill80_exp2(fmaf(s[e][i][h + 1], k2, base));
                w[e][i / 2][i % 2 * 2 + r % 2] = sop_pack<T>(x, y);
                sum += x + y;
            }
            l[e][r % 2] = fmaf(l[e][r % 2], alpha[r], sum); /* this thread's columns only */
        }
        if (!__all_sync(~0u, same)) {
#pragma unroll
            for (int r = 0; r < TILES * 2; r++)
#pragma unroll
                for (int i = 0; i < HEAD / 8; i++) {
                    acc[r / 2][i][r % 2 * 2] *= alpha[r];
                    acc[r / 2][i][r % 2 * 2 + 1] *= alpha[r];
                }
        }
        sop_copy_wait<1>();
        __syncthreads(); /* the values are there, and all have read where the next keys are */
        find(j + 2);
        { /* weights times values */
            enum { C = HEAD / 16, N = KEYS / 16 * C };
            const uint32_t v = stages + row_v;
            uint32_t f[AHEAD + 1][4];
            auto fetch = [&](int n) {
                sop_matrices_across_at(f[n % (AHEAD + 1)],
                                       prefill80_along<S>(v, n % C) + n / C * 16 * PITCH);
            };
#pragma unroll
            for (int n = 0; n < AHEAD; n++) fetch(n);
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (n + AHEAD < N) fetch(n + AHEAD);
                const uint32_t *x = f[n % (AHEAD + 1)];
                const uint32_t lo[2] = {x[0], x[1]}, hi[2] = {x[2], x[3]};
#pragma unroll
                for (int e = 0; e < TILES; e++) {
                    sop_mma(T(), acc[e][n % C * 2], w[e][n / C], lo);
                    sop_mma(T(), acc[e][n % C * 2 + 1], w[e][n / C], hi);
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < TILES * 2; r++) {
        const int row = r0 + 8 * r;
        float sum = l[r / 2][r % 2], base = m[r / 2][r % 2] * k2, keep = 1;
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
        const int64_t at = (row0 + row) * p.o_stride + head * p.o_head + lane % 4 * 2;
        if (p.a.lse && lane % 4 == 0)
            p.a.lse[(int64_t)(row0 + row) * p.heads + head] =
                sum == 0 ? -INFINITY : (base + log2f(sum)) * 0.693147181f;
#pragma unroll
        for (int c = 0; c < HEAD / 8; c++) {
            const float *from = acc[r / 2][c] + r % 2 * 2;
            const float x = from[0] * inv, y = from[1] * inv;
            if (p.q_f32)
                *(float2 *)((float *)p.a.o + at + 8 * c) = make_float2(x, y);
            else
                *(uint32_t *)((T *)p.a.o + at + 8 * c) = sop_pack<T>(x, y);
        }
    }
}

#endif
