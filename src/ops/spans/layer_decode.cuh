/* A whole decoder layer for up to 8 tokens in one kernel: norm, q k v, rope, append, attention, output,
 * norm, gate and up, activation, down. What counts for so few tokens is how often the card waits: here
 * the CTAs, one a multiprocessor, meet four times, and while they wait the first weights of what comes next
 * are on their way into shared memory. Not more of them: a meeting waits behind all that is on its way.
 *
 *     norm | q k v, rope, append   meet   attention   meet   output + residual
 *     meet   norm | gate, up, activation   meet   down
 *
 * A norm is computed by every CTA for itself: it costs less than a meeting. So the residual is read by all,
 * and written only by the product after the attention, each row by the one CTA that has it: what the layer
 * before left to add is added there again.
 *
 * A product: a CTA takes tiles of 16 rows of the weight, its 8 warps a share of k each. Thread
 * (g = lane / 4, t = lane % 4) takes of rows g and g + 8 the 16 bytes of k from 8 t on, through a ring in
 * shared memory that no other thread reads; they are mma.m16n8k16 fragments, because the order of k is free.
 * Where the results of two rows meet, gate with up, a channel with the one that rope turns it with, they
 * are the two rows of a thread.
 *
 * The four products are one piece of code, gone through four times: the kernel must fit into the
 * instruction cache, or it is read from the L2 for every layer, which takes longer than the weights. */
#ifndef OPS_SPANS_LAYER_DECODE_CUH
#define OPS_SPANS_LAYER_DECODE_CUH

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

enum {
    LAYER_THREADS = DECODE_WARPS * 32,
    LAYER_TOKENS = 8,
    LAYER_STEPS = 4, /* of 32 k, 1 kB a warp each, are loaded together: a block */
    LAYER_BLOCK = LAYER_STEPS * 1024,
    LAYER_BLOCKS = 2, /* of a warp's ring: to ask for more takes longer than it hides */
    LAYER_RING = DECODE_WARPS * LAYER_BLOCKS * LAYER_BLOCK,
    LAYER_SHARED = 184 * 1024 /* what the attention leaves of it */
};

/* Dynamic shared memory: cosines and sines, partial sums, the rings, the tokens' rows. */
enum {
    LAYER_TURNS = LAYER_TOKENS * 64 * 8,
    LAYER_PARTS = 2 * DECODE_WARPS * 128 * 4,
    LAYER_RING_AT = LAYER_TURNS + LAYER_PARTS,
    LAYER_ROWS_AT = LAYER_RING_AT + LAYER_RING
};

struct layer_weight {
    const void *w[3];
    const float *bias[3];
    int n[3], k;
};

struct layer_norm {
    const float *w;
    float eps, offset;
};

struct layer_args {
    decode_args attention; /* its q is qkv, which is not turned yet */
    const int32_t *live_tokens, *pos, *slots;
    const float *freqs;
    float mscale;
    float *x;          /* [tokens, d], the residual */
    const void *first; /* [tokens, d], what is still to be added to it; NULL: nothing */
    int64_t x_stride, first_stride;
    layer_norm norm[2];
    layer_weight weight[4]; /* q k v, output, gate and up, down */
    void *q_out, *act_out, *y;
    int64_t q_stride, act_stride, y_stride, att_stride;
    int64_t pages;
    int tokens, d, heads, kv_heads, act;
    int *met; /* [2], zero before and after */
};

/* Bytes of a row of k elements of 16 bits in shared memory: neighbours differ by 64 bytes modulo 128. */
static inline __host__ __device__ int layer_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

/* ---- meetings ---- */

SOP_DEV void layer_arrive(int *met)
{
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(met) : "memory");
}

SOP_DEV void layer_wait(const int *met, int target)
{
    if (threadIdx.x == 0) {
        int n;
        do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(met) : "memory");
        } while (n < target);
    }
    __syncthreads();
}

/* ---- products ---- */

/* Bytes, a multiple of 16, into the L2. */
SOP_DEV void layer_fetch_l2(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

/* This CTA's share of something small, into the L2. One warp. */
SOP_DEV void layer_prefetch(const void *p, int bytes)
{
    enum { PIECE = 2048 };
    const int end = bytes / 16 * 16;
    int at = ((int)blockIdx.x * 32 + (int)threadIdx.x % 32) * PIECE;
    for (; at < end; at += (int)gridDim.x * 32 * PIECE)
        layer_fetch_l2((const char *)p + at, min((int)PIECE, end - at));
}

/* What the two rows of a thread are: 8 rows apart, of two weights, half a head apart. */
enum { LAYER_ROWS, LAYER_PAIRS, LAYER_HALVES };

SOP_DEV int layer_kind(int product)
{
    return product == 0 ? LAYER_HALVES : product == 2 ? LAYER_PAIRS : LAYER_ROWS;
}

/* A warp's way through the tiles of its CTA, by blocks of steps. */
struct layer_walk {
    int n_tiles, each, first,
        count;           /* steps of a tile: all warps count to each, this one has count */
    int tile, step;      /* of the next load */
    const char *lo, *hi; /* what this thread loads of that tile, step after step */
};

template <typename T, int HEAD>
SOP_DEV void layer_seek(const layer_weight &p, int kind, layer_walk *w)
{
    const int lane = threadIdx.x % 32, g = lane / 4, from = w->first * 32 + lane % 4 * 8;
    int row = w->tile * 16, j = 0;
    if (w->tile >= w->n_tiles) return;
    if (kind == LAYER_PAIRS) {
        const int64_t at = ((int64_t)w->tile * 8 + g) * p.k + from;
        w->lo = (const char *)((const T *)p.w[0] + at);
        w->hi = (const char *)((const T *)p.w[1] + at);
        return;
    }
    for (; j < 2 && row >= p.n[j]; j++) row -= p.n[j];
    if (kind == LAYER_HALVES) row = row / HEAD * HEAD + row % HEAD / 2;
    const T *at = (const T *)p.w[j] + (int64_t)(row + g) * p.k + from;
    w->lo = (const char *)at;
    w->hi = (const char *)(at + (kind == LAYER_HALVES ? HEAD / 2 : 8) * (int64_t)p.k);
}

template <typename T, int HEAD>
SOP_DEV void layer_skip(const layer_weight &p, int kind, layer_walk *w)
{
    w->step += LAYER_STEPS;
    if (w->step < w->each) return;
    w->step = 0;
    w->tile += gridDim.x;
    layer_seek<T, HEAD>(p, kind, w);
}

SOP_DEV void layer_copy16(uint32_t to, const char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

/* The next block into its place of the ring. */
template <typename T, int HEAD>
SOP_DEV void layer_load(const layer_weight &p, int kind, layer_walk *w, uint32_t to)
{
    const int steps = w->tile < w->n_tiles ? w->count - w->step : 0;
#pragma unroll
    for (int s = 0; s < LAYER_STEPS; s++) {
        if (s >= steps) break;
        layer_copy16(to + s * 1024, w->lo + (w->step + s) * 64);
        layer_copy16(to + s * 1024 + 512, w->hi + (w->step + s) * 64);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    layer_skip<T, HEAD>(p, kind, w);
}

/* The first loads of a product are on their way from here on. */
template <typename T, int HEAD>
SOP_DEV void layer_start(const layer_weight &p, int kind, uint32_t ring, layer_walk *w)
{
    const int chunks = p.k / 32, warp = threadIdx.x / 32;
    w->n_tiles = kind == LAYER_PAIRS ? p.n[0] / 8 : (p.n[0] + p.n[1] + p.n[2]) / 16;
    w->each = (chunks + DECODE_WARPS - 1) / DECODE_WARPS;
    w->first = warp * w->each;
    w->count = max(0, min(w->each, chunks - w->first));
    w->tile = blockIdx.x;
    w->step = 0;
    layer_seek<T, HEAD>(p, kind, w);
#pragma unroll 1
    for (int b = 0; b < LAYER_BLOCKS; b++) layer_load<T, HEAD>(p, kind, w, ring + b * LAYER_BLOCK);
}

SOP_DEV uint4 layer_shared(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* The product of a walk that has started. xs: the tokens' rows. out(tile, row of the tile, token, sum of
 * that row, sum of its partner), for 16 rows, or for 8 that have partners. */
template <typename T, int HEAD, typename Out>
SOP_DEV void layer_run(const layer_weight &p, int kind, uint32_t ring, layer_walk *w, uint32_t xs,
                       int pitch, int tokens, float (*part)[DECODE_WARPS][128], Out out)
{
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const uint32_t x = xs + g * pitch + w->first * 64 + t * 16;
    int slot = 0, half = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < w->n_tiles; tile += gridDim.x) {
        float d[4] = {}, d1[4] = {};
#pragma unroll 1
        for (int at = 0; at < w->each; at += LAYER_STEPS) {
            const uint32_t from = ring + slot * LAYER_BLOCK;
            asm volatile("cp.async.wait_group %0;" ::"n"(LAYER_BLOCKS - 1) : "memory");
#pragma unroll
            for (int s = 0; s < LAYER_STEPS; s++) {
                if (at + s >= w->count) break;
                const uint4 lo = layer_shared(from + s * 1024);
                const uint4 hi = layer_shared(from + s * 1024 + 512);
                uint4 v = {0, 0, 0, 0};
                if (g < tokens) v = layer_shared(x + (at + s) * 64);
                decode_mma(T(), d, lo.x, hi.x, lo.y, hi.y, v.x, v.y);
                decode_mma(T(), d1, lo.z, hi.z, lo.w, hi.w, v.z, v.w);
            }
            layer_load<T, HEAD>(p, kind, w, from);
            slot = (slot + 1) % LAYER_BLOCKS;
        }
        /* 8 shares of k into one; the other half of part is free by the time it comes again */
        float *mine = part[half][warp];
        *(float2 *)(mine + g * 8 + 2 * t) = make_float2(d[0] + d1[0], d[1] + d1[1]);
        *(float2 *)(mine + (g + 8) * 8 + 2 * t) = make_float2(d[2] + d1[2], d[3] + d1[3]);
        __syncthreads();
        if (tid < (kind == LAYER_ROWS ? 128 : 64) && tid % 8 < tokens) {
            float sum = 0, other = 0;
#pragma unroll
            for (int k = 0; k < DECODE_WARPS; k++) sum += part[half][k][tid];
            if (kind != LAYER_ROWS) {
#pragma unroll
                for (int k = 0; k < DECODE_WARPS; k++) other += part[half][k][tid + 64];
            }
            out(tile, tid / 8, tid % 8, sum, other);
        }
        half ^= 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory"); /* empty ones, behind the last tile */
}

SOP_DEV float layer_bias(const layer_weight &p, int j, int row)
{
    return p.bias[j] ? p.bias[j][row] : 0;
}

/* ---- what comes into shared memory ---- */

/* Rows that other CTAs wrote: not through the L1. */
template <typename T>
SOP_DEV void layer_copy(uint8_t *xs, int pitch, const void *from, int64_t stride, int k, int tokens)
{
    const int pieces = k / 8;
    for (int tok = 0; tok < tokens; tok++)
        for (int i = threadIdx.x; i < pieces; i += LAYER_THREADS)
            *(uint4 *)(xs + tok * pitch + i * 16) =
                __ldcg((const uint4 *)((const T *)from + tok * stride) + i);
    __syncthreads();
}

template <typename T>
SOP_DEV float4 layer_residual(const layer_args &p, const void *first, int tok, int i)
{
    float4 v = __ldcg((const float4 *)(p.x + tok * p.x_stride + i));
    if (first) {
        const uint2 raw = __ldcg((const uint2 *)((const T *)first + tok * p.first_stride + i));
        const T *e = (const T *)&raw;
        v.x += sop_to_float(e[0]), v.y += sop_to_float(e[1]);
        v.z += sop_to_float(e[2]), v.w += sop_to_float(e[3]);
    }
    return v;
}

/* The norm of all tokens; the warps share them. sums: [DECODE_WARPS] */
template <typename T>
SOP_DEV void layer_normed(uint8_t *xs, int pitch, const layer_args &p, const layer_norm &n,
                          const void *first, int tokens, float *sums)
{
    enum { KEPT = 4 };
    const int warp = threadIdx.x / 32;
    const int parts = tokens <= 1 ? 1 : tokens <= 2 ? 2 : tokens <= 4 ? 4 : 8;
    const int warps = DECODE_WARPS / parts, tok = warp / warps, size = 4 * 32 * warps;
    const int from = ((warp % warps) * 32 + threadIdx.x % 32) * 4, d = tok < tokens ? p.d : 0;
    float4 kept[KEPT], weight[KEPT];
    float sum = 0;
    auto add = [&](const float4 &v) { sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w); };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        kept[j] = weight[j] = make_float4(0, 0, 0, 0);
        if (from + j * size >= d) continue;
        weight[j] = *(const float4 *)(n.w + from + j * size);
        kept[j] = layer_residual<T>(p, first, tok, from + j * size);
    }
#pragma unroll
    for (int j = 0; j < KEPT; j++) add(kept[j]);
    for (int i = from + KEPT * size; i < d; i += size) add(layer_residual<T>(p, first, tok, i));
    sum = sop_warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warps; w++) sum += sums[warp / warps * warps + w];
    const float scale = 1 / sqrtf(sum / (float)p.d + n.eps);
    auto put = [&](const float4 &v, const float4 &w, int i) {
        const uint2 y = {
            sop_pack<T>(v.x * (n.offset + w.x) * scale, v.y * (n.offset + w.y) * scale),
            sop_pack<T>(v.z * (n.offset + w.z) * scale, v.w * (n.offset + w.w) * scale)};
        *(uint2 *)(xs + tok * pitch + i * 2) = y;
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (from + j * size < d) put(kept[j], weight[j], from + j * size);
    for (int i = from + KEPT * size; i < d; i += size)
        put(layer_residual<T>(p, first, tok, i), *(const float4 *)(n.w + i), i);
    __syncthreads();
}

/* ---- the layer ---- */

/* A channel and its partner of a head: into the queries, or into a page of the cache. */
template <typename T, int HEAD>
SOP_DEV void layer_put_qkv(const layer_args &p, const float2 *turns, int slot, int tile, int r,
                           int tok, float x, float y)
{
    const decode_args &a = p.attention;
    const int head = tile / (HEAD / 16), i = tile % (HEAD / 16) * 8 + r;
    const int j = head < p.heads ? 0 : head < p.heads + p.kv_heads ? 1 : 2;
    const int own = j == 0 ? head : j == 1 ? head - p.heads : head - p.heads - p.kv_heads;
    T *to = (T *)p.q_out + tok * p.q_stride + own * HEAD;
    x += layer_bias(p.weight[0], j, own * HEAD + i);
    y += layer_bias(p.weight[0], j, own * HEAD + i + HEAD / 2);
    if (j < 2) { /* both round to the cache's type before they turn, as single modules do */
        const float2 cs = turns[tok * (HEAD / 2) + i];
        const float u = sop_to_float(sop_from_float<T>(x)), v = sop_to_float(sop_from_float<T>(y));
        x = u * cs.x - v * cs.y;
        y = v * cs.x + u * cs.y;
    }
    if (j > 0) {
        const int page = slot / a.page, place = slot % a.page;
        if (slot < 0 || page >= p.pages) return;
        to = j == 1 ? (T *)a.a.k_pool + page * a.kp_page + place * a.kp_token + own * a.kp_head
                    : (T *)a.a.v_pool + page * a.vp_page + place * a.vp_token + own * a.vp_head;
    }
    to[i] = sop_from_float<T>(x);
    to[i + HEAD / 2] = sop_from_float<T>(y);
}

/* The first unit of keys and values of each warp, into the L2: a lane a row of them. */
template <typename T, int HEAD>
SOP_DEV void layer_prefetch_kv(const decode_args &p, const decode_shared<HEAD> &sh)
{
    const int heads = decode_heads(p), share = decode_share(p, sh.prefix), u0 = blockIdx.x * share;
    const int total = sh.prefix[DECODE_MOST_TOKENS] * heads, u1 = min(total, u0 + share);
    const int warp = threadIdx.x / 32, row = threadIdx.x % 16, is_v = threadIdx.x / 16 % 2;
    decode_segment s;
    if (u0 >= u1) return;
    s.token = sh.start_token;
    decode_segment_at(sh, heads, p.seg_cost, u0, u1, &s);
    const int u = s.begin + warp, lo = sh.lo_of[s.token];
    if (u >= s.end) return;
    const int key = (lo / DECODE_UNIT + u - s.first) * DECODE_UNIT;
    const int64_t page = p.a.table[(int64_t)sh.seq_of[s.token] * p.table_stride + key / p.page];
    const int64_t place = key % p.page + row, head = s.head / p.parts;
    if (key + row >= sh.hi_of[s.token]) return;
    const T *from =
        is_v ? (const T *)p.a.v_pool + page * p.vp_page + place * p.vp_token + head * p.vp_head
             : (const T *)p.a.k_pool + page * p.kp_page + place * p.kp_token + head * p.kp_head;
    layer_fetch_l2(from, HEAD * 2);
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(LAYER_THREADS, 1) void sop_layer_decode_sm90(
    const __grid_constant__ layer_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ decode_shared<HEAD> sh;
    __shared__ float sums[DECODE_WARPS];
    __shared__ int slots[LAYER_TOKENS];
    const int tid = threadIdx.x, warp = tid / 32, grid = gridDim.x;
    float2 *turns = (float2 *)shared; /* [tokens, HEAD / 2] */
    float(*part)[DECODE_WARPS][128] = (float(*)[DECODE_WARPS][128])(shared + LAYER_TURNS);
    uint8_t *xs = shared + LAYER_ROWS_AT;
    const uint32_t ring =
        smem_addr(shared) + LAYER_RING_AT + warp * LAYER_BLOCKS * LAYER_BLOCK + tid % 32 * 16;
    layer_walk walk;
    int meetings = 0;
    grid_go();
    layer_start<T, HEAD>(p.weight[0], layer_kind(0), ring, &walk);
    /* What a step brings, counts, lengths, positions, slots, was there before its first kernel began. */
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    if (warp < 2) layer_prefetch(p.norm[warp].w, 4 * p.d);
    if (warp >= 2 && warp < 5 && p.weight[0].bias[warp - 2])
        layer_prefetch(p.weight[0].bias[warp - 2], 4 * p.weight[0].n[warp - 2]);
    if (tid < tokens) slots[tid] = p.slots[tid];
    for (int i = tid; i < tokens * (HEAD / 2); i += LAYER_THREADS) {
        float sine, cosine;
        sincosf(__fmul_rn((float)p.pos[i / (HEAD / 2)], p.freqs[i % (HEAD / 2)]), &sine, &cosine);
        turns[i] = make_float2(cosine * p.mscale, sine * p.mscale);
    }
    decode_list(p.attention, sh);
    layer_prefetch_kv<T, HEAD>(p.attention, sh);
    grid_wait();
    if (tokens == 0) return;
#pragma unroll 1
    for (int product = 0;; product++) {
        const layer_weight &weight = p.weight[product];
        const int pitch = layer_pitch(weight.k);
        if (product % 2 == 0)
            layer_normed<T>(xs, pitch, p, p.norm[product / 2], product ? NULL : p.first, tokens,
                            sums);
        else
            layer_copy<T>(xs, pitch, product == 1 ? p.attention.a.o : p.act_out,
                          product == 1 ? p.att_stride : p.act_stride, weight.k, tokens);
        auto out = [&](int tile, int r, int tok, float x, float y) {
            const int row = tile * (product == 2 ? 8 : 16) + r;
            if (product == 0) {
                layer_put_qkv<T, HEAD>(p, turns, slots[tok], tile, r, tok, x, y);
                return;
            }
            x += layer_bias(weight, 0, row);
            if (product == 1) {
                float *to = p.x + tok * p.x_stride + row;
                if (p.first) x += sop_to_float(((const T *)p.first)[tok * p.first_stride + row]);
                *to += x;
            } else if (product == 2) {
                y += layer_bias(weight, 1, row);
                ((T *)p.act_out)[tok * p.act_stride + row] =
                    sop_from_float<T>(sop_act_of(p.act, x) * y);
            } else {
                ((T *)p.y)[tok * p.y_stride + row] = sop_from_float<T>(x);
            }
        };
        layer_run<T, HEAD>(weight, layer_kind(product), ring, &walk, smem_addr(xs), pitch, tokens,
                           part, out);
        if (product == 3) break;
        layer_arrive(p.met);
        layer_start<T, HEAD>(p.weight[product + 1], layer_kind(product + 1), ring, &walk);
        layer_wait(p.met, ++meetings * grid);
        if (product > 0) continue;
        decode_body<T, T, HEAD, false, false>(p.attention, sh);
        layer_arrive(p.met);
        layer_wait(p.met, ++meetings * grid);
    }
    if (tid == 0 && atomicAdd(p.met + 1, 1) == grid - 1)
        p.met[0] = p.met[1] = 0; /* all are through */
}

#endif
