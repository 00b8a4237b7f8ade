#include "ops/linear/stream_launch.cuh"

/* What keeps to its registers. */
template <int C> struct shape_of {
    enum { WGS = C == 32 ? 2 : 3, K = C == 64 ? 256 : 512 };
    typedef stream_shape<SOP_F8_128, uint8_t, C, WGS, K, 256, 3, 2, 1> type;
};

/* Calls what(S()) for the kernel's shape that a desc takes. */
template <typename F> static sop_status with_shape(const sop_linear_desc *d, F what)
{
    if (d->tokens <= 8) return what(typename shape_of<8>::type());
    if (d->tokens <= 16) return what(typename shape_of<16>::type());
    if (d->tokens <= 32) return what(typename shape_of<32>::type());
    return what(typename shape_of<64>::type());
}

extern "C" const char *sop_linear_stream_f8_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_refuse_f8(d);
    return why ? why : sop_stream_refuse(d);
}

extern "C" sop_status sop_linear_stream_f8_plan(const void *desc, const int32_t *params,
                                                const sop_facts *facts, size_t budget,
                                                sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    (void)params;
    return with_shape(
        d, [&](auto shape) { return sop_stream_plan<decltype(shape)>(d, facts, budget, split); });
}

extern "C" sop_status sop_linear_stream_f8_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_stream_aligned(call)) return sop_linear_cuda(call);
    return with_shape(d, [&](auto shape) { return sop_stream_run<decltype(shape)>(call); });
}
