/* Many queries: o = softmax(scale q k^T) v in 16-bit elements, sums in f32;
 * ragged sequences without padding, paged keys, any prefix before the queries.
 * Heads of K channels in q and k, of V in v, both multiples of 16.
 *
 * Persistent, one CTA a multiprocessor, 384 threads. Warpgroup 0 draws items
 * and loads by TMA; warpgroups 1 and 2 each own 64 of the 128 queries of a
 * tile. K and V come in tiles of up to 128 keys, from the last that is seen to
 * the first; only those that some query does not see whole are masked, and a
 * warpgroup's first product stops at half a tile if its queries see no more.
 * Per tile j a warpgroup issues S = Q K_j^T and O += P V_(j-1) together and
 * does its softmax under the products of the other: while those are queued, to
 * start a product takes as long as the one before. The first product of the next
 * item is issued before the finished rows are written. A row's maximum stands
 * until a thread's weights of a tile add up to more than 2^8; only then a tile's
 * maximum is looked for, and its weights are taken again.
 *
 * In shared memory an operand is pieces of 64 channels, [rows][128 bytes] each;
 * the last is filled up with 0 by TMA, and the products stop where the head
 * does, so that no head pays for a wider one.
 *
 * A tile of keys is cut where its pages end; each part is a box of its own size,
 * found through the table; TMA reads 0 for a page that is not there. One warp
 * takes long to start a box, so that 3 warps load a share each, and what a box
 * is is known before its stage is free: keys arrive hardly faster than they are used.
 * Slots of the last page behind the sequence may hold anything: masked in S,
 * zeroed in V. */
#ifndef OPS_ATTENTION_PREFILL_SM90_CUH
#define OPS_ATTENTION_PREFILL_SM90_CUH

#include "ops/attention/attention.cuh"
#include "ops/cuda/hopper.cuh"

enum { PREFILL_ROWS = 128, PREFILL_THREADS = 384 };

/* Shared memory: Q, then a ring of K and one of V. Tiles of keys are as long as
 * registers (V / 2 floats of O, tile / 2 of S) and two stages of each ring
 * allow. */
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
        o = v + stages * v_stage, /* finished rows, while the next item begins */
        late = V <= 128 && K <= 128,
        bar = o + late * (V + 63) / 64 * q_chunk,
        item = bar + 8 * (4 + 2 * q_stages + 4 * stages), /* two of them */
        kind = item + 64,                                 /* of each stage of K: 4 * tile + class */
        bytes = kind + 4 * stages + 1024
    };
};

/* A number as a type. */
template <int N> struct prefill_number {
    enum { value = N };
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
    int *state;             /* next work item, number of tiles */
    const uint8_t *classes; /* [heads of the mask, q_tiles, kv_tiles] of
                             prefill_class; or NULL */
    int64_t o_stride, o_head, mask_stride, mask_head, q_tiles, kv_tiles;
    int heads, group, section, page, table_stride, window, causal;
    int cut, unit,
        parts; /* a tile is cut at multiples of `cut` keys, into at most `parts` of n units each */
    int o_dtype, mask_dtype, mask_group; /* query heads of a head of the mask */
    float scale, cap;
};

/* What a mask does to a tile of keys, for all queries of a tile. */
enum prefill_class { CLASS_SOME, CLASS_LIVE, CLASS_HIDDEN };

/* Boxes of keys that a page may be cut into: of 1 .. PREFILL_SIZES units. */
enum { PREFILL_SIZES = 8 };

struct prefill_maps {
    CUtensorMap q, k[PREFILL_SIZES], v[PREFILL_SIZES];
};

/* Keys x .. x + rows of a page, which become row `at` on of a tile; without rows there are none. */
struct prefill_part {
    int page, x,
        place; /* place: bytes from the tile's begin << 4 | units of rows - 1; or negative */
};

/* A kernel, and what its launch wants to know. */
struct prefill_kernel {
    void (*run)(const prefill_maps, const prefill_args);
    int tile, smem;
};

/* Items run over heads inside tiles inside sections of `section` heads; the K
 * and V of a section should fit in L2. EXTRA: a soft-cap, alibi, a mask. */
template <typename T, int K, int V, bool EXTRA>
static __global__ __launch_bounds__(PREFILL_THREADS, 1) void sop_prefill_sm90(
    const __grid_constant__ prefill_maps maps, const __grid_constant__ prefill_args p)
{
    typedef prefill_smem<K, V> smem;
    enum {
        STAGES = smem::stages,
        Q_STAGES = smem::q_stages,
        TILE = smem::tile,
        PIECES = ((K > V ? K : V) + 63) / 64 /* of an operand */
    };
    extern __shared__ uint8_t smem_raw[];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    uint8_t *const smem_at = smem_raw + (base - smem_addr(smem_raw));
    const uint32_t item_full = base + smem::bar, item_empty = item_full + 16,
                   q_full = item_empty + 16, q_empty = q_full + 8 * Q_STAGES,
                   k_full = q_empty + 8 * Q_STAGES, k_empty = k_full + 8 * STAGES,
                   v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    volatile prefill_tile *item = (volatile prefill_tile *)(smem_at + smem::item);
    volatile int *kind = (volatile int *)(smem_at + smem::kind);
    const int wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0),
              n_loaders = min(p.parts * PIECES, 3);

    if (threadIdx.x == 0) {
        for (int s = 0; s < Q_STAGES; s++) {
            mbar_init(q_full + 8 * s, 1);
            mbar_init(q_empty + 8 * s, 8);
        }
        for (int s = 0; s < 2; s++) {
            mbar_init(item_full + 8 * s, 8);
            mbar_init(item_empty + 8 * s, 8 + n_loaders);
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
        const int lane = threadIdx.x % 32, own = threadIdx.x / 32,
                  my_part = (lane * n_loaders + own) / PIECES,
                  my_channel = (lane * n_loaders + own) % PIECES * 64;
        /* an item is a prefill_tile, a field a lane */
        enum { ROW0, SEQ = 2, OFF, HIGH, N_KV, KEYS, HEAD };
        auto field = [&](int t, int i) { return __shfl_sync(~0u, t, i); };
        auto classes_of = [&](int t) {
            const int id = field(t, ROW0) / PREFILL_ROWS + field(t, SEQ);
            return p.classes + (field(t, HEAD) / p.mask_group * p.q_tiles + id) * p.kv_tiles;
        };
        auto low_of = [&](int t) {
            return p.window ? max(field(t, OFF) - p.window + 1, 0) / TILE : 0;
        };
        if (own == 3) { /* draws items, ahead of those who load and compute */
            const int n_tiles = p.state[1], per_section = n_tiles * p.section;
            int w = blockIdx.x;
            for (int n = 0;; n++) {
                int t = 0; /* too large: the end, without keys */
                if (w < n_tiles * p.heads) {
                    const int r = w % per_section;
                    t = ((const int *)&p.tiles[r / p.section])[lane % 8];
                    if (lane % 8 == HEAD) t = w / per_section * p.section + r % p.section;
                }
                if (lane == 0) w = (int)gridDim.x + atomicAdd(&p.state[0], 1);
                w = __shfl_sync(~0u, w, 0);
                if (EXTRA && p.classes && field(t, N_KV)) { /* tiles that are not hidden, or one */
                    const uint8_t *classes = classes_of(t);
                    const int low = low_of(t);
                    int seen = 0;
                    for (int j = field(t, HIGH); j >= low; j -= 32)
                        seen += __popc(__ballot_sync(~0u, j - lane >= low &&
                                                              classes[j - lane] != CLASS_HIDDEN));
                    if (lane % 8 == N_KV) t = max(seen, 1);
                }
                mbar_wait(item_empty + n % 2 * 8, (n / 2 & 1) ^ 1);
                if (lane < 8) { /* each for what it wrote */
                    ((volatile int *)&item[n % 2])[lane] = t;
                    mbar_arrive(item_full + n % 2 * 8);
                }
                if (field(t, N_KV) == 0) break;
            }
        } else if (own < n_loaders) { /* each lane loads the part of its number; the first also Q */
            /* this lane's part of an item's tile j; no page: out of range, read as 0 */
            auto part_of = [&](int t, int j) {
                const int seq = field(t, SEQ), keys = field(t, KEYS), begin = j * TILE;
                const int cut = (begin / p.cut + my_part) * p.cut, x = max(begin, cut);
                const int rows = my_part < p.parts ? min(begin + TILE, cut + p.cut) - x : 0,
                          in = x / p.page;
                prefill_part part = {-1, x - in * p.page,
                                     rows > 0 ? ((x - begin) * 128 + my_channel / 64 * smem::chunk)
                                                        << 4 |
                                                    (rows / p.unit - 1)
                                              : -1};
                if (rows > 0 && x < keys) part.page = p.a.table[(int64_t)seq * p.table_stride + in];
                return part;
            };
            auto load = [&](const CUtensorMap *maps, uint32_t dst, int pieces, uint32_t bar,
                            int head, const prefill_part &part) {
                if (threadIdx.x == 0) mbar_expect_tx(bar, TILE * pieces * 128);
                __syncwarp();
                if (part.place >= 0 && (K == V || my_channel < 64 * pieces))
                    tma_load_4d(dst + (part.place >> 4), maps + part.place % 16, my_channel, part.x,
                                head, part.page, bar);
            };
            /* Of an item, the tile below tile j that is not hidden, 4 * tile + class.
       */
            auto below = [&](int t, int j) {
                if (!EXTRA || !p.classes) return 4 * (j - 1) + CLASS_LIVE;
                const uint8_t *classes = classes_of(t);
                const int low = low_of(t);
                for (;; j -= 32) {
                    const int at = j - 1 - lane, is = at < low ? CLASS_HIDDEN : classes[at];
                    const unsigned seen = __ballot_sync(~0u, is != CLASS_HIDDEN);
                    if (seen) return __shfl_sync(~0u, 4 * at + is, __ffs(seen) - 1);
                    if (j - 32 <= low) return 4 * field(t, HIGH) + CLASS_SOME; /* none at all */
                }
            };
            auto take = [&](int n) { /* item n */
                                     mbar_wait(item_full + n % 2 * 8, n / 2 & 1);
                                     const int t = ((volatile int *)&item[n % 2])[lane % 8];
                                     __syncwarp();
                                     if (lane == 0) mbar_arrive(item_empty + n % 2 * 8);
                                     return t;
            };
            auto put_q = [&](int t,
                             int n) { /* the queries of item n */
                                      const int s = n % Q_STAGES, head = field(t, HEAD),
                                                row0 = field(t, ROW0);
                                      const int n_kv = field(t, N_KV);
                                      if (own) return;
                                      mbar_wait(q_empty + 8 * s, (n / Q_STAGES & 1) ^ 1);
                                      if (lane) return;
                                      if (n_kv == 0) {
                                          mbar_arrive(q_full + 8 * s);
                                          return;
                                      }
                                      mbar_expect_tx(q_full + 8 * s, smem::q_stage);
                                      for (int c = 0; c < (K + 63) / 64; c++)
                                          tma_load_3d(base + s * smem::q_stage + c * smem::q_chunk,
                                                      &maps.q, 64 * c, head, row0, q_full + 8 * s);
            };
            int t = take(0), at = below(t, field(t, HIGH) + 1), kv = 0;
            prefill_part part = part_of(t, at / 4);
            put_q(t, 0);
            for (int n = 0;; n++) {
                const int n_kv = field(t, N_KV), kv_head = field(t, HEAD) / p.group;
                if (Q_STAGES == 1 && n_kv == 0 && n) put_q(t, n);
                if (n_kv == 0) break;
                /* K_0 K_1 V_0, K_2 V_1 .. V_(n-1) */
                prefill_part old = {};
                for (int j = 0; j <= n_kv; j++) {
                    const prefill_part was = old;
                    if (j < n_kv) {
                        const int s = kv % STAGES;
                        old = part;
                        const int mark = at;
                        if (j + 1 < n_kv) {
                            at = below(t, at / 4);
                            part = part_of(t, at / 4);
                        }
                        mbar_wait(k_empty + 8 * s, (kv / STAGES & 1) ^ 1);
                        if (EXTRA && threadIdx.x == 0) kind[s] = mark;
                        load(maps.k, base + smem::k + s * smem::k_stage, (K + 63) / 64,
                             k_full + 8 * s, kv_head, old);
                        kv++;
                        /* a single stage of Q is free when the item before is all done */
                        if (Q_STAGES == 1 && j == 0 && n) put_q(t, n);
                        if (j + 1 == n_kv) {
                            t = take(n + 1);
                            if (Q_STAGES == 2) put_q(t, n + 1);
                            at = below(t, field(t, HIGH) + 1);
                            part = part_of(t, at / 4);
                        }
                    }
                    if (j > 0) {
                        const int i = kv - (j < n_kv ? 2 : 1), s = i % STAGES;
                        mbar_wait(v_empty + 8 * s, (i / STAGES & 1) ^ 1);
                        load(maps.v, base + smem::v + s * smem::v_stage, (V + 63) / 64,
                             v_full + 8 * s, kv_head, was);
                    }
                }
            }
        }
    } else {
        regs_inc<232>();
        const int c = wg - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        /* scores to powers of two; with a cap they are so already */
        const float k2 = EXTRA && p.cap > 0 ? 1 : p.scale * 1.44269504f;
        const float unit = p.cap > 0 ? 1.44269504f : 1 / p.scale; /* of what is added, in s */
        float s[TILE / 2], acc[V / 2], m[2], l[2];
        uint32_t pack[TILE / 4];
        int kv = 0; /* tiles of finished items: stage and phase of both rings */
        const uint64_t dq0 = desc_k_major(base + c * 64 * 128);
        const uint64_t dk0 = desc_k_major(base + smem::k);
        const uint64_t dv0 = desc_mn_major(base + smem::v, TILE);

        auto release = [&](uint32_t bar) {
            if (lane == 0) mbar_arrive(bar);
        };
        /* the first w columns of S */
        auto issue_qk = [&](auto w, int i, int q) {
            constexpr int W = decltype(w)::value;
            const uint64_t dq = desc_advance(dq0, q * smem::q_stage);
            const uint64_t dk = desc_advance(dk0, (i % STAGES) * smem::k_stage);
            mbar_wait(k_full + 8 * (i % STAGES), i / STAGES & 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++)
                wgmma<T>::ss(*(float(*)[W / 2]) s,
                             desc_advance(dq, kk / 4 * smem::q_chunk + kk % 4 * 32),
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
        /* The queries of this thread are at position at + row() and 8 behind, its
     * keys of a tile at j0 + column(i). */
        const int row = c * 64 + warp * 16 + lane / 4;
        auto column = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + (i & 1); };
        /* alibi's and the mask's terms, for the tile that begins at key j0 */
        float slope = 0; /* of the head, in units of s */
        auto lean = [&](int row0, int rows, int at, int head, int keys, int j0, bool masked) {
            if (p.a.slopes) {
                const float to = (float)(at + row - j0 - lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < TILE / 2; i++)
                    s[i] =
                        fmaf(-slope, fabsf(to + (float)((i & 2) * 4 - i / 4 * 8 - (i & 1))), s[i]);
            }
            if (p.a.mask && masked) {
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
        /* what a query at position `at` + row does not see in the tile that begins
     * at key j0 */
        auto hide = [&](auto w, bool first, int at, int keys, int j0) {
            constexpr int W = decltype(w)::value;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int own = at + row + 8 * r - j0 - lane % 4 * 2; /* its column, off by ours */
                const int most = p.causal ? own : keys - 1 - j0 - lane % 4 * 2;
                const int under = p.window ? own - p.window : -1;
                if (first && p.window == 0) {
#pragma unroll
                    for (int i = 0; i < W / 4; i++)
                        if (i / 2 * 8 + i % 2 > most) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
                    continue;
                }
#pragma unroll
                for (int i = 0; i < W / 4; i++) {
                    const int at_i = i / 2 * 8 + i % 2;
                    if (at_i > most || at_i <= under) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
                }
            }
        };
        /* m becomes the rows' maximum, l is scaled by alpha, as all older sums are to be. */
        auto raise = [&](auto w, float(&alpha)[2]) {
            constexpr int W = decltype(w)::value;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = m[r];
#pragma unroll
                for (int j = 0; j < W / 8; j++)
                    top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                alpha[r] = exp2_fast((m[r] - (top == -INFINITY ? 0 : top)) * k2);
                m[r] = top;
                l[r] *= alpha[r];
            }
        };
        /* The weights 2^(k2 (s - m)), into pack, and the sums of this thread's. */
        auto weigh = [&](auto w, float(&sum)[2]) {
            constexpr int W = decltype(w)::value;
            float shift[2];
#pragma unroll
            for (int r = 0; r < 2; r++) shift[r] = m[r] == -INFINITY ? 0 : m[r] * k2, sum[r] = 0;
#pragma unroll
            for (int i = 0; i < TILE / 4; i++) {
                pack[i] = 0;
                if (i >= W / 4) continue;
                const float x = exp2_fast(fmaf(s[2 * i], k2, -shift[i % 2]));
                const float y = exp2_fast(fmaf(s[2 * i + 1], k2, -shift[i % 2]));
                pack[i] = sop_pack<T>(x, y);
                sum[i % 2] += x + y;
            }
        };
        /* the rows of V behind the sequence: P is 0 there, but 0 times anything
     * must be 0 */
        auto clean = [&](int i, int from) {
            const uint32_t v = smem::v + (i % STAGES) * smem::v_stage;
            mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            const int chunks = (TILE - from) * (V / 8);
            for (int e = threadIdx.x % 128; e < chunks; e += 128) {
                const int r = from + e / (V / 8), ch = e % (V / 8);
                *(uint4 *)(smem_at + v + ch / 8 * smem::chunk + r * 128 +
                           ((ch % 8 ^ (r & 7)) << 4)) = {};
            }
            fence_async();
            named_sync(4 + c, 128);
        };

        /* The finished rows: sums divided, in f32 straight to memory. */
        float inv[2];
        auto finish = [&](int row0, int rows, int head) {
#pragma unroll
            for (int r = 0; r < 2; r++) l[r] += __shfl_xor_sync(~0u, l[r], 1);
#pragma unroll
            for (int r = 0; r < 2; r++) l[r] += __shfl_xor_sync(~0u, l[r], 2);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float sum = l[r], base = m[r] * k2, keep = 1;
                if (p.a.sinks) { /* one key more, whose value is 0 */
                    const float sink = p.a.sinks[head] * 1.44269504f, up = fmaxf(base, sink);
                    if (up > -INFINITY) {
                        keep = exp2_fast(base - up);
                        sum = fmaf(sum, keep, exp2_fast(sink - up));
                        base = up;
                    }
                }
                inv[r] = sum == 0 ? 0 : __fdividef(keep, sum); /* a NaN stays one */
                const int at = row + 8 * r;
                if (p.a.lse && lane % 4 == 0 && at < rows)
                    p.a.lse[(int64_t)(row0 + at) * p.heads + head] =
                        sum == 0 ? -INFINITY : (base + log2f(sum)) * 0.693147181f;
                if (!EXTRA || p.o_dtype != SOP_F32 || at >= rows) continue;
                float *o =
                    (float *)p.a.o + (row0 + at) * p.o_stride + head * p.o_head + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < V / 8; i++)
                    *(float2 *)(o + 8 * i) =
                        make_float2(acc[4 * i + 2 * r] * inv[r], acc[4 * i + 2 * r + 1] * inv[r]);
            }
        };
        /* two channels as 16-bit elements */
        auto word = [&](int i) {
            return sop_pack<T>(acc[2 * i] * inv[i % 2], acc[2 * i + 1] * inv[i % 2]);
        };
        /* A warp's 16 rows of words go through shared memory, so that whole rows
     * are stored. */
        auto write_out = [&](int row0, int rows, int head, uint32_t out, auto word) {
            const int left = rows - c * 64 - warp * 16;
            out += c * 64 * 128;
            if (EXTRA && p.o_dtype == SOP_F32) return;
            __syncwarp();
#pragma unroll
            for (int kk = 0; kk < V / 16; kk++) {
                const int r = warp * 16 + lane % 16, ch = kk % 4 * 2 + lane / 16;
                stmatrix_x4(base + out + kk / 4 * smem::q_chunk + r * 128 + ((ch ^ (r & 7)) << 4),
                            word(4 * kk), word(4 * kk + 1), word(4 * kk + 2), word(4 * kk + 3));
            }
            __syncwarp();
            T *o = (T *)p.a.o + (row0 + c * 64 + warp * 16) * p.o_stride + head * p.o_head;
            enum { WIDE = V / 8, EACH = 32 / WIDE }; /* rows at once */
#pragma unroll
            for (int i = 0; i < (16 + EACH - 1) / EACH; i++) {
                const int r = i * EACH + lane / WIDE, ch = lane % WIDE, at = warp * 16 + r;
                if (EACH * WIDE < 32 && (lane >= EACH * WIDE || r >= 16)) continue;
                const uint4 x = *(const uint4 *)(smem_at + out + ch / 8 * smem::q_chunk + at * 128 +
                                                 ((ch % 8 ^ (at & 7)) << 4));
                if (r < left) *(uint4 *)(o + r * p.o_stride + ch * 8) = x;
            }
        };

        int row0 = 0, rows = 0, head = 0; /* of the item before, whose rows wait in pack: none */
        for (int n_done = 0;; n_done++) {
            const int qs = n_done % Q_STAGES;
            mbar_wait(q_full + 8 * qs, n_done / Q_STAGES & 1);
            const volatile prefill_tile &t = item[n_done % 2];
            const int n_kv = t.n_kv, new_rows = t.rows, new_row0 = t.row0, new_head = t.heads;
            const int off = t.off, keys = t.keys, high = t.high;
            __syncwarp();
            release(item_empty + n_done % 2 * 8);
            if (n_kv == 0) break;
            /* tiles above the last that its queries see do not concern this
       * warpgroup; from `whole` on down each of them sees all, until the
       * window's end */
            const int last = off + min(new_rows, c * 64 + 64) - 1;
            const int whole = max(p.causal ? (off + c * 64 + 1) / TILE : keys / TILE, 0);
            const int until = p.window ? (max(last + 1 - p.window, 0) + TILE - 1) / TILE : 0;
            int skip = c * 64 >= new_rows ? n_kv : 0;
            if (p.causal && !skip && !(EXTRA && p.classes))
                skip = min(high - max(last, 0) / TILE, n_kv - 1);
            for (int j = 0; j < skip; j++) {
                const int i = kv + j;
                mbar_wait(k_full + 8 * (i % STAGES), i / STAGES & 1);
                release(k_empty + 8 * (i % STAGES));
                mbar_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
                release(v_empty + 8 * (i % STAGES));
            }
            /* queries of the next sequence: as zeros they have no say in which maxima stand, so
             * that no bit follows the batch */
            const int mine = max(new_rows - c * 64, 0);
            if (__builtin_expect(mine < 64, 0)) {
                const uint32_t q = qs * smem::q_stage + c * 64 * 128;
                for (int e = mine * 8 + threadIdx.x % 128; e < 64 * 8; e += 128)
#pragma unroll
                    for (int k = 0; k < (K + 63) / 64; k++)
                        *(uint4 *)(smem_at + q + k * smem::q_chunk + e * 16) = {};
                fence_async();
                named_sync(4 + c, 128);
            }
            m[0] = m[1] = -INFINITY, l[0] = l[1] = 0;
            float alpha[2], sum[2];
            int mark = 0, tile = high - skip;
            /* the first tile; the rows of the item before are written under its
       * product */
            auto begin = [&](auto w) {
                if (skip < n_kv) issue_qk(w, kv + skip, qs);
                if constexpr (smem::late)
                    write_out(row0, rows, head, smem::o, [&](int i) { return pack[i]; });
                row0 = new_row0, rows = new_rows, head = new_head;
                if (EXTRA && p.a.slopes) slope = p.a.slopes[head] * unit;
                wgmma_wait<0>();
                wgmma_touch(s);
                if (skip == n_kv) return;
                if (EXTRA) mark = kind[(kv + skip) % STAGES], tile = mark / 4;
                release(k_empty + 8 * ((kv + skip) % STAGES));
                if (EXTRA && p.cap > 0) squeeze();
                if (EXTRA) lean(row0, rows, off, head, keys, tile * TILE, mark % 4 != CLASS_LIVE);
                hide(w, true, off, keys, tile * TILE);
                raise(w, alpha);
                weigh(w, sum);
#pragma unroll
                for (int r = 0; r < 2; r++) l[r] = sum[r];
            };
            const bool half = !EXTRA && TILE == 128 && p.causal && last < tile * TILE + 64;
            if (TILE == 128 && __shfl_sync(~0u, half, 0))
                begin(prefill_number<64>());
            else
                begin(prefill_number<TILE>());
            if (skip < n_kv) {
                if ((tile + 1) * TILE > keys) clean(kv + skip, max(keys - tile * TILE, 0));
                for (int j = skip + 1; j < n_kv; j++) {
                    const int i = kv + j;
                    issue_qk(prefill_number<TILE>(), i, qs);
                    issue_pv(i - 1, j > skip + 1);
                    if (EXTRA) mark = kind[i % STAGES];
                    tile = EXTRA ? mark / 4 : high - j;
                    wgmma_wait<0>();
                    wgmma_touch(s);
                    wgmma_touch(acc);
                    release(k_empty + 8 * (i % STAGES));
                    release(v_empty + 8 * ((i - 1) % STAGES));
                    if (EXTRA && p.cap > 0) squeeze();
                    if (EXTRA)
                        lean(row0, rows, off, head, keys, tile * TILE, mark % 4 != CLASS_LIVE);
                    const bool partly = tile >= whole || tile < until;
                    if (partly) hide(prefill_number<TILE>(), false, off, keys, tile * TILE);
                    weigh(prefill_number<TILE>(), sum);
                    /* seldom after a while; a row may have seen nothing so far */
                    const bool over = __any_sync(~0u, !(sum[0] <= 256 && sum[1] <= 256 &&
                                                        m[0] > -INFINITY && m[1] > -INFINITY));
                    if (__builtin_expect(over, 0)) {
                        raise(prefill_number<TILE>(), alpha);
                        weigh(prefill_number<TILE>(), sum);
#pragma unroll
                        for (int e = 0; e < V / 2; e++) acc[e] *= alpha[e / 2 % 2];
                    }
#pragma unroll
                    for (int r = 0; r < 2; r++) l[r] += sum[r];
                }
                if (smem::late) release(q_empty + 8 * qs);
                issue_pv(kv + n_kv - 1, n_kv > skip + 1);
                wgmma_wait<0>();
                wgmma_touch(acc);
                release(v_empty + 8 * ((kv + n_kv - 1) % STAGES));
                finish(row0, rows, head);
                if constexpr (smem::late) {
#pragma unroll
                    for (int i = 0; i < V / 4; i++) pack[i] = word(i);
                } else {
                    write_out(row0, rows, head, qs * smem::q_stage, word);
                    fence_async(); /* the next queries come by TMA */
                    __syncwarp();
                    release(q_empty + 8 * qs);
                }
            } else {
                rows = 0;
                release(q_empty + 8 * qs);
            }
            kv += n_kv;
        }
        if constexpr (smem::late)
            write_out(row0, rows, head, smem::o, [&](int i) { return pack[i]; });
    }
}

/* The kernel of heads of K and V channels, for 16-bit elements of either type.
 */
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
