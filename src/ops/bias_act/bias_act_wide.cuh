/* 16 bytes of a row at a time, four a thread whose loads are in flight together; neighbouring blocks have
 * neighbouring pieces of a row. The bias of a row's piece comes from the cache. */
#ifndef OPS_BIAS_ACT_WIDE_CUH
#define OPS_BIAS_ACT_WIDE_CUH

#include "ops/cuda/wide.cuh"
#include "ops/gated/gated_act.cuh"

/* gelu for results of 16 bits, in a third of the instructions of erfcf, for which a row at copy speed has
 * no time. With a = |g|, t = 1 / (1 + 0.4 a), s = 1 - t,
 *     erfc(a / sqrt 2) / 2 = t 2^(P(s) - a^2 log2(e) / 2)
 * P is the polynomial whose greatest error is least for a in [0, 15]: 1.5 u of the result; all together
 * is within 16 u near 0, where the argument of the power is small. The power is a square, as in
 * sop_logistic2. Beyond 15 the share of -a is 0, and a stops there: no infinity times 0. */
SOP_DEV float sop_gelu_near(float g)
{
    const float t = sop_reciprocal_near(fmaf(0.4f, fabsf(g), 1.0f)), s = 1 - t;
    float p = 0.5f * 0.2739489376f;
    p = fmaf(p, s, 0.5f * -0.7887095153f);
    p = fmaf(p, s, 0.5f * 0.6516844121f);
    p = fmaf(p, s, 0.5f * -0.1730544715f);
    p = fmaf(p, s, 0.5f * 0.2927054487f);
    p = fmaf(p, s, 0.5f * 0.04821313041f);
    p = fmaf(p, s, 0.5f * -0.5172192965f);
    p = fmaf(p, s, 0.5f * -1.435091533f);
    p = fmaf(p, s, 0.5f * -0.9999998765f);
    const float root = sop_exp2_near(fmaf(g * g, 0.5f * -0.7213475204f, p));
    return fmaf(-fminf(fabsf(g), 15.0f), t * root * root, fmaxf(g, 0.0f));
}

enum { SOP_BIAS_ACT_THREADS = 128, SOP_BIAS_ACT_REP = 4 /* pieces a thread */ };

/* ADD: there is a residual. */
template <typename T, typename R, int ACT, bool ADD>
static __global__ __launch_bounds__(SOP_BIAS_ACT_THREADS, ADD ? 6 : 8) void sop_bias_act_wide(
    const sop_bias_act_desc d, int blocks, const T *x, const R *r, const float *bias,
    const int32_t *live, T *y)
{
    enum { N = wide<T>::N, REP = SOP_BIAS_ACT_REP };
    sop_begin();
    const int64_t t = blockIdx.x / blocks, step = blockDim.x * N;
    const int64_t first = (int64_t)(blockIdx.x % blocks) * REP * step + threadIdx.x * N;
    const bool after = d.residual == SOP_RESIDUAL_AFTER;
    if (t >= sop_live_rows(live, d.tokens)) return;
    wide_raw<T, N> xs[REP];
    wide_raw<R, N> rs[ADD ? REP : 1];
    x += t * d.x_stride;
    y += t * d.y_stride;
    if (ADD) r += t * d.r_stride;
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        if (i >= d.dim) continue;
        wide_fetch(x + i, xs[k]);
        if (ADD) wide_fetch(r + i, rs[ADD ? k : 0]);
    }
#pragma unroll
    for (int k = 0; k < REP; k++) {
        const int64_t i = first + k * step;
        float v[N], more[N];
        if (i >= d.dim) continue;
        wide_floats(xs[k], v);
        if (bias) {
            wide_load(bias + i, more);
#pragma unroll
            for (int e = 0; e < N; e++) v[e] += more[e];
        }
        if (ADD) wide_floats(rs[ADD ? k : 0], more);
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (ADD && !after) v[e] += more[e];
            v[e] =
                ACT == SOP_ACT_GELU && sizeof(T) == 2 ? sop_gelu_near(v[e]) : sop_act_of(ACT, v[e]);
            if (ADD && after) v[e] += more[e];
        }
        wide_store(y + i, v);
    }
}

#endif
