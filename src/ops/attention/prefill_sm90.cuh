/* Many queries: o = softmax(scale q k^T) v in 16-bit elements, sums in f32; ragged sequences without
 * padding, paged keys, any prefix before the queries. Heads of K channels in q and k, of V in v, both
 * multiples of 16.
 *
 * Persistent, one CTA a multiprocessor, 384 threads. Warpgroup 0 loads by TMA; warpgroups 1 and 2 each
 * own 64 of the 128 queries of a tile. K and V come in tiles of up to 128 keys, from the last that is
 * seen to the first; only those that some query does not see whole are masked. Per tile j a warpgroup
 * issues S = Q K_j^T and O += P V_(j-1), waits for S alone, and does its softmax under the second
 * product. The first product of the next item is issued before the finished rows are written.
 *
 * In shared memory an operand is pieces of 64 channels, [rows][128 bytes] each; the last is filled up
 * with 0 by TMA, and the products stop where the head does, so that no head pays for a wider one.
 *
 * A tile of keys is tile / box boxes, each found through the table; TMA reads 0 for a page that is not
 * there. Slots of the last page behind the sequence may hold anything: masked in S, zeroed in V. */
#ifndef OPS_ATTENTION_PREFILL_SM90_CUH
#define OPS_ATTENTION_PREFILL_SM90_CUH

#include "ops/attention/attention.cuh"
#include "ops/cuda/hopper.cuh"

enum { PREFILL_ROWS = 128, PREFILL_THREADS = 384 };

/* Shared memory: Q, then a ring of K and one of V. Tiles of keys are as long as registers (V / 2 floats of
 * O, tile / 2 of S) and two stages of each ring allow. */
template <int K, int V> struct prefill_smem {
    enum {
        tile = V > 192   ? 80
               : V > 128 ? 112
                         : 128,
        q_chunk = PREFILL_ROWS * 128,
        chunk = tile * 128,
        q_stage = (K + 63) / 64 * q_chunk,
        k_stage = (K + 63) / 64 * chunk,
        v_stage = (V + 63) / 64 * chunk,
        q_stages = K > 128 ? 1 : 2,
        stages = K == 64 ? 4 : 2, /* of K, and of V */
        k = q_stages * q_stage,
        v = k + stages * k_stage,
        o = v + stages * v_stage, /* two halves of 64 rows; or none */
        o_here = o + (V + 63) / 64 * q_chunk < 230000,
        bar = o_here ? o + (V + 63) / 64 * q_chunk : o,
        item = bar + 8 * (2 * q_stages + 4 * stages),
        bytes = item + q_stages * 32 + 1024
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
    int64_t o_stride, o_head, mask_stride, mask_head;
    int heads, group, section, page, box, table_stride, window, causal;
    int o_dtype, mask_dtype, mask_group; /* query heads of a head of the mask */
    float scale, cap;
};

struct prefill_maps {
    CUtensorMap q, k, v;
};

/* A kernel, and what its launch wants to know. */
struct prefill_kernel {
    void (*run)(const prefill_maps, const prefill_args);
    int tile, smem;
};

/* Items run over heads inside tiles inside sections of `section` heads; the K and V of a section
 * should fit in L2. EXTRA: a soft-cap, alibi, a mask. */
template <typename T, int K, int V, bool EXTRA>
static __global__ __launch_bounds__(PREFILL_THREADS, 1) void sop_prefill_sm90(
    const __grid_constant__ prefill_maps maps, const __grid_constant__ prefill_args p)
{
    typedef prefill_smem<K, V> smem;
    enum { STAGES = smem::stages, Q_STAGES = smem::q_stages, TILE = smem::tile };
    extern __shared__ uint8_t smem_raw[];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    uint8_t *const smem_at = smem_raw + (base - smem_addr(smem_raw));
    const uint32_t q_full = base + smem::bar, q_empty = q_full + 8 * Q_STAGES,
                   k_full = q_empty + 8 * Q_STAGES, k_empty = k_full + 8 * STAGES,
                   v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    volatile prefill_tile *item = (volatile prefill_tile *)(smem_at + smem::item);
    const int wg = threadIdx.x / 128;

    if (threadIdx.x == 0) {
        for (int s = 0; s < Q_STAGES; s++) {
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
            const int lane = threadIdx.x, boxes = TILE / p.box;
            const int n_tiles = p.state[1], n_items = n_tiles * p.heads;
            const int per_section = n_tiles * p.section;
            int n_put = 0, stage = 0, phase = 0, v_stage = 0, v_phase = 0;
            /* item w; too large: the end, without keys */
            auto fetch = [&](int w) {
                prefill_tile t = {};
                if (w < n_items) {
                    const int r = w % per_section;
                    t = p.tiles[r / p.section];
                    t.heads = w / per_section * p.section + r % p.section;
                }
                return t;
            };
            /* where the box of tile j lies; a page that is not there is out of range, read as 0 */
            auto page_of = [&](const prefill_tile &t, int j) {
                const int x = j * TILE + lane * p.box;
                if (lane >= boxes || x >= t.keys) return -1;
                return p.a.table[(int64_t)t.seq * p.table_stride + x / p.page];
            };
            auto load = [&](const CUtensorMap *map, uint32_t dst, int bytes, uint32_t bar, int head,
                            int page, int j) {
                if (lane == 0) mbar_expect_tx(bar, bytes);
                __syncwarp();
                if (lane < boxes) {
                    const int x = (j * TILE + lane * p.box) % p.page;
                    for (int c = 0; c * (int)smem::chunk < bytes; c++)
                        tma_load_4d(dst + c * smem::chunk + lane * p.box * 128, map, 64 * c, x,
                                    head, page, bar);
                }
            };
            /* an item and its Q to the consumers */
            auto put = [&](const prefill_tile &t) {
                const int s = n_put % Q_STAGES;
                mbar_wait(q_empty + 8 * s, (n_put / Q_STAGES & 1) ^ 1);
                n_put++;
                if (lane != 0) return;
                item[s].row0 = t.row0;
                item[s].rows = t.rows;
                item[s].off = t.off;
                item[s].high = t.high;
                item[s].n_kv = t.n_kv;
                item[s].keys = t.keys;
                item[s].heads = t.heads;
                if (t.n_kv == 0) {
                    mbar_arrive(q_full + 8 * s);
                    return;
                }
                mbar_expect_tx(q_full + 8 * s, smem::q_stage);
                for (int c = 0; c < (K + 63) / 64; c++)
                    tma_load_3d(base + s * smem::q_stage + c * smem::q_chunk, &maps.q, 64 * c,
                                t.heads, t.row0, q_full + 8 * s);
            };
            /* Items are drawn two ahead, so that what describes them is here when they begin. */
            auto draw = [&] { return lane == 0 ? (int)gridDim.x + atomicAdd(&p.state[0], 1) : 0; };
            int w = draw();
            prefill_tile t = fetch(blockIdx.x), next;
            put(t);
            next = fetch(__shfl_sync(~0u, w, 0));
            int page = page_of(t, t.high), page_v = 0;
            while (t.n_kv) {
                const int kv_head = t.heads / p.group;
                int page_after = 0;
                w = draw();
                for (int j = 0; j <= t.n_kv; j++) { /* K_0 K_1 V_0 next Q, K_2 V_1 .. V_(n-1) */
                    int page_next = 0;
                    if (j < t.n_kv) {
                        if (j + 1 < t.n_kv) page_next = page_of(t, t.high - j - 1);
                        mbar_wait(k_empty + 8 * stage, phase ^ 1);
                        load(&maps.k, base + smem::k + stage * smem::k_stage, smem::k_stage,
                             k_full + 8 * stage, kv_head, page, t.high - j);
                        if (++stage == STAGES) stage = 0, phase ^= 1;
                    }
                    if (j > 0) {
                        mbar_wait(v_empty + 8 * v_stage, v_phase ^ 1);
                        load(&maps.v, base + smem::v + v_stage * smem::v_stage, smem::v_stage,
                             v_full + 8 * v_stage, kv_head, page_v, t.high - j + 1);
                        if (++v_stage == STAGES) v_stage = 0, v_phase ^= 1;
                    }
                    page_v = page;
                    page = page_next;
                    if (j == 1) page_after = page_of(next, next.high);
                    /* a single stage of Q is free when all of K has been used */
                    if (j == (Q_STAGES == 1 ? t.n_kv : 1)) put(next);
                }
                page = page_after;
                t = next;
                next = fetch(__shfl_sync(~0u, w, 0));
            }
        }
    } else {
        regs_inc<232>();
        const int c = wg - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        /* scores to powers of two; with a cap they are so already */
        const float k2 = EXTRA && p.cap > 0 ? 1 : p.scale * 1.44269504f;
        const float unit = p.cap > 0 ? 1.44269504f : 1 / p.scale; /* of what is added, in s */
        float s[TILE / 2], acc[V / 2], m[2], l[2];
        uint32_t pack[TILE > V ? TILE / 4 : V / 4];
        int kv = 0; /* tiles of finished items: stage and phase of both rings */
        const uint64_t dq0 = desc_k_major(base + c * 64 * 128);
        const uint64_t dk0 = desc_k_major(base + smem::k);
        const uint64_t dv0 = desc_mn_major(base + smem::v, TILE);

        auto release = [&](uint32_t bar) {
            if (lane == 0) mbar_arrive(bar);
        };
        auto issue_qk = [&](int i, int q) {
            const uint64_t dq = desc_advance(dq0, q * smem::q_stage);
            const uint64_t dk = desc_advance(dk0, (i % STAGES) * smem::k_stage);
            mbar_wait(k_full + 8 * (i % STAGES), i / STAGES & 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++)
                wgmma<T>::ss(s, desc_advance(dq, kk / 4 * smem::q_chunk + kk % 4 * 32),
                             desc_advance(dk, kk / 4 * smem::chunk + kk % 4 * 32), kk > 0);
            wgmma_commit();
        };
        auto issue_pv = [&](int i, int add) {
            const uint64_t dv = desc_advance(dv0, (i % STAGES) * smem::v_stage);
            mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < TILE / 16; kk++)
                wgmma<T>::rs(acc, pack + 4 * kk, desc_advance(dv, kk * 2048), kk > 0 || add);
            wgmma_commit();
        };
        /* s becomes cap tanh(scale s / cap) log2 e */
        auto squeeze = [&] {
            const float in = 2 * 1.44269504f * p.scale / p.cap, out = p.cap * 1.44269504f;
#pragma unroll
            for (int i = 0; i < TILE / 2; i++)
                s[i] = out - __fdividef(2 * out, exp2_fast(in * s[i]) + 1);
        };
        /* The queries of this thread are at position at + row() and 8 behind, its keys of a tile at
         * j0 + column(i). */
        const int row = c * 64 + warp * 16 + lane / 4;
        auto column = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + (i & 1); };
        /* alibi's and the mask's terms, for the tile that begins at key j0 */
        float slope = 0; /* of the head, in units of s */
        auto lean = [&](int row0, int rows, int at, int head, int keys, int j0) {
            if (p.a.slopes) {
                const float to = (float)(at + row - j0 - lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < TILE / 2; i++)
                    s[i] =
                        fmaf(-slope, fabsf(to + (float)((i & 2) * 4 - i / 4 * 8 - (i & 1))), s[i]);
            }
            if (p.a.mask) {
                const int64_t from = row0 * p.mask_stride + head / p.mask_group * p.mask_head + j0;
#pragma unroll
                for (int i = 0; i < TILE / 2; i++) {
                    const int r = row + (i & 2) * 4;
                    if (r >= rows || j0 + column(i) >= keys) continue;
                    const float add =
                        sop_mask_at(p.a.mask, p.mask_dtype, from + r * p.mask_stride + column(i));
                    s[i] += add < -1e10f ? -INFINITY : add * unit; /* so far down hides */
                }
            }
        };
        /* what a query at position `at` + row does not see in the tile that begins at key j0 */
        auto hide = [&](int at, int keys, int j0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int own = at + row + 8 * r - j0 - lane % 4 * 2; /* its column, off by ours */
                const int most = p.causal ? own : keys - 1 - j0 - lane % 4 * 2;
                const int under = p.window ? own - p.window : -1;
#pragma unroll
                for (int i = 0; i < TILE / 4; i++) {
                    const int at_i = i / 2 * 8 + i % 2;
                    if (at_i > most || at_i <= under) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
                }
            }
        };
        /* s becomes 2^(k2 (s - max)); m, l move on; alpha is what the older sums are scaled by */
        auto softmax = [&](float(&alpha)[2], bool first) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = first ? -INFINITY : m[r];
#pragma unroll
                for (int j = 0; j < TILE / 8; j++)
                    top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                const float some = top == -INFINITY ? 0 : top; /* nothing seen so far */
                alpha[r] = first ? 0 : exp2_fast((m[r] - some) * k2);
                m[r] = top;
                const float shift = some * k2;
                float sum = 0;
#pragma unroll
                for (int j = 0; j < TILE / 8; j++) {
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
            for (int i = 0; i < TILE / 4; i++) pack[i] = sop_pack<T>(s[2 * i], s[2 * i + 1]);
        };
        /* the rows of V behind the sequence: P is 0 there, but 0 times anything must be 0 */
        auto clean = [&](int i, int from) {
            const uint32_t v = smem::v + (i % STAGES) * smem::v_stage;
            mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            const int tid = threadIdx.x - 128, chunks = (TILE - from) * (V / 8);
            for (int e = tid; e < chunks; e += 256) {
                const int r = from + e / (V / 8), ch = e % (V / 8);
                *(uint4 *)(smem_at + v + ch / 8 * smem::chunk + r * 128 +
                           ((ch % 8 ^ (r & 7)) << 4)) = {};
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
                const int at = row + 8 * r;
                if (p.a.lse && lane % 4 == 0 && at < rows)
                    p.a.lse[(int64_t)(row0 + at) * p.heads + head] =
                        l[r] == 0 ? -INFINITY : (base + log2f(l[r])) * 0.693147181f;
                if (__builtin_expect(p.o_dtype != SOP_F32, 1) || at >= rows) continue;
                float *o = (float *)p.a.o + (row0 + at) * p.o_stride + head * p.o_head;
#pragma unroll
                for (int i = 0; i < V / 8; i++)
                    *(float2 *)(o + 8 * i + lane % 4 * 2) =
                        make_float2(acc[4 * i + 2 * r] * inv[r], acc[4 * i + 2 * r + 1] * inv[r]);
            }
#pragma unroll
            for (int i = 0; i < V / 4; i++)
                pack[i] = sop_pack<T>(acc[2 * i] * inv[i % 2], acc[2 * i + 1] * inv[i % 2]);
        };
        /* The 4 lanes of a row hold 2 channels in every 8; they exchange words, so that each stores 8
         * channels of every 32. */
        auto write_out = [&](int row0, int rows, int head) {
            if (p.o_dtype == SOP_F32) return;
            if constexpr (smem::o_here) {
                const uint32_t out = smem::o + c * 64 * 128; /* 64 rows of each piece */
                named_sync(4 + c, 128);                      /* the last tile's copy has read it */
#pragma unroll
                for (int kk = 0; kk < V / 16; kk++) {
                    const int r = warp * 16 + lane % 16, ch = kk % 4 * 2 + lane / 16;
                    stmatrix_x4(base + out + kk / 4 * smem::q_chunk + r * 128 +
                                    ((ch ^ (r & 7)) << 4),
                                pack[4 * kk], pack[4 * kk + 1], pack[4 * kk + 2], pack[4 * kk + 3]);
                }
                named_sync(4 + c, 128);
#pragma unroll
                for (int i = 0; i < V / 16; i++) {
                    const int chunk = i * 128 + threadIdx.x % 128;
                    const int r = chunk / (V / 8), ch = chunk % (V / 8);
                    const uint4 x = *(const uint4 *)(smem_at + out + ch / 8 * smem::q_chunk +
                                                     r * 128 + ((ch % 8 ^ (r & 7)) << 4));
                    if (c * 64 + r < rows)
                        *(uint4 *)((T *)p.a.o + (row0 + c * 64 + r) * p.o_stride + head * p.o_head +
                                   ch * 8) = x;
                }
                return;
            }
            const int one = lane & 1, two = lane & 2;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int at = row + 8 * r;
                T *o = (T *)p.a.o + (row0 + at) * p.o_stride + head * p.o_head;
#pragma unroll
                for (int i = 0; i < V / 32; i++) {
                    uint32_t x[4], y;
#pragma unroll
                    for (int j = 0; j < 4; j++) x[j] = pack[8 * i + 2 * j + r];
#pragma unroll
                    for (int j = 0; j < 4; j += 2) {
                        y = __shfl_xor_sync(~0u, one ? x[j] : x[j + 1], 1);
                        one ? x[j] = y : x[j + 1] = y;
                    }
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        y = __shfl_xor_sync(~0u, two ? x[j] : x[j + 2], 2);
                        two ? x[j] = y : x[j + 2] = y;
                    }
                    if (at < rows)
                        *(uint4 *)(o + 32 * i + lane % 4 * 8) = make_uint4(x[0], x[1], x[2], x[3]);
                }
#pragma unroll
                for (int i = V / 32 * 4; i < V / 8; i++)
                    if (at < rows) *(uint32_t *)(o + 8 * i + lane % 4 * 2) = pack[2 * i + r];
            }
        };

#pragma unroll
        for (int i = 0; i < V / 4; i++) pack[i] = 0;
        int row0 = 0, rows = 0, head = 0; /* no rows: the first round writes nothing */
        for (int n_done = 0;; n_done++) {
            float alpha[2];
            const int qs = n_done % Q_STAGES;
            mbar_wait(q_full + 8 * qs, n_done / Q_STAGES & 1);
            const int n_kv = item[qs].n_kv;
            if (!n_kv) break;
            issue_qk(kv, qs); /* runs under the epilogue of the item before */
            write_out(row0, rows, head);
            row0 = item[qs].row0;
            rows = item[qs].rows;
            head = item[qs].heads;
            if (EXTRA && p.a.slopes) slope = p.a.slopes[head] * unit;
            const int off = item[qs].off, keys = item[qs].keys, high = item[qs].high;
            /* from this tile on down every query sees all, until the window's end */
            const int whole = max(p.causal ? (off + 1) / TILE : keys / TILE, 0);
            const int until = p.window ? (max(off + rows - p.window, 0) + TILE - 1) / TILE : 0;
            wgmma_wait<0>();
            wgmma_touch(s);
            release(k_empty + 8 * (kv % STAGES));
            if (n_kv == 1) release(q_empty + 8 * qs);
            if (EXTRA && p.cap > 0) squeeze();
            if (EXTRA) lean(row0, rows, off, head, keys, high * TILE);
            hide(off, keys, high * TILE);
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
                if (EXTRA && p.cap > 0) squeeze();
                if (EXTRA) lean(row0, rows, off, head, keys, (high - j) * TILE);
                if (__builtin_expect(high - j >= whole || high - j < until, 0))
                    hide(off, keys, (high - j) * TILE);
                softmax(alpha, false);
                wgmma_wait<0>();
                wgmma_touch(acc);
                release(v_empty + 8 * ((kv + j - 1) % STAGES));
                if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) { /* seldom after a while */
#pragma unroll
                    for (int i = 0; i < V / 2; i++) acc[i] *= alpha[i / 2 % 2];
                }
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

/* The kernel of heads of K and V channels, for 16-bit elements of either type. */
template <int K, int V> static prefill_kernel prefill_kernel_of(bool f16, bool extra)
{
    typedef prefill_smem<K, V> smem;
    return {f16     ? extra ? sop_prefill_sm90<__half, K, V, true>
                            : sop_prefill_sm90<__half, K, V, false>
                : extra ? sop_prefill_sm90<__nv_bfloat16, K, V, true>
                    : sop_prefill_sm90<__nv_bfloat16, K, V, false>,
            smem::tile, smem::bytes};
}

/* A file for some heads, so that they are compiled beside each other. */
extern "C" {
prefill_kernel sop_prefill_80(bool f16, bool extra); /* attention_prefill_narrow_sm90.cu */
prefill_kernel sop_prefill_96(bool f16, bool extra);
prefill_kernel sop_prefill_112(bool f16, bool extra);
prefill_kernel sop_prefill_160(bool f16, bool extra); /* attention_prefill_wide_sm90.cu */
prefill_kernel sop_prefill_192(bool f16, bool extra);
prefill_kernel sop_prefill_192_128(bool f16, bool extra); /* attention_prefill_256_sm90.cu */
prefill_kernel sop_prefill_256(bool f16, bool extra);
}

#endif
