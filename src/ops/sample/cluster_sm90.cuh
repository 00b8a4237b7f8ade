/* A cluster of eight CTAs a row: each keeps its eighth of the logits in shared memory, and all walks over
 * the row go there.
 *
 *   load    global memory once; the largest logit, at its lowest index: greedy ends
 *   filter  top_k, then top_p, each a cut: tokens are counted in bins of their distance from the largest,
 *           which say between which two logits the cut must lie (of a mass the counts give bounds); what
 *           lies there goes to CTA 0, which sorts it and finds the cut. Of a top_k that leaves few tokens
 *           CTA 0 gets all of them, and ends the row alone; there the largest logits of threads are
 *           counted in place of all: as many of them are no less tokens
 *   draw    the mass of each warp of each tile; the CTA with the draw finds the tile, the warp, the token
 *
 * Where more tokens than fit the list lie so close, one CTA does what the floor row does. Weights are made
 * in double and kept as multiples of 2^-44: sums of integers, the same in any order. What weighs less than
 * half of that is not there.
 *
 * CTAs do not wait for each other at barriers, whose fences take longer than all else: what one has for
 * another arrives by itself, and counts its bytes on a mailbox there.
 *
 *   piece   16 bytes of the row, of one thread
 *   tile    512 pieces: thread t has the t-th of each tile of its CTA */
#ifndef OPS_SAMPLE_CLUSTER_SM90_CUH
#define OPS_SAMPLE_CLUSTER_SM90_CUH

#include <cfloat>

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
    CLUSTER_SHARE = CLUSTER_BINS / CLUSTER, /* bins that a CTA adds up */
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

/* One CTA's memory beside its logits. What begins with `all` has a place for each CTA of the cluster. */
struct cluster_shared {
    alignas(16) uint32_t bins[CLUSTER_BINS]; /* this CTA's counts, then those of the row */
    union {
        alignas(
            16) uint32_t inbox[CLUSTER][CLUSTER_SHARE]; /* all counts of this CTA's share of bins */
        sop_mass list[CLUSTER_LIST]; /* key << 32 | ~index: the larger stands first */
        struct {
            double floor_bins[SOP_SAMPLE_BINS], floor_part[34];
        };
    };
    alignas(16) uint32_t share[CLUSTER_SHARE];
    double power[16];                                  /* 2^44 of 2^(-i / 16) */
    sop_mass sums[CLUSTER_MOST_TILES * CLUSTER_WARPS]; /* of tiles and warps */
    sop_mass part[CLUSTER_WARPS], over;
    sop_mass all_top[CLUSTER];    /* the largest key and its index */
    sop_mass all_least[CLUSTER];  /* the smallest logit, and the smallest of threads' largest */
    sop_mass all_mass[CLUSTER];   /* of what survives */
    sop_mass all_above[CLUSTER];  /* of this, what lies before the window */
    sop_mass all_listed[CLUSTER]; /* tokens */
    sop_mass cut;                 /* as an entry of the list */
    sop_mass mailbox[2], lists,
        cuts; /* barriers: of what goes from all to all, to CTA 0, from it */
    sop_mass low[CLUSTER_WARPS];
    sop_sampling s;
    int listed, first_bin, last_bin, before, index;
};

/* What all threads of the cluster know of a row. */
struct cluster_row {
    float max;           /* the largest logit */
    float bins_per_unit; /* of logits */
    double per_bit;      /* log2(e) / temperature */
    double least;        /* the least weight that min_p keeps, in units */
    float cut;           /* a larger logit survives, and of those equal the ones */
    int cut_index;       /* up to this index */
    float summed;        /* the mass of larger logits is in sh.sums; inf: none */
};

/* One CTA's part of a row. */
template <typename T> struct cluster_part {
    uint4 *pieces;
    int first, n; /* its first element's index; its pieces */
    int of_row;   /* pieces of all */
};

SOP_DEV int cluster_rank(void)
{
    return blockIdx.x % CLUSTER;
}
/* An address of this CTA's shared memory in another CTA of the cluster. */
SOP_DEV uint32_t cluster_peer(uint32_t addr, int cta)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(addr), "r"(cta));
    return there;
}
/* Puts a value at the place of `to` in a CTA, and counts 8 bytes on its barrier. */
SOP_DEV void cluster_send(sop_mass *to, sop_mass value, sop_mass *bar, int cta)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                     cluster_peer(smem_addr(to), cta)),
                 "l"(value), "r"(cluster_peer(smem_addr(bar), cta))
                 : "memory");
}
/* The same of CLUSTER_SHARE counts, which lie here. */
SOP_DEV void cluster_send_share(uint32_t *to, const uint32_t *from, sop_mass *bar, int cta)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                 "[%1], %2, [%3];" ::"r"(cluster_peer(smem_addr(to), cta)),
                 "r"(smem_addr(from)), "r"(CLUSTER_SHARE * 4),
                 "r"(cluster_peer(smem_addr(bar), cta))
                 : "memory");
}

/* Exchanges from all to all, one after another, in the same order in all CTAs. Two barriers take turns: no
 * CTA is further ahead of another than the exchange that this one waits for. */
struct cluster_post {
    cluster_shared *sh;
    int n;
    __device__ __forceinline__ sop_mass *bar(void)
    {
        return &sh->mailbox[n & 1];
    }
    /* By all threads, before or after what is sent; bytes that come to each CTA. */
    __device__ __forceinline__ void wait(uint32_t bytes)
    {
        if (threadIdx.x == 0) mbar_expect_tx(smem_addr(bar()), bytes);
        mbar_wait(smem_addr(bar()), n >> 1 & 1);
        n++;
    }
    /* By threads 0 to 7 at least: this CTA's value to its place in all. */
    __device__ __forceinline__ void tell(sop_mass (&all)[CLUSTER], sop_mass value)
    {
        if (threadIdx.x < CLUSTER) cluster_send(&all[cluster_rank()], value, bar(), threadIdx.x);
    }
};

/* The sum over the threads before this one, and over all. */
template <typename V> SOP_DEV V cluster_before(V own, V *all, cluster_shared &sh)
{
    V *part = (V *)sh.part;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto scan = [&](V x) {
        for (int o = 1; o < 32; o *= 2) {
            const V y = __shfl_up_sync(~0u, x, o);
            if (lane >= o) x += y;
        }
        return x;
    };
    const V sum = scan(own);
    __syncthreads(); /* part has been read */
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    const V warps = scan(lane < CLUSTER_WARPS ? part[lane] : 0);
    const V before = __shfl_sync(~0u, warps, max(warp - 1, 0));
    *all = __shfl_sync(~0u, warps, 31);
    return (warp ? before : 0) + sum - own;
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

/* Of what the top of the row has left: no logit is inf. */
SOP_DEV bool cluster_survives(const cluster_row &r, float z, int i)
{
    return z > r.cut || (z == r.cut && i <= r.cut_index);
}
SOP_DEV int cluster_bin(const cluster_row &r, float z)
{
    return min((int)((r.max - z) * r.bins_per_unit), CLUSTER_BINS - 1);
}

/* 2^44 of the weight of a survivor: of t powers of two down, 16 t to the nearest makes an entry of the
 * table and an exponent; 2^-r of the rest, at most 1/32, is off by 2^-51. */
SOP_DEV double cluster_scaled(const cluster_row &r, float z, const cluster_shared &sh)
{
    const double t = ((double)r.max - (double)z) * r.per_bit;
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
/* A scaled weight, below 2^51, as a count. */
SOP_DEV sop_mass cluster_count(double scaled)
{
    return (sop_mass)(__double_as_longlong(scaled + 0x1p52) & ((1ll << 52) - 1));
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
SOP_DEV cluster_part<T> cluster_load(const cluster_args &p, int64_t b, int64_t n, uint4 *pieces)
{
    enum { N = wide<T>::N };
    const T *row = (const T *)p.logits + b * p.d.logits_stride;
    const bool aligned = ((uintptr_t)row & 15) == 0;
    const int vocab = (int)n, of_row = (vocab + N - 1) / N;
    const int each = (of_row + CLUSTER - 1) / CLUSTER, first = cluster_rank() * each;
    const cluster_part<T> part = {pieces, first * N, max(min(each, of_row - first), 0), of_row};
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

/* The largest finite logit and its lowest index, as an entry of the list; 0 where there is none. All
 * threads of the cluster get it, and the smallest logit; sh.s is there. best: the thread's largest;
 * of_best: the smallest of these. What is inf becomes NaN, which survives nothing. */
template <typename T>
SOP_DEV sop_mass cluster_top(const cluster_part<T> &part, float *best, float *smallest,
                             float *of_best, cluster_post &post, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = -INFINITY, least = INFINITY;
    int at = 0;
    cluster_walk(part, [&](int tile, int i, const float(&z)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (z[e] == INFINITY)
                ((T *)(part.pieces + tile * CLUSTER_THREADS + threadIdx.x))[e] =
                    sop_from_float<T>(NAN);
            if (!(fabsf(z[e]) < INFINITY)) continue;
            least = fminf(least, z[e]);
            if (z[e] > most) most = z[e], at = i + e;
        }
    });
    *best = most;
    sop_mass top =
        most > -INFINITY ? (sop_mass)sop_sample_key(most + 0.0f) << 32 | (uint32_t)~at : 0;
    float least_best = most > -INFINITY ? most : INFINITY;
    for (int o = 16; o > 0; o /= 2) {
        top = max(top, __shfl_xor_sync(~0u, top, o));
        least = fminf(least, __shfl_xor_sync(~0u, least, o));
        least_best = fminf(least_best, __shfl_xor_sync(~0u, least_best, o));
    }
    auto both = [](float a, float b) {
        return (sop_mass)__float_as_uint(a) << 32 | __float_as_uint(b);
    };
    auto take = [&](sop_mass x) {
        least = fminf(least, __uint_as_float((uint32_t)(x >> 32)));
        least_best = fminf(least_best, __uint_as_float((uint32_t)x));
    };
    if (lane == 0) sh.part[warp] = top, sh.low[warp] = both(least, least_best);
    __syncthreads();
    if (warp == 0) {
        for (int w = 0; w < CLUSTER_WARPS; w++) {
            top = max(top, sh.part[w]);
            take(sh.low[w]);
        }
        post.tell(sh.all_top, top);
        post.tell(sh.all_least, both(least, least_best));
    }
    post.wait(CLUSTER * 16);
    for (int i = 0; i < CLUSTER; i++) {
        top = max(top, sh.all_top[i]);
        take(sh.all_least[i]);
    }
    *smallest = least;
    *of_best = least_best;
    return top;
}

/* ---- filter ---- */

/* How many survivors from a bound on lie in each bin of the row, or how many of the threads' best, into
 * sh.bins of all CTAs: each adds up its share, and the sums come to where its counts were. */
template <typename T>
SOP_DEV void cluster_bins(const cluster_row &r, const cluster_part<T> &part, float bound,
                          bool of_best, float best, cluster_post &post, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    for (int i = threadIdx.x; i < CLUSTER_BINS; i += CLUSTER_THREADS) sh.bins[i] = 0;
    __syncthreads();
    if (of_best) {
        if (best >= bound) atomicAdd(&sh.bins[cluster_bin(r, best)], 1u);
    } else {
        cluster_walk(part, [&](int, int i, const float(&z)[N]) {
#pragma unroll
            for (int e = 0; e < N; e++)
                if (cluster_survives(r, z[e], i + e)) atomicAdd(&sh.bins[cluster_bin(r, z[e])], 1u);
        });
    }
    const int rank = cluster_rank();
    fence_async();
    __syncthreads();
    if (threadIdx.x < CLUSTER)
        cluster_send_share(sh.inbox[rank], sh.bins + threadIdx.x * CLUSTER_SHARE, post.bar(),
                           threadIdx.x);
    post.wait(CLUSTER_BINS * 4);
    for (int i = threadIdx.x; i < CLUSTER_SHARE; i += CLUSTER_THREADS) {
        uint32_t sum = 0;
        for (int from = 0; from < CLUSTER; from++) sum += sh.inbox[from][i];
        sh.share[i] = sum;
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x < CLUSTER)
        cluster_send_share(sh.bins + rank * CLUSTER_SHARE, sh.share, post.bar(), threadIdx.x);
    post.wait(CLUSTER_BINS * 4);
}

/* The bin of the k-th survivor, and how many lie before it; false when there are not more than k. */
SOP_DEV bool cluster_bin_of_count(uint32_t k, cluster_shared &sh)
{
    enum { EACH = CLUSTER_BINS / CLUSTER_THREADS };
    const uint32_t *bins = sh.bins + threadIdx.x * EACH;
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
 *     (1 - top_p) * (mass up to it) >= top_p * (mass behind it)
 * rest: the most that what is in no bin weighs. */
SOP_DEV void cluster_bins_of_mass(const cluster_row &r, float top_p, double rest,
                                  cluster_shared &sh)
{
    enum { EACH = CLUSTER_BINS / CLUSTER_THREADS };
    const int first = (int)threadIdx.x * EACH;
    const float step = (float)fmin(r.per_bit / (double)r.bins_per_unit, 0x1p100);
    double low = 0, high = 0, all_low, all_high;
    if (threadIdx.x == 0) sh.first_bin = sh.last_bin = CLUSTER_BINS - 1;
    auto add = [&](int bin) {
        const float n = (float)sh.bins[bin], at = (float)bin;
        low += (double)(n * exp2f(-(at + 1.02f) * step) * (1 - 1e-5f));
        high += (double)(n * exp2f(-fmaxf(at - 0.02f, 0.0f) * step) * (1 + 1e-5f));
    };
#pragma unroll 1
    for (int i = 0; i < EACH; i++) add(first + i);
    low = cluster_before(low, &all_low, sh);
    high = cluster_before(high, &all_high, sh);
    const double p = (double)top_p;
    int may = CLUSTER_BINS - 1, must = CLUSTER_BINS - 1;
#pragma unroll 1
    for (int i = 0; i < EACH; i++) {
        add(first + i);
        if ((1 - p) * high >= p * (all_low - low)) may = min(may, first + i);
        if ((1 - p) * low >= p * (all_high + rest - high)) must = min(must, first + i);
    }
    may = __reduce_min_sync(~0u, may);
    must = __reduce_min_sync(~0u, must);
    if (threadIdx.x % 32 == 0) {
        atomicMin(&sh.first_bin, may);
        atomicMin(&sh.last_bin, must);
    }
    __syncthreads();
}

/* The mass of a warp, of up to 8 weights a lane: in pieces of 24 bits. */
SOP_DEV sop_mass cluster_warp_mass(sop_mass own)
{
    const uint32_t low = __reduce_add_sync(~0u, (uint32_t)own & 0xffffff);
    return low + ((sop_mass)__reduce_add_sync(~0u, (uint32_t)(own >> 24)) << 24);
}

/* What a walk over the survivors finds of the row. */
struct cluster_found {
    int listed;           /* in the window, from `low` to `high` */
    sop_mass above, mass; /* of those larger, counts or masses; of all, masses */
};

/* List the survivors of a window, each CTA its own. BY_MASS: what min_p keeps above it is in sh.sums. */
template <typename T, bool BY_MASS>
SOP_DEV cluster_found cluster_window(const cluster_row &r, const cluster_part<T> &part, float low,
                                     float high, cluster_post &post, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    sop_mass above = 0, mass = 0;
    if (threadIdx.x == 0) sh.listed = 0;
    __syncthreads();
    cluster_walk(part, [&](int tile, int i, const float(&z)[N]) {
        sop_mass kept = 0;
#pragma unroll
        for (int e = 0; e < N; e++) {
            const bool stays = cluster_survives(r, z[e], i + e), larger = stays && z[e] > high;
            if (BY_MASS) {
                const double scaled = cluster_scaled(r, z[e], sh);
                const sop_mass w = stays ? cluster_count(scaled) : 0;
                mass += w;
                above += larger ? w : 0;
                kept += larger && scaled >= r.least ? w : 0;
            } else {
                above += larger;
            }
            if (stays && z[e] >= low && !larger) {
                const int at = atomicAdd(&sh.listed, 1);
                if (at < CLUSTER_LIST)
                    sh.list[at] = (sop_mass)sop_sample_key(z[e] + 0.0f) << 32 | (uint32_t) ~(i + e);
            }
        }
        if (!BY_MASS) return;
        kept = cluster_warp_mass(kept);
        if (threadIdx.x % 32 == 0) sh.sums[tile * CLUSTER_WARPS + threadIdx.x / 32] = kept;
    });
    (void)cluster_before(above, &above, sh);
    (void)cluster_before(mass, &mass, sh);
    post.tell(sh.all_listed, (sop_mass)sh.listed);
    post.tell(sh.all_above, above);
    post.tell(sh.all_mass, mass);
    post.wait(CLUSTER * 24);
    cluster_found found = {0, 0, 0};
    for (int i = 0; i < CLUSTER; i++) {
        found.listed += (int)sh.all_listed[i];
        found.above += sh.all_above[i];
        found.mass += sh.all_mass[i];
    }
    return found;
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

/* Bring what all have listed into CTA 0, and sort it there. round: how often this was done before. */
SOP_DEV void cluster_gather(int n, int round, cluster_shared &sh)
{
    const int mine = (int)sh.all_listed[cluster_rank()];
    int at = 0;
    for (int i = 0; i < cluster_rank(); i++) at += (int)sh.all_listed[i];
    if (cluster_rank() > 0) {
        for (int i = threadIdx.x; i < mine; i += CLUSTER_THREADS)
            cluster_send(&sh.list[at + i], sh.list[i], &sh.lists, 0);
        return;
    }
    if (threadIdx.x == 0) mbar_expect_tx(smem_addr(&sh.lists), (n - mine) * 8);
    mbar_wait(smem_addr(&sh.lists), round & 1);
    cluster_sort(n, sh);
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
    if (threadIdx.x < CLUSTER) cluster_send(&sh.cut, sh.list[sh.index], &sh.cuts, threadIdx.x);
}

/* ---- draw ---- */

template <typename T>
SOP_DEV void cluster_draw(const cluster_row &r, const cluster_part<T> &part, int32_t *id,
                          cluster_post &post, cluster_shared &sh)
{
    enum { N = wide<T>::N };
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    auto weight = [&](float z, int i) {
        const double scaled = cluster_scaled(r, z, sh);
        return cluster_survives(r, z, i) && scaled >= r.least ? cluster_count(scaled) : 0;
    };
    cluster_walk(part, [&](int tile, int i, const float(&z)[N]) {
        const bool all = r.summed == INFINITY;
        sop_mass own = 0, *sum = &sh.sums[tile * CLUSTER_WARPS + warp];
        bool any = all;
#pragma unroll
        for (int e = 0; e < N; e++) any |= z[e] <= r.summed && cluster_survives(r, z[e], i + e);
        if (!__any_sync(~0u, any)) return;
#pragma unroll
        for (int e = 0; e < N; e++) own += z[e] <= r.summed ? weight(z[e], i + e) : 0;
        own = cluster_warp_mass(own);
        if (lane == 0) *sum = all ? own : *sum + own;
    });
    __syncthreads();
    const int tiles = (part.n + CLUSTER_THREADS - 1) / CLUSTER_THREADS;
    const sop_mass own = tid < tiles * CLUSTER_WARPS ? sh.sums[tid] : 0;
    sop_mass mass, all = 0, before = cluster_before(own, &mass, sh);
    post.tell(sh.all_mass, mass);
    post.wait(CLUSTER * 8);
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
    for (int e = 0; e < N; e++) sum += w[e] = weight(z[e], i + e);
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

/* Narrow the cut by top_k or by top_p; true when the row has ended. All CTAs come to the same ends. best:
 * the thread's largest logit; least, of_best: the smallest of all, and of these; round: of the filters
 * that found a cut. */
template <typename T>
SOP_DEV bool cluster_filter(const cluster_args &p, int64_t b, cluster_row &r,
                            const cluster_part<T> &part, bool by_mass, float best, float least,
                            float of_best, int *round, cluster_post &post, cluster_shared &sh)
{
    bool few = !by_mass && 4 * (int64_t)sh.s.top_k <= min(part.of_row, CLUSTER * CLUSTER_THREADS);
    float bound = r.cut;
    double rest = 0;
    if (by_mass) { /* what weighs next to nothing even together is not counted */
        rest = 0.01 * (1 - (double)sh.s.top_p);
        const double far = log2((double)p.d.vocab / rest) / r.per_bit;
        bound = fmaxf(bound, r.max - (float)fmin(far, 0x1p127));
    }
    cluster_found found;
    bool ends;
    for (;; few = false) { /* by the best of threads at first */
        const float spread = r.max - fmaxf(few ? of_best : least, bound);
        r.bins_per_unit = CLUSTER_BINS / fmaxf(spread, 1e-30f);
        cluster_bins(r, part, bound, few, best, post, sh);
        if (by_mass)
            cluster_bins_of_mass(r, sh.s.top_p, rest, sh);
        else if (!cluster_bin_of_count((uint32_t)sh.s.top_k, sh)) {
            if (few) continue;
            return false;
        }
        ends = few || (!by_mass && sh.before + (int)sh.bins[sh.last_bin] <= CLUSTER_LIST);
        /* a little further out, for what roundings do */
        const float unit = 1 / r.bins_per_unit;
        const float low = r.max - ((float)sh.last_bin + 1.02f) * unit;
        const float high =
            ends || sh.first_bin == 0 ? INFINITY : r.max - ((float)sh.first_bin - 0.02f) * unit;
        if (by_mass) {
            found = cluster_window<T, true>(r, part, low, high, post, sh);
            r.summed = high;
        } else {
            found = cluster_window<T, false>(r, part, low, high, post, sh);
        }
        if (found.listed <= CLUSTER_LIST) break;
        if (few) continue;
        if (cluster_rank() == 0) cluster_floor(p, b, (double)r.max, p.ids + b, sh);
        return true;
    }
    cluster_gather(found.listed, *round, sh);
    if (cluster_rank() == 0) {
        if (ends)
            cluster_end_list(r, found.listed, p.ids + b, sh);
        else
            cluster_find_cut(r, found.listed, by_mass, found.above,
                             by_mass ? cluster_share(sh.s.top_p, found.mass) : (sop_mass)sh.s.top_k,
                             sh);
    }
    if (ends) return true;
    if (threadIdx.x == 0) mbar_expect_tx(smem_addr(&sh.cuts), 8);
    mbar_wait(smem_addr(&sh.cuts), (*round)++ & 1);
    r.cut = cluster_logit(sh.cut);
    r.cut_index = (int)~(uint32_t)sh.cut;
    return false;
}

template <typename T>
static __global__ __launch_bounds__(CLUSTER_THREADS, 2) void sop_sample_cluster(
    const __grid_constant__ cluster_args p)
{
    extern __shared__ uint4 pieces[];
    __shared__ cluster_shared sh;
    const int tid = threadIdx.x;
    const int64_t b = blockIdx.x / CLUSTER;
    cluster_post post = {&sh, 0};
    if (tid < 16) sh.power[tid] = exp2(44 - tid / 16.0);
    if (tid == 0) {
        for (int i = 0; i < 2; i++) mbar_init(smem_addr(&sh.mailbox[i]), 1);
        mbar_init(smem_addr(&sh.lists), 1);
        mbar_init(smem_addr(&sh.cuts), 1);
        fence_mbar_init();
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    sop_begin();
    const bool dead = b >= sop_live_rows(p.live, p.d.rows);
    if (!dead && tid < sizeof sh.s) /* it may lie at any address */
        ((uint8_t *)&sh.s)[tid] = ((const uint8_t *)(p.params + b))[tid];
    const cluster_part<T> part = cluster_load<T>(p, b, dead ? 0 : p.d.vocab, pieces);
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); /* all mailboxes are there */
    if (dead) return;
    float best, least, of_best;
    const sop_mass top = cluster_top(part, &best, &least, &of_best, post, sh);
    if (!top || !(sh.s.temperature > 0)) {
        if (cluster_rank() == 0 && tid == 0) p.ids[b] = top ? (int)~(uint32_t)top : -1;
        return;
    }
    cluster_row r;
    r.max = cluster_logit(top);
    r.per_bit = 1.4426950408889634 / (double)sh.s.temperature;
    r.least = fmin((double)sh.s.min_p, 1.0) * (double)CLUSTER_ONE; /* the largest weight is 1 */
    r.cut = fmaxf(r.max - (float)fmin((double)CLUSTER_FAR / r.per_bit, 0x1p127), -FLT_MAX);
    r.cut_index = INT32_MAX;
    r.summed = INFINITY;
    const bool filters[2] = {sh.s.top_k > 0 && sh.s.top_k<p.d.vocab, sh.s.top_p> 0 &&
                             sh.s.top_p < 1};
    int round = 0;
#pragma unroll 1
    for (int by_mass = 0; by_mass < 2; by_mass++)
        if ((by_mass ? filters[1] : filters[0]) &&
            cluster_filter(p, b, r, part, by_mass, best, least, of_best, &round, post, sh))
            return;
    cluster_draw(r, part, p.ids + b, post, sh);
}

#endif
