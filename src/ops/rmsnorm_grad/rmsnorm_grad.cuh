/* One block a group of dim, read three times; it leaves its scale in scratch, with which columns of chunks
 * of rows sum dw (ops/cuda/columns.cuh). Any types and strides. */
#ifndef OPS_RMSNORM_GRAD_CUH
#define OPS_RMSNORM_GRAD_CUH

#include "ops/cuda/columns.cuh"
#include "sop/grad.h"

template <int THREADS>
static __global__ void sop_rmsnorm_grad_rows(const sop_rmsnorm_grad_desc d, const void *x,
                                             const float *w, const void *dy, const void *dr,
                                             void *dx, float *scales)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, h = blockIdx.y;
    const int64_t xa = t * d.x_stride + h * d.x_head, ga = t * d.dy_stride + h * d.dy_head;
    const int64_t ra = t * d.dr_stride + h * d.dr_head, out = t * d.dx_stride + h * d.dx_head;
    float squares = 0, mean = 0;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float v = sop_load_any(x, d.x_dtype, xa + i);
        squares = fmaf(v, v, squares);
    }
    squares = sop_block_sum<THREADS>(squares, shared);
    const float scale = 1 / sqrtf(squares / (float)d.dim + d.eps);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        mean = fmaf((d.offset + w[i]) * sop_load_any(dy, d.dy_dtype, ga + i),
                    sop_load_any(x, d.x_dtype, xa + i) * scale, mean);
    mean = sop_block_sum<THREADS>(mean, shared) / (float)d.dim;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float g = (d.offset + w[i]) * sop_load_any(dy, d.dy_dtype, ga + i);
        float v = scale * fmaf(-mean, sop_load_any(x, d.x_dtype, xa + i) * scale, g);
        if (dr) v += sop_load_any(dr, d.dr_dtype, ra + i);
        sop_store_any(dx, d.dx_dtype, out + i, v);
    }
    if (threadIdx.x == 0 && scales) scales[t * d.heads + h] = scale;
}

static __global__ void sop_rmsnorm_grad_columns(const sop_rmsnorm_grad_desc d, int64_t chunk,
                                                const void *x, const void *dy, const float *scales,
                                                float *part)
{
    sop_begin();
    sop_columns<1>(
        d.tokens * d.heads, d.dim, chunk, part, [&](int64_t k, int64_t i, float(&term)[1]) {
            const int64_t t = k / d.heads, h = k % d.heads;
            term[0] = sop_load_any(dy, d.dy_dtype, t * d.dy_stride + h * d.dy_head + i) *
                      (sop_load_any(x, d.x_dtype, t * d.x_stride + h * d.x_head + i) * scales[k]);
        });
}

#endif
