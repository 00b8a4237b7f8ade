/* ops/cuda/wide.cuh: 16 bytes of a row at a time, as floats. */
#ifndef OPS_CUDA_WIDE_CUH
#define OPS_CUDA_WIDE_CUH

#include "ops/cuda/elements.cuh"

/* Elements of 16 bytes. */
template <typename T> struct wide {
    enum { N = 16 / sizeof(T) };
};

/* Elements of the type X or Y that both hold in 16 bytes: a piece of the narrower one has 8 bytes. */
template <typename X, typename Y> struct wide_both {
    enum { N = sizeof(X) > sizeof(Y) ? 16 / sizeof(X) : 16 / sizeof(Y) };
};

/* N elements: 8 bytes, or a multiple of 16. */
template <typename T, int N> SOP_DEV void wide_load(const T *p, float (&x)[N])
{
    if constexpr (N * sizeof(T) == 8) {
        const uint2 raw = *(const uint2 *)p;
        const T *e = (const T *)&raw;
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = sop_to_float(e[i]);
    } else {
#pragma unroll
        for (int at = 0; at < N; at += wide<T>::N) {
            const uint4 raw = *(const uint4 *)(p + at);
            const T *e = (const T *)&raw;
#pragma unroll
            for (int i = 0; i < wide<T>::N; i++) x[at + i] = sop_to_float(e[i]);
        }
    }
}

template <typename T, int N> SOP_DEV void wide_store(T *p, const float (&x)[N])
{
    if constexpr (N * sizeof(T) == 8) {
        uint2 raw;
        T *e = (T *)&raw;
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = sop_from_float<T>(x[i]);
        *(uint2 *)p = raw;
    } else {
#pragma unroll
        for (int at = 0; at < N; at += wide<T>::N) {
            uint4 raw;
            T *e = (T *)&raw;
#pragma unroll
            for (int i = 0; i < wide<T>::N; i++) e[i] = sop_from_float<T>(x[at + i]);
            *(uint4 *)(p + at) = raw;
        }
    }
}

/* Sum and maximum over a block of up to 1024 threads, whole warps; shared holds 32 floats. */
SOP_DEV float wide_sum(float x, float *shared)
{
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    x = sop_warp_sum(x);
    if (warps == 1) return x;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : 0;
    __syncthreads();
    return sop_warp_sum(x);
}
SOP_DEV float wide_max(float x, float *shared)
{
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    x = sop_warp_max(x);
    if (warps == 1) return x;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : -INFINITY;
    __syncthreads();
    return sop_warp_max(x);
}

#endif
