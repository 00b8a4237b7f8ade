#include "ops/cuda/elements.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/roof.h"

enum { THREADS = 512, EACH = 8 };

/* 8 pieces of 16 bytes a thread, all under way at once. What is read must matter, so a sum that never
 * hardly ever comes up is written. */
static __global__ void __launch_bounds__(THREADS) sop_roof_wide(uint4 *p, int64_t n)
{
    const int64_t at = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    uint4 v[EACH];
    uint32_t sum = 0;
    sop_begin();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = at + i * THREADS < n ? p[at + i * THREADS] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    if (sum == 0x5eed5eedu && at < n) p[at].x = sum;
}

sop_status sop_roof_run(const sop_call *call)
{
    const int64_t n = ((const sop_roof_desc *)call->desc)->bytes / 16;
    return sop_launch(sop_roof_wide, sop_blocks(n, THREADS * EACH), THREADS, call,
                      (uint4 *)call->args[0].data, n);
}
