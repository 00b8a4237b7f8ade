/* One warp a row of the weights, TOKENS tokens at a time: each weight is decoded once for all of them.
 * Lane l sums the columns l, l + 32, ...: a token's sum has the same bits however many there are. */
#ifndef OPS_LINEAR_CUH
#define OPS_LINEAR_CUH

#include "ops/linear/dequant.cuh"
#include "sop/desc.h"

/* The pointers of a call, as a kernel takes them. */
struct sop_linear_args {
    const void *x;
    const uint8_t *w[3];
    const float *bias[3]; /* NULL: none */
    const int32_t *live;
    void *y;
};

SOP_DEV float sop_linear_x(const void *x, int32_t dtype, int64_t i)
{
    return dtype == SOP_F8 ? sop_f8_to_float(((const uint8_t *)x)[i]) : sop_load_any(x, dtype, i);
}

/* x_scale is for tokens of codes; NULL: 1 */
template <int TOKENS>
static __global__ __launch_bounds__(256) void sop_linear_any(const sop_linear_desc d,
                                                             const sop_linear_args a,
                                                             const float *x_scale)
{
    sop_begin();
    const int lane = threadIdx.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, at = 0;
    const int64_t t0 = (int64_t)blockIdx.y * TOKENS, tokens = sop_live_rows(a.live, d.tokens);
    int j = 0;
    for (; j < 3 && i >= d.n[j]; j++) {
        i -= d.n[j];
        at += d.n[j];
    }
    if (j == 3 || t0 >= tokens) return;
    const uint8_t *row = a.w[j] + i * d.w_stride[j] * sop_block_bytes(d.w_dtype[j]);
    float sum[TOKENS] = {};
    for (int64_t c = lane; c < d.k; c += 32) {
        const float w = sop_weight_at(d.w_dtype[j], row, c);
#pragma unroll
        for (int r = 0; r < TOKENS; r++) {
            const int64_t t = min(t0 + r, tokens - 1);
            sum[r] = fmaf(w, sop_linear_x(a.x, d.x_dtype, t * d.x_stride + c), sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < TOKENS; r++) {
        float y = sop_warp_sum(sum[r]);
        if (x_scale) y *= x_scale[min(t0 + r, tokens - 1)];
        if (a.bias[j]) y += a.bias[j][i];
        if (lane == 0 && t0 + r < tokens)
            sop_store_any(a.y, d.y_dtype, (t0 + r) * d.y_stride + at + i, y);
    }
}

#endif
