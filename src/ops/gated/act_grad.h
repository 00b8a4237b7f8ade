/* ops/gated/act_grad.h: the activations with their slopes, for bias_act_grad and gated_grad. A slope is a
 * share, act(g) / g, and a term t that is 0 where nothing is left of the share's own slope. */
#ifndef OPS_GATED_ACT_GRAD_H
#define OPS_GATED_ACT_GRAD_H

#include "core/op.h"
#include "ops/gated/act.h"

typedef struct sop_act_point {
    double y, slope;         /* act(g), act'(g) */
    double y_off, slope_off; /* how far a right float32 row may be from them */
} sop_act_point;

/* For a row that knows g up to `off`. With u = 2^-24: the share is off by 13 u, a vector function of 6.4
 * ulp, and by what roundings of its argument do to it, one of which takes it to base 2; so is t, with up to
 * 11 products more, and the power of its own argument. What moves with g moves by the slope of what it is, no more than 2 for act',
 * and 4 exp(-|g| / 2) where that is less; relu' jumps at 0. Powers below 2^-126 may be 0. */
static inline sop_act_point sop_act_at(int32_t act, double g, double off)
{
    sop_act_point p;
    double share_roundings, t = 0, t_roundings = 0;
    const double share = sop_act_share(act, g, &share_roundings), near0 = fabs(g) - off;
    p.y = act == SOP_ACT_RELU && g < 0 ? 0 : g * share;
    switch (act) {
    case SOP_ACT_SILU: t_roundings = fabs(g); break;
    case SOP_ACT_QUICK_GELU: t_roundings = 3 * fabs(1.702 * g); break;
    case SOP_ACT_GELU_TANH:
        t_roundings = 7 * fabs(1.5957691216057308 * g * (1 + 0.044715 * g * g));
        break;
    case SOP_ACT_RELU: break;
    default: t_roundings = g * g; break;
    }
    if (act == SOP_ACT_RELU) {
        p.slope = g > 0 ? 1 : g <= 0 ? 0 : g;
        p.y_off = (near0 < 0 || g > 0 ? off : 0) + SOP_U32 * fabs(p.y);
        p.slope_off = off > 0 && near0 <= 0 ? 1 : 0;
        return p;
    }
    p.slope = sop_act_slope(act, g, share);
    t = p.slope - share;
    if (isnan(t)) t = t_roundings = 0, p.slope = share; /* an infinite g times nothing */
    if (isinf(t_roundings)) t_roundings = 0;
    const double curve = 2 * fmin(1, 2 * exp(-fmax(near0, 0) / 2));
    p.slope_off = curve * off +
                  SOP_U32 * ((14 + share_roundings + t_roundings * (1 - share)) * share +
                             (24 + t_roundings) * fabs(t)) +
                  0x1p-117;
    p.y_off = fabs(p.slope) * off + off * off + (14 + share_roundings) * SOP_U32 * fabs(p.y) +
              0x1p-149 * (fabs(g) + 1);
    return p;
}

/* The same in float32: act(g), and its slope. */
static inline float sop_act_grad_f32(int32_t act, float g, float *slope)
{
    float a = g, inner = 1; /* the logistic's argument, and its slope */
    switch (act) {
    case SOP_ACT_SILU: break;
    case SOP_ACT_QUICK_GELU: inner = 1.702f, a = 1.702f * g; break;
    case SOP_ACT_GELU_TANH:
        inner = 1.5957691f * (1 + 0.134145f * g * g);
        a = 1.5957691f * g * (1 + 0.044715f * g * g);
        break;
    case SOP_ACT_RELU: *slope = g > 0 ? 1 : g <= 0 ? 0 : g; return g < 0 ? 0 : g;
    default: {
        const float share = 0.5f * erfcf(-0.70710678f * g);
        const float density = 0.39894228f * expf(-0.5f * g * g);
        *slope = density > 0 ? share + g * density : share;
        return g * share;
    }
    }
    const float e = expf(-fabsf(a)), r = 1 / (1 + e), share = a < 0 ? e * r : r, t = e * r * r;
    *slope = t > 0 ? share + g * t * inner : share;
    return g * share;
}

#endif
