/* One block a row, read four times. As in layernorm the mean is taken twice, of x and of what is left
 * beside the float of the first. The row leaves both and its scale in scratch, with which columns of
 * chunks of rows sum dw and db (ops/cuda/columns.cuh). Any types and strides. */
#ifndef OPS_LAYERNORM_GRAD_CUH
#define OPS_LAYERNORM_GRAD_CUH

#include "ops/cuda/columns.cuh"
#include "sop/grad.h"

/* What a row's z follows from: z = ((x - mean) - rest) * scale. */
struct sop_layernorm_kept {
    float mean, rest, scale;
};

template <int THREADS>
static __global__ void sop_layernorm_grad_rows(const sop_layernorm_grad_desc d, const void *x,
                                               const float *w, const void *dy, const void *dr,
                                               void *dx, sop_layernorm_kept *kept)
{
    __shared__ float shared[THREADS / 32];
    sop_begin();
    const int64_t t = blockIdx.x, xa = t * d.x_stride, ga = t * d.dy_stride;
    const float n = (float)d.dim;
    float sum = 0, apart = 0, square = 0, of_g = 0, of_gz = 0;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS)
        sum += sop_load_any(x, d.x_dtype, xa + i);
    const float mean = sop_block_sum<THREADS>(sum, shared) / n;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float v = sop_load_any(x, d.x_dtype, xa + i) - mean;
        apart += v;
        square = fmaf(v, v, square);
    }
    const float rest = sop_block_sum<THREADS>(apart, shared) / n;
    const float variance = sop_block_sum<THREADS>(square, shared) / n - rest * rest;
    const float scale = 1 / sqrtf((variance < 0 ? 0 : variance) + d.eps);
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float arrives = sop_load_any(dy, d.dy_dtype, ga + i),
                    g = w ? w[i] * arrives : arrives;
        of_g += g;
        of_gz = fmaf(g, (sop_load_any(x, d.x_dtype, xa + i) - mean - rest) * scale, of_gz);
    }
    of_g = sop_block_sum<THREADS>(of_g, shared) / n;
    of_gz = sop_block_sum<THREADS>(of_gz, shared) / n;
    for (int64_t i = threadIdx.x; i < d.dim; i += THREADS) {
        const float arrives = sop_load_any(dy, d.dy_dtype, ga + i),
                    g = w ? w[i] * arrives : arrives;
        const float z = (sop_load_any(x, d.x_dtype, xa + i) - mean - rest) * scale;
        float v = scale * fmaf(-z, of_gz, g - of_g);
        if (dr) v += sop_load_any(dr, d.dr_dtype, t * d.dr_stride + i);
        sop_store_any(dx, d.dx_dtype, t * d.dx_stride + i, v);
    }
    if (threadIdx.x == 0 && kept) kept[t] = {mean, rest, scale};
}

static __global__ void sop_layernorm_grad_columns(const sop_layernorm_grad_desc d, int64_t chunk,
                                                  const void *x, const void *dy,
                                                  const sop_layernorm_kept *kept, float *part)
{
    sop_begin();
    sop_columns<2>(d.tokens, d.dim, chunk, part, [&](int64_t t, int64_t i, float(&terms)[2]) {
        const sop_layernorm_kept k = kept[t];
        terms[1] = sop_load_any(dy, d.dy_dtype, t * d.dy_stride + i);
        terms[0] = terms[1] *
                   ((sop_load_any(x, d.x_dtype, t * d.x_stride + i) - k.mean - k.rest) * k.scale);
    });
}

#endif
