/* One block a row of logits: filters.cuh. */
#ifndef OPS_SAMPLE_CUH
#define OPS_SAMPLE_CUH

#include "ops/sample/filters.cuh"

static __global__ __launch_bounds__(SOP_SAMPLE_THREADS) void sop_sample_any(
    const sop_sample_desc d, const void *logits, const sop_sampling *params, const int32_t *live,
    int32_t *ids)
{
    __shared__ double bins[SOP_SAMPLE_BINS], part[34];
    __shared__ unsigned long long best[32];
    sop_begin();
    const int64_t b = blockIdx.x;
    const int tid = threadIdx.x;
    if (b >= sop_live_rows(live, d.rows)) return;
    sop_sampling s; /* may lie at any address */
    for (int i = 0; i < (int)sizeof s; i++)
        ((unsigned char *)&s)[i] = ((const unsigned char *)(params + b))[i];
    sop_sample_row r = {logits, d.x_dtype, b * d.logits_stride, (int)d.vocab};
    /* the largest finite logit, at its lowest index */
    unsigned long long top = 0;
    for (int i = tid; i < r.vocab; i += SOP_SAMPLE_THREADS) {
        const float z = sop_logit(r, i);
        const unsigned long long at =
            (unsigned long long)sop_sample_key(z) << 32 | (uint32_t)(INT32_MAX - i);
        if (isfinite(z) && at > top) top = at;
    }
    for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
    if (tid % 32 == 0) best[tid / 32] = top;
    __syncthreads();
    top = best[tid % 32];
    for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
    int id = top ? INT32_MAX - (int)(uint32_t)top : -1;
    if (top && s.temperature > 0) {
        r.max = (double)sop_logit(r, id);
        id = sop_sample_filtered(r, s, bins, part);
    }
    if (tid == 0) ids[b] = id;
}

#endif
