/* One block a group of dim, which stays in registers: it is read once, REP pieces a thread, of 16 bytes of
 * the narrowest type. */
#ifndef OPS_RMSNORM_WIDE_CUH
#define OPS_RMSNORM_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/rmsnorm/rmsnorm.cuh"
#include "sop/desc.h"

template <typename X, typename R, typename Y, int REP>
static __global__ __launch_bounds__(sizeof(X) > sizeof(Y) ? 512 : 1024) void sop_rmsnorm_wide(
    const sop_rmsnorm_desc d, const X *x, const R *r, const float *w, const int32_t *live, R *r_out,
    Y *y)
{
    enum { N = wide<Y>::N }; /* y is never the wider one */
    __shared__ float shared[32];
    const int64_t t = blockIdx.x, h = blockIdx.y;
    float s[REP][N], sum = 0, by = 1;
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride + h * d.x_head;
    y += t * d.y_stride + h * d.y_head;
    const int64_t ra = t * d.r_stride + h * d.r_head;
    wide_raw<X, N> xs[REP];
    wide_raw<R, N> rs[REP];
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i >= d.dim) continue;
        wide_fetch(x + i, xs[k]);
        if (r) wide_fetch(r + ra + i, rs[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        wide_floats(xs[k], s[k]);
        if (r) {
            float more[N];
            wide_floats(rs[k], more);
#pragma unroll
            for (int e = 0; e < N; e++) s[k][e] += more[e];
        }
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
        for (int e = 0; e < N; e++) sum += s[k][e] * s[k][e];
    }
    sum = wide_sum(sum, shared);
    if (isinf(sum)) {
        by = SOP_RMSNORM_AGAIN;
        sum = 0;
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
#pragma unroll
            for (int e = 0; e < N; e++) sum += s[k][e] * by * (s[k][e] * by);
        }
        __syncthreads();
        sum = wide_sum(sum, shared);
    }
    const float scale = 1 / sqrtf(sum / (float)d.dim + d.eps * by * by);
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i >= d.dim) continue;
        if (r) wide_store(r_out + ra + i, s[k]);
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            const float4 f = *(const float4 *)(w + i + e);
            s[k][e] = s[k][e] * by * ((d.offset + f.x) * scale);
            s[k][e + 1] = s[k][e + 1] * by * ((d.offset + f.y) * scale);
            s[k][e + 2] = s[k][e + 2] * by * ((d.offset + f.z) * scale);
            s[k][e + 3] = s[k][e + 3] * by * ((d.offset + f.w) * scale);
        }
        wide_store(y + i, s[k]);
    }
}

#endif
