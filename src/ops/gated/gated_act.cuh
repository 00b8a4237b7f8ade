/* The activations of gated and bias_act. */
#ifndef OPS_GATED_ACT_CUH
#define OPS_GATED_ACT_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* act(g) / g, right for large |g| too: nothing overflows, and small shares keep their accuracy. */
SOP_DEV float sop_logistic(float x)
{
    const float e = expf(-fabsf(x));
    return __fdividef(x < 0 ? e : 1.0f, 1 + e); /* by 1 to 2: within 2 ulp there */
}
/* The special function unit's: within 2 ulp; results below 2^-126 are 0. */
SOP_DEV float sop_exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
SOP_DEV float sop_reciprocal_near(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 1 / (1 + 2^(-2 w)), where the caller's bound has room for the rounding of w. The power is a square, so
 * that it does not become 0 before its float does. */
SOP_DEV float sop_logistic2(float w)
{
    const float root = sop_exp2_near(-fabsf(w)), e = root * root;
    return (w < 0 ? e : 1.0f) * sop_reciprocal_near(1 + e);
}
SOP_DEV float sop_act_share(int32_t act, float g)
{
    switch (act) {
    case SOP_ACT_SILU: return sop_logistic(g);
    case SOP_ACT_GELU_TANH: /* (1 + tanh v) / 2 is the logistic of 2 v; sqrt(2 / pi) log2(e) */
        return sop_logistic2(g * fmaf(0.0514716198f, g * g, 1.1511041f));
    case SOP_ACT_QUICK_GELU: return sop_logistic2(1.22773348f * g); /* 1.702 log2(e) / 2 */
    default: return 0.5f * erfcf(g * -0.707106781f);
    }
}
SOP_DEV float sop_act_of(int32_t act, float g)
{
    if (act == SOP_ACT_RELU) return g < 0 ? 0 : g;
    return g * sop_act_share(act, g);
}

#endif
