/* 16 bytes of a row a thread, and of every 8th row of a chunk, with the sums of their columns: see
 * ops/cuda/columns.cuh. */
#ifndef OPS_BIAS_ACT_GRAD_WIDE_CUH
#define OPS_BIAS_ACT_GRAD_WIDE_CUH

#include "ops/cuda/columns.cuh"
#include "ops/cuda/wide.cuh"
#include "ops/gated/act_grad.cuh"
#include "sop/grad.h"

template <typename T, int ACT>
static __global__ __launch_bounds__(256) void sop_bias_act_grad_wide(const sop_bias_act_grad_desc d,
                                                                     int64_t chunk, const T *x,
                                                                     const T *r, const float *bias,
                                                                     const T *dy, T *dx,
                                                                     float *part)
{
    enum { N = wide<T>::N, REP = 4 };
    __shared__ float shared[SOP_COLUMN_LANES][32 * N];
    sop_begin();
    const int64_t i = ((int64_t)blockIdx.x * 32 + threadIdx.x) * N;
    const int64_t from = blockIdx.y * chunk, to = from + chunk < d.tokens ? from + chunk : d.tokens;
    float sum[N] = {}, b[N] = {};
    if (i < d.dim && bias) wide_load(bias + i, b);
    for (int64_t t0 = from + threadIdx.y; t0 < to && i < d.dim; t0 += SOP_COLUMN_LANES * REP) {
        wide_raw<T, N> xs[REP], rs[REP], gs[REP];
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t t = t0 + k * SOP_COLUMN_LANES;
            if (t >= to) break;
            wide_fetch(x + t * d.x_stride + i, xs[k]);
            wide_fetch(dy + t * d.dy_stride + i, gs[k]);
            if (r) wide_fetch(r + t * d.r_stride + i, rs[k]);
        }
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t t = t0 + k * SOP_COLUMN_LANES;
            float v[N], g[N], more[N] = {};
            if (t >= to) break;
            wide_floats(xs[k], v);
            wide_floats(gs[k], g);
            if (r) wide_floats(rs[k], more);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float slope, at = v[e];
                if (bias) at += b[e];
                if (r) at += more[e];
                (void)sop_act_grad_of<ACT, T>(at, slope);
                g[e] *= slope;
                sum[e] += g[e];
            }
            wide_store(dx + t * d.dx_stride + i, g);
        }
    }
    if (!part) return;
#pragma unroll
    for (int e = 0; e < N; e++) shared[threadIdx.y][e * 32 + threadIdx.x] = sum[e];
    __syncthreads();
    for (int k = threadIdx.y; k < N; k += SOP_COLUMN_LANES) {
        float all = 0;
        for (int lane = 0; lane < SOP_COLUMN_LANES; lane++)
            all += shared[lane][k * 32 + threadIdx.x];
        if (i < d.dim) part[blockIdx.y * d.dim + i + k] = all;
    }
}

#endif
