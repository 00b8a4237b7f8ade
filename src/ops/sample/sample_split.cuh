/* Several blocks a row, three kernels one after another; the last block of a row in each of them ends
 * what it can:
 *
 *   first    the largest logit, and of each group of 64 the largest: greedy ends. The k-th largest of
 *            the groups is a lower bound of top_k's cut that leaves few more than k tokens: when they lie
 *            in few chunks, the last block lists and filters them exactly: ends.
 *   second   Neither top_k nor top_p: the mass of each tile; the last block finds the draw's tile, then
 *            its token: ends. Else bins by the distance from the largest, of mass for top_p alone, of
 *            tokens for top_k; the last block finds the bin with the cut.
 *   third    Of top_k, marks the tokens down to this bin and lists them. Are these too many, or is there
 *            top_p alone: marks the tokens of this bin, and sums the mass of each tile before it; the
 *            last block finds the cut, the tile, the token. And in one block, as the floor row does it,
 *            all of a row that fits no list: very many tokens with the same logit, or top_p of over
 *            4096 of top_k.
 *
 * Weights are made in double and kept as multiples of 2^-44: sums of integers, the same in any order and
 * for any number of blocks. Whole chunks that lie under a bound are not read again.
 *
 *   tile    8192 logits, 8 a thread; chunk: 256, a warp's; group: 64, those of 8 threads
 *   marks   a bit a token, so that a list comes out in the order of indices */
#ifndef OPS_SAMPLE_SPLIT_CUH
#define OPS_SAMPLE_SPLIT_CUH

#include <cfloat>

#include "ops/cuda/wide.cuh"
#include "ops/sample/filters.cuh"

typedef unsigned long long sop_mass;

enum {
    SPLIT_THREADS = SOP_SAMPLE_THREADS,
    SPLIT_TILE = 8 * SPLIT_THREADS,
    SPLIT_MOST_TILES = 32,          /* a lane each; and a chunk a thread */
    SPLIT_LIST = 4 * SPLIT_THREADS, /* the longest list: 4 tokens a thread */
    SPLIT_BINS = 2 * SPLIT_THREADS,
    SPLIT_FEW = 256,  /* tokens: each is compared with each other */
    SPLIT_NEAR = 128, /* chunks: one block reads them */
};
/* What is left to do for a row. */
enum { SPLIT_DONE, SPLIT_TILES_ALONE, SPLIT_BINNED, SPLIT_LISTED, SPLIT_FLOOR };

#define SPLIT_ONE 0x1p44 /* the largest weight; 2^18 of them make less than 2^63 */
#define SPLIT_FAR \
    46.5 /* 2^-46.5 of it is under half of the least: no weight from here on, in powers of 2 */

/* What is known of a row from kernel to kernel. */
struct split_head {
    double per_bit;         /* log2(e) / temperature */
    double least;           /* the least weight that min_p keeps */
    double uniform;         /* the draw, 0 to 1 */
    float max, none;        /* the largest logit; smaller ones than this have no weight */
    float bins_per_unit;    /* of logits */
    int bin, kind;          /* binned: the bin with the cut */
    uint32_t low, by_count; /* nothing with a smaller key survives; the measure is 1 a token */
    sop_mass target;        /* the measure that is wanted of this bin */
    sop_sampling s;
};
struct split_state {
    split_head head;
    sop_mass top[SPLIT_MOST_TILES]; /* of parts: the largest key and its index */
    uint32_t below[SPLIT_MOST_TILES];
    sop_mass mass[SPLIT_MOST_TILES]; /* of tiles */
    sop_mass bins[SPLIT_BINS];
};

struct split_args {
    sop_sample_desc d;
    const void *logits;
    const sop_sampling *params;
    const int32_t *live;
    int32_t *ids;
    split_state *rows;   /* [rows] */
    uint4 *groups;       /* [rows, chunks]: largest keys of a chunk's four groups */
    uint8_t *marks;      /* [rows, tiles * 1024] */
    int *arrived;        /* [rows], zero before and after; so are the two behind them: */
    int *pending, *left; /* rows that the first kernel did not end; blocks of the third that left */
    int *rows_left;      /* [rows]: which rows these are */
    int tiles;
};

/* One block's memory. */
struct split_shared {
    union {
        sop_mass bins[SPLIT_BINS];
        int list[SPLIT_LIST];
        struct {
            int few_list[SPLIT_FEW]; /* the list's begin */
            sop_mass order[SPLIT_FEW], weight[SPLIT_FEW];
        };
    };
    uint32_t words[SPLIT_NEAR][8]; /* marks of chunks */
    int chunk[SPLIT_NEAR];
    sop_mass digits[256], part[32], tile_mass[32], over;
    double power[16]; /* 2^44 of 2^(-i / 16) */
    double uniform;
    uint32_t low[32], high[32];
    sop_sampling s;
    int flag, digit, index;
};

template <typename T> struct split_row {
    const T *logits;
    int64_t vocab;
    bool aligned;
    split_state *state;
    uint4 *groups;
    uint8_t *marks;
};

template <typename T> SOP_DEV split_row<T> split_row_at(const split_args &p, int64_t b)
{
    split_row<T> r = {(const T *)p.logits + b * p.d.logits_stride, p.d.vocab};
    r.aligned = ((uintptr_t)r.logits & 15) == 0;
    r.state = p.rows + b;
    r.groups = p.groups + b * p.tiles * 32;
    r.marks = p.marks + b * p.tiles * SPLIT_THREADS;
    return r;
}

/* Eight logits from i on; NaN behind the end. */
template <typename T>
SOP_DEV void split_fetch(const split_row<T> &r, int64_t i, wide_raw<T, 8> &raw)
{
    if (r.aligned && i + 8 <= r.vocab) {
        wide_fetch(r.logits + i, raw);
    } else {
        T z[8];
#pragma unroll
        for (int e = 0; e < 8; e++)
            z[e] = i + e < r.vocab ? r.logits[i + e] : sop_from_float<T>(NAN);
        memcpy(&raw, z, sizeof raw);
    }
}
template <typename T> SOP_DEV void split_load(const split_row<T> &r, int64_t i, float (&z)[8])
{
    wide_raw<T, 8> raw;
    split_fetch(r, i, raw);
    wide_floats(raw, z);
}

/* The key of a finite logit, where -0 is 0; 0 of any other. And back. */
SOP_DEV uint32_t split_key(float z)
{
    return isfinite(z) ? sop_sample_key(z + 0.0f) : 0;
}
SOP_DEV float split_logit(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

/* A weight, times 2^44: of t powers of two below the largest, 16 t to the nearest makes an entry of the
 * table and an exponent; 2^-r of the rest, at most 1/32, is off by 2^-51. */
SOP_DEV double split_scaled(const split_head &st, float z, const split_shared &sh)
{
    const double t = ((double)st.max - (double)z) * st.per_bit;
    const double shifted = fma(t, 16.0, 0x1.8p52);
    const int k = __double2loint(shifted);
    const double rest = fma(shifted - 0x1.8p52, -1.0 / 16, t);
    double p = 0x1.430912f86c786p-13;         /* ln(2)^6 / 720 */
    p = fma(p, rest, -0x1.5d87fe78a6730p-10); /* -ln(2)^5 / 120 */
    p = fma(p, rest, 0x1.3b2ab6fba4e77p-7);   /* ln(2)^4 / 24 */
    p = fma(p, rest, -0x1.c6b08d704a0bfp-5);  /* -ln(2)^3 / 6 */
    p = fma(p, rest, 0x1.ebfbdff82c58ep-3);   /* ln(2)^2 / 2 */
    p = fma(p, rest, -0x1.62e42fefa39efp-1);  /* -ln(2) */
    p = fma(p, rest, 1.0);
    const double power = sh.power[k & 15];
    return p * __hiloint2double(__double2hiint(power) - (k >> 4 << 20), __double2loint(power));
}
/* By all threads, before the first weight and a barrier. */
SOP_DEV void split_make_powers(split_shared &sh)
{
    if (threadIdx.x < 16) sh.power[threadIdx.x] = exp2(44 - threadIdx.x / 16.0);
}
/* A scaled weight, below 2^51, to the nearest; a conversion would take four times as long. */
SOP_DEV sop_mass split_count(double scaled)
{
    return (sop_mass)(__double_as_longlong(scaled + 0x1p52) & ((1ll << 52) - 1));
}
/* A weight as a count of 2^-44; and after min_p. */
SOP_DEV sop_mass split_weight(const split_head &st, float z, const split_shared &sh)
{
    return z < st.none ? 0 : split_count(split_scaled(st, z, sh));
}
SOP_DEV sop_mass split_kept(const split_head &st, float z, const split_shared &sh)
{
    const double w = split_scaled(st, z, sh);
    return z < st.none || w < st.least ? 0 : split_count(w);
}

SOP_DEV int split_bin(const split_head &st, float z)
{
    return min((int)((st.max - z) * st.bins_per_unit), SPLIT_BINS - 1);
}

/* Whether this block is the last of n that come here; what the others wrote is then to be seen, past L1. */
SOP_DEV bool split_last(int *arrived, int n, split_shared &sh)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        sh.flag = atomicAdd(arrived, 1) == n - 1;
        if (sh.flag) *arrived = 0;
    }
    __syncthreads();
    const bool last = sh.flag;
    if (last) __threadfence();
    return last;
}

/* Add in shared memory. There is no addition of 64 bits there: a low half that wraps carries one. */
SOP_DEV void split_add(uint32_t *sum, uint32_t x)
{
    atomicAdd(sum, x);
}
SOP_DEV void split_add(sop_mass *sum, sop_mass x)
{
    uint32_t *half = (uint32_t *)sum;
    const uint32_t low = (uint32_t)x, was = atomicAdd(half, low);
    const uint32_t high = (uint32_t)(x >> 32) + (was + low < was);
    if (high) atomicAdd(half + 1, high);
}

/* The sum over the threads before this one, and over all. */
SOP_DEV sop_mass split_before(sop_mass own, sop_mass *all, split_shared &sh)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sop_mass sum = own;
    for (int o = 1; o < 32; o *= 2) {
        const sop_mass y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    if (lane == 31) sh.part[warp] = sum;
    __syncthreads();
    sop_mass total = sh.part[lane], before = lane < warp ? total : 0;
    for (int o = 16; o > 0; o /= 2) {
        total += __shfl_xor_sync(~0u, total, o);
        before += __shfl_xor_sync(~0u, before, o);
    }
    __syncthreads();
    *all = total;
    return before + sum - own;
}

/* The largest key at which the measure w of what has this key or a larger one reaches the target, 1 to
 * the sum of all; above: the measure of the larger ones. Four elements a thread. Eight bits of the keys'
 * range a step, in bins. It may end early, at a smaller key, when what it then takes too much measures
 * up to slack. */
template <typename M>
SOP_DEV uint32_t split_select(const uint32_t (&key)[4], const M (&w)[4], M target, M slack,
                              M *above, split_shared &sh)
{
    M *digits = (M *)sh.digits;
    const int tid = threadIdx.x, lane = tid % 32;
    uint32_t low = ~0u, high = 0, prefix = 0;
    for (int e = 0; e < 4; e++) {
        if (w[e] == 0) continue;
        low = min(low, key[e]);
        high = max(high, key[e]);
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (lane == 0) sh.low[tid / 32] = low, sh.high[tid / 32] = high;
    __syncthreads();
    low = __reduce_min_sync(~0u, sh.low[lane]);
    high = __reduce_max_sync(~0u, sh.high[lane]);
    M over = 0;
    int left = 32 - __clz(high - low);
    while (left > 0) {
        const int wide = min(8, left);
        left -= wide;
        if (tid < 256) digits[tid] = 0;
        __syncthreads();
        for (int e = 0; e < 4; e++) {
            const uint64_t at = key[e] - low;
            if (w[e] && at >> (left + wide) == prefix)
                split_add(&digits[at >> left & ((1u << wide) - 1)], w[e]);
        }
        __syncthreads();
        if (tid < 32) { /* a lane has 8 digits, the largest first */
            M own = 0;
            for (int i = 0; i < 8; i++) own += digits[255 - 8 * lane - i];
            M sum = own;
            for (int o = 1; o < 32; o *= 2) {
                const M y = __shfl_up_sync(~0u, sum, o);
                if (lane >= o) sum += y;
            }
            const uint32_t reached = __ballot_sync(~0u, over + sum >= target);
            if (lane == __ffs(reached) - 1) {
                M at = over + sum - own;
                int digit = 255 - 8 * lane;
                while (at + digits[digit] < target) at += digits[digit--];
                sh.digit = digit;
                sh.over = at;
                sh.flag = digits[digit] <= slack;
            }
        }
        __syncthreads();
        prefix = prefix << wide | sh.digit;
        over = (M)sh.over;
        if (sh.flag) break;
    }
    *above = over;
    return low + (prefix << left);
}

/* Drop what stands behind the `ties` first of those with key `cut`; elements are in the order of their
 * indices. The last that stays leaves its index in sh.index. */
template <typename M>
SOP_DEV void split_drop(const uint32_t (&key)[4], const int (&index)[4], M (&w)[4], uint32_t cut,
                        M ties, split_shared &sh)
{
    sop_mass equal = 0, all;
    for (int e = 0; e < 4; e++) equal += w[e] && key[e] == cut;
    sop_mass rank = split_before(equal, &all, sh);
    for (int e = 0; e < 4; e++) {
        if (w[e] == 0) continue;
        if (key[e] == cut) {
            if (++rank == ties) sh.index = index[e];
            if (rank > ties) w[e] = 0;
        } else if (key[e] < cut) {
            w[e] = 0;
        }
    }
    __syncthreads();
}

/* The least mass that is at least top_p of all; 1 to all. */
SOP_DEV sop_mass split_share(float top_p, sop_mass all)
{
    return max(min(__double2ull_ru((double)top_p * (double)all), all), (sop_mass)1);
}
/* The draw is the first token with more mass up to it than this. */
SOP_DEV sop_mass split_point(const split_head &st, sop_mass all)
{
    return min(__double2ull_rd(st.uniform * (double)all), all - 1);
}

/* The token where the mass passes the point, of N a thread; all threads come. */
template <int N>
SOP_DEV void split_find(const int64_t first, const int *index, const sop_mass (&w)[N],
                        sop_mass before, sop_mass own, sop_mass point, int32_t *id)
{
    if (point < before || point >= before + own) return;
    for (int e = 0; e < N; e++) {
        before += w[e];
        if (point >= before) continue;
        *id = index ? index[e] : (int32_t)(first + e);
        return;
    }
}

/* The marked tokens of all chunks into sh.list, in order; how many there are, also when it is more than
 * fit. A thread brings the marks of a chunk. */
SOP_DEV int split_expand(const uint32_t (&words)[8], int chunk, split_shared &sh)
{
    sop_mass n = 0, all;
#pragma unroll
    for (int i = 0; i < 8; i++) n += __popc(words[i]);
    int at = (int)split_before(n, &all, sh);
    if (all <= SPLIT_LIST)
#pragma unroll
        for (int i = 0; i < 8; i++)
            for (uint32_t rest = words[i]; rest; rest &= rest - 1)
                sh.list[at++] = chunk * 256 + i * 32 + __ffs(rest) - 1;
    __syncthreads();
    return (int)all;
}
/* The same of the row's marks. */
template <typename T>
SOP_DEV int split_expand_marks(const split_args &p, const split_row<T> &r, split_shared &sh)
{
    uint32_t words[8] = {0};
    if (threadIdx.x < p.tiles * 32) {
        const uint4 *m = (const uint4 *)r.marks + 2 * threadIdx.x;
        const uint4 a = __ldcg(m), b = __ldcg(m + 1);
        words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
        words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
    }
    return split_expand(words, threadIdx.x, sh);
}

/* This thread's four of the n listed tokens: index, key, and 1 where there is one. */
template <typename T>
SOP_DEV void split_take(const split_row<T> &r, int n, int (&index)[4], uint32_t (&key)[4],
                        uint32_t (&there)[4], const split_shared &sh)
{
    for (int e = 0; e < 4; e++) {
        const int at = 4 * threadIdx.x + e;
        index[e] = at < n ? sh.list[at] : 0;
        there[e] = at < n;
        key[e] = at < n ? split_key(sop_to_float(r.logits[index[e]])) : 0;
    }
}

/* What a token adds to the measure of the bins. */
SOP_DEV sop_mass split_measure(const split_head &st, float z, const split_shared &sh)
{
    return st.by_count ? 1 : split_weight(st, z, sh);
}

/* Cut the elements to the least prefix whose measure reaches the target. */
SOP_DEV uint32_t split_cut(const split_head &st, const uint32_t (&key)[4], const int (&index)[4],
                           sop_mass (&w)[4], sop_mass target, split_shared &sh)
{
    sop_mass above;
    const uint32_t cut = split_select(key, w, target, (sop_mass)0, &above, sh);
    const sop_mass each = split_measure(st, split_logit(cut), sh);
    split_drop(key, index, w, cut, (target - above + each - 1) / each, sh);
    return cut;
}

/* The tile of the draw by the masses in sh.tile_mass, then the token: what has a larger key than the cut,
 * or this one and at most its index. */
template <typename T>
SOP_DEV void split_draw(const split_args &p, const split_row<T> &r, const split_head &st,
                        uint32_t cut, int cut_index, int32_t *id, split_shared &sh)
{
    const int tid = threadIdx.x;
    const sop_mass mass = tid < p.tiles ? sh.tile_mass[tid] : 0;
    sop_mass all, own = 0, tile_all, w[8];
    const sop_mass before = split_before(mass, &all, sh);
    const sop_mass point = split_point(st, all);
    if (point >= before && point < before + mass) {
        sh.index = tid;
        sh.over = before;
    }
    __syncthreads();
    const int64_t first = (int64_t)sh.index * SPLIT_TILE + tid * 8;
    const sop_mass rest = point - sh.over;
    float z[8];
    split_load(r, first, z);
    for (int e = 0; e < 8; e++) {
        const uint32_t key = split_key(z[e]);
        const bool stays = key > cut || (key == cut && first + e <= cut_index);
        w[e] = stays && key >= st.low ? split_kept(st, z[e], sh) : 0;
        own += w[e];
    }
    const sop_mass at = split_before(own, &tile_all, sh);
    split_find(first, NULL, w, at, own, rest, id);
}

/* ---- a list ---- */

/* Few tokens, one a thread: how many stand before it, and their mass, tell what stays. The warps beside
 * them stay away: each would take its turns. */
template <typename T>
SOP_DEV void split_end_few(const split_row<T> &r, const split_head &st, int n, int32_t *id,
                           split_shared &sh)
{
    const int tid = threadIdx.x, lane = tid % 32, k = min(st.s.top_k, n);
    const int threads = (n + 31) / 32 * 32;
    const bool mine = tid < n;
    if (tid >= threads) return;
    auto meet = [&]() { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); };
    int index = 0, rank = 0;
    float z = 0;
    sop_mass order = 0, w = 0, before = 0, all = 0;
    if (mine) {
        index = sh.few_list[tid];
        z = sop_to_float(r.logits[index]);
        order = (sop_mass)split_key(z) << 32 | (uint32_t)~index;
        w = split_weight(st, z, sh);
        sh.order[tid] = order;
        sh.weight[tid] = w;
    }
    meet();
#pragma unroll 4
    for (int j = 0; j < n; j++) {
        const bool first = sh.order[j] > order;
        rank += first;
        before += first ? sh.weight[j] : 0;
    }
    if (mine && rank == k - 1) sh.over = before + w;
    meet();
    bool stays = mine && rank < k;
    if (st.s.top_p > 0 && st.s.top_p < 1)
        stays = stays && before < split_share(st.s.top_p, sh.over);
    const sop_mass kept[1] = {stays ? split_kept(st, z, sh) : 0};
    sop_mass sum = kept[0]; /* in the order of indices, as the list is */
    for (int o = 1; o < 32; o *= 2) {
        const sop_mass y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    if (lane == 31) sh.part[tid / 32] = sum;
    meet();
    before = sum - kept[0];
    for (int i = 0; i < threads / 32; i++) {
        if (i < tid / 32) before += sh.part[i];
        all += sh.part[i];
    }
    split_find(0, &index, kept, before, kept[0], split_point(st, all), id);
}

/* Filter the n listed tokens one filter after the other, and draw. */
template <typename T>
SOP_DEV void split_end_list(const split_row<T> &r, const split_head &st, int n, int32_t *id,
                            split_shared &sh)
{
    if (n <= SPLIT_FEW) {
        split_end_few(r, st, n, id, sh);
        return;
    }
    const sop_sampling s = st.s;
    int index[4];
    uint32_t key[4], there[4], above;
    sop_mass w[4], all, own = 0;
    split_take(r, n, index, key, there, sh);
    if (n > s.top_k) {
        const uint32_t cut = split_select(key, there, (uint32_t)s.top_k, 0u, &above, sh);
        split_drop(key, index, there, cut, s.top_k - above, sh);
    }
    for (int e = 0; e < 4; e++)
        own += w[e] = there[e] ? split_weight(st, split_logit(key[e]), sh) : 0;
    if (s.top_p > 0 && s.top_p < 1) {
        (void)split_before(own, &all, sh);
        split_head by_mass = st;
        by_mass.by_count = 0;
        (void)split_cut(by_mass, key, index, w, split_share(s.top_p, all), sh);
    }
    own = 0;
    for (int e = 0; e < 4; e++) own += w[e] = w[e] ? split_kept(st, split_logit(key[e]), sh) : 0;
    const sop_mass before = split_before(own, &all, sh);
    split_find(0, index, w, before, own, split_point(st, all), id);
}

/* ---- first ---- */

/* top_k: a bound of the cut. When the tokens from there on lie in few chunks, list them and end. g: the
 * largest keys of the groups of chunk tid. */
template <typename T>
SOP_DEV int split_begin_listed(const split_args &p, const split_row<T> &r, split_head &st,
                               const uint4 &g, int32_t *id, split_shared &sh)
{
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const uint32_t key[4] = {g.x, g.y, g.z, g.w};
    sop_mass all;
    st.low = split_key(-FLT_MAX);
    if (r.vocab > SPLIT_LIST) {
        uint32_t w[4], above;
        sop_mass own = 0;
        for (int e = 0; e < 4; e++) own += w[e] = key[e] != 0;
        (void)split_before(own, &all, sh);
        if (st.s.top_k > (int64_t)all) return SPLIT_BINNED;
        st.low = split_select(key, w, (uint32_t)st.s.top_k, 64u, &above, sh);
    }
    const bool mine = max(max(g.x, g.y), max(g.z, g.w)) >= st.low;
    const int at = (int)split_before(mine, &all, sh), n = (int)all;
    if (n > SPLIT_NEAR) return SPLIT_BINNED;
    if (mine) sh.chunk[at] = tid;
    __syncthreads();
    for (int first = warp; first < n; first += 64) {
        float z[2][8];
        for (int k = 0; k < 2; k++)
            if (first + 32 * k < n) split_load(r, sh.chunk[first + 32 * k] * 256 + lane * 8, z[k]);
        for (int k = 0; k < 2; k++) {
            if (first + 32 * k >= n) break;
            uint32_t bits = 0;
            for (int e = 0; e < 8; e++) bits |= (split_key(z[k][e]) >= st.low) << e;
            ((uint8_t *)sh.words[first + 32 * k])[lane] = (uint8_t)bits;
        }
    }
    __syncthreads();
    uint32_t words[8] = {0};
    if (tid < n)
#pragma unroll
        for (int i = 0; i < 8; i++) words[i] = sh.words[tid][i];
    const int listed = split_expand(words, tid < n ? sh.chunk[tid] : 0, sh);
    if (listed > SPLIT_LIST) return SPLIT_BINNED;
    split_end_list(r, st, listed, id, sh);
    return SPLIT_DONE;
}

/* What is to be done for a row, whose largest key is top and whose smallest is least. */
template <typename T>
SOP_DEV void split_begin_row(const split_args &p, const split_row<T> &r, uint32_t top,
                             uint32_t least, const uint4 &g, int32_t *id, split_shared &sh)
{
    split_head st = {};
    st.s = sh.s;
    st.uniform = sh.uniform;
    st.max = split_logit(top);
    st.per_bit = 1.4426950408889634 / (double)st.s.temperature;
    st.least = fmin((double)st.s.min_p, 1.0) * SPLIT_ONE; /* the largest weight is 1 */
    /* what is not below it is at most this far: rounded up */
    st.none = __double2float_ru((double)st.max - SPLIT_FAR / st.per_bit) + 0.0f;
    float from = split_logit(least); /* the smallest logit in the bins */
    if (st.s.top_k > 0 && st.s.top_k < r.vocab) {
        st.kind = split_begin_listed(p, r, st, g, id, sh);
        st.by_count = 1;
        from = split_logit(max(least, st.low));
    } else {
        const bool mass = st.s.top_p > 0 && st.s.top_p < 1;
        double far = SPLIT_FAR;
        /* a little more than min_p keeps */
        if (!mass && st.s.min_p > 0) far = fmin(far, 1e-6 - log2(fmin((double)st.s.min_p, 1.0)));
        st.low =
            split_key(fmaxf(__double2float_rd((double)st.max - far / st.per_bit), -FLT_MAX) + 0.0f);
        st.kind = mass ? SPLIT_BINNED : SPLIT_TILES_ALONE;
        from = fmaxf(from, st.none);
    }
    st.bins_per_unit = SPLIT_BINS / fmaxf(st.max - from, 1e-30f);
    if (threadIdx.x > 0 || st.kind == SPLIT_DONE) return;
    r.state->head = st;
    p.rows_left[atomicAdd(p.pending, 1)] = (int)blockIdx.x;
}

template <typename T>
static __global__ __launch_bounds__(SPLIT_THREADS) void sop_sample_split_first(
    const __grid_constant__ split_args p)
{
    enum { AHEAD = 8 / sizeof(T) }; /* tiles whose loads are in flight together */
    __shared__ split_shared sh;
    split_make_powers(sh);
    sop_begin();
    const int64_t b = blockIdx.x;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, parts = gridDim.y;
    uint8_t byte = 0; /* of the row's parameters, which may lie at any address */
    if (tid < sizeof sh.s) byte = ((const uint8_t *)(p.params + b))[tid];
    if (b >= sop_live_rows(p.live, p.d.rows)) return;
    if (tid < sizeof sh.s) ((uint8_t *)&sh.s)[tid] = byte;
    const int from = p.tiles * blockIdx.y / parts, to = p.tiles * (blockIdx.y + 1) / parts;
    const split_row<T> r = split_row_at<T>(p, b);
    bool sampled = false;
    float best = -INFINITY, least = INFINITY; /* of what is finite */
    int at = 0;
    wide_raw<T, 8> next[AHEAD];
    auto fetch = [&](int tile) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (tile + k < to) split_fetch(r, (int64_t)(tile + k) * SPLIT_TILE + tid * 8, next[k]);
    };
    fetch(from);
    __syncthreads(); /* the parameters, while the first tiles come */
    sampled = sh.s.temperature > 0;
    if (tid == SPLIT_THREADS - 1) sh.uniform = sop_uniform_of(sh.s.seed, sh.s.counter);
    for (int tile = from; tile < to; tile += AHEAD) {
        float z[AHEAD][8];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) wide_floats(next[k], z[k]);
        if (tile + AHEAD < to) fetch(tile + AHEAD);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (tile + k >= to) break;
            float top = -INFINITY;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (!isfinite(z[k][e])) z[k][e] = NAN; /* which no extreme takes */
                top = fmaxf(top, z[k][e]);
                least = fminf(least, z[k][e]);
            }
            if (top > best) {
                best = top;
                for (int e = 7; e >= 0; e--)
                    if (z[k][e] == top) at = (tile + k) * SPLIT_TILE + tid * 8 + e;
            }
            if (!sampled) continue;
            for (int o = 1; o < 8; o *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
            if (lane % 8 == 0)
                ((uint32_t *)&r.groups[(tile + k) * 32 + warp])[lane / 8] = split_key(top);
        }
    }
    if (sampled && blockIdx.y == 0)
        for (int i = tid; i < SPLIT_BINS; i += SPLIT_THREADS) r.state->bins[i] = 0;

    /* the largest key at its lowest index, of the block, then of the row */
    auto reduce = [&](sop_mass &top, uint32_t &low) {
        for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
        low = __reduce_min_sync(~0u, low);
    };
    const uint32_t key = split_key(best);
    sop_mass top = key ? (sop_mass)key << 32 | (uint32_t)(INT32_MAX - at) : 0;
    uint32_t below = split_key(least) - 1; /* so that 0 counts for nothing */
    reduce(top, below);
    if (lane == 0) sh.part[warp] = top, sh.low[warp] = below;
    __syncthreads();
    if (warp == 0) {
        top = sh.part[lane], below = sh.low[lane];
        reduce(top, below);
        if (lane == 0) r.state->top[blockIdx.y] = top, r.state->below[blockIdx.y] = below;
    }
    if (!split_last(p.arrived + b, parts, sh)) return;
    uint4 g = {0, 0, 0, 0};
    if (sampled && tid < p.tiles * 32) g = __ldcg(r.groups + tid);
    top = lane < parts ? __ldcg(&r.state->top[lane]) : 0;
    below = lane < parts ? __ldcg(&r.state->below[lane]) : ~0u;
    reduce(top, below);
    if (top && sampled) {
        split_begin_row(p, r, (uint32_t)(top >> 32), below + 1, g, p.ids + b, sh);
    } else if (tid == 0) {
        p.ids[b] = top ? INT32_MAX - (int)(uint32_t)top : -1;
    }
}

/* ---- second ---- */

/* The bin in which the cut lies. */
SOP_DEV void split_end_binned(split_state *state, const split_head &st, split_shared &sh)
{
    const int tid = threadIdx.x;
    const sop_mass a = __ldcg(&state->bins[2 * tid]), b = __ldcg(&state->bins[2 * tid + 1]);
    sop_mass all, before = split_before(a + b, &all, sh);
    const sop_mass target =
        st.by_count ? min((sop_mass)st.s.top_k, all) : split_share(st.s.top_p, all);
    if (before >= target || before + a + b < target) return;
    const bool second = before + a < target;
    if (second) before += a;
    state->head.bin = 2 * tid + second;
    state->head.target = target - before;
    if (!st.by_count) return;
    const sop_mass in_bin = second ? b : a;
    if (before + in_bin <= SPLIT_LIST)
        state->head.kind = SPLIT_LISTED;
    else if (in_bin > SPLIT_LIST || (st.s.top_p > 0 && st.s.top_p < 1))
        state->head.kind = SPLIT_FLOOR;
}

/* Walk over a part of a row: f(tile, index of this thread's first logit, logits). Where no chunk of a
 * warp's has a key that `takes`, nothing is read, and the logits are NaN. */
template <typename T, typename A, typename F>
SOP_DEV void split_walk(const split_args &p, const split_row<T> &r, int part, int parts, A takes,
                        F f)
{
    const int from = p.tiles * part / parts, n = p.tiles * (part + 1) / parts - from;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 g = {0, 0, 0, 0};
    if (lane < n) g = r.groups[(from + lane) * 32 + warp];
    const uint32_t top = max(max(g.x, g.y), max(g.z, g.w));
    const uint32_t reads = __ballot_sync(~0u, lane < n && takes(top));
    wide_raw<T, 8> next;
    auto fetch = [&](int i) { /* on its way while the tile before is looked at */
                              if (reads >> i & 1)
                                  split_fetch(r, (int64_t)(from + i) * SPLIT_TILE + threadIdx.x * 8,
                                              next);
    };
    fetch(0);
    for (int i = 0; i < n; i++) {
        float z[8];
        wide_floats(next, z);
        const bool read = reads >> i & 1;
#pragma unroll
        for (int e = 0; e < 8; e++) z[e] = read && z[e] < INFINITY ? z[e] : NAN;
        if (i + 1 < n) fetch(i + 1);
        f(from + i, z);
    }
}
/* Into sh.tile_mass: the sum over a warp, each at most 2^48. */
SOP_DEV void split_add_tile(int tile, sop_mass own, split_shared &sh)
{
    const uint32_t low = __reduce_add_sync(~0u, (uint32_t)own & 0xffffff);
    const uint32_t high = __reduce_add_sync(~0u, (uint32_t)(own >> 24));
    if (threadIdx.x % 32 == 0 && (low || high))
        split_add(&sh.tile_mass[tile], ((sop_mass)high << 24) + low);
}
/* The masses of this part's tiles to where those of the row are. */
template <typename T>
SOP_DEV void split_put_tiles(const split_args &p, const split_row<T> &r, int part, int parts,
                             const split_shared &sh)
{
    const int tid = threadIdx.x;
    if (tid >= p.tiles * part / parts && tid < p.tiles * (part + 1) / parts)
        r.state->mass[tid] = sh.tile_mass[tid];
}

template <typename T>
SOP_DEV void split_second(const split_args &p, int64_t b, int part, int parts, split_shared &sh)
{
    const split_row<T> r = split_row_at<T>(p, b);
    const int tid = threadIdx.x;
    const split_head st = r.state->head;
    const int kind = st.kind;
    const float low = split_logit(st.low);
    if (tid < SPLIT_MOST_TILES) sh.tile_mass[tid] = 0;
    for (int i = tid; kind == SPLIT_BINNED && i < SPLIT_BINS; i += SPLIT_THREADS) sh.bins[i] = 0;
    __syncthreads();
    split_walk(
        p, r, part, parts, [&](uint32_t top) { return top >= st.low; },
        [&](int tile, const float(&z)[8]) {
            if (kind == SPLIT_TILES_ALONE) {
                sop_mass own = 0;
                for (int e = 0; e < 8; e++) own += z[e] >= low ? split_kept(st, z[e], sh) : 0;
                split_add_tile(tile, own, sh);
                return;
            }
            for (int e = 0; e < 8; e++) {
                if (!(z[e] >= low)) continue;
                sop_mass *bin = &sh.bins[split_bin(st, z[e])];
                if (st.by_count)
                    atomicAdd((uint32_t *)bin, 1u);
                else
                    split_add(bin, split_weight(st, z[e], sh));
            }
        });
    __syncthreads();
    if (kind == SPLIT_TILES_ALONE) split_put_tiles(p, r, part, parts, sh);
    if (kind == SPLIT_BINNED) {
        for (int i = tid; i < SPLIT_BINS; i += SPLIT_THREADS)
            if (sh.bins[i]) atomicAdd(&r.state->bins[i], sh.bins[i]);
    }
    if (!split_last(p.arrived + b, parts, sh)) return;
    if (kind == SPLIT_BINNED) {
        split_end_binned(r.state, st, sh);
    } else {
        if (tid < p.tiles) sh.tile_mass[tid] = __ldcg(&r.state->mass[tid]);
        __syncthreads();
        split_draw(p, r, st, 0, 0, p.ids + b, sh);
        if (tid == 0) r.state->head.kind = SPLIT_DONE;
    }
}

/* f(row, part, parts) for the parts of all rows that are left, dealt to the blocks; how many rows. */
template <typename F> SOP_DEV int split_deal(const split_args &p, F f)
{
    const int n = *p.pending, parts = n ? max(min((int)gridDim.x / n, p.tiles), 1) : 0;
    for (int i = blockIdx.x; i < n * parts; i += gridDim.x) {
        f(p.rows_left[i % n], i / n, parts);
        __syncthreads();
    }
    return n;
}

template <typename T>
static __global__ __launch_bounds__(SPLIT_THREADS) void sop_sample_split_second(
    const __grid_constant__ split_args p)
{
    __shared__ split_shared sh;
    split_make_powers(sh);
    sop_begin();
    (void)split_deal(p,
                     [&](int b, int part, int parts) { split_second<T>(p, b, part, parts, sh); });
}

/* ---- third ---- */

static __device__ __noinline__ int split_floor(const split_args &p, int64_t b, double max,
                                               const sop_sampling &s)
{
    __shared__ double bins[SOP_SAMPLE_BINS], part[34];
    const sop_sample_row r = {p.logits, p.d.x_dtype, b * p.d.logits_stride, (int)p.d.vocab, max};
    return sop_sample_filtered(r, s, bins, part);
}

template <typename T>
SOP_DEV void split_third(const split_args &p, int64_t b, int part, int parts, split_shared &sh)
{
    const split_row<T> r = split_row_at<T>(p, b);
    const int tid = threadIdx.x;
    const split_head st = r.state->head;
    const int kind = st.kind, bin = st.bin;
    const float low = split_logit(st.low);
    if (kind == SPLIT_DONE || (kind == SPLIT_FLOOR && part > 0)) return;
    if (kind == SPLIT_FLOOR) {
        const int id = split_floor(p, b, (double)st.max, st.s);
        if (tid == 0) p.ids[b] = id;
        return;
    }
    if (tid < SPLIT_MOST_TILES) sh.tile_mass[tid] = 0;
    __syncthreads();
    split_walk(
        p, r, part, parts,
        [&](uint32_t top) { return top >= st.low && split_bin(st, split_logit(top)) <= bin; },
        [&](int tile, const float(&z)[8]) {
            uint32_t bits = 0;
            sop_mass own = 0;
            for (int e = 0; e < 8; e++) {
                if (!(z[e] >= low)) continue;
                const int at = split_bin(st, z[e]);
                if (at == bin || (at < bin && kind == SPLIT_LISTED)) bits |= 1u << e;
                if (at < bin && kind == SPLIT_BINNED) own += split_kept(st, z[e], sh);
            }
            r.marks[tile * SPLIT_THREADS + tid] = (uint8_t)bits;
            if (kind == SPLIT_BINNED) split_add_tile(tile, own, sh);
        });
    __syncthreads();
    if (kind == SPLIT_BINNED) split_put_tiles(p, r, part, parts, sh);
    if (!split_last(p.arrived + b, parts, sh)) return;
    const int n = split_expand_marks(p, r, sh);
    if (kind == SPLIT_LISTED) {
        split_end_list(r, st, n, p.ids + b, sh);
        return;
    }
    if (n > SPLIT_LIST) {
        const int id = split_floor(p, b, (double)st.max, st.s);
        if (tid == 0) p.ids[b] = id;
        return;
    }
    int index[4];
    uint32_t key[4], there[4];
    sop_mass w[4];
    split_take(r, n, index, key, there, sh);
    if (tid < p.tiles) sh.tile_mass[tid] = __ldcg(&r.state->mass[tid]);
    for (int e = 0; e < 4; e++) w[e] = there[e] ? split_measure(st, split_logit(key[e]), sh) : 0;
    const uint32_t cut = split_cut(st, key, index, w, st.target, sh);
    for (int e = 0; e < 4; e++)
        if (w[e])
            split_add(&sh.tile_mass[index[e] / SPLIT_TILE],
                      split_kept(st, split_logit(key[e]), sh));
    const int cut_index = sh.index;
    __syncthreads();
    split_draw(p, r, st, cut, cut_index, p.ids + b, sh);
}

template <typename T>
static __global__ __launch_bounds__(SPLIT_THREADS) void sop_sample_split_third(
    const __grid_constant__ split_args p)
{
    __shared__ split_shared sh;
    split_make_powers(sh);
    sop_begin();
    const int n =
        split_deal(p, [&](int b, int part, int parts) { split_third<T>(p, b, part, parts, sh); });
    if (threadIdx.x > 0 || n == 0) return;
    __threadfence();
    if (atomicAdd(p.left, 1) == (int)gridDim.x - 1) *p.pending = *p.left = 0;
}

#endif
