/* The activations with their slopes, as in ops/gated/act_grad.h. */
#ifndef OPS_GATED_ACT_GRAD_CUH
#define OPS_GATED_ACT_GRAD_CUH

#include "ops/gated/gated_act.cuh"

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

/* The same for results of 16 bits, in half the instructions, for which a row at copy speed has no time. Powers
 * of two are the special function unit's, and the polynomial is that of sop_gelu_near; here its power and the
 * density are taken apart, as the slope wants both. */
template <int ACT> SOP_DEV float sop_act_grad_near(float g, float &slope)
{
    if (ACT == SOP_ACT_RELU) return sop_act_grad(ACT, g, slope);
    if (ACT == SOP_ACT_GELU) {
        const float t = sop_reciprocal_near(fmaf(0.4f, fabsf(g), 1.0f)), s = 1 - t;
        const float density = sop_exp2_near(g * g * -0.7213475204f);
        float p = 0.2739489376f;
        p = fmaf(p, s, -0.7887095153f);
        p = fmaf(p, s, 0.6516844121f);
        p = fmaf(p, s, -0.1730544715f);
        p = fmaf(p, s, 0.2927054487f);
        p = fmaf(p, s, 0.04821313041f);
        p = fmaf(p, s, -0.5172192965f);
        p = fmaf(p, s, -1.435091533f);
        p = fmaf(p, s, -0.9999998765f);
        const float rest = t * sop_exp2_near(p) * density, share = g < 0 ? rest : 1 - rest;
        slope = density > 0 ? fmaf(g * 0.39894228f, density, share) : share;
        return fmaf(-fminf(fabsf(g), 15.0f), rest, fmaxf(g, 0.0f));
    }
    float a = g, inner = 1;
    if (ACT == SOP_ACT_QUICK_GELU) inner = 1.702f, a = 1.702f * g;
    if (ACT == SOP_ACT_GELU_TANH) {
        inner = 1.5957691f * fmaf(0.134145f * g, g, 1.0f);
        a = 1.5957691f * g * fmaf(0.044715f * g, g, 1.0f);
    }
    const float e = sop_exp2_near(-1.44269504f * fabsf(a)), r = sop_reciprocal_near(1 + e);
    const float share = a < 0 ? e * r : r, t = e * r * r;
    slope = t > 0 ? fmaf(g * t, inner, share) : share;
    return share > 0 ? g * share : 0;
}

/* What a row of elements of T is worth. */
template <int ACT, typename T> SOP_DEV float sop_act_grad_of(float g, float &slope)
{
    return sizeof(T) == 2 ? sop_act_grad_near<ACT>(g, slope) : sop_act_grad(ACT, g, slope);
}

#endif
