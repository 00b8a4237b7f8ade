extern "C" {
#include "ops/linear/linear.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/linear/linear.cuh"

sop_status sop_linear_cuda(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t n = d->n[0] + d->n[1] + d->n[2];
    sop_linear_args a = {call->args[SOP_LINEAR_X].data};
    for (int j = 0; j < 3; j++) {
        a.w[j] = (const uint8_t *)call->args[SOP_LINEAR_W0 + j].data;
        if (d->bias >> j & 1) a.bias[j] = (const float *)call->args[SOP_LINEAR_B0 + j].data;
    }
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    const float *scale =
        d->x_dtype == SOP_F8 ? (const float *)call->args[SOP_LINEAR_X_SCALE].data : NULL;
    if (d->tokens == 0 || n == 0) return SOP_OK;
    const dim3 grid(sop_blocks(n, 8), sop_blocks(d->tokens, 8));
    return d->tokens == 1 ? sop_launch(sop_linear_any<1>, grid, dim3(32, 8), call, *d, a, scale)
                          : sop_launch(sop_linear_any<8>, grid, dim3(32, 8), call, *d, a, scale);
}
