/* The gradients of rmsnorm and layernorm: rows stay in registers, so that they are read once. A block passes
 * over many rows, and so sums what its columns get of dw and db in registers too; how many blocks there are
 * follows from the desc and the card. ACROSS threads are at a row: all of the block, or a warp, whose block
 * then has 8 rows at a time. The next row is on its way while this one is reduced. */
#ifndef OPS_NORM_GRAD_WIDE_CUH
#define OPS_NORM_GRAD_WIDE_CUH

#include "ops/cuda/wide.cuh"

struct norm_grad_args {
    const void *x, *dy, *dr;
    const float *w; /* or NULL */
    void *dx;
    float *part;              /* [blocks, sums, dim], or NULL */
    int64_t rows, heads, dim; /* row = token * heads + head */
    int64_t x_stride, x_head, dy_stride, dy_head, dr_stride, dr_head, dx_stride, dx_head;
    float eps, offset;
};

/* K sums over what is at a row; shared [K]. Another call may follow at once with other shared memory, and
 * with the same after a barrier. */
template <int K> SOP_DEV void norm_grad_sums(float (&v)[K], float (*shared)[32], bool warp)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = sop_warp_sum(v[k]);
    if (warp || warps == 1) return;
    if (lane == 0)
#pragma unroll
        for (int k = 0; k < K; k++) shared[k][threadIdx.x / 32] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = sop_warp_sum(lane < warps ? shared[k][lane] : 0);
}

/* MEAN: layernorm's, with db. WARP: a warp is at a row. */
template <typename T, int REP, bool MEAN, bool WARP>
static __global__ __launch_bounds__(512) void sop_norm_grad_wide(const norm_grad_args a)
{
    enum { N = wide<T>::N, SUMS = MEAN ? 2 : 1 };
    __shared__ float shared[3][4][32];
    __shared__ float staged[WARP ? 8 : 1][WARP ? 32 * N : 1];
    const int across = WARP ? 32 : blockDim.x, at = threadIdx.x % across;
    const int lanes = WARP ? 8 : 1;
    const float share = 1 / (float)a.dim;
    float w[REP][N], sums[SUMS][REP][N] = {};
    wide_raw<T, N> xs[REP], gs[REP], rs[REP];
    sop_begin();
    auto fetch = [&](int64_t t, int64_t h) {
        const T *x = (const T *)a.x + t * a.x_stride + h * a.x_head;
        const T *dy = (const T *)a.dy + t * a.dy_stride + h * a.dy_head;
        const T *dr = (const T *)a.dr + t * a.dr_stride + h * a.dr_head;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t i = (int64_t)(k * across + at) * N;
            if (i >= a.dim) continue;
            wide_fetch(x + i, xs[k]);
            wide_fetch(dy + i, gs[k]);
            if (a.dr) wide_fetch(dr + i, rs[k]);
        }
    };
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = (int64_t)(k * across + at) * N;
#pragma unroll
        for (int e = 0; e < N; e++) w[k][e] = 1 - a.offset; /* also where there is no column */
        if (a.w && i < a.dim) wide_load(a.w + i, w[k]);
#pragma unroll
        for (int e = 0; e < N; e++) w[k][e] += a.offset;
    }
    /* divisions of 64 bits would take longer than a row: token and head go on by steps */
    const int64_t step = (int64_t)gridDim.x * lanes, step_t = step / a.heads;
    const int64_t step_h = step % a.heads;
    int64_t row = (int64_t)blockIdx.x * lanes + threadIdx.x / across;
    int64_t t = row / a.heads, h = row % a.heads;
    if (row < a.rows) fetch(t, h);
    for (int turn = 0; row < a.rows; row += step, turn ^= 1) {
        float x[REP][N], g[REP][N];
        wide_raw<T, N> more[REP];
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const bool in = (int64_t)(k * across + at) * N < a.dim;
            if (in) {
                wide_floats(xs[k], x[k]);
                wide_floats(gs[k], g[k]);
                more[k] = rs[k];
                continue;
            }
#pragma unroll
            for (int e = 0; e < N; e++) x[k][e] = g[k][e] = 0;
        }
        T *dx = (T *)a.dx + t * a.dx_stride + h * a.dx_head;
        t += step_t;
        h += step_h;
        if (h >= a.heads) h -= a.heads, t++;
        if (row + step < a.rows) fetch(t, h);
        float of_g = 0, of_gz, scale;
        if (MEAN) {
            float first[1] = {0}, v[4] = {};
#pragma unroll
            for (int k = 0; k < REP; k++)
#pragma unroll
                for (int e = 0; e < N; e++) first[0] += x[k][e];
            norm_grad_sums(first, shared[2], WARP);
            const float mean = first[0] * share;
#pragma unroll
            for (int k = 0; k < REP; k++) {
                if ((int64_t)(k * across + at) * N >= a.dim) continue;
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const float z = x[k][e] -= mean, wg = w[k][e] * g[k][e];
                    v[0] += z;
                    v[1] = fmaf(z, z, v[1]);
                    v[2] += wg;
                    v[3] = fmaf(wg, z, v[3]);
                }
            }
            norm_grad_sums(v, shared[turn], WARP);
            const float rest = v[0] * share, variance = v[1] * share - rest * rest;
            scale = 1 / sqrtf((variance < 0 ? 0 : variance) + a.eps);
            of_g = v[2] * share;
            of_gz = scale * fmaf(-rest, v[2], v[3]) * share;
#pragma unroll
            for (int k = 0; k < REP; k++)
#pragma unroll
                for (int e = 0; e < N; e++) x[k][e] -= rest;
        } else {
            float v[2] = {};
#pragma unroll
            for (int k = 0; k < REP; k++)
#pragma unroll
                for (int e = 0; e < N; e++) {
                    v[0] = fmaf(x[k][e], x[k][e], v[0]);
                    v[1] = fmaf(w[k][e] * g[k][e], x[k][e], v[1]);
                }
            norm_grad_sums(v, shared[turn], WARP);
            scale = 1 / sqrtf(fmaf(v[0], share, a.eps));
            of_gz = scale * v[1] * share;
        }
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t i = (int64_t)(k * across + at) * N;
            float r[N] = {};
            if (i >= a.dim) continue;
            if (a.dr) wide_floats(more[k], r);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float z = x[k][e] * scale;
                sums[0][k][e] = fmaf(g[k][e], z, sums[0][k][e]);
                if (MEAN) sums[SUMS - 1][k][e] += g[k][e];
                const float v = scale * fmaf(-z, of_gz, fmaf(w[k][e], g[k][e], -of_g));
                r[e] = a.dr ? v + r[e] : v;
            }
            wide_store(dx + i, r);
        }
    }
    if (!a.part) return;
#pragma unroll
    for (int m = 0; m < SUMS; m++) {
        float *part = a.part + ((int64_t)blockIdx.x * SUMS + m) * a.dim;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int64_t i = (int64_t)(k * across + at) * N;
            if constexpr (!WARP) {
                if (i < a.dim) wide_store(part + i, sums[m][k]);
                continue;
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < N; e++)
                staged[WARP ? threadIdx.x / 32 : 0][WARP ? e * 32 + at : 0] = sums[m][k][e];
            __syncthreads();
            /* thread: place c of 32 N, which is element c / 32 of lane c % 32 */
            const int c = threadIdx.x;
            const int64_t column = (int64_t)(k * 32 + c % 32) * N + c / 32;
            float all = 0;
            if (WARP && c < 32 * N && column < a.dim) {
                for (int lane = 0; lane < 8; lane++) all += staged[lane][c];
                part[column] = all;
            }
        }
    }
}

#endif
