#include "ops/linear/stream_launch.cuh"

/* What keeps to its registers. */
template <int C> struct shape_of {
    enum { WGS = C == 32 ? 2 : 3, K = C == 64 ? 256 : 512 };
    typedef stream_shape<SOP_F8_128, uint8_t, C, WGS, K, 256, 3, 2, 1> type;
};

struct shapes {
    template <typename F> static sop_status with(const sop_linear_desc *d, F what)
    {
        if (d->tokens <= 8) return what(typename shape_of<8>::type());
        if (d->tokens <= 16) return what(typename shape_of<16>::type());
        if (d->tokens <= 32) return what(typename shape_of<32>::type());
        return what(typename shape_of<64>::type());
    }
};

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
    (void)params;
    return sop_stream_plan_by<shapes>(desc, facts, budget, split);
}

extern "C" sop_status sop_linear_stream_f8_sm90(const sop_call *call)
{
    return sop_stream_run_by<shapes>(call);
}
