extern "C" {
#include "ops/embed/embed.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/embed/embed.cuh"

sop_status sop_embed_cuda(const sop_call *call)
{
    const sop_embed_desc *d = (const sop_embed_desc *)call->desc;
    const dim3 grid((unsigned)d->tokens, sop_blocks(d->dim, 256));
    if (d->tokens == 0) return SOP_OK;
    return sop_launch(
        sop_embed_any, grid, 256, call, *d, (const int32_t *)call->args[SOP_EMBED_IDS].data,
        (const uint8_t *)call->args[SOP_EMBED_TABLE].data,
        (const int32_t *)call->args[SOP_EMBED_LIVE].data, call->args[SOP_EMBED_Y].data);
}
