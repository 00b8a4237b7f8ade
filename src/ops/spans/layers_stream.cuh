/* Large decoder layers for few tokens, all in one launch: norm, q k v, rope, append, attention, output,
 * norm, gate and up, activation, down, again and again. What counts is that the memory never waits: while
 * the CTAs, one a multiprocessor, wait for each other, the weights of what comes next run on into a ring in
 * shared memory, which three warps of their own keep filled.
 *
 *     norm | q k v, rope, append ~ attention of a KV head ~ its merge ~ output + residual
 *     ~ norm | gate, up, activation   meet   down + residual ~
 *
 * At ~ words go from CTA to CTA that say themselves that they are there: 8 bytes, a value and a stamp, the
 * number of the layer. So what is sent is there after one way through the memory system, where a counter and
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
 * conflicts; they are a B of mma.m16n8k16, because the order of k is free, and tokens are its rows. Two
 * streams of four warps take groups in turn, a warp every fourth step; when a group has ended, one warp of
 * the stream after the other adds the shares of all and writes what comes of them, but some groups later, when
 * the others have left theirs.
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

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

enum {
    LAYER_WARPS = 8,
    LAYER_THREADS = LAYER_WARPS * 32, /* that compute; one more warpgroup brings what they take */
    LAYER_ALL = LAYER_THREADS + 128,
    LAYER_TOKENS = 4, /* at most of rows up to LAYER_NARROW, half as many of wider */
    LAYER_NARROW = 4096,
    LAYER_WIDEST = 8192, /* a row that the norm has in registers */
    LAYER_ROWS = 8,      /* of a group */
    LAYER_STEPS = 128,   /* of 32 k, of a slot, at most */
    LAYER_STREAMS = 2,   /* groups that are computed at once */
    LAYER_SHARE =
        LAYER_WARPS / LAYER_STREAMS, /* warps of a stream: of a row each has every fourth step, */
    LAYER_EACH = 14,                 /* so many of them at once */
    LAYER_NEXT = LAYER_SHARE * 64,   /* bytes from one to the next */
    LAYER_BATCH = 7,                 /* steps of x in registers */
    LAYER_SLOT = 16512,              /* bytes of a slot, about: two rows of 4,096 */
    LAYER_SLOTS = 40,                /* at most */
    LAYER_SUMS = 8,                  /* groups whose sums wait to be added */
    LAYER_LATER = 2,                 /* groups that are left before one is added, beside its own */

    LAYER_X = 8,       /* pieces of the tokens' rows there, at most, */
    LAYER_LEAST_X = 3, /* and at least */
    LAYER_MOST = 32,   /* layers of a launch */
    LAYER_ASKERS = 3,  /* threads that ask for weights */

    LAYER_LEAST = 8,          /* slots: of a group, and of the one before it */
    LAYER_WINDOW = 66 * 1024, /* bytes on their way: bench/gpu/h200.md */

    LAYER_UNITS = 4,   /* of keys, of a CTA, before another takes part */
    LAYER_SLICE = 32,  /* channels that a warp merges */
    LAYER_AT_ONCE = 4, /* warps of a CTA whose results are merged at once */
    LAYER_SHARED = 226 * 1024,
    LAYER_SMALL = 100 << 20 /* weights of gate, up and down */
};

/* What differs from layer to layer. Weights: q, k, v, output, gate, up, down. */
struct layer_own {
    const void *w[7];
    const float *bias[7], *norm[2];
    void *k_pool, *v_pool;
};

/* A product of every layer: rows of its weights, of which the first is w[at]; columns. */
struct layer_shape {
    int n[3], k, at;
};

/* Barriers: of the slots of the ring, of sums, of pieces of x; and that x of the last product is there. */
enum {
    LAYER_FULL = 0,
    LAYER_EMPTY = LAYER_FULL + LAYER_SLOTS,
    LAYER_SUMS_FULL = LAYER_EMPTY + LAYER_SLOTS,
    LAYER_SUMS_EMPTY = LAYER_SUMS_FULL + LAYER_SUMS,
    LAYER_X_FULL = LAYER_SUMS_EMPTY + LAYER_SUMS,
    LAYER_X_EMPTY = LAYER_X_FULL + LAYER_X,
    LAYER_X_THERE = LAYER_X_EMPTY + LAYER_X,
    LAYER_BARS
};

/* The keys that a token sees: of the cache [lo, old), and of the tokens of the step [new_lo, new_hi). */
struct layer_keys {
    int seq, lo, old, new_lo, new_hi, units; /* units: of the cache */
};

/* Dynamic shared memory. piece, deep: steps of a slot, and of one of the last product. */
struct layer_map {
    int turns, sums, own, bias, rows, ring, bars, slot, bytes, piece, deep;
    int x_slot, x_slots; /* of the last product's factors */
};

/* Words from CTA to CTA, as 8 bytes: the residual as norm 0 and 1 read it [tokens, d], q k v
 * [tokens, pairs of channels], attention's result [tokens, two channels each]; and, as floats, what a CTA
 * has of it, see layer_part_at(). All zero before and after. */
struct layer_mail {
    unsigned long long *x[2], *qkv, *att;
    float *parts;
};

struct layer_args {
    decode_args attention; /* its q and o are words */
    const int32_t *live_tokens, *pos, *slots;
    const float *freqs;
    float mscale;
    float *x;          /* [tokens, d], the residual */
    const void *first; /* [tokens, d], what is still to be added to it; NULL: nothing */
    int64_t x_stride, first_stride;
    float eps[2], offset[2];
    layer_shape shape[4]; /* q k v, output, gate and up, down */
    void *act_out, *y;
    int64_t act_stride, y_stride;
    int64_t pages;
    int tokens, d, heads, kv_heads, act;
    int ring, window; /* slots; of them on their way, at most */
    int *met;         /* [2], zero before and after */
    layer_mail mail;
    layer_map map;
    int layers;
    layer_own own[LAYER_MOST];
};

/* Bytes of a row of k elements of 16 bits in shared memory: neighbours differ by 64 bytes modulo 128. */
static inline __host__ __device__ int layer_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

/* Units of a CTA at most. */
static inline __host__ __device__ int layer_most(int n, int grid)
{
    return (n + grid - 1) / grid;
}

/* What the attention has in shared memory: queries, keys and values of the step, results of warps. */
template <int HEAD> struct layer_scores {
    enum { PITCH = HEAD + 8, WIDE = HEAD + 4 };
    uint16_t q[DECODE_GROUP][PITCH], k[LAYER_TOKENS][PITCH], v[LAYER_TOKENS][PITCH];
    float m[LAYER_WARPS][DECODE_GROUP], l[LAYER_WARPS][DECODE_GROUP];
    float o[LAYER_AT_ONCE][DECODE_GROUP * WIDE];
};

/* Steps of a piece of k, of at most so many. */
static inline __host__ __device__ int layer_piece(int k, int most)
{
    const int steps = k / 32, pieces = (steps + most - 1) / most;
    return (steps + pieces - 1) / pieces;
}

/* d, qkv, k, channels: of the products' weights; ring: slots. */
template <int HEAD>
static inline __host__ __device__ layer_map layer_map_of(int tokens, int d, int qkv, int k,
                                                         int channels, int ring, int grid)
{
    layer_map m = {};
    int at = 0;
    m.bars = at, at += LAYER_BARS * 8;                    /* full, empty; of slots, of sums */
    m.turns = at, at += tokens * (HEAD / 2) * 8;          /* cosines and sines */
    m.sums = at, at += LAYER_SUMS * LAYER_SHARE * 32 * 4; /* [sums][warp][token][row] */
    m.bias = at, at += layer_most(qkv / 2, grid) * 8;     /* of q k v */
    m.own = at, at += tokens * layer_most(d, grid) * 4;   /* the residual of its rows */
    m.rows = at = (at + 15) / 16 * 16;                    /* of tokens; or what the attention has */
    const int rows = tokens * layer_pitch(d > k ? d : k), scores = (int)sizeof(layer_scores<HEAD>);
    const int room = rows > scores ? rows : scores;
    m.piece = layer_piece(d, LAYER_STEPS);
    for (int most = m.piece; most > 0; most--) {
        m.deep = layer_piece(channels, most);
        m.x_slot = tokens * layer_pitch(m.deep * 32);
        if (LAYER_LEAST_X * m.x_slot <= room) break;
    }
    m.x_slots = room / m.x_slot < LAYER_X ? room / m.x_slot : LAYER_X;
    m.ring = at = (at + room + 127) / 128 * 128;
    const int pitch = layer_pitch(m.piece * 32), own = LAYER_SLOT / pitch;
    m.slot = (own < 1 ? 1 : own > LAYER_ROWS ? LAYER_ROWS : own) * pitch;
    /* what is read behind the last row */
    const int at_once = LAYER_EACH * LAYER_SHARE,
              read = (m.piece + at_once - 1) / at_once * at_once * 64;
    const int least = layer_pitch(m.deep * 32) < pitch ? layer_pitch(m.deep * 32) : pitch;
    m.bytes = at + ring * m.slot + (read > least ? read - least : 0);
    return m;
}

/* Where the words lie that are sent; bytes: how many. */
template <int HEAD>
static inline __host__ layer_mail layer_mail_of(void *at, int tokens, int d, int heads,
                                                int kv_heads, int grid, int64_t *bytes)
{
    layer_mail m;
    unsigned long long *word = (unsigned long long *)at;
    for (int i = 0; i < 2; i++) m.x[i] = word, word += (int64_t)tokens * d;
    m.qkv = word, word += (int64_t)tokens * (heads + 2 * kv_heads) * (HEAD / 2);
    m.att = word, word += (int64_t)tokens * heads * (HEAD / 2);
    m.parts = (float *)word;
    *bytes = (char *)(m.parts +
                      (int64_t)grid * DECODE_GROUP * (HEAD / LAYER_SLICE) * (LAYER_SLICE + 4)) -
             (char *)at;
    return m;
}

/* A number, anew each time: what follows from it is not to be kept in registers. */
SOP_DEV int layer_anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
SOP_DEV int layer_thread(void)
{
    return layer_anew(threadIdx.x) & 1023; /* it is not negative */
}

/* The warps that compute. */
SOP_DEV void layer_sync(void)
{
    named_sync(1, LAYER_THREADS);
}

/* ---- meetings ---- */

SOP_DEV void layer_arrive(int *met)
{
    const int tid = layer_thread();
    layer_sync();
    if (tid == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(met) : "memory");
}

SOP_DEV void layer_wait(const int *met, int target)
{
    const int tid = layer_thread();
    if (tid == 0) {
        int n;
        do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(met) : "memory");
        } while (n < target);
    }
    layer_sync();
}

/* ---- words ---- */

SOP_DEV void layer_post(unsigned long long *to, uint32_t x, int stamp)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to),
                 "l"((unsigned long long)stamp << 32 | x)
                 : "memory");
}

/* N pairs of words, once all are there: their values. at(i): how far from `from` pair i is. */
template <int N, typename At>
SOP_DEV void layer_collect(uint2 (&to)[N], const unsigned long long *from, int stamp, At at)
{
    bool all;
    do {
        unsigned long long w[N][2];
        all = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                         : "=l"(w[i][0]), "=l"(w[i][1])
                         : "l"(from + at(i))
                         : "memory");
#pragma unroll
        for (int i = 0; i < N; i++) {
            all &= (int)(w[i][0] >> 32) == stamp && (int)(w[i][1] >> 32) == stamp;
            to[i] = make_uint2((uint32_t)w[i][0], (uint32_t)w[i][1]);
        }
    } while (!all);
}

/* ---- products ---- */

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

/* The two rows of a unit: of two weights, half a head apart; or it has one. */
enum { LAYER_SINGLE, LAYER_PAIRS, LAYER_HALVES };

/* What a CTA has of a product. */
struct layer_part {
    int kind, first, last, each; /* units; of a group */
    int groups, pieces;
    int steps, piece, pitch; /* of 32 k: all, of a slot; bytes of a row there */
    int rows;                /* of a slot */
};
SOP_DEV layer_part layer_part_of(const layer_args &p, int product)
{
    const layer_shape &w = p.shape[product];
    const uint32_t cta = blockIdx.x, grid = gridDim.x;
    layer_part part;
    part.kind = product == 0 ? LAYER_HALVES : product == 2 ? LAYER_PAIRS : LAYER_SINGLE;
    const uint32_t n = part.kind == LAYER_HALVES ? (w.n[0] + w.n[1] + w.n[2]) / 2 : w.n[0];
    part.first = (int)(n * cta / grid);
    part.last = (int)(n * (cta + 1) / grid);
    const int own = part.last - part.first, groups = max(1, (own + LAYER_ROWS - 1) / LAYER_ROWS);
    part.each = part.kind != LAYER_SINGLE ? LAYER_ROWS / 2 : (own + groups - 1) / groups;
    part.groups = (own + part.each - 1) / part.each;
    part.steps = w.k / 32;

    part.piece = layer_piece(w.k, product == 3 ? p.map.deep : p.map.piece);
    part.pieces = (part.steps + part.piece - 1) / part.piece;
    part.pitch = layer_pitch(part.piece * 32);

    part.rows = min((int)LAYER_ROWS, p.map.slot / part.pitch);
    return part;
}
/* Rows of the group that begins at a unit. */
SOP_DEV int layer_rows_of(const layer_part &part, int unit)
{
    return min(part.each, part.last - unit) * (part.kind == LAYER_SINGLE ? 1 : 2);
}

/* Row `half` of a unit of a layer's q k v. */
template <typename T, int HEAD>
SOP_DEV const char *layer_row(const layer_args &p, int layer, int unit, int half)
{
    const layer_shape &shape = p.shape[0];
    int j = 0, row = unit / (HEAD / 2) * HEAD + unit % (HEAD / 2) + half * (HEAD / 2);
    for (; j < 2 && row >= shape.n[j]; j++) row -= shape.n[j];
    return (const char *)((const T *)p.own[layer].w[j] + (int64_t)row * shape.k);
}

/* What a CTA has of the attention: a token's queries of a KV head, with CTAs first to first + each - 1. */
struct layer_duty {
    int kv_head, tok, first, each; /* kv_head -1: nothing */
};
/* What a CTA has of a layer. */
struct layer_plan {
    layer_part part[4];
    layer_duty duty;
    layer_keys keys[LAYER_TOKENS];
    int slots[LAYER_TOKENS];
};

/* Where a warp is in the ring. */
struct layer_ring {
    int slot, phase;
};
SOP_DEV void layer_turn(layer_ring &r, int slots, int by = 1)
{
    if ((r.slot += by) >= slots) r.slot -= slots, r.phase ^= 1;
}
SOP_DEV uint32_t layer_bar(const layer_args &p, uint32_t base, int i)
{
    return base + p.map.bars + 8 * i;
}

SOP_DEV void layer_bulk(uint32_t to, const void *from, int bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

/* All slots of all layers, in the order in which they are used. visit(rows, where, bytes, pitch): where(i)
 * tells where row i is, of so many bytes; pitch: from row to row in the slot. What it takes for a slot is all
 * that lies between one and the next. */
template <typename T, int HEAD, typename Visit>
SOP_DEV void layer_slots(const layer_args &p, const layer_plan &plan, Visit visit)
{
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++)
#pragma unroll 1
        for (int product = 0; product < 4; product++) {
            const layer_part part = plan.part[product];
            const int all = part.steps * 64, piece = part.piece * 64, at = p.shape[product].at;
            const char *const base[2] = {(const char *)p.own[layer].w[at],
                                         (const char *)p.own[layer].w[at + (product == 2)]};
            auto group = [&](int u, int s) {
                const int rows = layer_rows_of(part, u);
#pragma unroll 1
                for (int r = 0; r < rows; r += part.rows)
                    visit(
                        min(part.rows, rows - r),
                        [&](int i) {
                            const int row = r + i;
                            if (product == 0)
                                return layer_row<T, HEAD>(p, layer, u + row / 2, row % 2) + s;
                            if (product == 2)
                                return base[row % 2] + (int64_t)(u + row / 2) * all + s;
                            return base[0] + (int64_t)(u + row) * all + s;
                        },
                        min(piece, all - s), part.pitch);
            };
            if (product == 3) { /* piece by piece of k */
#pragma unroll 1
                for (int s = 0; s < all; s += piece)
#pragma unroll 1
                    for (int u = part.first; u < part.last; u += part.each) group(u, s);
            } else {
#pragma unroll 1
                for (int u = part.first; u < part.last; u += part.each)
#pragma unroll 1
                    for (int s = 0; s < all; s += piece) group(u, s);
            }
        }
}

/* A thread that asks for weights, a slot in turn with the others. A copy takes it about 100 clocks, however
 * long it is, and several lanes of a warp one after the other. */
template <typename T, int HEAD>
SOP_DEV void layer_ask(const layer_args &p, const layer_plan &plan, uint32_t base)
{
    const int role = (int)threadIdx.x / 32 - LAYER_WARPS;
    const uint32_t bars = base + p.map.bars;
    layer_ring r = {0, 0}, came = r; /* behind r by the window */
    int sent = 0;
    layer_slots<T, HEAD>(p, plan, [&](int rows, auto where, int bytes, int pitch) {
        /* of every slot: so none is ahead of another by so much that a slot has come twice */
        if (sent >= p.window) mbar_wait(bars + 8 * (LAYER_FULL + came.slot), came.phase);
        if (sent % LAYER_ASKERS == role) {

            const uint32_t full = bars + 8 * (LAYER_FULL + r.slot);
            const uint32_t to = base + p.map.ring + r.slot * p.map.slot;
            mbar_wait(bars + 8 * (LAYER_EMPTY + r.slot), r.phase ^ 1);
            mbar_expect_tx(full, rows * bytes);
#pragma unroll 1
            for (int i = 0; i < rows; i++)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                             "[%0], [%1], %2, [%3];" ::"r"(to + i * pitch),
                             "l"(where(i)), "r"(bytes), "r"(full)
                             : "memory");
        }
        if (sent >= p.window) layer_turn(came, p.ring);

        layer_turn(r, p.ring);
        sent++;
    });
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

/* Groups, of all products; and the one that this warp is still to add: its number, its first unit. */
struct layer_sums {
    int group, due, unit;
};

/* The warps' sums of a group that is this warp's, added. out(unit, token, sum of that unit's row, sum of its
 * other row). */
template <typename Out>
SOP_DEV void layer_add(const layer_args &p, const layer_part &part, uint8_t *shared, layer_sums &s,
                       int tokens, Out out)
{
    const int lane = layer_thread() % 32;
    const int slot = s.due % LAYER_SUMS, phase = s.due / LAYER_SUMS % 2;
    const uint32_t bars = smem_addr(shared) + p.map.bars;
    const float *all = (const float *)(shared + p.map.sums) + slot * LAYER_SHARE * 32;
    mbar_wait(bars + 8 * (LAYER_SUMS_FULL + slot), phase);
    static_assert(LAYER_TOKENS * LAYER_ROWS == 32, "a lane each");
    const int tok = lane / LAYER_ROWS, row = lane % LAYER_ROWS;
    float x = 0;
#pragma unroll
    for (int k = 0; k < LAYER_SHARE; k++) x += all[k * 32 + lane];
    const float y = __shfl_down_sync(~0u, x, 1);
    const bool single = part.kind == LAYER_SINGLE;
    if (tok < tokens && row < layer_rows_of(part, s.unit) && (single || row % 2 == 0))
        out(s.unit + (single ? row : row / 2), tok, x, y);
    __syncwarp();
    if (lane == 0) mbar_arrive(bars + 8 * (LAYER_SUMS_EMPTY + slot));
    s.due = -1;
}
/* Whether a sum is due when s.group groups have been left: the others need not have been as fast. */
SOP_DEV bool layer_due(const layer_sums &s, bool all)
{
    return s.due >= 0 && (all || s.group - s.due > LAYER_LATER);
}

/* This warp's sums of a piece of a group, d0 and d1 of token lane / 4 and rows lane % 4 * 2 and the next, to
 * those of the pieces before; then for the warp that adds them, which may be this one, later. ahead: groups
 * after the next. */
SOP_DEV void layer_leave(const layer_args &p, uint8_t *shared, layer_sums &s, int ahead, int unit,
                         int tokens, bool first, bool last, float d0, float d1)
{
    const int tid = layer_thread(), warp = tid / 32, lane = tid % 32, group = s.group + ahead;
    const int slot = group % LAYER_SUMS, phase = group / LAYER_SUMS % 2;
    const uint32_t bars = smem_addr(shared) + p.map.bars;
    float2 *to = (float2 *)((float *)(shared + p.map.sums) +
                            (slot * LAYER_SHARE + warp % LAYER_SHARE) * 32) +
                 lane;
    if (first) mbar_wait(bars + 8 * (LAYER_SUMS_EMPTY + slot), phase ^ 1);
    if (lane / 4 < tokens) {
        const float2 was = first ? make_float2(0, 0) : *to;
        *to = make_float2(was.x + d0, was.y + d1);
    }
    if (!last) return;
    __syncwarp();
    if (lane == 0) mbar_arrive(bars + 8 * (LAYER_SUMS_FULL + slot));
    /* of its stream, in turn */
    if (group / LAYER_STREAMS % LAYER_SHARE == warp % LAYER_SHARE) s.due = group, s.unit = unit;
}

/* 16 bytes of 8 rows of a weight times 16 bytes of x, whose words lie 0, 2, 1, 3, so that they are an A as
 * they are: d[0] and d[1] sum words 0 and 1, of token lane / 4, d1[2] and d1[3] words 2 and 3. The other
 * halves of both, and the rows of tokens that are not there, are nobody's. */
template <typename T> SOP_DEV void layer_mma(T, float (&d)[2][4], const uint4 &w, const uint4 &x)
{
    decode_mma(T(), d[0], x.x, x.y, x.z, x.w, w.x, w.y);
    decode_mma(T(), d[1], x.x, x.y, x.z, x.w, w.z, w.w);
}

/* Where a value of x is among those of its row. */
SOP_DEV int layer_place(int i)
{
    return i / 8 * 8 + i / 2 % 2 * 4 + i / 4 % 2 * 2 + i % 2;
}

/* N steps of a row at `from`, from the warp's step `at` on. What lies behind the last is read as well, and
 * then nobody's. Lanes of tokens that are not there read nothing: less for the shared memory to do. */
template <int N> SOP_DEV void layer_steps(uint4 (&to)[N], uint32_t from)
{
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = layer_shared(from + i * LAYER_NEXT);
}
template <int N> SOP_DEV void layer_steps_of_x(uint4 (&to)[N], uint32_t from, bool live)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n"
                     "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
                     "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                     : "=&r"(to[i].x), "=&r"(to[i].y), "=&r"(to[i].z), "=&r"(to[i].w)
                     : "r"(from + i * LAYER_NEXT), "r"((int)live)
                     : "memory");
}

/* Slots of a piece of the group that begins at a unit. */
SOP_DEV int layer_slots_of(const layer_part &part, int unit)
{
    return (layer_rows_of(part, unit) + part.rows - 1) / part.rows;
}

/* A product of what comes through the ring: group by group, the tokens' rows are in shared memory; or deep:
 * piece by piece of k, all groups, and with each piece that of the tokens' rows. */
template <typename T, typename Out>
SOP_DEV void layer_run(const layer_args &p, const layer_part &part, bool deep, uint8_t *shared,
                       layer_ring &r, layer_ring &xr, layer_sums &sums, int tokens, Out out)
{
    const int tid = layer_thread();
    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const bool live = g < tokens;
    const int share = warp % LAYER_SHARE, stream = warp / LAYER_SHARE;
    const uint32_t base = smem_addr(shared), full = layer_bar(p, base, LAYER_FULL);
    const uint32_t rows_at = base + p.map.rows + share * 64 + t * 16 +
                             (live ? g : 0) * (deep ? part.pitch : layer_pitch(part.steps * 32));
    /* this thread's row: in which slot of a group, and where there */
    const int own = g / part.rows;
    const uint32_t at =
        base + p.map.ring + (g - own * part.rows) * part.pitch + share * 64 + t * 16;
    const int slots = layer_slots_of(part, part.first);
    const int last_slots = layer_slots_of(part, part.first + (part.groups - 1) * part.each);
    int j = 0, s = 0; /* group, piece */
#pragma unroll 1
    for (;;) {
        const bool end = j == part.groups || s == part.pieces;
        if (layer_due(sums, end)) layer_add(p, part, shared, sums, tokens, out);
        if (end) break;
        const int mine = j + 1 == part.groups ? last_slots : slots;
        if (deep && j == 0) mbar_wait(layer_bar(p, base, LAYER_X_FULL + xr.slot), xr.phase);
        if ((sums.group + (deep ? j : 0)) % LAYER_STREAMS == stream) {
            const int n = (s + 1 == part.pieces ? part.steps - s * part.piece : part.piece) - share;
            const uint32_t xs = rows_at + (deep ? xr.slot * p.map.x_slot : s * part.piece * 64);
            float d[2][2][4] = {};
            /* a lane waits for a slot */
            layer_ring one = r, row = r;
            layer_turn(one, p.ring, min(lane, mine - 1));
            layer_turn(row, p.ring, min(own, mine - 1));
            mbar_wait(full + 8 * one.slot, one.phase);
            __syncwarp();
            const uint32_t ws = at + row.slot * p.map.slot;
#pragma unroll 1
            for (int i = 0; i == 0 || i * LAYER_SHARE < n; i += LAYER_EACH) {
                uint4 w[LAYER_EACH], x[LAYER_BATCH];
                layer_steps(w, ws + i * LAYER_NEXT);
                if ((i + LAYER_EACH) * LAYER_SHARE >= n) {
                    __syncwarp();
                    if (lane < mine) mbar_arrive(full + 8 * (LAYER_EMPTY - LAYER_FULL + one.slot));
                }
#pragma unroll
                for (int b = 0; b < LAYER_EACH; b += LAYER_BATCH) {
                    layer_steps_of_x(x, xs + (i + b) * LAYER_NEXT, live);
#pragma unroll
                    for (int k = 0; k < LAYER_BATCH; k++)
                        if ((i + b + k) * LAYER_SHARE < n) layer_mma(T(), d[k % 2], w[b + k], x[k]);
                }
            }
            layer_leave(p, shared, sums, deep ? j : 0, part.first + j * part.each, tokens, s == 0,
                        s + 1 == part.pieces, (d[0][0][0] + d[0][1][2]) + (d[1][0][0] + d[1][1][2]),
                        (d[0][0][1] + d[0][1][3]) + (d[1][0][1] + d[1][1][3]));
        }
        layer_turn(r, p.ring, mine);
        if (!deep) {
            if (++s == part.pieces) s = 0, j++, sums.group++;
        } else if (++j == part.groups) {
            j = 0, s++;
            __syncwarp();
            if (lane == 0) mbar_arrive(layer_bar(p, base, LAYER_X_EMPTY + xr.slot));
            layer_turn(xr, p.map.x_slots);
            if (s == part.pieces) sums.group += part.groups;
        }
    }
}

/* The warp that brings the tokens' rows of the last product, a piece at a time. */
template <typename T>
SOP_DEV void layer_bring(const layer_args &p, const layer_plan &plan, uint32_t base)
{
    const int tokens = (int)sop_live_rows(p.live_tokens, p.tokens);
    const layer_part part = plan.part[3];
    layer_ring r = {0, 0};
#pragma unroll 1
    for (int layer = 0; layer < p.layers; layer++) {
        mbar_wait(layer_bar(p, base, LAYER_X_THERE), layer % 2);
#pragma unroll 1
        for (int s = 0; s < part.steps; s += part.piece) {
            const int n = min(part.piece, part.steps - s) * 4; /* 16 bytes each */
            const uint32_t to = base + p.map.rows + r.slot * p.map.x_slot;
            mbar_wait(layer_bar(p, base, LAYER_X_EMPTY + r.slot), r.phase ^ 1);
            for (int tok = 0; tok < tokens; tok++) {
                const T *from = (const T *)p.act_out + tok * p.act_stride + s * 32;
                for (int i = threadIdx.x % 32; i < n; i += 32)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                     to + tok * part.pitch + i * 16),
                                 "l"(from + i * 8)
                                 : "memory");
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                             layer_bar(p, base, LAYER_X_FULL + r.slot))
                         : "memory");
            layer_turn(r, p.map.x_slots);
        }
    }
}

SOP_DEV float layer_bias(const layer_own &own, int at, int row)
{
    return own.bias[at] ? own.bias[at][row] : 0;
}

/* ---- what comes into shared memory ---- */

/* The norm of all tokens, rows of words that lie 0, 2, 1, 3. Of a row a thread has runs of four values, every
 * 4 LAYER_THREADS of them, RUNS at once; a wide row is two such chunks. squares: [LAYER_TOKENS][LAYER_WARPS] */
template <typename T>
SOP_DEV void layer_normed(uint8_t *xs, int pitch, const layer_args &p, const float *weights,
                          float eps, float offset, const unsigned long long *mail, int stamp,
                          int tokens, float *squares)
{
    enum { RUNS = 4, SIZE = 4 * LAYER_THREADS };
    static_assert(RUNS * SIZE == LAYER_NARROW && 2 * RUNS * SIZE == LAYER_WIDEST, "chunks");
    const int from = layer_thread() * 4;
    const bool wide = p.d > LAYER_NARROW;
    float4 kept[LAYER_TOKENS][RUNS] = {}, weight[2][RUNS];
    auto place = [&](int j) { return from + j * SIZE; };
    auto near = [&](int j) { return min(place(j), p.d - 4); }; /* one that is there */
#pragma unroll
    for (int j = 0; j < 2 * RUNS; j++)
        weight[j / RUNS][j % RUNS] = *(const float4 *)(weights + near(j));
#pragma unroll
    for (int c = 0; c < LAYER_TOKENS; c++) {
        const int tok = wide ? c / 2 : c, first = wide ? c % 2 * RUNS : 0;
        if (tok >= tokens) break;
        uint2 w[2 * RUNS];
        layer_collect(w, mail + (int64_t)tok * p.d, stamp,
                      [&](int i) { return near(first + i / 2) + i % 2 * 2; });
#pragma unroll
        for (int j = 0; j < RUNS; j++)
            kept[c][j] =
                make_float4(__uint_as_float(w[2 * j].x), __uint_as_float(w[2 * j].y),
                            __uint_as_float(w[2 * j + 1].x), __uint_as_float(w[2 * j + 1].y));
        float sum = 0;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const float4 v = kept[c][j];
            if (place(first + j) < p.d) sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
        sum = sop_warp_sum(sum);
        if (from % 128 == 0) squares[c * LAYER_WARPS + from / 128] = sum;
    }
    layer_sync();
#pragma unroll
    for (int c = 0; c < LAYER_TOKENS; c++) {
        const int tok = wide ? c / 2 : c, first = wide ? c % 2 * RUNS : 0;
        if (tok >= tokens) break;
        float sum = 0;
        for (int w = 0; w < (wide ? 2 : 1) * LAYER_WARPS; w++)
            sum += squares[(wide ? tok * 2 : tok) * LAYER_WARPS + w];
        const float scale = rsqrtf(sum / (float)p.d + eps);
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const int i = place(first + j);
            if (i >= p.d) break;
            const float4 v = kept[c][j], w = wide && c % 2 ? weight[1][j] : weight[0][j];
            uint32_t *to = (uint32_t *)(xs + tok * pitch + i / 8 * 16 + i / 4 % 2 * 4);
            to[0] = sop_pack<T>(v.x * (offset + w.x) * scale, v.y * (offset + w.y) * scale);
            to[2] = sop_pack<T>(v.z * (offset + w.z) * scale, v.w * (offset + w.w) * scale);
        }
    }
    layer_sync(); /* the squares are free, the rows are there */
}

/* What the attention made, in rows as above. */
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
                uint32_t *to = (uint32_t *)(xs + tok * pitch + quad / 2 * 16 + quad % 2 * 4);
                to[0] = w[j].x, to[2] = w[j].y;
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
        layer_post(p.mail.x[0] + (int64_t)tok * p.d + row, __float_as_uint(x), 1);
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

/* A channel and its partner of a head, to those that attend; of a key or a value, into a page of the cache. */
template <typename T, int HEAD>
SOP_DEV void layer_put_qkv(const layer_args &p, int layer, const float2 *turns, int slot, int unit,
                           int tok, float x, float y)
{
    const decode_args &a = p.attention;
    const int head = unit / (HEAD / 2), i = unit % (HEAD / 2), heads = p.heads + p.kv_heads;
    T u = sop_from_float<T>(x), v = sop_from_float<T>(y);
    if (head < heads) { /* both round to the cache's type before they turn, as single modules do */
        const float2 cs = turns[tok * (HEAD / 2) + i];
        const float from = sop_to_float(u), to = sop_to_float(v);
        u = sop_from_float<T>(from * cs.x - to * cs.y);
        v = sop_from_float<T>(to * cs.x + from * cs.y);
    }
    const T both[2] = {u, v};
    const int units = (heads + p.kv_heads) * (HEAD / 2);
    layer_post(p.mail.qkv + (int64_t)tok * units + unit, *(const uint32_t *)both, layer + 1);
    const int page = slot / a.page, place = slot % a.page;
    if (head < p.heads || slot < 0 || page >= p.pages) return;
    T *to = head < heads ? (T *)p.own[layer].k_pool + page * a.kp_page + place * a.kp_token +
                               (head - p.heads) * a.kp_head
                         : (T *)p.own[layer].v_pool + page * a.vp_page + place * a.vp_token +
                               (head - heads) * a.vp_head;
    to[i] = u;
    to[i + HEAD / 2] = v;
}

/* ---- attention ---- */

SOP_DEV layer_keys layer_keys_of(const decode_args &p, int t)
{
    layer_keys k = {};
    k.seq = sop_sequence_of(p.a.q_start, (int)sop_live_rows(p.a.live, p.seqs), t);
    if (k.seq >= 0) {
        const int q0 = p.a.q_start[k.seq], q1 = p.a.q_start[k.seq + 1], all = p.a.kv_len[k.seq];
        const int now = all - (q1 - q0), pos = t - q0 + now, hi = p.causal ? max(pos + 1, 0) : all;
        k.lo = min(p.window > 0 ? max(pos - p.window + 1, 0) : 0, hi);
        k.old = max(k.lo, min(now, hi));
        k.new_lo = q0 + max(k.lo - now, 0);
        k.new_hi = q0 + max(hi - now, 0);
        if (k.old > k.lo) k.units = decode_units(k.lo, k.old);
    }
    return k;
}

SOP_DEV layer_duty layer_duty_of(const layer_args &p, int tokens)
{
    const int cta = blockIdx.x, each = gridDim.x / (p.kv_heads * tokens), pair = cta / each;
    const int kv_head = pair < p.kv_heads * tokens ? pair / tokens : -1;
    return {kv_head, pair % tokens, pair * each, each};
}

/* Where 16 keys and values of a KV head lie: the first of each, and bytes from one to the next. */
struct layer_unit {
    const uint8_t *k, *v;
    int64_t k_next, v_next;
};

/* Of the keys what a thread has, and of the values, of those that are live: in shared memory or not. */
template <int HEAD> SOP_DEV void layer_rows_k(const layer_unit &from, decode_regs<HEAD> &to)
{
    enum { K = decode_regs<HEAD>::K };
    const int lane = layer_thread() % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + 8 * r;
        const uint8_t *at = from.k + row * from.k_next + decode_byte<K, 4>(0, t);
#pragma unroll
        for (int w = 0; w < K; w += 4) {
            uint4 y = make_uint4(0, 0, 0, 0);
            if (row >= to.lo && row < to.hi) y = *(const uint4 *)(at + w * 16);
            to.k[r][w] = y.x, to.k[r][w + 1] = y.y, to.k[r][w + 2] = y.z, to.k[r][w + 3] = y.w;
        }
    }
}
template <int HEAD> SOP_DEV void layer_rows_v(const layer_unit &from, decode_regs<HEAD> &to)
{
    enum { V = decode_regs<HEAD>::V };
    const int lane = layer_thread() % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = 2 * t + r % 2 + r / 2 * 8;
        const uint8_t *at = from.v + row * from.v_next + decode_byte<V, 8>(0, g);
#pragma unroll
        for (int w = 0; w < V; w += 4) {
            uint4 y = make_uint4(0, 0, 0, 0);
            if (row >= to.lo && row < to.hi) y = *(const uint4 *)(at + w * 32);
            to.v[r][w] = y.x, to.v[r][w + 1] = y.y, to.v[r][w + 2] = y.z, to.v[r][w + 3] = y.w;
        }
    }
}

/* The same, into the L2: a lane a line of 128 bytes. */
template <int HEAD> SOP_DEV void layer_soon(const layer_unit &from)
{
    enum { LINES = HEAD / 64 };
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        const int line = layer_thread() % 32 + 32 * i, row = line / LINES % 16;
        const uint8_t *at =
            line < 16 * LINES ? from.k + row * from.k_next : from.v + row * from.v_next;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(at + line % LINES * 128));
    }
}

/* Where a CTA's part of a head is sent, of the channels that are merged together: their sums, then the
 * maximum of the scores and the sum of the weights. */
template <int HEAD> SOP_DEV float *layer_part_at(const layer_args &p, int cta, int head, int slice)
{
    enum { SLICES = HEAD / LAYER_SLICE };
    return p.mail.parts + ((cta * DECODE_GROUP + head) * SLICES + slice) * (LAYER_SLICE + 4);
}

/* A slice of a head's channels, merged from the parts of CTAs first to first + ctas - 1. A warp, a lane a
 * channel. */
template <typename T, int HEAD>
SOP_DEV void layer_merge(const layer_args &p, int first, int ctas, int tok, int kv_head, int head,
                         int slice, float k2, int stamp)
{
    enum { AT_ONCE = 9, SIZE = DECODE_GROUP * (HEAD / LAYER_SLICE) * (LAYER_SLICE + 4) };
    const int lane = layer_thread() % 32, of = kv_head * p.attention.group + head;
    float *const parts = layer_part_at<HEAD>(p, first, head, slice);
    float top = -1e30f, den = 0, y = 0;
#pragma unroll 1
    for (int from = 0; from < ctas; from += AT_ONCE) {
        float x[AT_ONCE], ml[AT_ONCE][2];
        auto at = [&](int j) { /* behind the last: the last again, which then counts nothing */
                               return parts + min(from + j, ctas - 1) * SIZE;
        };
        bool all;
        do {
            all = true;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                x[j] = decode_look(at(j) + lane);
                decode_look2(at(j) + LAYER_SLICE, ml[j][0], ml[j][1]);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                all &=
                    __float_as_uint(x[j]) && __float_as_uint(ml[j][0]) && __float_as_uint(ml[j][1]);
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float up = fmaxf(top, ml[j][0]), f0 = decode_exp2((top - up) * k2);
            const float f1 = from + j < ctas ? decode_exp2((ml[j][0] - up) * k2) : 0;
            den = den * f0 + ml[j][1] * f1;
            y = y * f0 + x[j] * f1;
            top = up;
            at(j)[lane] = 0; /* as it was */
            if (lane < 2) at(j)[LAYER_SLICE + lane] = 0;
        }
    }
    if (p.attention.a.sinks) { /* one key more, whose value is 0 */
        const float sink = p.attention.a.sinks[of] * 1.44269504f, up = fmaxf(top * k2, sink);
        const float keep = decode_exp2(top * k2 - up);
        den = den * keep + decode_exp2(sink - up);
        y *= keep;
    }
    y = den > 0 ? y / den : 0;
    const float other = __shfl_down_sync(~0u, y, 1);
    const int at = (tok * p.heads + of) * HEAD + slice * LAYER_SLICE + lane;
    if (lane % 2 == 0) layer_post(p.mail.att + at / 2, sop_pack<T>(y, other), stamp);
}

/* A layer's attention. CTAs come in runs, one for a KV head's queries of a token. */
template <typename T, int HEAD>
SOP_DEV void layer_attend(const layer_args &p, const layer_plan &plan, int layer, uint8_t *shared,
                          int tokens)
{
    enum { WIDE = layer_scores<HEAD>::WIDE, HALF = HEAD / 2, SLICES = HEAD / LAYER_SLICE };
    const decode_args &a = p.attention;
    layer_scores<HEAD> &sh = *(layer_scores<HEAD> *)(shared + p.map.rows);
    const int tid = layer_thread(), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const layer_duty duty = plan.duty;
    if (duty.kv_head < 0) return;
    const int kv_head = duty.kv_head, tok = duty.tok, each = duty.each;
    const int cta = layer_anew(blockIdx.x), rank = cta - duty.first;
    const layer_keys k = plan.keys[tok];
    const int all = k.units + 1; /* with that of the step's own keys */
    const int ctas = min(each, (all + LAYER_UNITS - 1) / LAYER_UNITS);
    const int mine = rank < ctas ? (all - rank + ctas - 1) / ctas : 0;
    const float k2 = a.cap > 0 ? 1 : a.scale * 1.44269504f;
    if (mine) {
        decode_regs<HEAD> cur;
        layer_unit from = {};
        auto find =
            [&](int unit) { /* pages have a multiple of 16 tokens */
                            const layer_own &own = p.own[layer];
                            const int key = (k.lo / DECODE_UNIT + unit) * DECODE_UNIT;
                            const int i = key / a.page, at = key - i * a.page;
                            const int64_t page = a.a.table[(int64_t)k.seq * a.table_stride + i];
                            from.k = (const uint8_t *)own.k_pool +
                                     2 * (page * a.kp_page + at * a.kp_token + kv_head * a.kp_head);
                            from.v = (const uint8_t *)own.v_pool +
                                     2 * (page * a.vp_page + at * a.vp_token + kv_head * a.vp_head);
                            from.k_next = 2 * a.kp_token, from.v_next = 2 * a.vp_token;
            };
        if (warp < mine && rank + warp * ctas < k.units) {
            find(rank + warp * ctas);
            layer_soon<HEAD>(from);
        }
        /* queries, keys and values of the step, two pairs of channels a word and a thread */
        enum { AT_ONCE = 2 };
        static_assert((DECODE_GROUP + 2 * LAYER_TOKENS) * HALF / 2 <= AT_ONCE * LAYER_THREADS,
                      "all");
        const int words = (a.group + 2 * tokens) * (HALF / 2);
        auto word = [&](int i) { return min(tid + i * LAYER_THREADS, words - 1); };
        uint2 w[AT_ONCE];
        layer_collect(w, p.mail.qkv, layer + 1, [&](int i) {
            const int row = word(i) / (HALF / 2), j = row - a.group;
            const int of = j < 0 ? tok : j < tokens ? j : j - tokens; /* the token */
            const int head = j < 0        ? kv_head * a.group + row
                             : j < tokens ? p.heads + kv_head
                                          : p.heads + p.kv_heads + kv_head;
            return (of * (p.heads + 2 * p.kv_heads) + head) * HALF + word(i) % (HALF / 2) * 2;
        });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = word(i) / (HALF / 2), c = word(i) % (HALF / 2) * 2, j = row - a.group;
            uint16_t *to = j < 0 ? sh.q[row] : j < tokens ? sh.k[j] : sh.v[j - tokens];
            *(uint32_t *)(to + c) = __byte_perm(w[i].x, w[i].y, 0x5410);
            *(uint32_t *)(to + c + HALF) = __byte_perm(w[i].x, w[i].y, 0x7632);
        }
        layer_sync();
        uint32_t qf[HEAD / 8];
#pragma unroll
        for (int i = 0; i < HEAD / 8; i++)
            qf[i] =
                g < a.group
                    ? *(const uint32_t *)((const uint8_t *)sh.q[g] + decode_byte<HEAD / 8, 4>(i, t))
                    : 0;
        float o[HEAD / 16][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
        const float none[2] = {};
#pragma unroll 1
        for (int j = warp; j < mine; j += LAYER_WARPS) {
            const int unit = rank + j * ctas, key = (k.lo / DECODE_UNIT + unit) * DECODE_UNIT;
            cur.lo = k.lo - key, cur.hi = k.old - key, cur.at = 0;
            if (unit == k.units) {
                from = {(const uint8_t *)sh.k, (const uint8_t *)sh.v, sizeof sh.k[0],
                        sizeof sh.v[0]};
                cur.lo = k.new_lo, cur.hi = k.new_hi;
            } else if (j != warp) {
                find(unit);
            }
            layer_rows_k(from, cur);
            layer_rows_v(from, cur);
            decode_unit<T, T, HEAD, false>(
                a, cur, none, none, o, m, l, [](int) {}, qf, [] {});
        }
        /* those of the warps into one, a head a warp */
        const int warps = min((int)LAYER_WARPS, mine);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int z = 4; z < 32; z *= 2) l[r] += __shfl_xor_sync(~0u, l[r], z);
            if (g == 0) sh.m[warp][2 * t + r] = m[r], sh.l[warp][2 * t + r] = l[r];
        }
        float top = -1e30f, den = 0, y[SLICES] = {};
#pragma unroll 1
        for (int from_warp = 0; from_warp < warps; from_warp += LAYER_AT_ONCE) {
            if (from_warp) layer_sync();
            if (warp / LAYER_AT_ONCE * LAYER_AT_ONCE == from_warp && warp < warps)
#pragma unroll
                for (int r = 0; r < 4; r++) /* head 2t + r % 2; see decode_place() */
#pragma unroll
                    for (int i = 0; i < HEAD / 16; i += 4) {
                        const int e = i + r / 2 * (HEAD / 16);
                        *(float4 *)(sh.o[warp - from_warp] + (2 * t + r % 2) * WIDE + e / 8 * 64 +
                                    g * 8 + e % 8) =
                            make_float4(o[i][r], o[i + 1][r], o[i + 2][r], o[i + 3][r]);
                    }
            layer_sync();
            if (from_warp == 0)
                for (int w = 0; w < warps; w++) top = fmaxf(top, sh.m[w][warp]);
#pragma unroll 1
            for (int w = from_warp; w < min(warps, from_warp + (int)LAYER_AT_ONCE); w++) {
                const float f = decode_exp2((sh.m[w][warp] - top) * k2);
                den += sh.l[w][warp] * f;
#pragma unroll
                for (int i = 0; i < SLICES; i++)
                    y[i] += sh.o[w - from_warp][warp * WIDE + i * LAYER_SLICE + lane] * f;
            }
        }
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            if (warp >= a.group) break;
            float *to = layer_part_at<HEAD>(p, cta, warp, i);
            decode_post(to + lane, y[i]);
            if (lane == 0) decode_post2(to + LAYER_SLICE, top, den);
        }
    }
#pragma unroll 1
    for (int s = rank + each * warp; s < a.group * SLICES; s += each * LAYER_WARPS)
        layer_merge<T, HEAD>(p, duty.first, ctas, tok, kv_head, s / SLICES, s % SLICES, k2,
                             layer + 1);
    layer_sync(); /* what it had in shared memory is free */
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
SOP_DEV void layer_compute(const layer_args &p, const layer_plan &plan, uint8_t *shared,
                           float *squares, layer_state *states)
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
                             layer_put_qkv<T, HEAD>(p, layer, turns, plan.slots[tok], unit, tok,
                                                    x + bias[at].x, y + bias[at].y);
                         } else if (product == 2) {
                             x += layer_bias(own, 4, unit);
                             y += layer_bias(own, 5, unit);
                             ((T *)p.act_out)[tok * p.act_stride + layer_place(unit)] =
                                 sop_from_float<T>(sop_act_of(p.act, x) * y);
                         } else { /* the residual */
                             float &was = kept[tok * most + at];
                             const int to = layer + product / 2; /* whose norm reads it */
                             x += layer_bias(own, product == 1 ? 3 : 6, unit);
                             const T rounded = sop_from_float<T>(x);
                             if (to < p.layers) {
                                 was += product == 1 ? x : sop_to_float(rounded);
                                 layer_post(p.mail.x[product == 1] + (int64_t)tok * p.d + unit,
                                            __float_as_uint(was), to + 1);
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
    const int64_t words =
        ((int64_t)2 * p.d + (p.heads * 2 + 2 * p.kv_heads) * (HEAD / 2)) * p.tokens;
    for (int64_t i = (int64_t)blockIdx.x * LAYER_THREADS + tid; i < words;
         i += (int64_t)grid * LAYER_THREADS)
        p.mail.x[0][i] = 0;
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
        plan.slots[tid] = p.slots[tid];
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
