extern "C" {
#include "ops/embed/embed.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/embed/embed_wide.cuh"

extern "C" const char *sop_embed_wide_refuse(const void *desc)
{
    const sop_embed_desc *d = (const sop_embed_desc *)desc;
    const int64_t strides[] = {d->table_stride, d->y_stride};
    const int32_t w = d->w_dtype;
    if (w != SOP_F32 && w != SOP_F16 && w != SOP_BF16) return "the table is quantised";
    return sop_wide_refuse(w == SOP_F32 ? d->y_dtype : w, d->dim, strides, 2);
}

template <typename W, typename Y> static sop_status run_types(const sop_call *call)
{
    const sop_embed_desc *d = (const sop_embed_desc *)call->desc;
    const int64_t pieces = d->dim / wide_both<W, Y>::N;
    const unsigned across = sop_wide_across(pieces), down = 256 / across;
    return sop_launch(
        sop_embed_wide<W, Y>, dim3(sop_blocks(d->tokens, down), sop_blocks(pieces, 4 * across)),
        dim3(across, down), call, *d, (const int32_t *)call->args[SOP_EMBED_IDS].data,
        (const W *)call->args[SOP_EMBED_TABLE].data,
        (const int32_t *)call->args[SOP_EMBED_LIVE].data, (Y *)call->args[SOP_EMBED_Y].data);
}

template <typename W> static sop_status run(const sop_call *call)
{
    const sop_embed_desc *d = (const sop_embed_desc *)call->desc;
    return SOP_WIDE_TYPE2(W, d->y_dtype, run_types, call);
}

extern "C" sop_status sop_embed_wide_sm80(const sop_call *call)
{
    const sop_embed_desc *d = (const sop_embed_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_EMBED_TABLE].data) ||
        !sop_aligned16(call->args[SOP_EMBED_Y].data))
        return sop_embed_cuda(call);
    return SOP_WIDE_TYPE(d->w_dtype, run, call);
}
