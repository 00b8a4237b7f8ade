/* 16 bytes of a row a thread. */
#ifndef OPS_ADD_WIDE_CUH
#define OPS_ADD_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

template <typename T>
static __global__ void sop_add_wide(const sop_add_desc d, const T *a, const T *b,
                                    const int32_t *live, T *y)
{
    enum { N = wide<T>::N };
    const int64_t t = blockIdx.x, i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    float s[N], more[N];
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens) || i >= d.dim) return;
    wide_load(a + t * d.a_stride + i, s);
    wide_load(b + t * d.b_stride + i, more);
#pragma unroll
    for (int e = 0; e < N; e++) s[e] += more[e];
    wide_store(y + t * d.y_stride + i, s);
}

#endif
