/* A row of bias_act for the CPU: bias + GELU (tanh, erf) and bias + residual + quick GELU, in plain C that
 * the compiler turns into AVX2. A block of a row lies in a buffer that stays in the first cache: filled,
 * activated, written out, each by a loop without a branch. */
#include <math.h>
#include <sop/plan.h>
#include <stddef.h>
#include <string.h>

enum { BLOCK = 256 };

/* 2^n, n in -126 to 127. */
static inline float power(int32_t n)
{
    const int32_t bits = (n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* exp(x) for x <= 0: 2^n p(r) with r in +-ln(2)/2, the power in two factors, so that small results keep
 * their bits. NaN stays. */
static inline float exp_below(float x)
{
    x = x < -110 ? -110 : x;
    const float n = (x * 0x1.715476p0f + 0x1.8p23f) - 0x1.8p23f; /* rounded to a whole number */
    const int32_t whole = (int32_t)n, half = whole >> 1;
    float r = fmaf(n, -0x1.62e4p-1f, x), p = 0x1.6a4b38p-10f; /* ln 2 in two parts */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    p = fmaf(p, r, 0x1.12398ep-7f);
    p = fmaf(p, r, 0x1.5558b2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1);
    p = fmaf(p, r, 1);
    return p * power(half) * power(whole - half);
}

/* 1 / (1 + exp(-x)), right to the last bits where it is small too. */
static inline float logistic(float x)
{
    const float t = exp_below(-fabsf(x));
    return (x < 0 ? t : 1) / (1 + t);
}

static inline float quick_gelu(float g)
{
    return g * logistic(1.702f * g);
}

/* (1 + tanh v) / 2 is the logistic of 2 v. */
static inline float gelu_tanh(float g)
{
    return g * logistic(g * fmaf(g * g, 0.071354816f, 1.5957691f));
}

/* g erfc(-g / sqrt 2) / 2. With a = |g| the tail is exp(-a^2 / 2) R(1 / (1 + 0.3 a)); what a^2 loses when
 * it is rounded is given back, or the power would show it. */
static inline float gelu(float g)
{
    const float a = fabsf(g) > 15 ? 15 : fabsf(g), t = 1 / fmaf(a, 0.3f, 1);
    const float square = a * a, rest = fmaf(a, a, -square);
    float q = -0x1.480248p-6f;
    q = fmaf(q, t, 0x1.be0594p-4f);
    q = fmaf(q, t, -0x1.c0b346p-3f);
    q = fmaf(q, t, 0x1.6d12e6p-3f);
    q = fmaf(q, t, -0x1.1105cep-4f);
    q = fmaf(q, t, 0x1.6918p-4f);
    q = fmaf(q, t, 0x1.4eda6cp-4f);
    q = fmaf(q, t, 0x1.bfb30cp-4f);
    q = fmaf(q, t, 0x1.ea6fe8p-4f);
    q = fmaf(q, t, 0x1.ea2b6ep-4f);
    q = fmaf(q, t, 0x1.7b50e4p-21f);
    const float tail = fmaf(q * -0.5f, rest, q) * exp_below(-0.5f * square);
    return g * (g < 0 ? tail : 1 - tail);
}

static void piece(int32_t act, const float *x, const float *bias, const float *inside,
                  const float *after, float *y, int n)
{
    float v[BLOCK];
    memcpy(v, x, (size_t)n * sizeof *v);
    if (bias)
        for (int i = 0; i < n; i++) v[i] += bias[i];
    if (inside)
        for (int i = 0; i < n; i++) v[i] += inside[i];
    if (act == SOP_ACT_QUICK_GELU)
        for (int i = 0; i < n; i++) v[i] = quick_gelu(v[i]);
    else if (act == SOP_ACT_GELU_TANH)
        for (int i = 0; i < n; i++) v[i] = gelu_tanh(v[i]);
    else
        for (int i = 0; i < n; i++) v[i] = gelu(v[i]);
    if (after)
        for (int i = 0; i < n; i++) v[i] += after[i];
    memcpy(y, v, (size_t)n * sizeof *v);
}

/* Rows [begin, end), by one worker. y may be x: a piece is read before it is written. */
static void rows_of(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_bias_act_desc *d = call->desc;
    const float *x = call->args[SOP_BIAS_ACT_X].data, *r = call->args[SOP_BIAS_ACT_R].data;
    const float *bias = call->args[SOP_BIAS_ACT_BIAS].data;
    float *y = call->args[SOP_BIAS_ACT_Y].data;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < d->dim; i += BLOCK) {
            const float *more = r ? r + t * d->r_stride + i : NULL;
            piece(d->act, x + t * d->x_stride + i, bias ? bias + i : NULL,
                  d->residual == SOP_RESIDUAL_INSIDE ? more : NULL,
                  d->residual == SOP_RESIDUAL_AFTER ? more : NULL, y + t * d->y_stride + i,
                  d->dim - i < BLOCK ? (int)(d->dim - i) : BLOCK);
        }
}

static sop_status run(const sop_call *call)
{
    const sop_bias_act_desc *d = call->desc;
    const int32_t *live = call->args[SOP_BIAS_ACT_LIVE].data; /* rows that count, or NULL: all */
    sop_parallel(call->queue, live && *live < d->tokens ? *live : d->tokens, 4, rows_of, call);
    return SOP_OK;
}

static const char *refuse(const void *desc)
{
    const sop_bias_act_desc *d = desc;
    if (d->x_dtype != SOP_F32 || d->r_dtype != SOP_F32 || d->y_dtype != SOP_F32)
        return "a type is not f32";
    return d->act == SOP_ACT_GELU || d->act == SOP_ACT_GELU_TANH || d->act == SOP_ACT_QUICK_GELU
               ? NULL
               : "the activation is no GELU";
}

static const char *const ops[] = {"bias_act"};
static const sop_row rows[] = {{.size = sizeof(sop_row),
                                .device = SOP_DEVICE_CPU,
                                .name = "own:bias_gelu",
                                .route = "c",
                                .needs = SOP_CPU_AVX2,
                                .traits = SOP_ROW_INVARIANT,
                                .refuse = refuse,
                                .run = run}};

SOP_API const sop_plugin sop_plugin_rows = {sizeof(sop_plugin), ops, rows, 1};
