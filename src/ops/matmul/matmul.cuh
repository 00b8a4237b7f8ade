/* 64 x 64 of y a block of 256 threads, 4 x 4 a thread, in float32; k in steps of 16 through shared memory.
 * Any types and strides. */
#ifndef OPS_MATMUL_CUH
#define OPS_MATMUL_CUH

#include "ops/cuda/elements.cuh"
#include "sop/grad.h"

static __global__ __launch_bounds__(256) void sop_matmul_any(const sop_matmul_desc d, const void *a,
                                                             const void *b, void *y, float *sums)
{
    enum { SIDE = 64, DEEP = 16 };
    __shared__ float as[DEEP][SIDE + 4], bs[DEEP][SIDE];
    sop_begin();
    const int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    const int64_t i0 = (int64_t)blockIdx.x * SIDE, j0 = (int64_t)blockIdx.y * SIDE;
    const int64_t a_row = d.transposed ? 1 : d.a_stride, a_sum = d.transposed ? d.a_stride : 1;
    float sum[4][4] = {}, whole = 0;
    for (int64_t k0 = 0; k0 < d.k; k0 += DEEP) {
        for (int e = tid; e < SIDE * DEEP; e += 256) {
            /* neighbours read neighbours */
            const int r = d.transposed ? e % SIDE : e / DEEP,
                      c = d.transposed ? e / SIDE : e % DEEP;
            const bool there = i0 + r < d.rows && k0 + c < d.k;
            as[c][r] = there ? sop_load_any(a, d.a_dtype, (i0 + r) * a_row + (k0 + c) * a_sum) : 0;
        }
        for (int e = tid; e < SIDE * DEEP; e += 256) {
            const int r = e / SIDE, c = e % SIDE;
            const bool there = k0 + r < d.k && j0 + c < d.cols;
            bs[r][c] = there ? sop_load_any(b, d.b_dtype, (k0 + r) * d.b_stride + j0 + c) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            float x[4], w[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = as[k][ty * 4 + e], w[e] = bs[k][tx * 4 + e];
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[r][c] = fmaf(x[r], w[c], sum[r][c]);
            if (tid < SIDE) whole += as[k][tid];
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            const int64_t i = i0 + ty * 4 + r, j = j0 + tx * 4 + c;
            if (i < d.rows && j < d.cols)
                sop_store_any(y, d.y_dtype, i * d.y_stride + j, sum[r][c]);
        }
    if (sums && blockIdx.y == 0 && tid < SIDE && i0 + tid < d.rows) sums[i0 + tid] = whole;
}

#endif
