/* A cluster of eight CTAs a row: each keeps its eighth of the logits in shared memory, and all walks over
 * the row go there.
 *
 *   load    global memory once; the largest logit, at its lowest index: greedy ends
 *   filter  top_k, then top_p, each a cut: bins by the distance from the largest count the tokens; they
 *           say in which bin or few bins the cut must lie (of a mass they give two bounds); what lies
 *           there goes to CTA 0, which sorts it and finds the cut. Of a top_k that leaves few tokens
 *           CTA 0 lists all of them, and ends the row alone
 *   draw    the mass of each warp of each tile; the CTA with the draw finds the tile, the warp, the token
 *
 * Where more tokens than fit the list have their logits in so few bins, one CTA does what the floor row
 * does. Weights are made in double and kept as multiples of 2^-44: sums of integers, the same in any
 * order. What weighs less than half of that is not there.
 *
 *   piece   16 bytes of the row, of one thread
 *   tile    512 pieces: thread t has the t-th of each tile of its CTA */
#ifndef OPS_SAMPLE_CLUSTER_SM90_CUH
#define OPS_SAMPLE_CLUSTER_SM90_CUH

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/wide.cuh"
#include "ops/sample/filters.cuh"

typedef unsigned long long sop_mass;

enum {
    CLUSTER = 8, /* CTAs a row */
    CLUSTER_THREADS = 512,
    CLUSTER_WARPS = CLUSTER_THREADS / 32,
    CLUSTER_BINS = 4096,
    CLUSTER_LIST = 2048,
    CLUSTER_MOST_TILES = 16,
    CLUSTER_MOST_VOCAB = 1 << 18, /* an index has 18 bits where it shares a word with a mass */
};

#define CLUSTER_ONE 0x1p44f /* the largest weight; 2^18 of them make less than 2^63 */
#define CLUSTER_FAR 45.0f   /* 2^-45: no weight from this distance on, in powers of 2 */

struct cluster_args {
    sop_sample_desc d;
    const void *logits;
    const sop_sampling *params;
    const int32_t *live;
    int32_t *ids;
};

/* One CTA's memory beside its logits. "All" is what every CTA of the cluster puts into every other's. */
struct cluster_shared {
    union {
        uint32_t bins[CLUSTER_BINS];
        sop_mass list[CLUSTER_LIST]; /* key << 32 | ~index: the larger stands first */
    };
    union {
        uint32_t all_bins[CLUSTER_BINS];
        struct {
            double floor_bins[SOP_SAMPLE_BINS], floor_part[34];
        };
    };
    sop_mass sums[CLUSTER_MOST_TILES * CLUSTER_WARPS]; /* of tiles and warps */
    sop_mass part[CLUSTER_WARPS];
    double power[32];          /* 2^44 of 2^(-i / 32) */
    sop_mass all_top[CLUSTER]; /* the largest key and its index */
    float all_least[CLUSTER];
    sop_mass all_mass[CLUSTER];  /* of what survives */
    sop_mass all_above[CLUSTER]; /* of this, what lies before the window */
    int all_listed[CLUSTER];
    sop_sampling s;
    uint32_t key[CLUSTER_WARPS]; /* scratch of reductions */
    int listed, first_bin, last_bin, before, index;
    sop_mass over;
    float cut;
    int cut_index;
};

/* What all threads of the cluster know of a row. */
struct cluster_row {
    float max, per_bit;  /* the largest logit; log2(e) / temperature */
    float bins_per_unit; /* of logits */
    double bits;         /* per_bit, exactly enough for weights */
    double least;        /* the least weight that min_p keeps, in units */
    float cut;           /* a larger logit survives, and of those equal the ones */
    int cut_index;       /* up to this index */
};

/* One CTA's part of a row. */
template <typename T> struct cluster_part {
    const uint4 *pieces;
    int first, n; /* its first element's index; its pieces */
};

SOP_DEV int cluster_rank(void)
{
    return blockIdx.x % CLUSTER;
}
/* The same variable of another CTA's shared memory. */
template <typename V> SOP_DEV V *cluster_peer(V *mine, int rank)
{
    V *theirs;
    asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
    return theirs;
}
/* Put a value into all CTAs of the cluster; eight threads from `thread` on. */
template <typename V> SOP_DEV void cluster_tell(V *mine, V value, int thread)
{
    const int at = (int)threadIdx.x - thread;
    if (at >= 0 && at < CLUSTER) *cluster_peer(mine, at) = value;
}

/* The sum over the threads before this one, and over all. */
template <typename V> SOP_DEV V cluster_before(V own, V *all, cluster_shared &sh)
{
    V *part = (V *)sh.part;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    V sum = own;
    for (int o = 1; o < 32; o *= 2) {
        const V y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    __syncthreads();
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    V total = 0, before = 0;
    for (int w = 0; w < CLUSTER_WARPS; w++) {
        if (w == warp) before = total;
        total += part[w];
    }
    *all = total;
    return before + sum - own;
}

/* Walk over this thread's pieces, f(tile, index of the first element, elements): all threads of a warp
 * come to every tile; what is not there is NaN. */
template <typename T, typename F> SOP_DEV void cluster_walk(const cluster_part<T> &part, F f)
{
    enum { N = wide<T>::N };
    for (int tile = 0; tile * CLUSTER_THREADS < part.n; tile++) {
        const int at = tile * CLUSTER_THREADS + threadIdx.x;
        float z[N];
        if (at < part.n) {
            wide_load((const T *)(part.pieces + at), z);
        } else {
            for (int e = 0; e < N; e++) z[e] = NAN;
        }
        f(tile, part.first + at * N, z);
    }
}

/* Whether a logit has a weight; not one that is not finite. */
SOP_DEV bool cluster_within(const cluster_row &r, float z)
{
    const float d = r.max - z;
    return d >= 0 && d * r.per_bit < CLUSTER_FAR;
}
SOP_DEV bool cluster_survives(const cluster_row &r, float z, int i)
{
    return z > r.cut || (z == r.cut && i <= r.cut_index);
}
SOP_DEV int cluster_bin(const cluster_row &r, float z)
{
    return min((int)((r.max - z) * r.bins_per_unit), CLUSTER_BINS - 1);
}

/* 2^44 of the weight of a logit that is within: of t powers of two down, 32 t to the nearest makes an
 * entry of the table and an exponent; 2^-r of the rest, at most 1/64, is off by 2^-48. */
SOP_DEV double cluster_scaled(const cluster_row &r, float z, const cluster_shared &sh)
{
    const double t = ((double)r.max - (double)z) * r.bits;
    const double shifted = fma(t, 32.0, 0x1.8p52);
    const int k = __double2loint(shifted);
    const double rest = fma(shifted - 0x1.8p52, -1.0 / 32, t);
    double p = -0x1.5d87fe78a6730p-10;       /* -ln(2)^5 / 120 */
    p = fma(p, rest, 0x1.3b2ab6fba4e77p-7);  /* ln(2)^4 / 24 */
    p = fma(p, rest, -0x1.c6b08d704a0bfp-5); /* -ln(2)^3 / 6 */
    p = fma(p, rest, 0x1.ebfbdff82c58ep-3);  /* ln(2)^2 / 2 */
    p = fma(p, rest, -0x1.62e42fefa39efp-1); /* -ln(2) */
    p = fma(p, rest, 1.0);
    const double power = sh.power[k & 31];
    return p * __hiloint2double(__double2hiint(power) - (k >> 5 << 20), __double2loint(power));
}
/* A scaled weight, below 2^51, as a count. */
SOP_DEV sop_mass cluster_count(double scaled)
{
    return (sop_mass)(__double_as_longlong(scaled + 0x1p52) & ((1ll << 52) - 1));
}
/* The weight of a logit after min_p; 0 of one that is not within. */
SOP_DEV sop_mass cluster_kept(const cluster_row &r, float z, const cluster_shared &sh)
{
    const double w = cluster_scaled(r, z, sh);
    return w < r.least ? 0 : cluster_count(w);
}

/* The least mass that is at least top_p of all; 1 to all. */
SOP_DEV sop_mass cluster_share(float top_p, sop_mass all)
{
    return max(min(__double2ull_ru((double)top_p * (double)all), all), (sop_mass)1);
}
/* The draw is the first token with more mass up to it than this. */
SOP_DEV sop_mass cluster_point(const sop_sampling &s, sop_mass all)
{
    const double u = sop_uniform_of(s.seed, s.counter);
    return min(__double2ull_rd(u * (double)all), all - 1);
}

/* A float's key (sop_sample_key) back. */
SOP_DEV float cluster_logit(sop_mass entry)
{
    const uint32_t key = (uint32_t)(entry >> 32);
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

/* ---- load ---- */

/* The CTA's part into shared memory; NaN behind the row's end. Each thread brings what it walks over. */
template <typename T>
SOP_DEV cluster_part<T> cluster_load(const cluster_args &p, int64_t b, uint4 *pieces)
{
    enum { N = wide<T>::N };
    const T *row = (const T *)p.logits + b * p.d.logits_stride;
    const bool aligned = ((uintptr_t)row & 15) == 0;
    const int vocab = (int)p.d.vocab, of_row = (vocab + N - 1) / N;
    const int each = (of_row + CLUSTER - 1) / CLUSTER, first = cluster_rank() * each;
    const cluster_part<T> part = {pieces, first * N, max(min(each, of_row - first), 0)};
    for (int at = threadIdx.x; at < part.n; at += CLUSTER_THREADS) {
        const int i = part.first + at * N;
        if (aligned && i + N <= vocab) {
            sop_copy_async(pieces + at, row + i, 16);
        } else {
            T *to = (T *)(pieces + at);
            for (int e = 0; e < N; e++) to[e] = i + e < vocab ? row[i + e] : sop_from_float<T>(NAN);
        }
    }
    sop_copy_commit();
    sop_copy_wait<0>();
    return part;
}

/* The largest finite logit and its lowest index, as an entry of the list; 0 where there is none. Also
 * the smallest. All threads of the cluster get them. */
template <typename T>
SOP_DEV sop_mass cluster_top(const cluster_part<T> &part, float *smallest, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float best = -INFINITY, least = INFINITY;
    int at = 0;
    cluster_walk(part, [&](int, int i, const float(&z)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (!(fabsf(z[e]) < INFINITY)) continue;
            least = fminf(least, z[e]);
            if (z[e] > best) best = z[e], at = i + e;
        }
    });
    sop_mass top =
        best > -INFINITY ? (sop_mass)sop_sample_key(best + 0.0f) << 32 | (uint32_t)~at : 0;
    for (int o = 16; o > 0; o /= 2) {
        top = max(top, __shfl_xor_sync(~0u, top, o));
        least = fminf(least, __shfl_xor_sync(~0u, least, o));
    }
    if (lane == 0) sh.part[warp] = top, sh.key[warp] = __float_as_uint(least);
    __syncthreads();
    if (warp == 0) {
        top = sh.part[lane % CLUSTER_WARPS], least = __uint_as_float(sh.key[lane % CLUSTER_WARPS]);
        for (int o = CLUSTER_WARPS / 2; o > 0; o /= 2) {
            top = max(top, __shfl_xor_sync(~0u, top, o));
            least = fminf(least, __shfl_xor_sync(~0u, least, o));
        }
        cluster_tell(&sh.all_top[cluster_rank()], top, 0);
        cluster_tell(&sh.all_least[cluster_rank()], least, 0);
    }
    cluster_sync();
    for (int i = 0; i < CLUSTER; i++) {
        top = max(top, sh.all_top[i]);
        least = fminf(least, sh.all_least[i]);
    }
    *smallest = least;
    return top;
}

/* ---- filter ---- */

/* How many survivors lie in each bin of the row, into sh.all_bins of all CTAs: each adds up an eighth. */
template <typename T>
SOP_DEV void cluster_bins(const cluster_row &r, const cluster_part<T> &part, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    for (int i = threadIdx.x; i < CLUSTER_BINS; i += CLUSTER_THREADS) sh.bins[i] = 0;
    __syncthreads();
    cluster_walk(part, [&](int, int i, const float(&z)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (cluster_within(r, z[e]) && cluster_survives(r, z[e], i + e))
                atomicAdd(&sh.bins[cluster_bin(r, z[e])], 1u);
    });
    cluster_sync();
    for (int i = threadIdx.x; i < CLUSTER_BINS / CLUSTER; i += CLUSTER_THREADS) {
        const int bin = cluster_rank() * (CLUSTER_BINS / CLUSTER) + i;
        uint32_t sum = 0;
        for (int from = 0; from < CLUSTER; from++) sum += *cluster_peer(&sh.bins[bin], from);
        for (int to = 0; to < CLUSTER; to++) *cluster_peer(&sh.all_bins[bin], to) = sum;
    }
    cluster_sync();
}

/* The bin of the k-th survivor, and how many lie before it; false when there are not more than k. */
SOP_DEV bool cluster_bin_of_count(uint32_t k, cluster_shared &sh)
{
    enum { EACH = CLUSTER_BINS / CLUSTER_THREADS };
    const uint32_t *bins = sh.all_bins + threadIdx.x * EACH;
    uint32_t own = 0, all;
    for (int i = 0; i < EACH; i++) own += bins[i];
    uint32_t before = cluster_before(own, &all, sh);
    if (k >= all) return false;
    if (before < k && before + own >= k) {
        int bin = 0;
        for (; before + bins[bin] < k; bin++) before += bins[bin];
        sh.first_bin = sh.last_bin = (int)threadIdx.x * EACH + bin;
        sh.before = (int)before;
    }
    __syncthreads();
    return true;
}

/* The bins in which the cut of top_p must lie. A bin's mass is its count times the weights at its ends,
 * a little further out for what roundings do. The cut lies at the first bin where
 *     (1 - top_p) * (mass up to it) >= top_p * (mass behind it) */
SOP_DEV void cluster_bins_of_mass(const cluster_row &r, float top_p, cluster_shared &sh)
{
    enum { EACH = CLUSTER_BINS / CLUSTER_THREADS };
    const int first = (int)threadIdx.x * EACH;
    const float step = r.per_bit / r.bins_per_unit;
    float low[EACH], high[EACH];
    double own_low = 0, own_high = 0, all_low, all_high;
    if (threadIdx.x == 0) sh.first_bin = sh.last_bin = CLUSTER_BINS - 1;
    for (int i = 0; i < EACH; i++) {
        const float n = (float)sh.all_bins[first + i], bin = (float)(first + i);
        low[i] = n * exp2f(-(bin + 1.02f) * step) * (1 - 1e-5f);
        high[i] = n * exp2f(-fmaxf(bin - 0.02f, 0.0f) * step) * (1 + 1e-5f);
        own_low += (double)low[i];
        own_high += (double)high[i];
    }
    double up_to_low = cluster_before(own_low, &all_low, sh);
    double up_to_high = cluster_before(own_high, &all_high, sh);
    const double p = (double)top_p;
    bool may = false, must = false;
    for (int i = 0; i < EACH; i++) {
        up_to_low += (double)low[i];
        up_to_high += (double)high[i];
        if (!may && (1 - p) * up_to_high >= p * (all_low - up_to_low)) {
            may = true;
            atomicMin(&sh.first_bin, first + i);
        }
        if (!must && (1 - p) * up_to_low >= p * (all_high - up_to_high)) {
            must = true;
            atomicMin(&sh.last_bin, first + i);
        }
    }
    __syncthreads();
}

/* List the survivors of bins from..to; each CTA its own, how many: in all CTAs. */
template <typename T>
SOP_DEV void cluster_list(const cluster_row &r, const cluster_part<T> &part, int from, int to,
                          cluster_shared &sh)
{
    enum { N = wide<T>::N };
    if (threadIdx.x == 0) sh.listed = 0;
    __syncthreads();
    cluster_walk(part, [&](int, int i, const float(&z)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (!cluster_within(r, z[e]) || !cluster_survives(r, z[e], i + e)) continue;
            const int bin = cluster_bin(r, z[e]);
            if (bin < from || bin > to) continue;
            const int at = atomicAdd(&sh.listed, 1);
            if (at < CLUSTER_LIST)
                sh.list[at] = (sop_mass)sop_sample_key(z[e] + 0.0f) << 32 | (uint32_t) ~(i + e);
        }
    });
    __syncthreads();
    cluster_tell(&sh.all_listed[cluster_rank()], sh.listed, 0);
}

/* The larger entries first, of n up to the size of the list; what lies behind them becomes 0. Each step
 * of 64 entries and less stays in a warp. */
SOP_DEV void cluster_sort(int n, cluster_shared &sh)
{
    const int tid = threadIdx.x;
    int size = 64;
    while (size < n) size *= 2;
    __syncthreads();
    for (int i = n + tid; i < CLUSTER_LIST; i += CLUSTER_THREADS) sh.list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int far = run / 2; far > 0; far /= 2) {
            for (int pair = tid; pair < size / 2; pair += CLUSTER_THREADS) {
                const int i = 2 * pair - (pair & (far - 1)), j = i + far;
                const sop_mass a = sh.list[i], b = sh.list[j];
                if ((a < b) == ((i & run) == 0)) sh.list[i] = b, sh.list[j] = a;
            }
            if (far > 32 || (far == 1 && run >= 64))
                __syncthreads();
            else
                __syncwarp();
        }
}

/* CTA 0: bring what the others listed behind its own; then sort it. How many. */
SOP_DEV int cluster_gather(cluster_shared &sh)
{
    int n = sh.all_listed[0];
    for (int from = 1; from < CLUSTER; from++) {
        const sop_mass *theirs = cluster_peer(sh.list, from);
        const int more = sh.all_listed[from];
        for (int i = threadIdx.x; i < more; i += CLUSTER_THREADS) sh.list[n + i] = theirs[i];
        n += more;
    }
    cluster_sort(n, sh);
    return n;
}

/* CTA 0: all n tokens down to the k-th at least are listed: filter them, and draw. */
SOP_DEV void cluster_end_list(const cluster_row &r, int n, int32_t *id, cluster_shared &sh)
{
    enum { EACH = CLUSTER_LIST / CLUSTER_THREADS };
    const sop_sampling s = sh.s;
    const int first = (int)threadIdx.x * EACH;
    sop_mass entry[EACH], w[EACH], kept[EACH], own = 0, all;
    n = min(n, s.top_k);
    for (int e = 0; e < EACH; e++) {
        entry[e] = first + e < n ? sh.list[first + e] : 0;
        w[e] = kept[e] = 0;
        if (entry[e]) {
            const double scaled = cluster_scaled(r, cluster_logit(entry[e]), sh);
            w[e] = cluster_count(scaled);
            if (scaled >= r.least) kept[e] = w[e];
        }
        own += w[e];
    }
    sop_mass before = cluster_before(own, &all, sh); /* and all have read the list */
    const sop_mass target = s.top_p > 0 && s.top_p < 1 ? cluster_share(s.top_p, all) : all;
    for (int e = 0; e < EACH; e++) { /* in the order of indices: 18 bits of one, 45 of a weight */
        const uint32_t index = ~(uint32_t)entry[e];
        sh.list[first + e] = before < target && kept[e]
                                 ? (sop_mass)(CLUSTER_MOST_VOCAB - 1 - index) << 45 | kept[e]
                                 : 0;
        before += w[e];
    }
    cluster_sort(n, sh);
    own = 0;
    for (int e = 0; e < EACH; e++) {
        entry[e] = sh.list[first + e];
        kept[e] = entry[e] & ((1ull << 45) - 1);
        own += kept[e];
    }
    before = cluster_before(own, &all, sh);
    const sop_mass point = cluster_point(s, all);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (point >= before && point < before + kept[e])
            *id = CLUSTER_MOST_VOCAB - 1 - (int)(entry[e] >> 45);
        before += kept[e];
    }
}

/* CTA 0: of n listed tokens the first at which the measure, counts or masses, from `before` on reaches the
 * target; its logit and index go to all CTAs. */
SOP_DEV void cluster_find_cut(const cluster_row &r, int n, bool by_mass, sop_mass before,
                              sop_mass target, cluster_shared &sh)
{
    enum { EACH = CLUSTER_LIST / CLUSTER_THREADS };
    const int first = (int)threadIdx.x * EACH;
    sop_mass w[EACH], own = 0, all;
    for (int e = 0; e < EACH; e++) {
        w[e] = 0;
        if (first + e < n)
            w[e] = by_mass ? cluster_count(cluster_scaled(r, cluster_logit(sh.list[first + e]), sh))
                           : 1;
        own += w[e];
    }
    if (threadIdx.x == 0) sh.index = n - 1;
    before += cluster_before(own, &all, sh);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (before < target && before + w[e] >= target) sh.index = first + e;
        before += w[e];
    }
    __syncthreads();
    const sop_mass entry = sh.list[sh.index];
    cluster_tell(&sh.cut, cluster_logit(entry), 0);
    cluster_tell(&sh.cut_index, (int)~(uint32_t)entry, 0);
}

/* The mass of all survivors, and of those before a bin; of the row. */
template <typename T>
SOP_DEV void cluster_masses(const cluster_row &r, const cluster_part<T> &part, int bin,
                            sop_mass *all, sop_mass *above, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    sop_mass own = 0, own_above = 0, sum, sum_above;
    cluster_walk(part, [&](int, int i, const float(&z)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (!cluster_within(r, z[e]) || !cluster_survives(r, z[e], i + e)) continue;
            const sop_mass w = cluster_count(cluster_scaled(r, z[e], sh));
            own += w;
            if (cluster_bin(r, z[e]) < bin) own_above += w;
        }
    });
    (void)cluster_before(own, &sum, sh);
    (void)cluster_before(own_above, &sum_above, sh);
    cluster_tell(&sh.all_mass[cluster_rank()], sum, 0);
    cluster_tell(&sh.all_above[cluster_rank()], sum_above, 0);
    cluster_sync();
    *all = *above = 0;
    for (int i = 0; i < CLUSTER; i++) {
        *all += sh.all_mass[i];
        *above += sh.all_above[i];
    }
}

/* ---- draw ---- */

template <typename T>
SOP_DEV void cluster_draw(const cluster_row &r, const cluster_part<T> &part, int32_t *id,
                          cluster_shared &sh)
{
    enum { N = wide<T>::N };
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    auto kept = [&](float z, int i) {
        return cluster_within(r, z) && cluster_survives(r, z, i) ? cluster_kept(r, z, sh) : 0;
    };
    cluster_walk(part, [&](int tile, int i, const float(&z)[N]) {
        sop_mass own = 0;
#pragma unroll
        for (int e = 0; e < N; e++) own += kept(z[e], i + e);
        /* up to 8 weights of 2^44, in pieces of 24 bits */
        const uint32_t low = __reduce_add_sync(~0u, (uint32_t)own & 0xffffff);
        const uint32_t high = __reduce_add_sync(~0u, (uint32_t)(own >> 24));
        if (lane == 0) sh.sums[tile * CLUSTER_WARPS + warp] = ((sop_mass)high << 24) + low;
    });
    __syncthreads();
    const int tiles = (part.n + CLUSTER_THREADS - 1) / CLUSTER_THREADS;
    const sop_mass own = tid < tiles * CLUSTER_WARPS ? sh.sums[tid] : 0;
    sop_mass mass, all = 0, before = cluster_before(own, &mass, sh);
    cluster_tell(&sh.all_mass[cluster_rank()], mass, 0);
    cluster_sync();
    for (int i = 0; i < CLUSTER; i++) {
        if (i < cluster_rank()) before += sh.all_mass[i];
        all += sh.all_mass[i];
    }
    const sop_mass point = cluster_point(sh.s, all);
    if (tid == 0) sh.index = -1;
    __syncthreads();
    if (point >= before && point < before + own) {
        sh.index = tid;
        sh.over = before;
    }
    __syncthreads();
    if (sh.index < 0 || warp > 0) return;
    const int at =
        sh.index / CLUSTER_WARPS * CLUSTER_THREADS + sh.index % CLUSTER_WARPS * 32 + lane;
    const int i = part.first + at * N;
    float z[N];
    sop_mass w[N], sum = 0;
    for (int e = 0; e < N; e++) z[e] = NAN;
    if (at < part.n) wide_load((const T *)(part.pieces + at), z);
    for (int e = 0; e < N; e++) sum += w[e] = kept(z[e], i + e);
    const sop_mass mine = sum;
    for (int o = 1; o < 32; o *= 2) {
        const sop_mass y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    before = sh.over + sum - mine;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (point >= before && point < before + w[e]) *id = i + e;
        before += w[e];
    }
}

/* ---- all of it ---- */

static __device__ __noinline__ void cluster_floor(const cluster_args &p, int64_t b, double max,
                                                  int32_t *id, cluster_shared &sh)
{
    const sop_sample_row row = {p.logits, p.d.x_dtype, b * p.d.logits_stride, (int)p.d.vocab, max};
    const int drawn = sop_sample_filtered(row, sh.s, sh.floor_bins, sh.floor_part);
    if (threadIdx.x == 0) *id = drawn;
}

/* Narrow the cut by top_k or by top_p; true when the row has ended. All CTAs come to the same ends. */
template <typename T>
SOP_DEV bool cluster_filter(const cluster_args &p, int64_t b, cluster_row &r,
                            const cluster_part<T> &part, bool by_mass, cluster_shared &sh)
{
    cluster_bins(r, part, sh);
    sop_mass all = 0, above = 0;
    bool ends = false;
    if (by_mass) {
        cluster_bins_of_mass(r, sh.s.top_p, sh);
        cluster_masses(r, part, sh.first_bin, &all, &above, sh);
    } else {
        if (!cluster_bin_of_count((uint32_t)sh.s.top_k, sh)) return false;
        above = (sop_mass)sh.before;
        ends = sh.before + (int)sh.all_bins[sh.last_bin] <= CLUSTER_LIST;
    }
    cluster_list(r, part, ends ? 0 : sh.first_bin, sh.last_bin, sh);
    cluster_sync();
    int n = 0;
    for (int i = 0; i < CLUSTER; i++) n += sh.all_listed[i];
    if (n > CLUSTER_LIST) { /* the others leave */
        if (cluster_rank() == 0) cluster_floor(p, b, (double)r.max, p.ids + b, sh);
        return true;
    }
    if (cluster_rank() == 0) {
        n = cluster_gather(sh);
        if (!ends) {
            const sop_mass target = by_mass ? cluster_share(sh.s.top_p, all) : (sop_mass)sh.s.top_k;
            cluster_find_cut(r, n, by_mass, above, target, sh);
        }
    }
    cluster_sync(); /* until CTA 0 has read their lists */
    if (ends && cluster_rank() == 0) cluster_end_list(r, n, p.ids + b, sh);
    r.cut = sh.cut;
    r.cut_index = sh.cut_index;
    return ends;
}

template <typename T>
static __global__ __launch_bounds__(CLUSTER_THREADS, 2) void sop_sample_cluster(
    const __grid_constant__ cluster_args p)
{
    extern __shared__ uint4 pieces[];
    __shared__ cluster_shared sh;
    const int tid = threadIdx.x;
    const int64_t b = blockIdx.x / CLUSTER;
    if (tid < 32) sh.power[tid] = exp2(44 - tid / 32.0);
    sop_begin();
    if (b >= sop_live_rows(p.live, p.d.rows)) return;
    if (tid < sizeof sh.s) /* it may lie at any address */
        ((uint8_t *)&sh.s)[tid] = ((const uint8_t *)(p.params + b))[tid];
    const cluster_part<T> part = cluster_load<T>(p, b, pieces);
    float least;
    const sop_mass top = cluster_top(part, &least, sh);
    if (!top || !(sh.s.temperature > 0)) {
        if (cluster_rank() == 0 && tid == 0) p.ids[b] = top ? (int)~(uint32_t)top : -1;
        return;
    }
    cluster_row r;
    r.max = cluster_logit(top);
    r.bits = 1.4426950408889634 / (double)sh.s.temperature;
    r.per_bit = (float)fmin(r.bits, 1e38);
    r.least = fmin((double)sh.s.min_p, 1.0) * (double)CLUSTER_ONE; /* the largest weight is 1 */
    r.bins_per_unit = CLUSTER_BINS / fmaxf(fminf(r.max - least, CLUSTER_FAR / r.per_bit), 1e-30f);
    r.cut = -INFINITY;
    r.cut_index = 0;
    if (sh.s.top_k > 0 && sh.s.top_k < p.d.vocab && cluster_filter(p, b, r, part, false, sh))
        return;
    if (sh.s.top_p > 0 && sh.s.top_p < 1 && cluster_filter(p, b, r, part, true, sh)) return;
    cluster_draw(r, part, p.ids + b, sh);
}

#endif
