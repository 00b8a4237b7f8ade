/* Many queries: o = softmax(scale q k^T) v for heads of 64 or 128 in 16-bit elements, sums in f32; ragged
 * sequences without padding, paged keys, any prefix before the queries.
 *
 * Persistent, one CTA a multiprocessor, 384 threads. Warpgroup 0 loads by TMA; warpgroups 1 and 2 each
 * own 64 of the 128 queries of a tile. K and V come in tiles of 128 keys, from the last that is seen to
 * the first; only those that some query does not see whole are masked. Per tile j a warpgroup issues
 * S = Q K_j^T and O += P V_(j-1), waits for S alone, and does its softmax under the second product. The
 * first product of the next item is issued before the finished rows are written.
 *
 * A tile of keys is 128 / page boxes, each found through the table; TMA reads 0 for a page that is not
 * there. Slots of the last page behind the sequence may hold anything: masked in S, zeroed in V. */
#ifndef OPS_ATTENTION_PREFILL_SM90_CUH
#define OPS_ATTENTION_PREFILL_SM90_CUH

#include "ops/attention/attention.cuh"
#include "ops/cuda/hopper.cuh"

enum { PREFILL_TILE = 128, PREFILL_THREADS = 384, PREFILL_HALF = 128 * 128 };
enum { PREFILL_BUCKETS = 4096 };

/* Shared memory: each of Q, K, V, O is HEAD / 64 pieces of [128 rows][128 bytes] a stage. */
template <int HEAD> struct prefill_smem {
    enum {
        tile = HEAD / 64 * PREFILL_HALF,
        stages = HEAD == 64 ? 4 : 2, /* of K, and of V */
        q = 0,
        k = q + 2 * tile,
        v = k + stages * tile,
        o = v + stages * tile,
        bar = o + tile,
        item = bar + 8 * (4 + 4 * stages),
        bytes = item + 2 * 32 + 1024
    };
};

/* One tile of queries of one sequence, before heads are counted. */
struct prefill_tile {
    int row0, rows;  /* tokens */
    int seq, off;    /* off: the position of row0 in its sequence */
    int high, n_kv;  /* tiles of keys: the last, and how many down from it */
    int keys, heads; /* of the sequence; heads is the item's head, in shared memory */
};

struct prefill_args {
    sop_attention_args a;
    const prefill_tile *tiles;
    int *state; /* next work item, number of tiles */
    int64_t o_stride, o_head;
    int heads, group, section, page, table_stride, window, causal;
    float scale, cap;
};

struct prefill_maps {
    CUtensorMap q, k, v;
};

/* The list of tiles, longest first, so that the last items are short. One block. */
static __global__ __launch_bounds__(1024) void sop_prefill_plan(const sop_attention_args a,
                                                                const int seqs_most,
                                                                const int window, const int causal,
                                                                prefill_tile *tiles, int *state)
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
        const int rows = min(PREFILL_TILE, length - i * PREFILL_TILE);
        const int off = keys - length + i * PREFILL_TILE, last = causal ? off + rows - 1 : keys - 1;
        const int high = max(last, 0) / PREFILL_TILE;
        const int low = window > 0 ? max(off - window + 1, 0) / PREFILL_TILE : 0;
        return prefill_tile{q0 + i * PREFILL_TILE,  rows, s, off, high,
                            max(high - low, 0) + 1, keys, 0};
    };
    auto bucket_of = [](const prefill_tile &t) { return min(t.n_kv, PREFILL_BUCKETS); };
    for (int s = warp; s < seqs; s += n_warps) {
        const int n = (a.q_start[s + 1] - a.q_start[s] + PREFILL_TILE - 1) / PREFILL_TILE;
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
        const int n = (a.q_start[s + 1] - a.q_start[s] + PREFILL_TILE - 1) / PREFILL_TILE;
        for (int i = lane; i < n; i += 32) {
            const prefill_tile t = tile_of(s, i);
            tiles[atomicAdd(&start[bucket_of(t)], 1)] = t;
        }
    }
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

/* Items run over heads inside tiles inside sections of `section` heads; the K and V of a section
 * should fit in L2. O is T or float. */
template <typename T, typename O, int HEAD, bool ALIBI>
static __global__ __launch_bounds__(PREFILL_THREADS, 1) void sop_prefill_sm90(
    const __grid_constant__ prefill_maps maps, const __grid_constant__ prefill_args p)
{
    typedef prefill_smem<HEAD> smem;
    enum { STAGES = smem::stages, TILE = PREFILL_TILE, HALF = PREFILL_HALF };
    extern __shared__ uint8_t smem_raw[];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    uint8_t *const smem_at = smem_raw + (base - smem_addr(smem_raw));
    const uint32_t q_full = base + smem::bar, q_empty = q_full + 16, k_full = q_full + 32,
                   k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES,
                   v_empty = v_full + 8 * STAGES;
    volatile prefill_tile *item = (volatile prefill_tile *)(smem_at + smem::item);
    const int wg = threadIdx.x / 128;

    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            mbar_init(q_full + 8 * s, 1);
            mbar_init(q_empty + 8 * s, 8);
        }
        for (int s = 0; s < STAGES; s++) {
            mbar_init(k_full + 8 * s, 1);
            mbar_init(k_empty + 8 * s, 8);
            mbar_init(v_full + 8 * s, 1);
            mbar_init(v_empty + 8 * s, 8);
        }
        fence_mbar_init();
    }
    __syncthreads();
    sop_begin();

    if (wg == 0) {
        regs_dec<40>();
        if (threadIdx.x < 32) { /* each lane loads the box of its number */
            const int lane = threadIdx.x, box = min(p.page, (int)TILE), boxes = TILE / box;
            const int n_tiles = p.state[1], n_items = n_tiles * p.heads;
            const int per_section = n_tiles * p.section, inside = lane * box % p.page;
            int n_put = 0, stage = 0, phase = 0, v_stage = 0, v_phase = 0, kv_head = 0;
            prefill_tile next = {};
            /* where the box of tile j lies; a page that is not there is out of range, read as 0 */
            auto page_of = [&](const prefill_tile &t, int j) {
                const int x = j * TILE + lane * box;
                if (lane >= boxes || x >= t.keys) return -1;
                return p.a.table[(int64_t)t.seq * p.table_stride + x / p.page];
            };
            auto load = [&](const CUtensorMap *map, uint32_t dst, uint32_t bar, int page, int j) {
                const int x = p.page > TILE ? j * TILE % p.page : inside;
                if (lane == 0) mbar_expect_tx(bar, smem::tile);
                __syncwarp();
                if (lane < boxes)
                    for (int h = 0; h < HEAD / 64; h++)
                        tma_load_4d(dst + h * HALF + lane * box * 128, map, 64 * h, x, kv_head,
                                    page, bar);
            };
            /* item w and its Q to the consumers; w too large: the end */
            auto put_item = [&](int w) {
                const int s = n_put % 2;
                next = {};
                if (w < n_items) {
                    const int r = w % per_section;
                    next = p.tiles[r / p.section];
                    next.heads = w / per_section * p.section + r % p.section;
                }
                mbar_wait(q_empty + 8 * s, (n_put / 2 & 1) ^ 1);
                if (lane == 0) {
                    item[s].row0 = next.row0;
                    item[s].rows = next.rows;
                    item[s].off = next.off;
                    item[s].high = next.high;
                    item[s].n_kv = next.n_kv;
                    item[s].keys = next.keys;
                    item[s].heads = next.heads;
                    if (next.n_kv) {
                        mbar_expect_tx(q_full + 8 * s, smem::tile);
                        for (int h = 0; h < HEAD / 64; h++)
                            tma_load_3d(base + smem::q + s * smem::tile + h * HALF, &maps.q, 64 * h,
                                        next.heads, next.row0, q_full + 8 * s);
                    } else {
                        mbar_arrive(q_full + 8 * s);
                    }
                }
                n_put++;
            };
            put_item(blockIdx.x);
            int page = page_of(next, next.high), page_v = 0;
            while (next.n_kv) {
                const prefill_tile t = next;
                int w = 0;
                if (lane == 0) w = (int)gridDim.x + atomicAdd(&p.state[0], 1);
                kv_head = t.heads / p.group;
                for (int j = 0; j <= t.n_kv; j++) { /* K_0 K_1 V_0 next Q, K_2 V_1 .. V_(n-1) */
                    int page_next = 0;
                    if (j < t.n_kv) {
                        if (j + 1 < t.n_kv) page_next = page_of(t, t.high - j - 1);
                        mbar_wait(k_empty + 8 * stage, phase ^ 1);
                        load(&maps.k, base + smem::k + stage * smem::tile, k_full + 8 * stage, page,
                             t.high - j);
                        if (++stage == STAGES) stage = 0, phase ^= 1;
                    }
                    if (j > 0) {
                        mbar_wait(v_empty + 8 * v_stage, v_phase ^ 1);
                        load(&maps.v, base + smem::v + v_stage * smem::tile, v_full + 8 * v_stage,
                             page_v, t.high - j + 1);
                        if (++v_stage == STAGES) v_stage = 0, v_phase ^= 1;
                    }
                    page_v = page;
                    page = page_next;
                    if (j == 1) put_item(__shfl_sync(~0u, w, 0));
                }
                page = page_of(next, next.high);
            }
        }
    } else {
        regs_inc<232>();
        const int c = wg - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        /* scores to powers of two; with a cap they are so already */
        const float k2 = p.cap > 0 ? 1 : p.scale * 1.44269504f;
        float s[64], acc[HEAD / 2], m[2], l[2];
        uint32_t pack[32];
        int kv = 0; /* tiles of finished items: stage and phase of both rings */
        const uint64_t dq0 = desc_k_major(base + smem::q + c * 64 * 128);
        const uint64_t dk0 = desc_k_major(base + smem::k);
        const uint64_t dv0 = desc_mn_major(base + smem::v, TILE);

        auto release = [&](uint32_t bar) {
            if (lane == 0) mbar_arrive(bar);
        };
        auto issue_qk = [&](int i, int q) {
            const uint64_t dq = desc_advance(dq0, q * smem::tile);
            const uint64_t dk = desc_advance(dk0, (i % STAGES) * smem::tile);
            mbar_wait(k_full + 8 * (i % STAGES), i / STAGES & 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < HEAD / 16; kk++)
                wgmma<T>::ss(s, desc_advance(dq, kk / 4 * HALF + kk % 4 * 32),
                             desc_advance(dk, kk / 4 * HALF + kk % 4 * 32), kk > 0);
            wgmma_commit();
        };
        auto issue_pv = [&](int i, int add) {
            const uint64_t dv = desc_advance(dv0, (i % STAGES) * smem::tile);
            mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                wgmma<T>::rs(acc, pack + 4 * kk, desc_advance(dv, kk * 2048), kk > 0 || add);
            wgmma_commit();
        };
        auto squeeze = [&] { /* s becomes cap tanh(scale s / cap) log2 e */
                             const float in = 2 * 1.44269504f * p.scale / p.cap,
                                         out = p.cap * 1.44269504f;
#pragma unroll
                             for (int i = 0; i < 64; i++)
                                 s[i] = out - __fdividef(2 * out, exp2_fast(in * s[i]) + 1);
        };
        float slope = 0; /* of the head, in units of s */
        auto lean =
            [&](int at,
                int j0) { /* by alibi; at and j0 as in mask() */
                          const float to =
                              (float)(at + c * 64 + warp * 16 + lane / 4 - j0 - lane % 4 * 2);
#pragma unroll
                          for (int i = 0; i < 64; i++)
                              s[i] = fmaf(-slope,
                                          fabsf(to + (float)((i & 2) * 4 - i / 4 * 8 - (i & 1))),
                                          s[i]);
            };
        /* what a query at position `at` + row does not see in the tile that begins at key j0 */
        auto mask = [&](int at, int keys, int j0) {
#pragma unroll
            for (int i = 0; i < 64; i++) {
                const int pos = at + c * 64 + warp * 16 + lane / 4 + (i & 2) * 4;
                const int j = j0 + i / 4 * 8 + lane % 4 * 2 + (i & 1);
                const bool seen =
                    (p.causal ? j <= pos : j < keys) && (p.window == 0 || j > pos - p.window);
                if (!seen) s[i] = -INFINITY;
            }
        };
        /* s becomes 2^(k2 (s - max)); m, l move on; alpha is what the older sums are scaled by */
        auto softmax = [&](float(&alpha)[2], bool first) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = first ? -INFINITY : m[r];
#pragma unroll
                for (int j = 0; j < 16; j++)
                    top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                const float some = top == -INFINITY ? 0 : top; /* nothing seen so far */
                alpha[r] = first ? 0 : exp2_fast((m[r] - some) * k2);
                m[r] = top;
                const float shift = some * k2;
                float sum = 0;
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const float x = exp2_fast(fmaf(s[4 * j + 2 * r], k2, -shift));
                    const float y = exp2_fast(fmaf(s[4 * j + 2 * r + 1], k2, -shift));
                    s[4 * j + 2 * r] = x;
                    s[4 * j + 2 * r + 1] = y;
                    sum += x + y;
                }
                l[r] = first ? sum : fmaf(l[r], alpha[r], sum); /* this thread's columns only */
            }
        };
        auto pack_p = [&] {
#pragma unroll
            for (int i = 0; i < 32; i++) pack[i] = sop_pack<T>(s[2 * i], s[2 * i + 1]);
        };
        /* the rows of V behind the sequence: P is 0 there, but 0 times anything must be 0 */
        auto clean = [&](int i, int from) {
            const uint32_t v = smem::v + (i % STAGES) * smem::tile;
            mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            const int tid = threadIdx.x - 128, chunks = (TILE - from) * (HEAD / 8);
            for (int e = tid; e < chunks; e += 256) {
                const int r = from + e / (HEAD / 8), ch = e % (HEAD / 8);
                *(uint4 *)(smem_at + v + ch / 8 * HALF + r * 128 + ch % 8 * 16) = {};
            }
            fence_async();
            named_sync(6, 256);
        };

        /* The finished rows: in f32 to memory; as 16-bit pairs in pack, since acc must not be read
         * while S is in flight. */
        auto finish = [&](int row0, int rows, int head) {
            float inv[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                l[r] += __shfl_xor_sync(~0u, l[r], 1);
                l[r] += __shfl_xor_sync(~0u, l[r], 2);
                float base = m[r] * k2, keep = 1;
                if (p.a.sinks) { /* one key more, whose value is 0 */
                    const float sink = p.a.sinks[head] * 1.44269504f, up = fmaxf(base, sink);
                    if (up > -INFINITY) {
                        keep = exp2_fast(base - up);
                        l[r] = fmaf(l[r], keep, exp2_fast(sink - up));
                        base = up;
                    }
                }
                inv[r] = l[r] == 0 ? 0 : keep / l[r]; /* a NaN stays one */
                const int row = c * 64 + warp * 16 + lane / 4 + 8 * r;
                if (p.a.lse && lane % 4 == 0 && row < rows)
                    p.a.lse[(int64_t)(row0 + row) * p.heads + head] =
                        l[r] == 0 ? -INFINITY : (base + log2f(l[r])) * 0.693147181f;
                if constexpr (sizeof(O) == 4) {
                    if (row >= rows) continue;
                    float *o = (float *)p.a.o + (row0 + row) * p.o_stride + head * p.o_head;
#pragma unroll
                    for (int i = 0; i < HEAD / 8; i++)
                        *(float2 *)(o + 8 * i + lane % 4 * 2) = make_float2(
                            acc[4 * i + 2 * r] * inv[r], acc[4 * i + 2 * r + 1] * inv[r]);
                }
            }
            if constexpr (sizeof(O) == 2) {
#pragma unroll
                for (int i = 0; i < HEAD / 4; i++)
                    pack[i] = sop_pack<T>(acc[2 * i] * inv[i % 2], acc[2 * i + 1] * inv[i % 2]);
            }
        };
        auto write_out = [&](int row0, int rows, int head) {
            if constexpr (sizeof(O) == 2) {
                const uint32_t out = smem::o + c * 64 * 128; /* 64 rows of each piece */
                named_sync(4 + c, 128);                      /* the last tile's copy has read it */
#pragma unroll
                for (int kk = 0; kk < HEAD / 16; kk++) {
                    const int r = warp * 16 + lane % 16, ch = kk % 4 * 2 + lane / 16;
                    stmatrix_x4(base + out + kk / 4 * HALF + r * 128 + ((ch ^ (r & 7)) << 4),
                                pack[4 * kk], pack[4 * kk + 1], pack[4 * kk + 2], pack[4 * kk + 3]);
                }
                named_sync(4 + c, 128);
#pragma unroll
                for (int i = 0; i < HEAD / 16; i++) {
                    const int chunk = i * 128 + threadIdx.x % 128;
                    const int r = chunk / (HEAD / 8), ch = chunk % (HEAD / 8);
                    const uint4 x = *(const uint4 *)(smem_at + out + ch / 8 * HALF + r * 128 +
                                                     ((ch % 8 ^ (r & 7)) << 4));
                    if (c * 64 + r < rows)
                        *(uint4 *)((T *)p.a.o + (row0 + c * 64 + r) * p.o_stride + head * p.o_head +
                                   ch * 8) = x;
                }
            }
        };

#pragma unroll
        for (int i = 0; i < 32; i++) pack[i] = 0;
        int row0 = 0, rows = 0, head = 0; /* no rows: the first round writes nothing */
        for (int n_done = 0;; n_done++) {
            float alpha[2];
            const int qs = n_done % 2;
            mbar_wait(q_full + 8 * qs, n_done / 2 & 1);
            const int n_kv = item[qs].n_kv;
            if (!n_kv) break;
            issue_qk(kv, qs); /* runs under the epilogue of the item before */
            write_out(row0, rows, head);
            row0 = item[qs].row0;
            rows = item[qs].rows;
            head = item[qs].heads;
            if (ALIBI) slope = p.a.slopes[head] * (p.cap > 0 ? 1.44269504f : 1 / p.scale);
            const int off = item[qs].off, keys = item[qs].keys, high = item[qs].high;
            /* from this tile on down every query sees all, until the window's end */
            const int whole = max(p.causal ? (off + 1) / TILE : keys / TILE, 0);
            const int until = p.window ? (max(off + rows - p.window, 0) + TILE - 1) / TILE : 0;
            wgmma_wait<0>();
            wgmma_touch(s);
            release(k_empty + 8 * (kv % STAGES));
            if (n_kv == 1) release(q_empty + 8 * qs);
            if (p.cap > 0) squeeze();
            if (ALIBI) lean(off, high * TILE);
            mask(off, keys, high * TILE);
            softmax(alpha, true);
            pack_p();
            if ((high + 1) * TILE > keys) clean(kv, max(keys - high * TILE, 0));
            for (int j = 1; j < n_kv; j++) {
                issue_qk(kv + j, qs);
                issue_pv(kv + j - 1, j > 1);
                wgmma_wait<1>();
                wgmma_touch(s);
                release(k_empty + 8 * ((kv + j) % STAGES));
                if (j == n_kv - 1) release(q_empty + 8 * qs);
                if (p.cap > 0) squeeze();
                if (ALIBI) lean(off, (high - j) * TILE);
                if (high - j >= whole || high - j < until) mask(off, keys, (high - j) * TILE);
                softmax(alpha, false);
                wgmma_wait<0>();
                wgmma_touch(acc);
                release(v_empty + 8 * ((kv + j - 1) % STAGES));
#pragma unroll
                for (int i = 0; i < HEAD / 2; i++) acc[i] *= alpha[i / 2 % 2];
                pack_p();
            }
            issue_pv(kv + n_kv - 1, n_kv > 1);
            wgmma_wait<0>();
            wgmma_touch(acc);
            release(v_empty + 8 * ((kv + n_kv - 1) % STAGES));
            finish(row0, rows, head);
            kv += n_kv;
        }
        write_out(row0, rows, head);
    }
}

#endif
