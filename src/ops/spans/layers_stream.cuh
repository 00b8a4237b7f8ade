/* Large decoder layers for few tokens, all in one launch: norm, q k v, rope, append, attention, output,
 * norm, gate and up, activation, down, again and again. What counts is that the memory never waits: while
 * the CTAs, one a multiprocessor, wait for each other, the weights of what comes next run on into a ring in
 * shared memory, which three threads of their own keep filled.
 *
 *     norm | q k v, rope, append ~ attention of a KV head ~ its merge ~ output + residual
 *     ~ norm | gate, up, activation   meet   down + residual ~
 *
 * At ~ words go from CTA to CTA that say themselves that they are there: a value and a stamp, the number of
 * the layer, in 8 or 4 bytes. So what is sent is there after one way through the memory system, where a counter and
 * what it stands for take three. Where all meet there is a counter, and whatever words were read before are
 * free to be sent again after it.
 *
 * No more than `window` slots of the ring are on their way at a time, as many as the memory needs to be
 * busy: a word waits behind all that is, and of more the memory gives less. The rest of the ring is how long a
 * wait may last.
 *
 * A norm is computed by every CTA for itself: it costs less than a meeting. The residual of a row is kept by
 * the CTA that has the row in both products that add to it.
 *
 * A product: a CTA has an equal run of the rows of the weight, or of pairs of rows whose results meet: gate
 * with up, a channel with the one that rope turns it with. A group is up to 8 rows; a slot of the ring has a
 * piece of some of them, two of 3,584 k:
 *
 *     row 0, `piece` steps of 32 k | 64 bytes | row 1 ...
 *
 * so that thread (g = lane / 4, t = lane % 4) takes of row g the 16 bytes of k from 8 t on, without
 * conflicts; they are rows g and g + 8 of an A of mma.m16n8k16, because the order of k is free, and a token's
 * halves two columns of its B. Two streams of four warps take groups in turn, a warp every fourth step; when
 * a group has ended, one warp of the stream after the other adds the shares of all and writes what comes of
 * them, but some groups later, when the others have left theirs.
 *
 * The last product has a long k: its slots come piece by piece of k, all groups of a CTA, so that a piece of
 * the tokens' rows is enough in shared memory; a warp brings them.
 *
 * The attention: a KV head's queries of a token are some CTAs' work, 16 keys a unit of a warp; their results
 * go to the CTAs that merge 32 channels each, as words that are zero until they are there.
 *
 * Nothing may be spilled where weights are on their way: beside such a ring the L1 has 28 KB. So what
 * follows from a thread's number is computed anew in each part, or the compiler keeps it across layers. */
#ifndef OPS_SPANS_LAYERS_STREAM_CUH
#define OPS_SPANS_LAYERS_STREAM_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"
#include "ops/spans/layers_stream_attention.cuh"
#include "ops/spans/layers_stream_product.cuh"

/* This CTA's share of something small, into the L2. One warp. */
SOP_DEV void layer_prefetch(const void *p, int bytes)
{
    enum { PIECE = 2048 };
    const int end = bytes / 16 * 16;
    int at = ((int)blockIdx.x * 32 + (int)threadIdx.x % 32) * PIECE;
    for (; at < end; at += (int)gridDim.x * 32 * PIECE)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)p + at),
                     "r"(min((int)PIECE, end - at))
                     : "memory");
}

SOP_DEV float layer_bias(const layer_own &own, int at, int row)
{
    return own.bias[at] ? own.bias[at][row] : 0;
}

/* ---- what comes into shared memory ---- */

/* The norm of all tokens. Of a row a thread has runs of four values, every
 * 4 LAYER_THREADS of them, RUNS at most. squares: [LAYER_TOKENS][LAYER_WARPS] */
template <typename T>
SOP_DEV void layer_normed(uint8_t *xs, int pitch, const layer_args &p, const float *weights,
                          float eps, float offset, const uint32_t *mail, int stamp, int tokens,
                          float *squares)
{
    enum { RUNS = 4, SIZE = 4 * LAYER_THREADS };
    static_assert(RUNS * SIZE == LAYER_WIDEST, "a row");
    const int from = layer_thread() * 4;
    uint4 kept[LAYER_TOKENS][RUNS] = {};
    float4 weight[RUNS];
    auto place = [&](int j) { return from + j * SIZE; };
    auto near = [&](int j) { return min(place(j), p.d - 4); }; /* one that is there */
#pragma unroll
    for (int j = 0; j < RUNS; j++) weight[j] = *(const float4 *)(weights + near(j));
    bool all;
    do {
        all = true;
#pragma unroll
        for (int tok = 0; tok < LAYER_TOKENS; tok++) {
            if (tok >= tokens) break;
#pragma unroll
            for (int j = 0; j < RUNS; j++)
                kept[tok][j] = layer_look_x(mail + (int64_t)tok * p.d + near(j));
        }
#pragma unroll
        for (int tok = 0; tok < LAYER_TOKENS; tok++) {
            if (tok >= tokens) break;
#pragma unroll
            for (int j = 0; j < RUNS; j++) all &= layer_there(kept[tok][j], stamp);
        }
    } while (!all);
    auto value = [&](int tok, int j) {
        const uint4 w = kept[tok][j];
        return make_float4(layer_x_of(w.x), layer_x_of(w.y), layer_x_of(w.z), layer_x_of(w.w));
    };
#pragma unroll
    for (int tok = 0; tok < LAYER_TOKENS; tok++) {
        if (tok >= tokens) break;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const float4 v = value(tok, j);
            if (place(j) < p.d) sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
        sum = sop_warp_sum(sum);
        if (from % 128 == 0) squares[tok * LAYER_WARPS + from / 128] = sum;
    }
    layer_sync();
#pragma unroll
    for (int tok = 0; tok < LAYER_TOKENS; tok++) {
        if (tok >= tokens) break;
        float sum = 0;
        for (int w = 0; w < LAYER_WARPS; w++) sum += squares[tok * LAYER_WARPS + w];
        const float scale = rsqrtf(sum / (float)p.d + eps);
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const int i = place(j);
            if (i >= p.d) break;
            const float4 v = value(tok, j), w = weight[j];
            *(uint2 *)(xs + tok * pitch + i * 2) =
                make_uint2(sop_pack<T>(v.x * (offset + w.x) * scale, v.y * (offset + w.y) * scale),
                           sop_pack<T>(v.z * (offset + w.z) * scale, v.w * (offset + w.w) * scale));
        }
    }
    layer_sync(); /* the squares are free, the rows are there */
}

/* What the attention made, in rows. */
SOP_DEV void layer_attended(uint8_t *xs, int pitch, const unsigned long long *mail, int k,
                            int stamp, int tokens)
{
    enum { AT_ONCE = 4 };
    const int tid = layer_thread(), quads = k / 4;
#pragma unroll 1
    for (int tok = 0; tok < tokens; tok++)
#pragma unroll 1
        for (int i = tid; i < quads; i += AT_ONCE * LAYER_THREADS) {
            uint2 w[AT_ONCE];
            layer_collect(w, mail + (int64_t)tok * quads * 2, stamp,
                          [&](int j) { return min(i + j * LAYER_THREADS, quads - 1) * 2; });
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int quad = min(i + j * LAYER_THREADS, quads - 1);
                *(uint2 *)(xs + tok * pitch + quad * 8) = w[j];
            }
        }
    layer_sync();
}

/* The residual of a CTA's rows before the first layer, [tokens, most]; and to all. */
template <typename T>
SOP_DEV void layer_kept(const layer_args &p, const layer_plan &plan, int tokens, int most,
                        float *own)
{
    const int tid = layer_thread();
    const layer_part part = plan.part[1];
    for (int i = tid; i < tokens * most; i += LAYER_THREADS) {
        const int tok = i / most, row = part.first + i % most;
        if (row >= part.last) continue;
        float x = p.x[tok * p.x_stride + row];
        if (p.first) x += sop_to_float(((const T *)p.first)[tok * p.first_stride + row]);
        own[i] = x;
        layer_post_x(p.mail.x[0] + (int64_t)tok * p.d + row, x, 1);
    }
}

/* The biases of a CTA's units of q k v. */
template <int HEAD>
SOP_DEV void layer_biases(const layer_args &p, const layer_plan &plan, int layer, float2 *bias)
{
    const int tid = layer_thread();
    const layer_part part = plan.part[0];
    for (int u = part.first + tid; u < part.last; u += LAYER_THREADS) {
        int j = 0, row = u / (HEAD / 2) * HEAD + u % (HEAD / 2);
        for (; j < 2 && row >= p.shape[0].n[j]; j++) row -= p.shape[0].n[j];
        bias[u - part.first] = make_float2(layer_bias(p.own[layer], j, row),
                                           layer_bias(p.own[layer], j, row + HEAD / 2));
    }
}

/* ---- the layer ---- */

/* Where a warp is, in shared memory between products, so that the attention has all registers. */
struct layer_state {
    layer_ring ring, x_ring;
    layer_sums sums;
    int layer, product;
};

/* What the warps that compute do. */
template <typename T, int HEAD>
SOP_DEV void layer_compute(const layer_args &p, layer_plan &plan, uint8_t *shared, float *squares,
                           layer_state *states)
{
    const int tid = layer_thread(), warp = tid / 32, grid = gridDim.x;
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    float2 *turns = (float2 *)(shared + p.map.turns), *bias = (float2 *)(shared + p.map.bias);
    float *kept = (float *)(shared + p.map.own);
    uint8_t *xs = shared + p.map.rows;
    const int most = layer_most(p.d, grid);
    layer_state *const state = states + warp;
    *state = {{}, {}, {0, -1, 0}, 0, 0};
    if (warp < 2) layer_prefetch(p.own[0].norm[warp], 4 * p.d);
    for (int i = tid; i < tokens * (HEAD / 2); i += LAYER_THREADS) {
        float sine, cosine;
        sincosf(__fmul_rn((float)p.pos[i / (HEAD / 2)], p.freqs[i % (HEAD / 2)]), &sine, &cosine);
        turns[i] = make_float2(cosine * p.mscale, sine * p.mscale);
    }
    layer_biases<HEAD>(p, plan, 0, bias);
    grid_wait();
    if (tokens == 0) return;
    layer_places(p, plan, plan.place);
    layer_kept<T>(p, plan, tokens, most, kept);
#pragma unroll 1
    for (;;) {
        const int layer = state->layer, product = state->product;
        if (layer == p.layers) break;
        const layer_own &own = p.own[layer];
        const int k = p.shape[product].k, pitch = layer_pitch(k);
        const layer_part part = plan.part[product];

        if (product % 2 == 0)
            layer_normed<T>(xs, pitch, p, own.norm[product / 2], p.eps[product / 2],
                            p.offset[product / 2], p.mail.x[product / 2], layer + 1, tokens,
                            squares);
        else if (product == 1)
            layer_attended(xs, pitch, p.mail.att, k, layer + 1, tokens);
        else
            layer_wait(p.met, (layer + 1) * grid);
        if (tid == 0 && product == 3) mbar_arrive(layer_bar(p, smem_addr(shared), LAYER_X_THERE));
        /* what the next norm takes of it */
        if (warp == 0 && product == 1) layer_prefetch(own.norm[1], 4 * p.d);
        if (warp == 0 && product == 3 && layer + 1 < p.layers)
            layer_prefetch(p.own[layer + 1].norm[0], 4 * p.d);
        layer_ring ring = state->ring, x_ring = state->x_ring;
        layer_sums sums = state->sums;
        layer_run<T>(p, part, product == 3, shared, ring, x_ring, sums, tokens,
                     [&](int unit, int tok, float x, float y) {
                         const int at = unit - part.first;
                         if (product == 0) {
                             layer_put_qkv<T, HEAD>(p, layer, turns, plan.kept[tok], unit, tok,
                                                    x + bias[at].x, y + bias[at].y);
                         } else if (product == 2) {
                             x += layer_bias(own, 4, unit);
                             y += layer_bias(own, 5, unit);
                             ((T *)p.act_out)[tok * p.act_stride + unit] =
                                 sop_from_float<T>(sop_act_of(p.act, x) * y);
                         } else { /* the residual */
                             float &was = kept[tok * most + at];
                             const int to = layer + product / 2; /* whose norm reads it */
                             x += layer_bias(own, product == 1 ? 3 : 6, unit);
                             const T rounded = sop_from_float<T>(x);
                             if (to < p.layers) {
                                 was += product == 1 ? x : sop_to_float(rounded);
                                 layer_post_x(p.mail.x[product == 1] + (int64_t)tok * p.d + unit,
                                              was, to + 1);
                             } else {
                                 ((T *)p.y)[tok * p.y_stride + unit] = rounded;
                                 p.x[tok * p.x_stride + unit] = was;
                             }
                         }
                     });
        *state = {ring, x_ring, sums, layer + (product == 3), (product + 1) % 4};
        if (product == 2)
            layer_arrive(p.met);
        else
            layer_sync();
        if (product == 0)
            layer_attend<T, HEAD>(p, plan, layer, shared, tokens);
        else if (product == 3 && layer + 1 < p.layers)
            layer_biases<HEAD>(p, plan, layer + 1, bias);
    }
    /* all words were read before the last meeting */
    const int64_t words = ((int64_t)p.d + (p.heads * 2 + 2 * p.kv_heads) * (HEAD / 2)) * p.tokens;
    for (int64_t i = (int64_t)blockIdx.x * LAYER_THREADS + tid; i < words;
         i += (int64_t)grid * LAYER_THREADS)
        ((unsigned long long *)p.mail.x[0])[i] = 0;
    if (tid == 0 && atomicAdd(p.met + 1, 1) == grid - 1)
        p.met[0] = p.met[1] = 0; /* all are through */
}

template <typename T, int HEAD>
static __global__ __launch_bounds__(LAYER_ALL, 1) void sop_layers_stream_sm90(
    const __grid_constant__ layer_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float squares[LAYER_TOKENS * LAYER_WARPS];

    __shared__ layer_plan plan;
    __shared__ layer_state states[LAYER_WARPS];
    const int tid = threadIdx.x;
    const uint32_t base = smem_addr(shared);
    grid_go();

    if (tid < LAYER_BARS) {
        const int i = tid;
        mbar_init(layer_bar(p, base, i), i < LAYER_EMPTY        ? 1
                                         : i < LAYER_SUMS_FULL  ? LAYER_SHARE
                                         : i < LAYER_SUMS_EMPTY ? LAYER_SHARE
                                         : i < LAYER_X_FULL     ? 1
                                         : i < LAYER_X_EMPTY    ? 32
                                         : i < LAYER_X_THERE    ? LAYER_WARPS
                                                                : 1);
    }
    fence_mbar_init();
    /* What a step brings, counts, lengths, positions, slots, was there before its first kernel began. */
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    if (tid < tokens) {
        plan.keys[tid] = layer_keys_of(p.attention, tid);
        plan.kept[tid] = layer_kept_at(p, tid);
    }
    if (tid / 32 == 1 && tid % 32 < 4) plan.part[tid % 32] = layer_part_of(p, tid % 32);
    if (tid == 64 && tokens > 0) plan.duty = layer_duty_of(p, tokens);
    __syncthreads();
    if (tid >= LAYER_THREADS) {
        regs_dec<56>();
        /* without tokens nobody takes what is asked for */
        if (tokens == 0) return;
        if (tid >= LAYER_ALL - 32)
            layer_bring<T>(p, plan, base);
        else if (tid < LAYER_THREADS + 32 * LAYER_ASKERS && tid % 32 == 0)
            layer_ask<T, HEAD>(p, plan, base);
    } else {
        regs_inc<224>();
        layer_compute<T, HEAD>(p, plan, shared, squares, states);
    }
}

#endif
