/* Blocks count their elements and add up in any order: the sum of integers is the same. */
#ifndef OPS_FINITE_CUH
#define OPS_FINITE_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

static __global__ void sop_finite_zero(int32_t *count)
{
    sop_begin();
    *count = 0;
}

static __global__ void sop_finite_any(const sop_finite_desc d, const void *x, const int32_t *live,
                                      int32_t *count)
{
    sop_begin();
    const int64_t n = sop_live_rows(live, d.tokens) * d.dim;
    int bad = 0;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < n;
         e += (int64_t)gridDim.x * blockDim.x) {
        const float v = sop_load_any(x, d.x_dtype, e / d.dim * d.x_stride + e % d.dim);
        bad += !isfinite(v) && !(d.allow_neg_inf && v < 0);
    }
    bad = __reduce_add_sync(~0u, bad);
    if (threadIdx.x % 32 != 0 || bad == 0) return;
    for (int was = *count, saw;; was = saw) { /* the count stops at its largest value */
        saw = atomicCAS(count, was, bad > INT32_MAX - was ? INT32_MAX : was + bad);
        if (saw == was) break;
    }
}

#endif
