extern "C" {
#include "ops/rope/rope.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/rope/rope_wide.cuh"

extern "C" const char *sop_rope_wide_refuse(const void *desc)
{
    const sop_rope_desc *d = (const sop_rope_desc *)desc;
    const int64_t strides[] = {d->x_stride, d->x_head, d->y_stride, d->y_head, d->k};
    if (d->interleaved) return "pairs are neighbours";
    if (d->x_dtype != d->y_dtype) return "types differ";
    if (d->rot / 2 % (d->x_dtype == SOP_F32 ? 4 : 8))
        return "half of rot is no multiple of 16 bytes";
    if (d->rot / 2 > ROPE_WIDE_MOST) return "over 512 channels turn";
    if (d->heads * d->k > INT32_MAX / 2) return "rows are over 2^30 long";
    return sop_wide_refuse(d->x_dtype, d->rot, strides, 5);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_rope_desc *d = (const sop_rope_desc *)call->desc;
    const int64_t pairs = d->heads * d->rot * (int64_t)sizeof(T) / 32; /* of pieces; two a thread */
    const unsigned threads = sop_wide_threads(pairs, pairs <= 256 ? 1 : 2 * sop_blocks(pairs, 512));
    return sop_launch(
        sop_rope_wide<T>, (unsigned)d->tokens, threads, call, *d,
        (const T *)call->args[SOP_ROPE_X].data, (const int32_t *)call->args[SOP_ROPE_POS].data,
        (const float *)call->args[SOP_ROPE_FREQS].data,
        (const int32_t *)call->args[SOP_ROPE_LIVE].data, (T *)call->args[SOP_ROPE_Y].data);
}

extern "C" sop_status sop_rope_wide_sm80(const sop_call *call)
{
    const sop_rope_desc *d = (const sop_rope_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_ROPE_X].data) || !sop_aligned16(call->args[SOP_ROPE_Y].data))
        return sop_rope_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
