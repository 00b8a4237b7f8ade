/* One block a group of dim; the row is read twice, the second time from a cache. Any types and
 * strides. x is read before y is written, r before r_out, each by the thread that writes it. */
#ifndef OPS_RMSNORM_CUH
#define OPS_RMSNORM_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* Squares past float32: their sum once more, of values by so much. */
#define SOP_RMSNORM_AGAIN 0x1p-80f

template <int THREADS>
static __global__ void sop_rmsnorm_any(const sop_rmsnorm_desc d, const void *x, const void *r,
                                       const float *w, const int32_t *live, void *r_out, void *y)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, h = blockIdx.y;
    if (t >= sop_live_rows(live, d.tokens)) return;
    const int64_t xa = t * d.x_stride + h * d.x_head, ra = t * d.r_stride + h * d.r_head;
    const int64_t ya = t * d.y_stride + h * d.y_head;
    float sum, by = 1;
    for (;;) {
        sum = 0;
        for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
            float s = sop_load_any(x, d.x_dtype, xa + i);
            if (r) s += sop_load_any(r, d.r_dtype, ra + i);
            sum += s * by * (s * by);
        }
        sum = sop_block_sum<THREADS>(sum, shared);
        if (!isinf(sum) || by != 1) break;
        by = SOP_RMSNORM_AGAIN;
    }
    const float scale = 1 / sqrtf(sum / (float)d.dim + d.eps * by * by);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        float s = sop_load_any(x, d.x_dtype, xa + i);
        if (r) {
            s += sop_load_any(r, d.r_dtype, ra + i);
            sop_store_any(r_out, d.r_dtype, ra + i, s);
        }
        sop_store_any(y, d.y_dtype, ya + i, (d.offset + w[i]) * (s * by) * scale);
    }
}

#endif
