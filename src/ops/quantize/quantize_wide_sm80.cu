extern "C" {
#include "ops/quantize/quantize.h"
}
#include "ops/cuda/wide_launch.cuh"
#include "ops/quantize/quantize_wide.cuh"

extern "C" const char *sop_quantize_wide_refuse(const void *desc)
{
    const sop_quantize_desc *d = (const sop_quantize_desc *)desc;
    if (d->dim == 0 || d->dim % 8 || d->x_stride % 8 || d->codes_stride % 8)
        return "rows or a stride are no multiple of 8 elements";
    return d->dim > 32768 ? "rows are over 32768 long" : NULL;
}

template <typename X, int REP> static sop_status launch(const sop_call *call, int64_t pieces)
{
    const sop_quantize_desc *d = (const sop_quantize_desc *)call->desc;
    const sop_operand *a = call->args;
    return sop_launch(sop_quantize_wide<X, REP>, (unsigned)d->tokens, sop_wide_threads(pieces, REP),
                      call, *d, (const X *)a[SOP_QUANTIZE_X].data,
                      (const int32_t *)a[SOP_QUANTIZE_LIVE].data,
                      (uint8_t *)a[SOP_QUANTIZE_CODES].data, (float *)a[SOP_QUANTIZE_SCALE].data);
}

template <typename X> static sop_status run(const sop_call *call)
{
    const int64_t pieces = ((const sop_quantize_desc *)call->desc)->dim / 8;
    /* small blocks, of which many fit: while one waits for its largest the others load */
    return pieces <= 128 ? launch<X, 1>(call, pieces) : launch<X, 4>(call, pieces);
}

extern "C" sop_status sop_quantize_wide_sm80(const sop_call *call)
{
    const sop_quantize_desc *d = (const sop_quantize_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_aligned16(call->args[SOP_QUANTIZE_X].data) ||
        (uintptr_t)call->args[SOP_QUANTIZE_CODES].data % 8)
        return sop_quantize_cuda(call);
    return SOP_WIDE_TYPE(d->x_dtype, run, call);
}
