/* Few tokens, up to 64, and weights of 8 and 4 bits: their bytes are all that counts. The weights' rows
 * are the rows of the product: y^T[rows, tokens] = w[rows, k] x[tokens, k]^T.
 *
 * Each CTA takes tiles of up to 64 rows, as many rows as make the tiles a whole number for each
 * multiprocessor, and streams all of k through a ring of stages of 256 or 512 k: no sums meet across
 * CTAs. Rows are copied as they lie, in pieces of 16 bytes; a row that starts between two multiples of 16
 * starts as far inside its first piece. Of a stage each warp takes 32 rows and one of four units of k;
 * where a tile has no more than 32 rows, two warps take a half of the unit each.
 *
 *     warp:  0 1 2 3  rows 0 to 31    unit 0 1 2 3     <= 32 rows: rows 0 to 31, first half
 *            4 5 6 7  rows 32 to 63   unit 0 1 2 3                 rows 0 to 31, second half
 *
 * A unit is 4 or 8 steps of 16 k. The order of k in a product is free: at step s lane 4 g + c has the
 * columns 16 s + 4 c to 16 s + 4 c + 3 of the unit, of rows g and g + 8 of w and of token g. That is one
 * word of a row in 8 bits, half the bits of a word in 4. Numbers q go into the products exactly, as 16-bit
 * floats; the f32 sum of a group is scaled when the group ends. x in f32 is split into three bf16 that sum
 * to it and meet in one sum: the products are those of f32. */
#ifndef OPS_LINEAR_SKINNY_QUANT_SM80_CUH
#define OPS_LINEAR_SKINNY_QUANT_SM80_CUH

#include "ops/cuda/mma.cuh"
#include "ops/linear/quant_pair.cuh"
#include "ops/linear/skinny.cuh"

enum { QUANT_THREADS = 256, QUANT_ROWS = 64, QUANT_MOST_STAGES = 8 };

struct quant_args {
    const uint8_t *w[3];
    const float *bias[3]; /* NULL: none */
    const void *x;
    const int32_t *live;
    void *y;
    int64_t w_stride[3], row_bytes; /* between rows; of a row */
    int64_t x_stride, y_stride;     /* in elements */
    int32_t y_dtype, tokens, k, n[3];
    int32_t rows, stages, pieces; /* of a tile; of the ring; of a row in a stage */
};

/* Bytes between rows of a stage: an odd number of pieces, so that the words of 8 rows that a warp reads
 * at once lie in 32 banks. Rows of x lie 32 (f32: 64) bytes off a multiple of 128, for the same. */
static inline __host__ __device__ int quant_pitch(int pieces)
{
    return 16 * (pieces | 1);
}
static inline __host__ __device__ int quant_x_pitch(int k, int x_bytes)
{
    return (k + 16) * x_bytes;
}
/* Of k columns. */
static inline __host__ __device__ int quant_stage_bytes(int k, int pieces, int columns, int x_bytes)
{
    return QUANT_ROWS * quant_pitch(pieces) + columns * quant_x_pitch(k, x_bytes);
}
/* Behind the ring: two partial results [column][68]. */
static inline __host__ __device__ int quant_smem_bytes(int stage_bytes, int columns, int stages)
{
    return stages * stage_bytes + 2 * columns * 68 * 4;
}

/* Bytes 2 i and 2 i + 1 of a word, in the low bytes of two halves; in the high ones. */
SOP_DEV uint32_t quant_low(uint32_t word, int i)
{
    return __byte_perm(word, 0, i ? 0x4342 : 0x4140);
}
SOP_DEV uint32_t quant_high(uint32_t word, int i)
{
    return __byte_perm(word, 0, i ? 0x3424 : 0x1404);
}

/* ---- the formats ---- */

SOP_DEV uint32_t quant_word(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

/* Steps of a unit. 4 bits have the more work for their bytes: longer units, and stages, where x leaves
 * room for some of those. */
static constexpr __host__ __device__ int quant_steps(int32_t format, int columns, int x_bytes)
{
    return (format == SOP_I4_128 && columns * x_bytes <= 32) ||
                   (format == SOP_Q4_K && columns * x_bytes <= 16)
               ? 8
               : 4;
}
/* Columns of a stage: of four units; and bytes of such a piece of a row. */
static constexpr __host__ __device__ int quant_k(int steps)
{
    return 64 * steps;
}
static constexpr __host__ __device__ int quant_bytes(int32_t format, int steps)
{
    return format == SOP_Q8_0   ? quant_k(steps) / 32 * 34
           : format == SOP_Q4_K ? quant_k(steps) / 256 * 144
                                : quant_k(steps) / 128 * (format == SOP_I4_128 ? 68 : 132);
}

/* Scales of the lane's four rows (g, g + 8, g + 16, g + 24) for GROUPS equal parts of a unit:
 * w = d (q - zero point) + m, where only q4_k has an m; zero as quant_u4 takes it. */
template <int GROUPS> struct quant_scales {
    float d[4][GROUPS], m[4][GROUPS];
    uint32_t zero[4];
};

/* WORDS of a lane in a row of unit u. A row is what lies at `row` + `at`, 8 rows on `on` bytes further. */
template <int32_t FORMAT, int STEPS> struct quant_format { /* i8_128, f8_128 */
    enum { WORDS = STEPS, GROUPS = 1, MIN = 0, UNIT = 16 * STEPS };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + u * UNIT / 128 * 132 + 4 + u * UNIT % 128 + 16 * i + 4 * c);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int on, int u, int, quant_scales<GROUPS> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
            s.d[r][0] = *(const float *)(row + at + r * on + u * UNIT / 128 * 132);
    }
    template <typename T> SOP_DEV uint32_t pair(const uint32_t *w, int step, int i, uint32_t)
    {
        return FORMAT == SOP_F8_128 ? quant_pair<T>::f8(quant_high(w[step], i))
                                    : quant_pair<T>::i8(quant_low(w[step], i));
    }
};

template <int STEPS> struct quant_format<SOP_Q8_0, STEPS> {
    enum { WORDS = STEPS, GROUPS = STEPS / 2, MIN = 0 };
    /* Blocks lie at even addresses. */
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        const int from = at + (GROUPS * u + i / 2) * 34 + 2 + 16 * (i % 2) + 4 * c;
        return __funnelshift_r(quant_word(row + (from & ~3)), quant_word(row + (from & ~3) + 4),
                               from % 4 * 8);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int on, int u, int, quant_scales<GROUPS> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                s.d[r][i] =
                    __half2float(*(const __half *)(row + at + r * on + (GROUPS * u + i) * 34));
    }
    template <typename T> SOP_DEV uint32_t pair(const uint32_t *w, int step, int i, uint32_t)
    {
        return quant_pair<T>::i8(quant_low(w[step], i));
    }
};

template <int STEPS> struct quant_format<SOP_I4_128, STEPS> {
    enum { WORDS = STEPS / 2, GROUPS = 1, MIN = 0, UNIT = 16 * STEPS };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + u * UNIT / 128 * 68 + 4 + u * UNIT % 128 / 2 + 16 * i + 4 * c);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int on, int u, int, quant_scales<GROUPS> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t head = quant_word(row + at + r * on + u * UNIT / 128 * 68); /* d, z, 0 */
            s.d[r][0] = __half2float(__ushort_as_half((unsigned short)head));
            s.zero[r] =
                __byte_perm(head, 0, 0x4242) | (quant_pair<T>::MAGIC | quant_pair<T>::SIGNS);
        }
    }
    /* A word's low bits are step 2 i, its high ones 2 i + 1. */
    template <typename T> SOP_DEV uint32_t pair(const uint32_t *w, int step, int i, uint32_t zero)
    {
        return quant_u4<T>(quant_low(w[step / 2], i) >> step % 2 * 4, zero);
    }
};

template <int STEPS> struct quant_format<SOP_Q4_K, STEPS> {
    enum { WORDS = STEPS / 2, GROUPS = STEPS / 2, MIN = 1, UNIT = 16 * STEPS };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + u * UNIT / 256 * 144 + 16 + u * UNIT % 256 / 2 + 16 * i +
                          4 * c);
    }
    /* Each lane of a row's four takes the scales of one row apart, for all. */
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int on, int u, int c, quant_scales<GROUPS> &s)
    {
        const uint8_t *b = row + at + c * on + u * UNIT / 256 * 144;
        const int first = u * UNIT % 256 / 32; /* group */
        const uint32_t head = quant_word(b), s0 = quant_word(b + 4), t0 = quant_word(b + 8),
                       both = quant_word(b + 12);
        const float d = __half2float(__ushort_as_half((unsigned short)head));
        const float m = -__half2float(__ushort_as_half((unsigned short)(head >> 16)));
        uint32_t ss, tt; /* 6 bits each of four groups: 0 to 3 or 4 to 7 */
        if (first < 4) {
            ss = s0 & 0x3f3f3f3f, tt = t0 & 0x3f3f3f3f;
        } else {
            ss = (both & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030);
            tt = (both >> 4 & 0x0f0f0f0f) | (t0 >> 2 & 0x30303030);
        }
        ss >>= first % 4 * 8, tt >>= first % 4 * 8;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const float ds = d * (float)(ss >> 8 * i & 255), mt = m * (float)(tt >> 8 * i & 255);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                s.d[r][i] = __shfl_sync(~0u, ds, r, 4);
                s.m[r][i] = __shfl_sync(~0u, mt, r, 4);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) s.zero[r] = quant_pair<T>::MAGIC | quant_pair<T>::SIGNS;
    }
    /* Two words' low bits are of one group, their high ones of the next. */
    template <typename T> SOP_DEV uint32_t pair(const uint32_t *w, int step, int i, uint32_t zero)
    {
        return quant_u4<T>(quant_low(w[step / 4 * 2 + step % 2], i) >> step % 4 / 2 * 4, zero);
    }
};

/* ---- x ---- */

/* How x goes into products. */
template <typename X> struct quant_x {
    typedef X type;
    enum { PLANES = 1 };
    SOP_DEV void load(const uint8_t *p, uint32_t (&b)[1][2])
    {
        const uint2 v = *(const uint2 *)p;
        b[0][0] = v.x, b[0][1] = v.y;
    }
};
template <> struct quant_x<float> {
    typedef __nv_bfloat16 type;
    enum { PLANES = 3 };
    SOP_DEV void load(const uint8_t *p, uint32_t (&b)[3][2])
    {
        const float4 v = *(const float4 *)p;
        float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int q = 0; q < 3; q++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float lo, hi;
                b[q][i] = sop_pack<type>(x[2 * i], x[2 * i + 1]);
                sop_unpack<type>(b[q][i], lo, hi);
                x[2 * i] -= lo, x[2 * i + 1] -= hi;
            }
    }
};

/* ---- the walk through the stages of a CTA's tiles ---- */

struct quant_walk {
    int tile, kb;
    int j, row, at,
        rows; /* of the tile: weight, first row, column of y of the weight's first row */
};

SOP_DEV void quant_tile(quant_walk *w, const quant_args &p, int tile)
{
    w->tile = tile;
    w->kb = 0;
    w->j = skinny_part(p.n, p.rows, tile, &w->row, &w->at);
    w->rows = min(p.rows, p.n[w->j] - w->row);
}

SOP_DEV void quant_wait(int newer)
{
    switch (newer) {
    case 0: sop_copy_wait<0>(); break;
    case 1: sop_copy_wait<1>(); break;
    case 2: sop_copy_wait<2>(); break;
    case 3: sop_copy_wait<3>(); break;
    case 4: sop_copy_wait<4>(); break;
    case 5: sop_copy_wait<5>(); break;
    default: sop_copy_wait<6>(); break;
    }
}

/* The pieces of a stage's rows that a thread copies, if any: from, behind the tile's first row at the
 * stage's first column; to, behind the stage's begin. */
template <int BYTES> struct quant_pieces {
    enum {
        MOST = (QUANT_ROWS * ((BYTES + 29) / 16) + QUANT_THREADS - 1) / QUANT_THREADS,
        NONE = INT32_MAX
    };
    uint32_t from[MOST];
    int to[MOST];
};

/* Those of tile v. */
template <int BYTES>
SOP_DEV void quant_pieces_of(const quant_args &p, const quant_walk &v, quant_pieces<BYTES> *o)
{
    int row = threadIdx.x / p.pieces, piece = threadIdx.x % p.pieces;
    const int rows_on = QUANT_THREADS / p.pieces, pieces_on = QUANT_THREADS % p.pieces;
#pragma unroll
    for (int i = 0; i < quant_pieces<BYTES>::MOST; i++) {
        o->from[i] = row < v.rows ? (uint32_t)row * (uint32_t)p.w_stride[v.j] + 16 * piece
                                  : (uint32_t)quant_pieces<BYTES>::NONE;
        o->to[i] = row * quant_pitch(p.pieces) + 16 * piece;
        row += rows_on, piece += pieces_on;
        if (piece >= p.pieces) piece -= p.pieces, row++;
    }
}

/* The rows of a stage. What is behind a row's end is 0. */
template <int BYTES>
SOP_DEV void quant_load_w(const quant_args &p, const quant_walk &v, const quant_pieces<BYTES> &o,
                          int nk, uint8_t *to)
{
    enum { MOST = quant_pieces<BYTES>::MOST };
    const uint8_t *from = p.w[v.j] + v.row * p.w_stride[v.j] + (int64_t)v.kb * BYTES;
    const uintptr_t whole = ~(uintptr_t)15;
    if (v.kb < nk - 1) {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            sop_copy_async_if(o.from[i] != quant_pieces<BYTES>::NONE, to + o.to[i],
                              (const void *)((uintptr_t)(from + o.from[i]) & whole));
        return;
    }
    const int left = (int)(p.row_bytes - (int64_t)v.kb * BYTES), pitch = quant_pitch(p.pieces);
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (o.from[i] == quant_pieces<BYTES>::NONE) continue;
        const uintptr_t at = (uintptr_t)(from + o.from[i]);
        sop_copy_async(to + o.to[i], (const void *)(at & whole),
                       max(0, min(16, left - o.to[i] % pitch + (int)(at & 15))));
    }
}

template <int K, typename X>
SOP_DEV void quant_load_x(const quant_args &p, int tokens, int kb, uint8_t *to)
{
    enum {
        EACH = 16 / sizeof(X),
        PIECES = K / EACH, /* of a token; each thread has the same of every ON-th */
        ON = QUANT_THREADS / PIECES
    };
    const int first = threadIdx.x / PIECES, q = threadIdx.x % PIECES, c = kb * K + q * EACH;
    const int bytes = c < p.k ? 16 : 0; /* behind k x is 0 */
    const X *from = (const X *)p.x + (bytes ? first * p.x_stride + c : 0);
    const int64_t on = bytes ? ON * p.x_stride : 0;
    to += first * quant_x_pitch(K, sizeof(X)) + 16 * q;
#pragma unroll 1
    for (int t = first; t < tokens; t += ON, from += on, to += ON * quant_x_pitch(K, sizeof(X)))
        sop_copy_async(to, from, bytes);
}

/* Sums of a warp: 32 rows, 8 NT tokens. */
template <int NT> struct quant_sums {
    float d[2][NT][4];
};

/* A warp's share of a stage: of unit u of its TILES times 16 rows the steps [begin, end), a half or all.
 * row, at: of row g; x: of token g, column 4 c of the unit. */
template <int32_t FORMAT, int STEPS, typename X, int NT, int TILES>
SOP_DEV void quant_unit(const uint8_t *row, int at, int on, const uint8_t *x, int u, int begin,
                        int end, quant_sums<NT> &acc)
{
    typedef quant_format<FORMAT, STEPS> F;
    typedef typename quant_x<X>::type T;
    enum {
        GROUPS = F::GROUPS,
        PLANES = quant_x<X>::PLANES,
        X_PITCH = (64 * STEPS + 16) * sizeof(X)
    };
    const int c = threadIdx.x % 4;
    const uint32_t ones[4] = {quant_pair<T>::ONES, quant_pair<T>::ONES, quant_pair<T>::ONES,
                              quant_pair<T>::ONES};
    quant_scales<GROUPS> s = {};
    uint32_t words[2 * TILES][F::WORDS];
#pragma unroll
    for (int r = 0; r < 2 * TILES; r++)
#pragma unroll
        for (int i = 0; i < F::WORDS; i++) words[r][i] = F::word(row, at + r * on, u, c, i);
    F::template scales<T>(row, at, on, u, c, s);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        quant_sums<NT> part = {};
        float sum[NT][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) { /* of the unit */
            if (half * STEPS / 2 < begin || half * STEPS / 2 >= end) continue;
#pragma unroll
            for (int i = 0; i < STEPS / 2; i++) {
                const int step = half * STEPS / 2 + i;
                uint32_t a[TILES][4];
                if (step * GROUPS / STEPS != group) continue;
#pragma unroll
                for (int h = 0; h < TILES; h++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int r = 2 * h + e % 2;
                        a[h][e] = F::template pair<T>(words[r], step, e / 2, s.zero[r]);
                    }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    uint32_t b[PLANES][2];
                    quant_x<X>::load(x + n * 8 * X_PITCH + 16 * step * (int)sizeof(X), b);
#pragma unroll
                    for (int q = PLANES - 1; q >= 0; q--) {
                        if (F::MIN) sop_mma(T(), sum[n], ones, b[q]);
#pragma unroll
                        for (int h = 0; h < TILES; h++) sop_mma(T(), part.d[h][n], a[h], b[q]);
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < TILES; h++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int r = 2 * h + e / 2;
                    acc.d[h][n][e] = fmaf(s.d[r][group], part.d[h][n][e], acc.d[h][n][e]);
                    if (F::MIN) acc.d[h][n][e] = fmaf(s.m[r][group], sum[n][e], acc.d[h][n][e]);
                }
    }
}

/* NT: 8 tokens each. */
template <int32_t FORMAT, typename X, int NT>
static __global__ __launch_bounds__(QUANT_THREADS, NT <= 2 ? 2 : 1) void sop_skinny_quant_sm80(
    const __grid_constant__ quant_args p)
{
    enum {
        STEPS = quant_steps(FORMAT, 8 * NT, sizeof(X)),
        K = quant_k(STEPS),
        BYTES = quant_bytes(FORMAT, STEPS),
        /* where registers do not hold the sums of 64 tokens twice, half of them at a time */
        PASSES = NT == 8 && (sizeof(X) == 4 || quant_format<FORMAT, STEPS>::MIN) ? 2 : 1,
        PART = NT / PASSES
    };
    extern __shared__ __align__(16) uint8_t quant_smem[];
    const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
    const int pitch = quant_pitch(p.pieces);
    const int stage_bytes = quant_stage_bytes(K, p.pieces, 8 * NT, sizeof(X));
    const int nk = (p.k + K - 1) / K, n_tiles = skinny_tiles(p.n, p.rows);
    const int total = (n_tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * nk;
    const int ahead = p.stages - 1;
    float *result = (float *)(quant_smem + p.stages * stage_bytes); /* [2][8 NT][68] */
    grid_go();

    quant_walk w, next; /* what is read, what is filled */
    quant_pieces<BYTES> pieces;
    quant_tile(&w, p, blockIdx.x);
    next = w;
    quant_pieces_of(p, next, &pieces);
    auto advance = [&] {
        if (++next.kb < nk) return;
        quant_tile(&next, p, next.tile + gridDim.x);
        quant_pieces_of(p, next, &pieces);
    };
    /* weights are nobody's result: they come while the kernel before still runs */
    for (int i = 0; i < min(ahead, total); i++, advance())
        quant_load_w(p, next, pieces, nk, quant_smem + i * stage_bytes);
    grid_wait();
    const int tokens = (int)sop_live_rows(p.live, p.tokens);
    for (int i = 0; i < ahead; i++) {
        if (i < total)
            quant_load_x<K, X>(p, tokens, i % nk,
                               quant_smem + i * stage_bytes + QUANT_ROWS * pitch);
        sop_copy_commit();
    }

    /* the warp's unit, its rows, the steps it takes */
    const int u = warp % 4, upper = warp / 4, narrow = p.rows <= 32;
    const int row0 = narrow ? 0 : 32 * upper, begin = narrow && upper ? STEPS / 2 : 0,
              end = narrow && !upper ? STEPS / 2 : STEPS;
    quant_sums<PART> acc[PASSES] = {};
    int stage = 0, empty = ahead;
    for (int i = 0; i < total; i++) {
        quant_wait(ahead - 1);
        __syncthreads(); /* all of the stage is there, and all have read the one before it */
        if (i + ahead < total) {
            uint8_t *to = quant_smem + empty * stage_bytes;
            quant_load_w(p, next, pieces, nk, to);
            quant_load_x<K, X>(p, tokens, next.kb, to + QUANT_ROWS * pitch);
            advance();
        }
        sop_copy_commit();
        if (row0 < w.rows) {
            const uint8_t *from = quant_smem + stage * stage_bytes;
            /* how far inside its first piece the row starts; the same 8 rows on */
            const int inside = (int)((unsigned)(w.row + row0 + g) * (unsigned)p.w_stride[w.j] +
                                     (unsigned)(w.kb * (BYTES & 15))) &
                               15;
            const int at = (row0 + g) * pitch + inside;
            const uint8_t *x = from + QUANT_ROWS * pitch + g * quant_x_pitch(K, sizeof(X)) +
                               (16 * STEPS * u + 4 * c) * (int)sizeof(X);
#pragma unroll
            for (int i = 0; i < PASSES; i++, x += 8 * PART * quant_x_pitch(K, sizeof(X)))
                if (w.rows - row0 > 16)
                    quant_unit<FORMAT, STEPS, X, PART, 2>(from, at, 8 * pitch, x, u, begin, end,
                                                          acc[i]);
                else
                    quant_unit<FORMAT, STEPS, X, PART, 1>(from, at, 8 * pitch, x, u, begin, end,
                                                          acc[i]);
        }
        if (++stage == p.stages) stage = 0;
        if (++empty == p.stages) empty = 0;
        if (++w.kb < nk) continue;

        /* units 2 and 3 put their sums down, 0 and 1 add theirs, then all write y */
        for (int round = 0; round < 2; round++) {
            if (u / 2 != round) {
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float *to = result + (u % 2 * 8 * NT + 8 * n + 2 * c + e % 2) * 68 +
                                        32 * upper + 16 * h + 8 * (e / 2) + g;
                            const float sum = acc[n / PART].d[h][n % PART][e];
                            *to = round ? *to + sum : sum;
                        }
            }
            __syncthreads();
        }
        for (int e = tid; e < tokens * w.rows; e += QUANT_THREADS) {
            const int t = e / w.rows, r = e % w.rows;
            const float *a = result + t * 68 + r, *b = a + 8 * NT * 68;
            float y = *a + *b;
            if (narrow) y += a[32] + b[32];
            if (p.bias[w.j]) y += p.bias[w.j][w.row + r];
            sop_store_any(p.y, p.y_dtype, t * p.y_stride + w.at + w.row + r, y);
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++) acc[i] = {};
        quant_tile(&w, p, w.tile + gridDim.x);
    }
}

#endif
