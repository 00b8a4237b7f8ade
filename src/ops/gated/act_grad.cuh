/* The activations with their slopes, as in ops/gated/act_grad.h. */
#ifndef OPS_GATED_ACT_GRAD_CUH
#define OPS_GATED_ACT_GRAD_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* act(g), and its slope. */
SOP_DEV float sop_act_grad(int32_t act, float g, float &slope)
{
    float a = g, inner = 1; /* the logistic's argument, and its slope */
    switch (act) {
    case SOP_ACT_SILU: break;
    case SOP_ACT_QUICK_GELU: inner = 1.702f, a = 1.702f * g; break;
    case SOP_ACT_GELU_TANH:
        inner = 1.5957691f * fmaf(0.134145f * g, g, 1.0f);
        a = 1.5957691f * g * fmaf(0.044715f * g, g, 1.0f);
        break;
    case SOP_ACT_RELU: slope = g > 0 ? 1 : g <= 0 ? 0 : g; return g < 0 ? 0 : g;
    default: {
        const float share = 0.5f * erfcf(-0.70710678f * g);
        const float density = 0.39894228f * expf(-0.5f * g * g);
        slope = density > 0 ? fmaf(g, density, share) : share;
        return g * share;
    }
    }
    const float e = expf(-fabsf(a)), r = __fdividef(1.0f, 1 + e); /* by 1 to 2: within 2 ulp */
    const float share = a < 0 ? e * r : r, t = e * r * r;
    slope = t > 0 ? fmaf(g * t, inner, share) : share;
    return g * share;
}

#endif
