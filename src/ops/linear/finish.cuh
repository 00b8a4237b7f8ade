/* What a product of a library's becomes: live rows, with their biases, in the type and place of y. */
#ifndef OPS_LINEAR_FINISH_CUH
#define OPS_LINEAR_FINISH_CUH

#include "ops/cuda/wide.cuh"

struct finish_args {
    const float *bias[3];
    int64_t n[3]; /* multiples of 8 */
    const int32_t *live;
    int64_t tokens, y_stride;
};

/* 8 columns a thread; staged [tokens, n0 + n1 + n2]. */
template <typename S, typename T>
static __global__ void sop_linear_finish(const S *staged, const finish_args a, T *y)
{
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const int64_t width = a.n[0] + a.n[1] + a.n[2];
    const float *bias = i < a.n[0] ? a.bias[0] : i < a.n[0] + a.n[1] ? a.bias[1] : a.bias[2];
    const int64_t from = i < a.n[0] ? 0 : i < a.n[0] + a.n[1] ? a.n[0] : a.n[0] + a.n[1];
    float b[8] = {0}, s[8];
    sop_begin();
    if (i >= width) return;
    const int64_t live = sop_live_rows(a.live, a.tokens);
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (bias) b[e] = bias[i - from + e];
    for (int64_t t = blockIdx.y; t < live; t += gridDim.y) {
        wide_load(staged + t * width + i, s);
#pragma unroll
        for (int e = 0; e < 8; e++) s[e] += b[e];
        wide_store(y + t * a.y_stride + i, s);
    }
}

#endif
