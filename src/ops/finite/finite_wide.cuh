/* 16 bytes at a time, four in flight a thread. Only blocks that find something add to the sum; the last one
 * to arrive writes it. */
#ifndef OPS_FINITE_WIDE_CUH
#define OPS_FINITE_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

/* Where the blocks meet, in the queue's counters: zero before and after. */
struct finite_meeting {
    unsigned long long sum;
    int arrived;
};

template <typename T>
static __global__ __launch_bounds__(256, 4) void sop_finite_wide(const sop_finite_desc d,
                                                                 const T *x, const int32_t *live,
                                                                 finite_meeting *meeting,
                                                                 int32_t *count)
{
    enum { N = wide<T>::N, REP = 4 };
    sop_begin();
    const int64_t each = d.dim / N, n = sop_live_rows(live, d.tokens) * each;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    const bool dense = d.x_stride == d.dim;
    int bad = 0;
    for (int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; first < n;
         first += REP * step) {
        wide_raw<T, N> raw[REP] = {};
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t at = first + k * step;
            if (at >= n) break;
            wide_fetch(x + (dense ? at * N : at / each * d.x_stride + at % each * N), raw[k]);
        }
#pragma unroll
        for (int k = 0; k < REP; k++) {
            float v[N];
            wide_floats(raw[k], v);
#pragma unroll
            for (int e = 0; e < N; e++) bad += !isfinite(v[e]) && !(d.allow_neg_inf && v[e] < 0);
        }
    }
    bad = __reduce_add_sync(~0u, bad);
    if (threadIdx.x % 32 == 0 && bad) atomicAdd(&meeting->sum, (unsigned long long)bad);
    __threadfence();
    __syncthreads();
    if (threadIdx.x || atomicAdd(&meeting->arrived, 1) != (int)gridDim.x - 1) return;
    const unsigned long long sum = atomicAdd(&meeting->sum, 0ull);
    *count = sum > INT32_MAX ? INT32_MAX : (int32_t)sum;
    meeting->sum = 0;
    meeting->arrived = 0;
}

#endif
