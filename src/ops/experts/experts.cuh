/* One warp a row of one weight, which goes past its expert's rows TOKENS at a time: each weight is decoded
 * once for all of them. Lane l sums the columns l, l + 32, ...: a row's sum has the same bits however many
 * there are. The z blocks share the rows of an expert. Any type, format and stride. */
#ifndef OPS_EXPERTS_CUH
#define OPS_EXPERTS_CUH

#include "ops/linear/dequant.cuh"
#include "sop/desc.h"

template <int TOKENS>
static __global__ __launch_bounds__(256) void sop_experts_any(const sop_experts_desc d,
                                                              const void *x, const uint8_t *w,
                                                              const int32_t *counts,
                                                              const int32_t *perm, void *y)
{
    sop_begin();
    const int lane = threadIdx.x, e = blockIdx.y;
    const int64_t c = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (c >= d.n) return;
    long long first = 0; /* row of the expert */
    for (int i = lane; i < e; i += 32) first += max(counts[i], 0);
    for (int o = 16; o > 0; o /= 2) first += __shfl_xor_sync(~0u, first, o);
    const int64_t last = min((int64_t)first + max(counts[e], 0), d.rows);
    const uint8_t *row = w + (e * d.w_expert + c * d.w_stride) * sop_block_bytes(d.w_dtype);
    for (int64_t t0 = first + (int64_t)blockIdx.z * TOKENS; t0 < last;
         t0 += (int64_t)gridDim.z * TOKENS) {
        int64_t at[TOKENS];
        float sum[TOKENS] = {};
#pragma unroll
        for (int r = 0; r < TOKENS; r++) {
            const int64_t t = min(t0 + r, last - 1);
            at[r] = (d.gather ? perm[t] / d.gather : t) * d.x_stride;
        }
        for (int64_t j = lane; j < d.k; j += 32) {
            const float v = sop_weight_at(d.w_dtype, row, j);
#pragma unroll
            for (int r = 0; r < TOKENS; r++)
                sum[r] = fmaf(v, sop_load_any(x, d.x_dtype, at[r] + j), sum[r]);
        }
#pragma unroll
        for (int r = 0; r < TOKENS; r++) {
            const float s = sop_warp_sum(sum[r]);
            if (lane != 0 || t0 + r >= last) continue;
            const int64_t out = d.scatter ? perm[t0 + r] : t0 + r;
            sop_store_any(y, d.y_dtype, out * d.y_stride + c, s);
        }
    }
}

#endif
