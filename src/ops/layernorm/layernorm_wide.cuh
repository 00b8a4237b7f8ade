/* One block a row, which stays in registers: it is read once, REP pieces a thread, of 16 bytes of the
 * narrowest type. */
#ifndef OPS_LAYERNORM_WIDE_CUH
#define OPS_LAYERNORM_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

/* What a thread has of a row: its pieces of x as they came, or their sums with r. */
template <typename X, int N, int REP, bool ADD> struct layernorm_pieces {
    wide_raw<X, N> x[ADD ? 1 : REP];
    float sum[ADD ? REP : 1][N];

    __device__ __forceinline__ void floats(int k, float (&s)[N]) const
    {
        if constexpr (ADD) {
#pragma unroll
            for (int e = 0; e < N; e++) s[e] = sum[k][e];
        } else {
            wide_floats(x[k], s);
        }
    }
    __device__ __forceinline__ void scale(float by)
    {
#pragma unroll
        for (int k = 0; k < REP; k++) {
            float s[N];
            floats(k, s);
#pragma unroll
            for (int e = 0; e < N; e++) s[e] *= by;
            if constexpr (ADD)
                memcpy(sum[k], s, sizeof s);
            else
                wide_pack(s, x[k]);
        }
    }
};

/* Long rows of 16 bits take up to 512 threads a block. 640 two times leave 48 registers each, so that five
 * blocks of 256 run at once; four took a tenth longer. */
template <typename X, typename Y, int REP, bool ADD> struct layernorm_bounds {
    enum { LEAN = sizeof(X) == 2 && REP > 1 && !ADD };
    enum { THREADS = LEAN ? 640 : sizeof(X) > sizeof(Y) ? 512 : 1024, BLOCKS = LEAN ? 2 : 1 };
};

template <typename X, typename R, typename Y, int REP, bool ADD,
          typename BOUNDS = layernorm_bounds<X, Y, REP, ADD>>
static __global__ __launch_bounds__(BOUNDS::THREADS, BOUNDS::BLOCKS) void sop_layernorm_wide(
    const sop_layernorm_desc d, const X *x, const R *r, const float *w, const float *b,
    const int32_t *live, R *r_out, Y *y)
{
    enum { N = wide<Y>::N }; /* y is never the wider one */
    __shared__ float shared[4][32];
    const int64_t t = blockIdx.x;
    const int dim = (int)d.dim;
    const float n = (float)dim;
    auto at = [](int k) { return (int)(k * blockDim.x + threadIdx.x) * N; };
    layernorm_pieces<X, N, REP, ADD> row;
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride;
    if constexpr (ADD) {
        wide_raw<X, N> xs[REP];
        wide_raw<R, N> rs[REP];
#pragma unroll
        for (int k = 0; k < REP; k++) {
            if (at(k) >= dim) continue;
            wide_fetch(x + at(k), xs[k]);
            wide_fetch(r + t * d.r_stride + at(k), rs[k]);
        }
#pragma unroll
        for (int k = 0; k < REP; k++) {
            float more[N];
            if (at(k) >= dim) continue;
            wide_floats(xs[k], row.sum[k]);
            wide_floats(rs[k], more);
#pragma unroll
            for (int e = 0; e < N; e++) row.sum[k][e] += more[e];
            wide_store(r_out + t * d.r_stride + at(k), row.sum[k]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < REP; k++)
            if (at(k) < dim) wide_fetch(x + at(k), row.x[k]);
    }
    auto each = [&](auto f) { /* of this thread's pieces */
#pragma unroll
                              for (int k = 0; k < REP; k++) {
                                  float s[N];
                                  if (at(k) >= dim) continue;
                                  row.floats(k, s);
                                  f(at(k), s);
                              }
    };
    /* Sums are of what lies beside a value near the mean, or a row far from zero would lose its variance:
     * the mean of the row's first piece, as its threads have it at once, or of a first pass where r_out may
     * have taken that piece's place. One further off than twice the spread is moved to the mean it led to. */
    float by = 1, near = 0, rest, variance;
    if constexpr (ADD) {
        each([&](int, const float(&s)[N]) {
#pragma unroll
            for (int e = 0; e < N; e++) near += s[e];
        });
        near = wide_sum(near, shared[2]) / n;
    } else {
        float s[N];
        wide_load(x, s);
#pragma unroll
        for (int half = N / 2; half; half /= 2)
#pragma unroll
            for (int e = 0; e < half; e++) s[e] += s[e + half];
        near = s[0] / N;
    }
    for (bool moved = false;;) {
        float apart = 0, square = 0;
        each([&](int, const float(&s)[N]) {
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float v = s[e] - near;
                apart += v;
                square += v * v;
            }
        });
        wide_sums(apart, square, shared[0], shared[1]);
        rest = apart / n;
        variance = square / n - rest * rest;
        if (isfinite(variance)) {
            if (moved || rest * rest <= 4 * variance) break;
            near += rest;
            moved = true;
        } else { /* sums past float32: once more, by a power of two; without numbers it stays NaN */
            float top = 1;
            if (by != 1) break;
            each([&](int, const float(&s)[N]) {
#pragma unroll
                for (int e = 0; e < N; e++) top = fmaxf(top, fabsf(s[e]));
            });
            by = ldexpf(1, -ilogbf(wide_max(top, shared[3])));
            if (by == 1) break;
            row.scale(by);
            near = 0;
        }
        __syncthreads(); /* the sums have been read */
    }
    const float eps = fmaxf(d.eps * by * by, 1e-37f);
    const float scale = 1 / sqrtf((variance < 0 ? 0 : variance) + eps), off = rest * scale;
    each([&](int i, float(&s)[N]) {
#pragma unroll
        for (int e = 0; e < N; e++) s[e] = fmaf(s[e] - near, scale, -off);
        float f[N], g[N];
        if (w) {
            wide_load(w + i, f);
#pragma unroll
            for (int e = 0; e < N; e++) s[e] *= f[e];
        }
        if (b) {
            wide_load(b + i, g);
#pragma unroll
            for (int e = 0; e < N; e++) s[e] += g[e];
        }
        wide_store(y + t * d.y_stride + i, s);
    });
}

#endif
