/* One block a row of logits, of whole warps, no sort. What top_k, top_p and min_p keep is a prefix of the order "larger
 * logit first, then lower index", so each is a cut (key, index). A cut is found in two steps: bins of
 * the distance from the largest logit say in which bin it lies, then halving the range of keys finds
 * it. Weights are in double, as in the reference: a draw must fall on the same token. */
#ifndef OPS_SAMPLE_FILTERS_CUH
#define OPS_SAMPLE_FILTERS_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

enum { SOP_SAMPLE_THREADS = 1024, SOP_SAMPLE_BINS = 1024 };

struct sop_sample_row {
    const void *logits;
    int32_t dtype;
    int64_t at; /* of the row's first logit */
    int vocab;
    double max, temperature;
    uint32_t cut_key; /* what stands before this key survives, */
    int cut_index;    /* and of those with this key the ones up to this index */
    double *bins;     /* shared, [BINS] */
    double *part;     /* shared, [32 + 2] */
};

SOP_DEV float sop_logit(const sop_sample_row &r, int i)
{
    return sop_load_any(r.logits, r.dtype, r.at + i) + 0.0f; /* -0 is 0 */
}

/* Larger logits have larger keys; 0 is no finite logit's. */
SOP_DEV uint32_t sop_sample_key(float z)
{
    const uint32_t bits = __float_as_uint(z);
    return bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}

SOP_DEV bool sop_survives(const sop_sample_row &r, float z, int i)
{
    const uint32_t key = sop_sample_key(z);
    return isfinite(z) && (key > r.cut_key || (key == r.cut_key && i <= r.cut_index));
}

SOP_DEV double sop_sample_weight(const sop_sample_row &r, float z)
{
    return exp(((double)z - r.max) / r.temperature);
}

/* Sum over the block, in a fixed order; all threads get it. */
SOP_DEV double sop_block_sum_f64(double x, double *part)
{
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : 0;
    __syncthreads();
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

/* Sums over the threads before this one. */
SOP_DEV double sop_block_before(double x, double *part)
{
    const int lane = threadIdx.x % 32;
    double sum = x;
    for (int o = 1; o < 32; o *= 2) {
        const double y = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += y;
    }
    if (lane == 31) part[threadIdx.x / 32] = sum;
    __syncthreads();
    double before = 0;
    for (int w = 0; w < (int)threadIdx.x / 32; w++) before += part[w];
    __syncthreads();
    return before + sum - x;
}

SOP_DEV int sop_sample_bin(const sop_sample_row &r, float z, double per_unit)
{
    const double at = (r.max - (double)z) * per_unit;
    return at < SOP_SAMPLE_BINS - 1 ? (int)at : SOP_SAMPLE_BINS - 1;
}

/* Narrow the cut to the least prefix whose measure (how many, or how much weight) reaches target. */
SOP_DEV void sop_narrow(sop_sample_row &r, double target, bool by_mass)
{
    const int tid = threadIdx.x, threads = blockDim.x;
    const double per_unit = by_mass ? 16 / r.temperature : 16;
    auto measure = [&](float z) { return by_mass ? sop_sample_weight(r, z) : 1.0; };
    for (int i = tid; i < SOP_SAMPLE_BINS; i += threads) r.bins[i] = 0;
    __syncthreads();
    double total = 0;
    for (int i = tid; i < r.vocab; i += threads) {
        const float z = sop_logit(r, i);
        if (!sop_survives(r, z, i)) continue;
        const double w = measure(z);
        total += w;
        /* of weights, those in the last bin are under e^-63 of the largest: nothing */
        const int bin = sop_sample_bin(r, z, per_unit);
        if (!by_mass || bin < SOP_SAMPLE_BINS - 1) atomicAdd(&r.bins[bin], w);
    }
    total = sop_block_sum_f64(total, r.part);
    if (by_mass) target *= total;
    if (tid == 0) {
        double before = 0;
        int bin = 0;
        while (bin < SOP_SAMPLE_BINS && before + r.bins[bin] < target) before += r.bins[bin++];
        r.part[32] = before;
        r.part[33] = bin < SOP_SAMPLE_BINS ? bin : -1;
    }
    __syncthreads();
    const double before = r.part[32];
    const int bin = (int)r.part[33];
    if (bin < 0) return; /* everything, or short by a rounding */

    /* The bin's tokens in the order of their indices: mostly few, then each thread keeps one. */
    auto in_bin = [&](float z, int i) {
        return sop_survives(r, z, i) && sop_sample_bin(r, z, per_unit) == bin;
    };
    int each = (r.vocab + threads - 1) / threads;
    int from = min(tid * each, r.vocab), to = min(from + each, r.vocab), n = 0;
    for (int i = from; i < to; i++) n += in_bin(sop_logit(r, i), i);
    int at = (int)sop_block_before(n, r.part);
    if (tid == threads - 1) r.part[32] = at + n;
    __syncthreads();
    const int all = (int)r.part[32];
    const bool listed = all <= threads;
    float *list_z = (float *)r.bins;
    int *list_i = (int *)(list_z + threads);
    if (listed) {
        for (int i = from; i < to && n > 0; i++) {
            const float z = sop_logit(r, i);
            if (!in_bin(z, i)) continue;
            list_z[at] = z;
            list_i[at++] = i;
        }
        from = min(tid, all);
        to = min(tid + 1, all);
    }
    __syncthreads();
    auto logit = [&](int i) { return listed ? list_z[i] : sop_logit(r, i); };
    auto counts = [&](float z, int i) { return listed || in_bin(z, i); };

    /* the largest key at which the measure of all from the top on reaches the target */
    uint32_t lo = 0, hi = ~0u; /* from lo on it reaches, from hi + 1 on it does not */
    double above = before;     /* the measure of what has a larger key than hi */
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2 + 1;
        double sum = 0;
        for (int i = from; i < to; i++) {
            const float z = logit(i);
            if (counts(z, i) && sop_sample_key(z) >= mid) sum += measure(z);
        }
        sum = before + sop_block_sum_f64(sum, r.part);
        if (sum >= target)
            lo = mid;
        else
            hi = mid - 1, above = sum;
    }
    /* of the tokens with this key, in the order of their indices, as many as it takes */
    int equal = 0;
    for (int i = from; i < to; i++) {
        const float z = logit(i);
        equal += counts(z, i) && sop_sample_key(z) == lo;
    }
    int rank = (int)sop_block_before(equal, r.part);
    if (tid == 0) r.part[32] = r.vocab; /* all of them, when a rounding leaves it short */
    __syncthreads();
    for (int i = from; i < to && equal > 0; i++) {
        const float z = logit(i);
        if (!counts(z, i) || sop_sample_key(z) != lo) continue;
        const double w = measure(z);
        if (above + rank * w < target && above + (rank + 1) * w >= target)
            r.part[32] = listed ? list_i[i] : i;
        rank++;
    }
    __syncthreads();
    const int index = (int)r.part[32];
    __syncthreads();
    r.cut_index = lo > r.cut_key ? index : min(index, r.cut_index);
    r.cut_key = lo;
}

/* Philox 4x32 with 10 rounds: the 53 bits of a draw. Source: Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3", 2011, section 4.3. */
SOP_DEV double sop_uniform_of(uint64_t seed, uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (double)(((uint64_t)c0 << 32 | c1) >> 11) * 0x1p-53;
}

/* The first survivor, in the order of indices, where the mass passes its share of the total. */
SOP_DEV int sop_draw(const sop_sample_row &r, const sop_sampling &s)
{
    const int tid = threadIdx.x, threads = blockDim.x, each = (r.vocab + threads - 1) / threads;
    const int from = min(tid * each, r.vocab), to = min(from + each, r.vocab);
    auto weight = [&](int i) {
        const float z = sop_logit(r, i);
        if (!sop_survives(r, z, i)) return 0.0;
        const double w = sop_sample_weight(r, z);
        return w < fmin((double)s.min_p, 1.0) ? 0.0 : w; /* the largest weight is 1 */
    };
    double own = 0;
    int last = -1;
    for (int i = from; i < to; i++) {
        const double w = weight(i);
        if (w > 0) last = i;
        own += w;
    }
    double mass = sop_block_before(own, r.part);
    if (tid == threads - 1) r.part[33] = mass + own;
    int *found = (int *)(r.part + 32); /* the draw; the last survivor, for a rounding short of it */
    if (tid == 0) found[0] = INT32_MAX, found[1] = -1;
    __syncthreads();
    const double target = sop_uniform_of(s.seed, s.counter) * r.part[33];
    if (last >= 0) atomicMax(&found[1], last);
    if (own > 0 && mass + own > target) /* the first of them is the one */
        for (int i = from; i < to; i++) {
            const double w = weight(i);
            if (w > 0 && (mass += w) > target) {
                atomicMin(&found[0], i);
                break;
            }
        }
    __syncthreads();
    return found[0] < INT32_MAX ? found[0] : found[1];
}

/* The token of a row with a temperature, all filters applied; bins and part are shared memory. */
SOP_DEV int sop_sample_filtered(sop_sample_row r, const sop_sampling &s, double *bins, double *part)
{
    r.temperature = (double)s.temperature;
    r.cut_key = 0;
    r.cut_index = r.vocab;
    r.bins = bins;
    r.part = part;
    if (s.top_k > 0 && s.top_k < r.vocab) sop_narrow(r, s.top_k, false);
    if (s.top_p > 0 && s.top_p < 1) sop_narrow(r, (double)s.top_p, true);
    return sop_draw(r, s);
}

#endif
