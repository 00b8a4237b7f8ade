/* 16 bytes of each of four rows a thread, whose loads are in flight together: one piece of the bias serves
 * them all. Neighbouring blocks have neighbouring pieces of the rows. */
#ifndef OPS_BIAS_ACT_WIDE_CUH
#define OPS_BIAS_ACT_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

/* gelu for results of 16 bits, in a quarter of the instructions of erfcf, for which a row at copy speed has
 * no time. With a = |g|, t = a / (1 + 0.335 a),
 *     a erfc(a / sqrt 2) / 2 = t 2^(P(t) - a^2 log2(e) / 2)
 * P is the polynomial whose greatest error is least for a in [0, 15]: 4.7 u of the result; all together is
 * within what the reference allows float32. The power is a square, as in sop_logistic2. Beyond 15 it is 0,
 * and a stops there: no infinity times 0. */
SOP_DEV float sop_gelu_near(float g)
{
    const float a = fminf(fabsf(g), 15.0f);
    const float t = a * sop_reciprocal_near(fmaf(0.335f, a, 1.0f));
    float p = 6.641648957e-5f; /* halves: of the root */
    p = fmaf(p, t, -0.0005216299274f);
    p = fmaf(p, t, 0.0008769752021f);
    p = fmaf(p, t, 0.001063724855f);
    p = fmaf(p, t, 0.006470474565f);
    p = fmaf(p, t, -0.02137712179f);
    p = fmaf(p, t, -0.3338912737f);
    p = fmaf(p, t, -0.5000000613f);
    const float root = sop_exp2_near(fmaf(a * a, 0.5f * -0.7213475204f, p));
    return fmaf(-(t * root), root, fmaxf(g, 0.0f));
}

enum { SOP_BIAS_ACT_THREADS = 128, SOP_BIAS_ACT_ROWS = 4 };

/* ADD: there is a residual. blocks: along a row. */
template <typename T, typename R, int ACT, bool ADD>
static __global__ __launch_bounds__(SOP_BIAS_ACT_THREADS, ADD ? 6 : 12) void sop_bias_act_wide(
    const sop_bias_act_desc d, int blocks, const T *x, const R *r, const float *bias,
    const int32_t *live, T *y)
{
    enum { N = wide<T>::N, ROWS = SOP_BIAS_ACT_ROWS };
    sop_begin();
    const int64_t t = (int64_t)(blockIdx.x / blocks) * ROWS;
    const int64_t i = ((int64_t)(blockIdx.x % blocks) * blockDim.x + threadIdx.x) * N;
    const int64_t n = sop_live_rows(live, d.tokens) - t; /* rows from here on */
    const bool after = d.residual == SOP_RESIDUAL_AFTER;
    if (i >= d.dim) return;
    wide_raw<T, N> xs[ROWS];
    wide_raw<R, N> rs[ADD ? ROWS : 1];
    float of_bias[N] = {};
    x += t * d.x_stride + i;
    y += t * d.y_stride + i;
    if (ADD) r += t * d.r_stride + i;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        if (k >= n) break;
        wide_fetch(x + k * d.x_stride, xs[k]);
        if (ADD) wide_fetch(r + k * d.r_stride, rs[ADD ? k : 0]);
    }
    if (bias) wide_load(bias + i, of_bias);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        float v[N], more[N];
        if (k >= n) break;
        wide_floats(xs[k], v);
        if (ADD) wide_floats(rs[ADD ? k : 0], more);
#pragma unroll
        for (int e = 0; e < N; e++) {
            v[e] += of_bias[e];
            if (ADD && !after) v[e] += more[e];
            v[e] =
                ACT == SOP_ACT_GELU && sizeof(T) == 2 ? sop_gelu_near(v[e]) : sop_act_of(ACT, v[e]);
            if (ADD && after) v[e] += more[e];
        }
        wide_store(y + k * d.y_stride, v);
    }
}

#endif
