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

/* N elements as they lie: 8 bytes, or a multiple of 16. Several are fetched before the first is turned
 * into floats: that would wait for it. */
template <typename T, int N> struct wide_raw {
    uint32_t word[N * sizeof(T) / 4];
};

template <typename T, int N> SOP_DEV void wide_fetch(const T *p, wide_raw<T, N> &raw)
{
    if constexpr (N * sizeof(T) == 8) {
        const uint2 v = *(const uint2 *)p;
        raw.word[0] = v.x, raw.word[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++) {
            const uint4 v = ((const uint4 *)p)[i];
            raw.word[4 * i] = v.x, raw.word[4 * i + 1] = v.y;
            raw.word[4 * i + 2] = v.z, raw.word[4 * i + 3] = v.w;
        }
    }
}

/* By an intrinsic: the compiler takes a plain store of a vector apart where it has work in between. */
template <typename T, int N> SOP_DEV void wide_put(T *p, const wide_raw<T, N> &raw)
{
    if constexpr (N * sizeof(T) == 8) {
        __stwb((uint2 *)p, make_uint2(raw.word[0], raw.word[1]));
    } else {
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++)
            __stwb((uint4 *)p + i, make_uint4(raw.word[4 * i], raw.word[4 * i + 1],
                                              raw.word[4 * i + 2], raw.word[4 * i + 3]));
    }
}

template <typename T, int N> SOP_DEV void wide_floats(const wide_raw<T, N> &raw, float (&x)[N])
{
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = __uint_as_float(raw.word[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) sop_unpack<T>(raw.word[i / 2], x[i], x[i + 1]);
    }
}

template <typename T, int N> SOP_DEV void wide_load(const T *p, float (&x)[N])
{
    wide_raw<T, N> raw;
    wide_fetch(p, raw);
    wide_floats(raw, x);
}

template <typename T, int N> SOP_DEV void wide_pack(const float (&x)[N], wide_raw<T, N> &raw)
{
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < N; i++) raw.word[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) raw.word[i / 2] = sop_pack<T>(x[i], x[i + 1]);
    }
}

template <typename T, int N> SOP_DEV void wide_store(T *p, const float (&x)[N])
{
    wide_raw<T, N> raw;
    wide_pack(x, raw);
    wide_put(p, raw);
}

/* What the warps left, summed: of eight, as long rows have, all loads at once. */
SOP_DEV float wide_sum_warps(const float *shared, int warps)
{
    float x = shared[0];
    if (warps == 8) {
#pragma unroll
        for (int w = 1; w < 8; w++) x += shared[w];
    } else {
        for (int w = 1; w < warps; w++) x += shared[w];
    }
    return x;
}

/* Sum and maximum over a block of up to 1024 threads, whole warps. shared holds 32 floats for this one
 * alone: nobody waits until they have been read. All threads get the result. */
SOP_DEV float wide_sum(float x, float *shared)
{
    const int warps = blockDim.x / 32;
    x = sop_warp_sum(x);
    if (warps == 1) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return wide_sum_warps(shared, warps);
}
/* Two sums at a time. */
SOP_DEV void wide_sums(float &x, float &y, float *shared_x, float *shared_y)
{
    const int warps = blockDim.x / 32;
    x = sop_warp_sum(x);
    y = sop_warp_sum(y);
    if (warps == 1) return;
    if (threadIdx.x % 32 == 0) {
        shared_x[threadIdx.x / 32] = x;
        shared_y[threadIdx.x / 32] = y;
    }
    __syncthreads();
    x = wide_sum_warps(shared_x, warps);
    y = wide_sum_warps(shared_y, warps);
}
SOP_DEV float wide_max(float x, float *shared)
{
    const int warps = blockDim.x / 32;
    x = sop_warp_max(x);
    if (warps == 1) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < warps; w++) x = fmaxf(x, shared[w]);
    return x;
}

#endif
