/* One block a token: cosine and sine of each pair of channels once, in shared memory; then two pieces of
 * 16 bytes, one of each half of a head, at a time. The channels behind rot are copied. */
#ifndef OPS_ROPE_WIDE_CUH
#define OPS_ROPE_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "sop/desc.h"

enum { ROPE_WIDE_MOST = 256 }; /* pairs of a head */

template <typename T>
static __global__ __launch_bounds__(256, 3) void sop_rope_wide(const sop_rope_desc d, const T *x,
                                                               const int32_t *pos,
                                                               const float *freqs,
                                                               const int32_t *live, T *y)
{
    enum { N = wide<T>::N, REP = 2 };
    __shared__ __align__(16) float cosine[ROPE_WIDE_MOST], sine[ROPE_WIDE_MOST];
    sop_begin();
    const int64_t t = blockIdx.x;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int half = (int)d.rot / 2, pieces = half / N, rest = (int)(d.k - d.rot) / N;
    x += t * d.x_stride;
    y += t * d.y_stride;
    const int n = (int)d.heads * pieces, step = blockDim.x;
    for (int base = 0; base < n; base += REP * step) {
        const int first = base + threadIdx.x;
        wide_raw<T, N> low[REP], high[REP];
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int at = first + k * step;
            if (at >= n) break;
            const T *from = x + at / pieces * d.x_head + at % pieces * N;
            wide_fetch(from, low[k]);
            wide_fetch(from + half, high[k]);
        }
        if (base == 0) { /* while the first pieces come */
            for (int i = threadIdx.x; i < half; i += step) {
                float s, c;
                sincosf(__fmul_rn((float)pos[t], freqs[i]), &s, &c);
                cosine[i] = c * d.mscale;
                sine[i] = s * d.mscale;
            }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < REP; k++) {
            const int at = first + k * step;
            if (at >= n) break;
            const int i = at % pieces * N;
            float c[N], s[N], p[N], q[N];
            wide_load(cosine + i, c);
            wide_load(sine + i, s);
            wide_floats(low[k], p);
            wide_floats(high[k], q);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float a = p[e], b = q[e];
                p[e] = a * c[e] - b * s[e];
                q[e] = b * c[e] + a * s[e];
            }
            T *to = y + at / pieces * d.y_head + i;
            wide_store(to, p);
            wide_store(to + half, q);
        }
    }
    for (int at = threadIdx.x; at < (int)d.heads * rest; at += step) {
        const int i = (int)d.rot + at % rest * N;
        float a[N];
        wide_load(x + at / rest * d.x_head + i, a);
        wide_store(y + at / rest * d.y_head + i, a);
    }
}

#endif
