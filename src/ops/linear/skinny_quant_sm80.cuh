/* Few tokens, up to 64, and weights of 8 and 4 bits: their bytes are all that counts. The weights' rows are
 * the rows of the product: y^T[rows, tokens] = w[rows, k] x[tokens, k]^T.
 *
 * Each CTA takes tiles of up to 64 rows, as many rows as make the tiles a whole number for each
 * multiprocessor, and streams all of k through a ring of stages of 256 k: no sums meet across CTAs. Rows
 * are copied as they lie, in pieces of 16 bytes; a row that starts between two multiples of 16 starts as
 * far inside its first piece. Of a stage each warp takes 32 rows and a unit of 64 k; where a tile has no
 * more than 32 rows, two warps take a half of the unit each.
 *
 *     warp:  0 1 2 3  rows 0 to 31    unit 0 1 2 3     <= 32 rows: steps 0, 1 of the unit
 *            4 5 6 7  rows 32 to 63   unit 0 1 2 3                 steps 2, 3, of rows 0 to 31
 *
 * The order of k in a product is free: at step s lane 4 g + c has the columns 16 s + 4 c to 16 s + 4 c + 3
 * of the unit, of rows g and g + 8 of w and of token g. That is one word of a row in 8 bits, half the bits
 * of two in 4. Numbers q go into the products exactly, as 16-bit floats; the f32 sum of a group is scaled
 * when the group ends. x in f32 is split into three bf16 that sum to it, which meet in one sum: the products
 * are those of f32. */
#ifndef OPS_LINEAR_SKINNY_QUANT_SM80_CUH
#define OPS_LINEAR_SKINNY_QUANT_SM80_CUH

#include "ops/cuda/mma.cuh"
#include "ops/linear/skinny.cuh"

enum { QUANT_THREADS = 256, QUANT_ROWS = 64, QUANT_K = 256, QUANT_MOST_STAGES = 8 };

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

/* Bytes between rows of a stage: an odd number of pieces, so that the words of 8 rows that a warp reads at
 * once lie in 32 banks. Rows of x lie 32 (f32: 64) bytes off a multiple of 128, for the same. */
static inline __host__ __device__ int quant_pitch(int pieces)
{
    return 16 * (pieces | 1);
}
static inline __host__ __device__ int quant_x_pitch(int x_bytes)
{
    return (QUANT_K + 16) * x_bytes;
}
static inline __host__ __device__ int quant_stage_bytes(int pieces, int columns, int x_bytes)
{
    return QUANT_ROWS * quant_pitch(pieces) + columns * quant_x_pitch(x_bytes);
}
/* Behind the ring: two partial results [column][68]. */
static inline __host__ __device__ int quant_smem_bytes(int stage_bytes, int columns, int stages)
{
    return stages * stage_bytes + 2 * columns * 68 * 4;
}

/* ---- 16-bit floats of numbers that lie in the bytes of a word ---- */

/* Bytes 2 i and 2 i + 1 of a word, in the low bytes of two halves; in the high ones. */
template <int I> SOP_DEV uint32_t quant_low(uint32_t word)
{
    return __byte_perm(word, 0, I ? 0x4342 : 0x4140);
}
template <int I> SOP_DEV uint32_t quant_high(uint32_t word)
{
    return __byte_perm(word, 0, I ? 0x3424 : 0x1404);
}

template <typename T> struct quant_pair;
template <> struct quant_pair<__nv_bfloat16> {
    typedef __nv_bfloat162 pair;
    SOP_DEV pair of(uint32_t x)
    {
        __nv_bfloat162_raw r;
        r.x = (unsigned short)x, r.y = (unsigned short)(x >> 16);
        return pair(r);
    }
    SOP_DEV uint32_t bits(pair x)
    {
        const __nv_bfloat162_raw r = x;
        return r.x | (uint32_t)r.y << 16;
    }
    enum { ONES = 0x3f803f80, MAGIC = 0x43004300 }; /* 128: the last bit is 1 */
    /* The bit of -128 moves to the other side: 128 + low 7 bits - (128 or 256). */
    SOP_DEV uint32_t i8(uint32_t t)
    {
        return sub((t & 0x007f007f) | MAGIC, (t & 0x00800080) | MAGIC);
    }
    /* e4m3's exponent, 120 too small for bf16, behind three bits of it that are 0. */
    SOP_DEV uint32_t f8(uint32_t t)
    {
        return bits(__hmul2(of((t & 0x80008000) | (t & 0x7f007f00) >> 4), of(0x7b807b80)));
    }
    SOP_DEV uint32_t sub(uint32_t a, uint32_t b)
    {
        return bits(__hsub2(of(a), of(b)));
    }
};
template <> struct quant_pair<__half> {
    typedef __half2 pair;
    SOP_DEV pair of(uint32_t x)
    {
        __half2_raw r;
        r.x = (unsigned short)x, r.y = (unsigned short)(x >> 16);
        return pair(r);
    }
    SOP_DEV uint32_t bits(pair x)
    {
        const __half2_raw r = x;
        return r.x | (uint32_t)r.y << 16;
    }
    enum { ONES = 0x3c003c00, MAGIC = 0x64006400 }; /* 1024: the last bit is 1 */
    /* 1024 + (q + 128) - 1152 */
    SOP_DEV uint32_t i8(uint32_t t)
    {
        return sub((t ^ 0x00800080) | MAGIC, 0x64806480);
    }
    /* e4m3's exponent, 8 too small for f16. */
    SOP_DEV uint32_t f8(uint32_t t)
    {
        return bits(__hmul2(of((t & 0x80008000) | (t & 0x7f007f00) >> 1), of(0x5c005c00)));
    }
    SOP_DEV uint32_t sub(uint32_t a, uint32_t b)
    {
        return bits(__hsub2(of(a), of(b)));
    }
};
/* Four bits, less zero, which has MAGIC too. */
template <typename T> SOP_DEV uint32_t quant_u4(uint32_t t, uint32_t zero)
{
    return quant_pair<T>::sub((t & 0x000f000f) | quant_pair<T>::MAGIC, zero);
}

/* ---- the formats ---- */

SOP_DEV uint32_t quant_word(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

/* Groups of the unit's 4 steps that have a scale of their own; scales of the lane's four rows (g, g + 8,
 * g + 16, g + 24): w = d (q - zero) + m, where only q4_k has an m. */
template <int GROUPS> struct quant_scales {
    float d[4][GROUPS], m[4][GROUPS];
    uint32_t zero[4];
};

/* BYTES of 256 k, WORDS of a lane in a row of a unit. A row is what lies at `row` + `at`. */
template <int32_t FORMAT> struct quant_format;

template <int32_t FORMAT> struct quant_bytes {
    enum { BYTES = 264, WORDS = 4, GROUPS = 1, MIN = 0 };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + u / 2 * 132 + 4 + u % 2 * 64 + 16 * i + 4 * c);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int pitch, int u, int, quant_scales<1> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
            s.d[r][0] = *(const float *)(row + at + 8 * r * pitch + u / 2 * 132);
    }
    template <typename T, int S, int I> SOP_DEV uint32_t pair(const uint32_t *w, uint32_t)
    {
        return FORMAT == SOP_F8_128 ? quant_pair<T>::f8(quant_high<I>(w[S]))
                                    : quant_pair<T>::i8(quant_low<I>(w[S]));
    }
};
template <> struct quant_format<SOP_I8_128> : quant_bytes<SOP_I8_128> {
};
template <> struct quant_format<SOP_F8_128> : quant_bytes<SOP_F8_128> {
};

template <> struct quant_format<SOP_Q8_0> {
    enum { BYTES = 272, WORDS = 4, GROUPS = 2, MIN = 0 };
    /* Blocks lie at even addresses. */
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        const int from = at + (2 * u + i / 2) * 34 + 2 + 16 * (i % 2) + 4 * c;
        return __funnelshift_r(quant_word(row + (from & ~3)), quant_word(row + (from & ~3) + 4),
                               from % 4 * 8);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int pitch, int u, int, quant_scales<2> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                s.d[r][i] =
                    __half2float(*(const __half *)(row + at + 8 * r * pitch + (2 * u + i) * 34));
    }
    template <typename T, int S, int I> SOP_DEV uint32_t pair(const uint32_t *w, uint32_t)
    {
        return quant_pair<T>::i8(quant_low<I>(w[S]));
    }
};

template <> struct quant_format<SOP_I4_128> {
    enum { BYTES = 136, WORDS = 2, GROUPS = 1, MIN = 0 };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + u / 2 * 68 + 4 + u % 2 * 32 + 16 * i + 4 * c);
    }
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int pitch, int u, int, quant_scales<1> &s)
    {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t head = quant_word(row + at + 8 * r * pitch + u / 2 * 68); /* d, z, 0 */
            s.d[r][0] = __half2float(__ushort_as_half((unsigned short)head));
            s.zero[r] = __byte_perm(head, 0, 0x4242) | quant_pair<T>::MAGIC;
        }
    }
    /* A word's low bits are step 2 i, its high ones 2 i + 1. */
    template <typename T, int S, int I> SOP_DEV uint32_t pair(const uint32_t *w, uint32_t zero)
    {
        return quant_u4<T>(quant_low<I>(w[S / 2]) >> S % 2 * 4, zero);
    }
};

template <> struct quant_format<SOP_Q4_K> {
    enum { BYTES = 144, WORDS = 2, GROUPS = 2, MIN = 1 };
    SOP_DEV uint32_t word(const uint8_t *row, int at, int u, int c, int i)
    {
        return quant_word(row + at + 16 + 32 * u + 16 * i + 4 * c);
    }
    /* Each lane of a row's four takes the scales of one row apart, for all. */
    template <typename T>
    SOP_DEV void scales(const uint8_t *row, int at, int pitch, int u, int c, quant_scales<2> &s)
    {
        const uint8_t *b = row + at + 8 * c * pitch;
        const uint32_t head = quant_word(b), s0 = quant_word(b + 4), t0 = quant_word(b + 8),
                       both = quant_word(b + 12);
        const float d = __half2float(__ushort_as_half((unsigned short)head));
        const float m = -__half2float(__ushort_as_half((unsigned short)(head >> 16)));
        uint32_t ss, tt; /* 6 bits each of four groups: 0 to 3 or 4 to 7 */
        if (u < 2) {
            ss = s0 & 0x3f3f3f3f, tt = t0 & 0x3f3f3f3f;
        } else {
            ss = (both & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030);
            tt = (both >> 4 & 0x0f0f0f0f) | (t0 >> 2 & 0x30303030);
        }
        ss >>= u % 2 * 16, tt >>= u % 2 * 16;
        const float ds[2] = {d * (float)(ss & 255), d * (float)(ss >> 8 & 255)};
        const float mt[2] = {m * (float)(tt & 255), m * (float)(tt >> 8 & 255)};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            s.zero[r] = quant_pair<T>::MAGIC;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s.d[r][i] = __shfl_sync(~0u, ds[i], r, 4);
                s.m[r][i] = __shfl_sync(~0u, mt[i], r, 4);
            }
        }
    }
    /* A word's low bits are of group 0, its high ones of group 1. */
    template <typename T, int S, int I> SOP_DEV uint32_t pair(const uint32_t *w, uint32_t zero)
    {
        return quant_u4<T>(quant_low<I>(w[S % 2]) >> S / 2 * 4, zero);
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
    int j, row, at, rows; /* of the tile: weight, first row, column of y of the weight's first row */
};

SOP_DEV void quant_tile(quant_walk *w, const quant_args &p, int tile)
{
    w->tile = tile;
    w->kb = 0;
    w->j = skinny_part(p.n, p.rows, tile, &w->row, &w->at);
    w->rows = min(p.rows, p.n[w->j] - w->row);
}

SOP_DEV void quant_next(quant_walk *w, const quant_args &p, int nk)
{
    if (++w->kb == nk) quant_tile(w, p, w->tile + gridDim.x);
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

/* The rows of a stage. What is behind a row's end is 0. */
template <int BYTES>
SOP_DEV void quant_load_w(const quant_args &p, const quant_walk &v, uint8_t *to)
{
    const int64_t stride = p.w_stride[v.j], rest = p.row_bytes - (int64_t)v.kb * BYTES;
    const int left = (int)min(rest, (int64_t)BYTES + 16), pitch = quant_pitch(p.pieces);
    const int rows_on = QUANT_THREADS / p.pieces, pieces_on = QUANT_THREADS % p.pieces;
    const uint8_t *from = p.w[v.j] + v.row * stride + (int64_t)v.kb * BYTES;
    int row = threadIdx.x / p.pieces, piece = threadIdx.x % p.pieces;
    while (row < v.rows) {
        const uint8_t *at = from + row * stride + 16 * piece;
        const int inside = (int)((uintptr_t)at & 15);
        sop_copy_async(to + row * pitch + 16 * piece, at - inside,
                       max(0, min(16, left - 16 * piece + inside)));
        row += rows_on;
        piece += pieces_on;
        if (piece >= p.pieces) piece -= p.pieces, row++;
    }
}

template <typename X>
SOP_DEV void quant_load_x(const quant_args &p, int tokens, int kb, uint8_t *to)
{
    enum { EACH = 16 / sizeof(X), PIECES = QUANT_K / EACH };
    const X *x = (const X *)p.x;
    for (int i = threadIdx.x; i < tokens * PIECES; i += QUANT_THREADS) {
        const int t = i / PIECES, q = i % PIECES, c = kb * QUANT_K + q * EACH;
        sop_copy_async(to + t * quant_x_pitch(sizeof(X)) + 16 * q,
                       c < p.k ? x + t * p.x_stride + c : x, c < p.k ? 16 : 0);
    }
}

/* Sums of a warp: 32 rows, 8 NT tokens. */
template <int NT> struct quant_sums {
    float d[2][NT][4];
};

/* Step S of a unit: w's numbers times x. */
template <int32_t FORMAT, typename X, int NT, int S>
SOP_DEV void quant_step(const uint32_t (&words)[4][quant_format<FORMAT>::WORDS],
                        const uint32_t (&zero)[4], const uint8_t *x, int rows, quant_sums<NT> &part,
                        float (&sum)[NT][4])
{
    typedef quant_format<FORMAT> F;
    typedef typename quant_x<X>::type T;
    enum { PLANES = quant_x<X>::PLANES };
    const int second = rows > 16; /* the same for the warp */
    const uint32_t ones[4] = {quant_pair<T>::ONES, quant_pair<T>::ONES, quant_pair<T>::ONES,
                              quant_pair<T>::ONES};
    uint32_t a[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (h == 0 || second) {
            a[h][0] = F::template pair<T, S, 0>(words[2 * h], zero[2 * h]);
            a[h][1] = F::template pair<T, S, 0>(words[2 * h + 1], zero[2 * h + 1]);
            a[h][2] = F::template pair<T, S, 1>(words[2 * h], zero[2 * h]);
            a[h][3] = F::template pair<T, S, 1>(words[2 * h + 1], zero[2 * h + 1]);
        }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t b[PLANES][2];
        quant_x<X>::load(x + n * 8 * quant_x_pitch(sizeof(X)) + 16 * S * (int)sizeof(X), b);
#pragma unroll
        for (int q = PLANES - 1; q >= 0; q--) {
            if (F::MIN) sop_mma(T(), sum[n], ones, b[q]);
            sop_mma(T(), part.d[0][n], a[0], b[q]);
            if (second) sop_mma(T(), part.d[1][n], a[1], b[q]);
        }
    }
}

/* A warp's share of a stage: unit u of its rows; of its steps 2 and 3 (which 2), 0 and 1 (1), all (3).
 * row, at: of row g; x: of token g, column 4 c of the unit. */
template <int32_t FORMAT, typename X, int NT>
SOP_DEV void quant_unit(const uint8_t *row, int at, int pitch, const uint8_t *x, int u, int which,
                        int rows, quant_sums<NT> &acc)
{
    typedef quant_format<FORMAT> F;
    typedef typename quant_x<X>::type T;
    enum { GROUPS = F::GROUPS };
    const int c = threadIdx.x % 4;
    quant_scales<GROUPS> s = {};
    uint32_t words[4][F::WORDS];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int i = 0; i < F::WORDS; i++) words[r][i] = F::word(row, at + 8 * r * pitch, u, c, i);
    F::template scales<T>(row, at, pitch, u, c, s);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        quant_sums<NT> part = {};
        float sum[NT][4] = {};
        if ((GROUPS == 1 || group == 0) && (which & 1)) {
            quant_step<FORMAT, X, NT, 0>(words, s.zero, x, rows, part, sum);
            quant_step<FORMAT, X, NT, 1>(words, s.zero, x, rows, part, sum);
        }
        if ((GROUPS == 1 || group == 1) && (which & 2)) {
            quant_step<FORMAT, X, NT, 2>(words, s.zero, x, rows, part, sum);
            quant_step<FORMAT, X, NT, 3>(words, s.zero, x, rows, part, sum);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int r = 2 * h + i / 2;
                    acc.d[h][n][i] = fmaf(s.d[r][group], part.d[h][n][i], acc.d[h][n][i]);
                    if (F::MIN) acc.d[h][n][i] = fmaf(s.m[r][group], sum[n][i], acc.d[h][n][i]);
                }
    }
}

/* NT: 8 tokens each. */
template <int32_t FORMAT, typename X, int NT>
static __global__ __launch_bounds__(QUANT_THREADS, NT <= 2 ? 2 : 1) void sop_skinny_quant_sm80(
    const __grid_constant__ quant_args p)
{
    enum { BYTES = quant_format<FORMAT>::BYTES, X_PITCH = (QUANT_K + 16) * sizeof(X) };
    extern __shared__ __align__(16) uint8_t quant_smem[];
    const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
    const int pitch = quant_pitch(p.pieces), stage_bytes = quant_stage_bytes(p.pieces, 8 * NT, sizeof(X));
    const int nk = (p.k + QUANT_K - 1) / QUANT_K, n_tiles = skinny_tiles(p.n, p.rows);
    const int total = (n_tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * nk;
    const int ahead = p.stages - 1;
    float *result = (float *)(quant_smem + p.stages * stage_bytes); /* [2][8 NT][68] */
    grid_go();

    quant_walk w, next;
    quant_tile(&w, p, blockIdx.x);
    next = w;
    /* weights are nobody's result: they come while the kernel before still runs */
    for (int i = 0; i < min(ahead, total); i++, quant_next(&next, p, nk))
        quant_load_w<BYTES>(p, next, quant_smem + i * stage_bytes);
    grid_wait();
    const int tokens = (int)sop_live_rows(p.live, p.tokens);
    next = w;
    for (int i = 0; i < ahead; i++) {
        if (i < total) {
            quant_load_x<X>(p, tokens, next.kb,
                            quant_smem + i * stage_bytes + QUANT_ROWS * pitch);
            quant_next(&next, p, nk);
        }
        sop_copy_commit();
    }

    /* the warp's unit, its rows, the steps it takes */
    const int u = warp % 4, upper = warp / 4, narrow = p.rows <= 32;
    const int row0 = narrow ? 0 : 32 * upper, which = narrow ? 1 + upper : 3;
    quant_sums<NT> acc = {};
    int stage = 0, empty = ahead; /* what is read, what is filled */
    for (int i = 0; i < total; i++) {
        quant_wait(ahead - 1);
        __syncthreads(); /* all of the stage is there, and all have read the one before it */
        if (i + ahead < total) {
            uint8_t *to = quant_smem + empty * stage_bytes;
            quant_load_w<BYTES>(p, next, to);
            quant_load_x<X>(p, tokens, next.kb, to + QUANT_ROWS * pitch);
            quant_next(&next, p, nk);
        }
        sop_copy_commit();
        if (row0 < w.rows) {
            const uint8_t *from = quant_smem + stage * stage_bytes;
            /* how far inside its first piece the row starts; the same 8 rows on */
            const int inside = (int)((unsigned)(w.row + row0 + g) * (unsigned)(p.w_stride[w.j] & 15) +
                                     (unsigned)w.kb * (BYTES & 15)) & 15;
            quant_unit<FORMAT, X, NT>(from, (row0 + g) * pitch + inside, pitch,
                                      from + QUANT_ROWS * pitch + g * X_PITCH +
                                          (64 * u + 4 * c) * (int)sizeof(X),
                                      u, which, w.rows - row0, acc);
        }
        if (++stage == p.stages) stage = 0;
        if (++empty == p.stages) empty = 0;
        if (w.kb < nk - 1) {
            w.kb++;
            continue;
        }

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
                            *to = round ? *to + acc.d[h][n][e] : acc.d[h][n][e];
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
        acc = {};
        quant_next(&w, p, nk); /* the last k: to the next tile */
    }
}

#endif
