/* Two kernels. The first: a warp a token, one round for each expert that is chosen: the best of those that
 * come after the last one. The second: a block an expert, which reads all ids: those of lower experts say
 * where its pairs begin, and its own are placed in the order of their numbers. Any type and stride. */
#ifndef OPS_MOE_GATE_CUH
#define OPS_MOE_GATE_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

enum { SOP_MOE_GATE_THREADS = 256 };

/* Whether expert a with logit x stands before expert b with logit y. */
SOP_DEV bool sop_expert_before(float x, int a, float y, int b)
{
    const bool nx = isnan(x), ny = isnan(y);
    if (nx || ny) return nx == ny ? a < b : ny;
    return x > y || (x == y && a < b);
}

SOP_DEV float sop_expert_share(float z, float max)
{
    return z == -INFINITY ? 0 : expf(z - max);
}

static __global__ void sop_moe_gate_choose(const sop_moe_gate_desc d, const void *x,
                                           const int32_t *live, int32_t *ids, float *weights)
{
    sop_begin();
    const int64_t t = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, experts = (int)d.experts;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int64_t at = t * d.x_stride;
    ids += t * d.top;
    weights += t * d.top;
    float last = 0, max = 0, sum = 0;
    int chosen = -1;
    for (int64_t j = 0; j < d.top; j++) {
        float best = NAN; /* with this index it stands after all */
        int expert = INT32_MAX;
        for (int e = lane; e < experts; e += 32) {
            const float z = sop_load_any(x, d.x_dtype, at + e);
            if (j > 0 && !sop_expert_before(last, chosen, z, e)) continue;
            if (sop_expert_before(z, e, best, expert)) best = z, expert = e;
        }
        for (int o = 16; o > 0; o /= 2) {
            const float z = __shfl_xor_sync(~0u, best, o);
            const int e = __shfl_xor_sync(~0u, expert, o);
            if (sop_expert_before(z, e, best, expert)) best = z, expert = e;
        }
        last = best;
        chosen = expert;
        if (j == 0) max = best;
        const float share = sop_expert_share(best, max);
        sum += share;
        if (lane == 0) {
            ids[j] = expert;
            weights[j] = share;
        }
    }
    if (d.over == SOP_MOE_ALL) {
        sum = 0;
        for (int e = lane; e < experts; e += 32)
            sum += sop_expert_share(sop_load_any(x, d.x_dtype, at + e), max);
        sum = sop_warp_sum(sum);
    }
    if (lane == 0 && sum != 0)
        for (int64_t j = 0; j < d.top; j++) weights[j] /= sum;
}

/* Sums over the block; shared holds a word a warp and is free again afterwards. */
SOP_DEV int sop_moe_gate_sum(int x, int *shared)
{
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < SOP_MOE_GATE_THREADS / 32; w++) sum += shared[w];
    __syncthreads();
    return sum;
}

static __global__ void sop_moe_gate_order(const sop_moe_gate_desc d, const int32_t *ids,
                                          const int32_t *live, int32_t *counts, int32_t *perm)
{
    __shared__ int shared[SOP_MOE_GATE_THREADS / 32];
    sop_begin();
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, expert = (int)blockIdx.x;
    const int64_t pairs = sop_live_rows(live, d.tokens) * d.top;
    int lower = 0, own = 0;
    for (int64_t k = tid; k < pairs; k += SOP_MOE_GATE_THREADS) {
        lower += ids[k] < expert;
        own += ids[k] == expert;
    }
    int64_t at = sop_moe_gate_sum(lower, shared);
    own = sop_moe_gate_sum(own, shared);
    if (tid == 0) counts[expert] = own;
    if (own == 0) return;
    for (int64_t k0 = 0; k0 < pairs; k0 += SOP_MOE_GATE_THREADS) {
        const int64_t k = k0 + tid;
        const bool hit = k < pairs && ids[k] == expert;
        const unsigned hits = __ballot_sync(~0u, hit);
        if (lane == 0) shared[warp] = __popc(hits);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < SOP_MOE_GATE_THREADS / 32; w++) {
            if (w < warp) before += shared[w];
            all += shared[w];
        }
        if (hit) perm[at + before + __popc(hits & ((1u << lane) - 1))] = (int32_t)k;
        at += all;
        __syncthreads();
    }
}

#endif
