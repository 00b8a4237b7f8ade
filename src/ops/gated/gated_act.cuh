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
SOP_DEV float sop_act_share(int32_t act, float g)
{
    switch (act) {
    case SOP_ACT_SILU: return sop_logistic(g);
    case SOP_ACT_GELU_TANH: /* (1 + tanh v) / 2 is the logistic of 2 v; 2 sqrt(2 / pi) */
        return sop_logistic(1.595769122f * (g * fmaf(0.044715f, g * g, 1.0f)));
    case SOP_ACT_QUICK_GELU: return sop_logistic(1.702f * g);
    default: return 0.5f * erfcf(g * -0.707106781f);
    }
}
SOP_DEV float sop_act_of(int32_t act, float g)
{
    if (act == SOP_ACT_RELU) return g < 0 ? 0 : g;
    return g * sop_act_share(act, g);
}

#endif
