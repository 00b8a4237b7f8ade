/* One block a row, which stays in registers: it is read once, REP pieces of 8 elements a thread. */
#ifndef OPS_QUANTIZE_WIDE_CUH
#define OPS_QUANTIZE_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/quantize/quantize.cuh"

/* Four codes in a word. */
SOP_DEV uint32_t quantize_word(float a, float b, float c, float d)
{
#if __CUDA_ARCH__ >= 890
    uint16_t lo, hi;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(d), "f"(c));
    return (uint32_t)lo | (uint32_t)hi << 16;
#else
    return (uint32_t)sop_float_to_f8(a) | (uint32_t)sop_float_to_f8(b) << 8 |
           (uint32_t)sop_float_to_f8(c) << 16 | (uint32_t)sop_float_to_f8(d) << 24;
#endif
}

template <typename X, int REP>
static __global__ __launch_bounds__(1024) void sop_quantize_wide(const sop_quantize_desc d,
                                                                 const X *x, const int32_t *live,
                                                                 uint8_t *codes, float *scales)
{
    enum { N = 8 };
    __shared__ float shared[32];
    const int64_t t = blockIdx.x;
    sop_begin();
    if (t >= sop_live_rows(live, d.tokens)) return;
    x += t * d.x_stride;
    codes += t * d.codes_stride;
    wide_raw<X, N> raw[REP];
    float most = 0;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        if (i < d.dim) wide_fetch(x + i, raw[k]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        float v[N];
        if ((k * blockDim.x + threadIdx.x) * N >= d.dim) continue;
        wide_floats(raw[k], v);
#pragma unroll
        for (int e = 0; e < N; e++) most = fmaxf(most, quantize_size(v[e]));
    }
    const float scale = quantize_scale(wide_max(most, shared)), inverse = __fdiv_rn(1, scale);
    if (threadIdx.x == 0) scales[t] = scale;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int i = (k * blockDim.x + threadIdx.x) * N;
        float v[N];
        if (i >= d.dim) continue;
        wide_floats(raw[k], v);
#pragma unroll
        for (int e = 0; e < N; e++) v[e] = quantize_quotient(v[e], inverse);
        wide_raw<uint8_t, N> out;
        out.word[0] = quantize_word(v[0], v[1], v[2], v[3]);
        out.word[1] = quantize_word(v[4], v[5], v[6], v[7]);
        wide_put(codes + i, out);
    }
}

#endif
