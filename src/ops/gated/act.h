/* ops/gated/act.h: the activations of gated and bias_act: as doubles for the references, as floats for
 * portable rows. Both sides of a cancelling 1 + tanh or 1 + erf are written so that large negative
 * inputs keep their relative accuracy, and so that no exponential overflows. */
#ifndef OPS_GATED_ACT_H
#define OPS_GATED_ACT_H

#include <math.h>

#include "sop/desc.h"

/* act(g) = g * share; *sensitive: by how many u share moves when each step that leads to its
 * argument rounds once. */
static inline double sop_act_share(int32_t act, double g, double *sensitive)
{
    switch (act) {
    case SOP_ACT_SILU: *sensitive = 0; return 1 / (1 + exp(-g));
    case SOP_ACT_QUICK_GELU: {
        const double s = 1 / (1 + exp(-1.702 * g));
        *sensitive = 2 * fabs(1.702 * g) * (1 - s); /* of 1.702 and of the product */
        return s;
    }
    case SOP_ACT_GELU_TANH: { /* (1 + tanh v) / 2 is the logistic of 2v */
        const double v = 0.7978845608028654 * (g + 0.044715 * g * g * g);
        const double s = 1 / (1 + exp(-2 * v));
        *sensitive = s > 0 ? 12 * fabs(v) * (1 - s) : 0; /* 6 roundings in 2v */
        return s;
    }
    case SOP_ACT_RELU: *sensitive = 0; return g < 0 ? 0 : 1;
    default: {
        const double s = 0.5 * erfc(-g / 1.4142135623730951);
        *sensitive = s > 0 ? 2 * g * g * (1 - s) : 0; /* 1 rounding in g / sqrt(2), squared */
        return s;
    }
    }
}

/* The derivative, for an act(g) whose share is s. */
static inline double sop_act_slope(int32_t act, double g, double s)
{
    switch (act) {
    case SOP_ACT_SILU: return s + g * s * (1 - s);
    case SOP_ACT_QUICK_GELU: return s + 1.702 * g * s * (1 - s);
    case SOP_ACT_GELU_TANH:
        return s + 1.5957691216057308 * g * s * (1 - s) * (1 + 0.134145 * g * g);
    case SOP_ACT_RELU: return s;
    default: return s + g * 0.3989422804014327 * exp(-0.5 * g * g);
    }
}

static inline float sop_logistic_f32(float x)
{
    const float t = expf(-fabsf(x));
    return (x < 0 ? t : 1) / (1 + t);
}

static inline float sop_act_f32(int32_t act, float g)
{
    switch (act) {
    case SOP_ACT_SILU: return g * sop_logistic_f32(g);
    case SOP_ACT_QUICK_GELU: return g * sop_logistic_f32(1.702f * g);
    case SOP_ACT_GELU_TANH: return g * sop_logistic_f32(1.5957691f * g * (1 + 0.044715f * g * g));
    case SOP_ACT_RELU: return g < 0 ? 0 : g;
    default: return g * (0.5f * erfcf(-0.70710678f * g));
    }
}

#endif
