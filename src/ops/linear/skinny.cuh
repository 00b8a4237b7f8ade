/* What the rows for few tokens share: tiles of rows of up to three weights, one after another. */
#ifndef OPS_LINEAR_SKINNY_CUH
#define OPS_LINEAR_SKINNY_CUH

#include "ops/cuda/elements.cuh"

SOP_DEV int skinny_tiles(const int *n, int rows)
{
    return (n[0] + rows - 1) / rows + (n[1] + rows - 1) / rows + (n[2] + rows - 1) / rows;
}

/* The weight j of tile t, its first row, and the column of y of the weight's first row. */
SOP_DEV int skinny_part(const int *n, int rows, int t, int *row, int *at)
{
    int j = 0;
    *at = 0;
    for (; j < 2 && t >= (n[j] + rows - 1) / rows; j++) {
        t -= (n[j] + rows - 1) / rows;
        *at += n[j];
    }
    *row = t * rows;
    return j;
}

/* x[tokens, k] in f32 as planes of T that sum to it: [planes, tokens, k_stride]. */
template <typename T>
static __global__ void sop_split_planes(const void *x, int32_t dtype, int64_t x_stride, int tokens,
                                        int k, int planes, T *out, int64_t k_stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    sop_begin();
    if (i >= k) return;
    float v = sop_load_any(x, dtype, t * x_stride + i);
    for (int p = 0; p < planes; p++) {
        const T part = sop_from_float<T>(v);
        out[((int64_t)p * tokens + t) * k_stride + i] = part;
        v -= sop_to_float(part);
    }
}

#endif
