/* What the kernel of large layers is told, how its shared memory is laid out, how its CTAs meet and send words to
 * each other, and what each has. */
#ifndef OPS_SPANS_LAYERS_STREAM_ARGS_CUH
#define OPS_SPANS_LAYERS_STREAM_ARGS_CUH

#include "ops/attention/decode_sm80.cuh"
#include "ops/cuda/hopper.cuh"

enum {
    LAYER_WARPS = 8,
    LAYER_THREADS = LAYER_WARPS * 32, /* that compute; one more warpgroup brings what they take */
    LAYER_ALL = LAYER_THREADS + 128,
    LAYER_TOKENS = 4,    /* at most */
    LAYER_WIDEST = 4096, /* a row that the norm has in registers */
    LAYER_ROWS = 8,      /* of a group */
    LAYER_STEPS = 128,   /* of 32 k, of a slot, at most */
    LAYER_STREAMS = 2,   /* groups that are computed at once */
    LAYER_SHARE =
        LAYER_WARPS / LAYER_STREAMS, /* warps of a stream: of a row each has every fourth step, */
    LAYER_EACH = 14,                 /* so many of them at once */
    LAYER_NEXT = LAYER_SHARE * 64,   /* bytes from one to the next */
    LAYER_SLOT = 16512,              /* bytes of a slot, about: two rows of 4,096 */
    LAYER_SLOTS = 40,                /* at most */
    LAYER_SUMS = 8,                  /* groups whose sums wait to be added */
    LAYER_LATER = 2,                 /* groups that are left before one is added, beside its own */
    LAYER_X = 8,                     /* pieces of the last product's factors at once, at most, */
    LAYER_LEAST_X = 3,               /* and at least */
    LAYER_MOST = 32,                 /* layers of a launch */
    LAYER_ASKERS = 3,                /* threads that ask for weights */
    LAYER_LEAST = 8,                 /* slots of a group, where a slot has a row */
    LAYER_WINDOW = 48 * 1024,        /* bytes on their way: bench/gpu/h200.md */
    LAYER_UNITS = 4,                 /* of 16 keys, of a CTA, before another takes part */
    LAYER_SLICE = 32,                /* channels that a warp merges */
    LAYER_AT_ONCE = 4,               /* warps of a CTA whose results are merged at once */
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

/* Words from CTA to CTA, as 8 bytes: q k v [tokens, pairs of channels], attention's result [tokens, two
 * channels each]; as 4 bytes: the residual as norm 0 and 1 read it [tokens, d]; and, as floats, what a CTA
 * has of the attention, see layer_part_at(). All zero before and after. */
struct layer_mail {
    uint32_t *x[2];
    unsigned long long *qkv, *att;
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
    for (int i = 0; i < 2; i++) m.x[i] = (uint32_t *)at + (int64_t)i * tokens * d;
    unsigned long long *word = (unsigned long long *)at + (int64_t)tokens * d;
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

/* The residual, whose last 8 bits make place for the stamp: 16 are left, of which the norm keeps 8 or 11. */
SOP_DEV void layer_post_x(uint32_t *to, float x, int stamp)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to),
                 "r"((__float_as_uint(x) & ~0xffu) | (uint32_t)stamp)
                 : "memory");
}
/* Four of them, whether they are there or not. */
SOP_DEV uint4 layer_look_x(const uint32_t *from)
{
    uint4 w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(from)
                 : "memory");
    return w;
}
SOP_DEV bool layer_there(const uint4 &w, uint32_t stamp)
{
    return (((w.x ^ stamp) | (w.y ^ stamp) | (w.z ^ stamp) | (w.w ^ stamp)) & 0xff) == 0;
}
SOP_DEV float layer_x_of(uint32_t word)
{
    return __uint_as_float(word & ~0xffu);
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

/* ---- what a CTA has ---- */

/* The two rows of a unit: of two weights, half a head apart; or it has one. */
enum { LAYER_SINGLE, LAYER_PAIRS, LAYER_HALVES };

/* What a CTA has of a product. */
struct layer_part {
    int kind, first, last, each;    /* units; of a group */
    int next;                       /* units from a group to the next */
    int groups, pieces, turn;       /* turn: the piece that is first */
    int steps, piece, pitch;        /* of 32 k: all, of a slot; bytes of a row there */
    int rows;                       /* of a slot; rows_th: 65,536 by it, rounded up */
    int rows_th, slots, last_slots; /* slots of a piece of a group, and of the last */
    int passes, inner;              /* through all groups; pieces of a group in each */
    int pass_slots, pass_turns;     /* by how much a pass turns the ring */
};
/* Where piece i of a CTA's turn begins, in steps. */
SOP_DEV int layer_piece_at(const layer_part &part, int i)
{
    i += part.turn;
    return (i < part.pieces ? i : i - part.pieces) * part.piece;
}
SOP_DEV layer_part layer_part_of(const layer_args &p, int product)
{
    const layer_shape &w = p.shape[product];
    const uint32_t cta = blockIdx.x, grid = gridDim.x;
    layer_part part;
    part.kind = product == 0 ? LAYER_HALVES : product == 2 ? LAYER_PAIRS : LAYER_SINGLE;
    const uint32_t n = part.kind == LAYER_HALVES ? (w.n[0] + w.n[1] + w.n[2]) / 2 : w.n[0];
    part.each = part.kind == LAYER_SINGLE ? LAYER_ROWS : LAYER_ROWS / 2;
    if (product == 2) { /* all CTAs side by side */
        part.first = (int)cta * part.each, part.last = (int)n, part.next = (int)grid * part.each;
    } else {
        part.first = (int)(n * cta / grid), part.last = (int)(n * (cta + 1) / grid);
        part.next = part.each;
    }
    part.groups = max(0, (part.last - part.first + part.next - 1) / part.next);
    part.steps = w.k / 32;

    part.piece = layer_piece(w.k, product == 3 ? p.map.deep : p.map.piece);
    part.pieces = (part.steps + part.piece - 1) / part.piece;
    part.turn = product == 3 ? (int)cta % part.pieces : 0;
    part.pitch = layer_pitch(part.piece * 32);

    part.rows = min((int)LAYER_ROWS, p.map.slot / part.pitch);
    part.rows_th = (65536 + part.rows - 1) / part.rows;
    const int wide = part.kind == LAYER_SINGLE ? 1 : 2; /* rows of a unit */
    const int rest = part.last - (part.first + (part.groups - 1) * part.next);
    part.slots = (part.each * wide + part.rows - 1) / part.rows;
    part.last_slots = (min(part.each, rest) * wide + part.rows - 1) / part.rows;
    part.passes = product == 3 ? part.pieces : 1, part.inner = part.pieces / part.passes;
    const int all =
        part.groups ? ((part.groups - 1) * part.slots + part.last_slots) * part.inner : 0;
    part.pass_slots = all % p.ring, part.pass_turns = all / p.ring % 2;
    return part;
}
/* Rows of the group that begins at a unit. */
SOP_DEV int layer_rows_of(const layer_part &part, int unit)
{
    return min(part.each, part.last - unit) * (part.kind == LAYER_SINGLE ? 1 : 2);
}

/* What a CTA has of the attention: a token's queries of a KV head, with CTAs first to first + each - 1. */
struct layer_duty {
    int kv_head, tok, first, each; /* kv_head -1: nothing */
};
/* Where 16 keys and values of a KV head lie, in bytes from where a layer's begin. */
struct layer_place {
    int64_t k, v;
};
/* What a CTA has of a layer. place: of the warps' first units. */
struct layer_plan {
    layer_part part[4];
    layer_place place[LAYER_WARPS];
    layer_place
        kept[LAYER_TOKENS]; /* where the step's own keys and values go, of head 0; k < 0: nowhere */
    layer_duty duty;
    layer_keys keys[LAYER_TOKENS];
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

#endif
