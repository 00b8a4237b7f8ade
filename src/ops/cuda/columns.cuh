/* ops/cuda/columns.cuh: sums of columns over many rows, as gradients of biases and weights are. In two
 * steps, whose order of sums the number of rows alone decides: chunks of rows leave part sums in scratch,
 *
 *     part [chunks, N, cols]
 *
 * and a second kernel adds these in their order. */
#ifndef OPS_CUDA_COLUMNS_CUH
#define OPS_CUDA_COLUMNS_CUH

#include "ops/cuda/elements.cuh"
#include "ops/cuda/launch.cuh"

enum { SOP_COLUMN_LANES = 8 }; /* threads that share a column of a chunk */

/* Rows of a chunk, so that there are at most 64. */
static inline int64_t sop_column_chunk(int64_t rows)
{
    return rows <= 64 * 64 ? 64 : (rows + 63) / 64;
}
static inline int64_t sop_column_chunks(int64_t rows)
{
    return (rows + sop_column_chunk(rows) - 1) / sop_column_chunk(rows);
}
static inline size_t sop_column_bytes(int64_t rows, int64_t cols, int sums)
{
    return (size_t)(sop_column_chunks(rows) * sums * cols) * sizeof(float);
}
/* Of a kernel that calls sop_columns(). */
static inline dim3 sop_column_grid(int64_t rows, int64_t cols)
{
    return dim3(sop_blocks(cols, 32), (unsigned)sop_column_chunks(rows));
}

/* By a block of 32 x SOP_COLUMN_LANES threads: N part sums of a column each, of value(row, column, terms).
 * part NULL: the values are asked for, and that is all. */
template <int N, typename F>
SOP_DEV void sop_columns(int64_t rows, int64_t cols, int64_t chunk, float *part, const F &value)
{
    __shared__ float shared[SOP_COLUMN_LANES][N][32];
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const int64_t from = blockIdx.y * chunk, to = from + chunk < rows ? from + chunk : rows;
    float sum[N] = {};
    for (int64_t t = from + threadIdx.y; t < to && i < cols; t += SOP_COLUMN_LANES) {
        float terms[N];
        value(t, i, terms);
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] += terms[n];
    }
    if (!part) return;
#pragma unroll
    for (int n = 0; n < N; n++) shared[threadIdx.y][n][threadIdx.x] = sum[n];
    __syncthreads();
    if (threadIdx.y > 0 || i >= cols) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
        for (int k = 1; k < SOP_COLUMN_LANES; k++) sum[n] += shared[k][n][threadIdx.x];
        part[(blockIdx.y * N + n) * cols + i] = sum[n];
    }
}

/* out[n][i] = the sum over chunks of part[chunk][n][i], by 32 x 32 threads; an out may be NULL. */
struct sop_column_outs {
    float *out[2];
};
static __global__ __launch_bounds__(1024) void sop_column_sums(const float *part, int chunks, int n,
                                                               int64_t cols,
                                                               const sop_column_outs outs)
{
    __shared__ float shared[32][33];
    sop_begin();
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float *out = outs.out[blockIdx.y], sum = 0;
    if (!out) return;
    for (int c = threadIdx.y; c < chunks && i < cols; c += 32)
        sum += part[((int64_t)c * n + blockIdx.y) * cols + i];
    shared[threadIdx.x][threadIdx.y] = sum;
    __syncthreads();
    /* warp y has column y */
    sum = sop_warp_sum(shared[threadIdx.y][threadIdx.x]);
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < cols) out[column] = sum;
}
static inline sop_status sop_column_finish(const sop_call *call, const float *part, int64_t chunks,
                                           int n, int64_t cols, float *out0, float *out1)
{
    const sop_column_outs outs = {{out0, out1}};
    return sop_launch(sop_column_sums, dim3(sop_blocks(cols, 32), (unsigned)n), dim3(32, 32), call,
                      part, (int)chunks, n, cols, outs);
}

#endif
