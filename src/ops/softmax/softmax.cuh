/* One block a row, read three times: the maximum, the sum, the result. Any types and strides. */
#ifndef OPS_SOFTMAX_CUH
#define OPS_SOFTMAX_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

template <int THREADS>
static __global__ void sop_softmax_any(const sop_softmax_desc d, const void *x, const int32_t *live,
                                       void *y)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, xa = t * d.x_stride, ya = t * d.y_stride;
    if (t >= sop_live_rows(live, d.tokens)) return;
    float max = -INFINITY, sum = 0;
    bool nan = false;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float z = d.scale * sop_load_any(x, d.x_dtype, xa + i);
        nan |= isnan(z) || z == INFINITY;
        max = fmaxf(max, z);
    }
    nan = __syncthreads_or(nan);
    max = sop_block_max<THREADS>(max, shared);
    if (max > -INFINITY)
        for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
            sum += expf(d.scale * sop_load_any(x, d.x_dtype, xa + i) - max);
    sum = sop_block_sum<THREADS>(sum, shared);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float z = d.scale * sop_load_any(x, d.x_dtype, xa + i);
        const float p = nan ? NAN : max == -INFINITY ? 0 : expf(z - max) / sum;
        sop_store_any(y, d.y_dtype, ya + i, p);
    }
}

#endif
