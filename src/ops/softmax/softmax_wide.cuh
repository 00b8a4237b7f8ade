/* One block a row, which stays in registers: it is read once, REP pieces of 16 bytes a thread. FULL: each
 * thread has all of them, and there are few threads; without a look at each piece's end rows go at copy
 * speed. */
#ifndef OPS_SOFTMAX_WIDE_CUH
#define OPS_SOFTMAX_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

enum { SOP_SOFTMAX_FULL = 256 }; /* the most threads */

template <typename T, int REP, bool FULL>
static __global__ __launch_bounds__(FULL ? SOP_SOFTMAX_FULL : 1024,
                                    FULL ? 5 : 1) void sop_softmax_wide(const sop_softmax_desc d,
                                                                        const T *x,
                                                                        const int32_t *live, T *y)
{
    enum { N = wide<T>::N };
    __shared__ float shared[2][32];
    const int64_t t = blockIdx.x;
    float z[REP][N], max = -INFINITY, sum = 0;
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    wide_raw<T, N> xs[REP];
    x += t * d.x_stride;
    y += t * d.y_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (FULL || i < d.dim) wide_fetch(x + i, xs[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        if (!FULL && (k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
        wide_floats(xs[k], z[k]);
#pragma unroll
        for (int e = 0; e < N; e++) {
            z[k][e] *= d.scale;
            max = fmaxf(max, z[k][e]);
        }
    }
    max = wide_max(max, shared[0]);
    const float base = max == -INFINITY ? 0 : max; /* of a row of -inf all shares are 0 */
#pragma unroll
    for (int k = 0; k < REP; k++) {
        if (!FULL && (k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
        for (int e = 0; e < N; e++) sum += z[k][e] = expf(z[k][e] - base);
    }
    sum = wide_sum(sum, shared[1]); /* NaN where a logit is NaN or inf, as inf - inf is */
    const float share = sum == 0 ? 0 : 1 / sum;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (!FULL && i >= d.dim) continue;
#pragma unroll
        for (int e = 0; e < N; e++) z[k][e] *= share;
        wide_store(y + i, z[k]);
    }
}

#endif
