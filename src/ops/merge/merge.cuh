/* One block a token and head, a thread a channel; every thread weighs the parts itself, in their order.
 * Any types and strides. */
#ifndef OPS_MERGE_CUH
#define OPS_MERGE_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

static __global__ void sop_merge_any(const sop_merge_desc d, const void *x, const float *lse,
                                     const int32_t *live, void *y, float *lse_out)
{
    sop_begin();
    const int64_t t = blockIdx.x, h = blockIdx.y;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int64_t xa = t * d.x_stride + h * d.x_head, ya = t * d.y_stride + h * d.y_head;
    lse += t * d.lse_stride + h;
    float m = -INFINITY, sum = 0;
    for (int64_t p = 0; p < d.parts; p++) m = fmaxf(m, lse[p * d.lse_part]);
    for (int64_t p = 0; p < d.parts; p++) {
        const float l = lse[p * d.lse_part];
        if (l != -INFINITY) sum += expf(l - m);
    }
    for (int64_t i = threadIdx.x; i < d.v; i += blockDim.x) {
        float s = 0;
        for (int64_t p = 0; p < d.parts; p++) {
            const float l = lse[p * d.lse_part];
            if (l != -INFINITY)
                s += expf(l - m) * sop_load_any(x, d.x_dtype, xa + p * d.x_part + i);
        }
        sop_store_any(y, d.y_dtype, ya + i, sum == 0 ? 0 : s / sum);
    }
    if (lse_out && threadIdx.x == 0)
        lse_out[t * d.heads + h] = sum == 0 ? -INFINITY : m + logf(sum);
}

#endif
