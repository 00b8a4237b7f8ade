/* ops/cuda/elements.cuh: device code that kernels share: elements of any type, live counts, sums over a
 * warp and a block. Sums are trees of a fixed shape, so a result has the same bits in every run. */
#ifndef OPS_CUDA_ELEMENTS_CUH
#define OPS_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "sop/types.h"

#define SOP_DEV static __device__ __forceinline__

/* A kernel may begin while the one before it ends (sop_launch_early): what that one wrote, or still
 * reads, may be touched after sop_begin() alone; the next one may begin from then on. Every kernel calls
 * it, so that all before are done. Cards older than compute capability 9.0 begin when all is done. */
SOP_DEV void grid_go(void) /* its first half: the next one may begin */
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
SOP_DEV void grid_wait(void) /* its second: the one before is done */
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
SOP_DEV void sop_begin(void)
{
    grid_go();
    grid_wait();
}

/* A policy of loads: what they bring is read once, and is the first to leave the L2. */
SOP_DEV uint64_t sop_once(void)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

SOP_DEV float sop_to_float(float x)
{
    return x;
}
SOP_DEV float sop_to_float(__half x)
{
    return __half2float(x);
}
SOP_DEV float sop_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> SOP_DEV T sop_from_float(float x);
template <> __device__ __forceinline__ float sop_from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __half sop_from_float<__half>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 sop_from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Two floats as a pair of 16-bit elements, lo in the low half. */
template <typename T> SOP_DEV uint32_t sop_pack(float lo, float hi);
template <> __device__ __forceinline__ uint32_t sop_pack<__nv_bfloat16>(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
template <> __device__ __forceinline__ uint32_t sop_pack<__half>(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* And back. */
template <typename T> SOP_DEV void sop_unpack(uint32_t pair, float &lo, float &hi);
template <>
__device__ __forceinline__ void sop_unpack<__nv_bfloat16>(uint32_t pair, float &lo, float &hi)
{
    lo = __uint_as_float(pair << 16);
    hi = __uint_as_float(pair & 0xffff0000u);
}
template <> __device__ __forceinline__ void sop_unpack<__half>(uint32_t pair, float &lo, float &hi)
{
    lo = __half2float(__ushort_as_half((unsigned short)pair));
    hi = __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}

/* Element i of an array whose type is known at run time only: all threads take one branch. */
SOP_DEV float sop_load_any(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case SOP_F16: return __half2float(((const __half *)p)[i]);
    case SOP_BF16: return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    default: return ((const float *)p)[i];
    }
}
SOP_DEV void sop_store_any(void *p, int32_t dtype, int64_t i, float x)
{
    switch (dtype) {
    case SOP_F16: ((__half *)p)[i] = __float2half_rn(x); break;
    case SOP_BF16: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x); break;
    default: ((float *)p)[i] = x;
    }
}

/* e4m3 without infinities, as in core/f16.h. */
SOP_DEV float sop_f8_to_float(uint8_t b)
{
    const float x = __uint_as_float((uint32_t)(b & 0x7f) << 20) * 0x1p120f;
    return (b & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000) : b & 0x80 ? -x : x;
}
SOP_DEV uint8_t sop_float_to_f8(float f)
{
    uint32_t x = __float_as_uint(f);
    const uint32_t sign = x >> 24 & 0x80;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (x >= 0x43e00000u) return (uint8_t)(sign | 0x7e);
    if (x < 0x3c800000u) return (uint8_t)(sign | (uint32_t)rintf(fabsf(f) * 0x1p9f));
    return (uint8_t)(sign | (((x + 0x7ffffu + (x >> 20 & 1u)) >> 20) - 960));
}

/* Live rows: what the operand says, at most most; all without one. */
SOP_DEV int64_t sop_live_rows(const int32_t *live, int64_t most)
{
    if (!live) return most;
    const int32_t n = *live;
    return n < 0 ? 0 : n < most ? n : most;
}

SOP_DEV float sop_warp_sum(float x)
{
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
SOP_DEV float sop_warp_max(float x)
{
    for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* Over a block of THREADS; shared holds THREADS / 32 floats and is free again afterwards. All threads
 * get the result. */
template <int THREADS> SOP_DEV float sop_block_sum(float x, float *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = sop_warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    float all = lane < THREADS / 32 ? shared[lane] : 0;
    __syncthreads();
    return sop_warp_sum(all);
}
template <int THREADS> SOP_DEV float sop_block_max(float x, float *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = sop_warp_max(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    float all = lane < THREADS / 32 ? shared[lane] : -INFINITY;
    __syncthreads();
    return sop_warp_max(all);
}

#endif
