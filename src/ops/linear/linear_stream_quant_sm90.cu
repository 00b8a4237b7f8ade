#include "ops/linear/stream_launch.cuh"

/* What keeps to its registers. */
template <int32_t FORMAT, typename X, int C> struct shape_of {
    enum {
        HALF = sizeof(X) == 2, /* of an f32's bytes */
        WGS = C <= 16 && HALF ? 4 : 3,
        K = FORMAT == SOP_I4_128 && C <= 16 && HALF ? 512 : 256,
        X_K = C == 64 || !HALF ? 128
              : C == 8         ? K
                               : 256,
        X_DEPTH = K == 512 || !HALF ? 2 : 3,
        SETS = C == 64 || !HALF ? 1 : 2
    };
    typedef stream_shape<FORMAT, X, C, WGS, K, X_K, X_DEPTH, SETS, 1> type;
};

template <int32_t FORMAT, typename X, typename F>
static sop_status with_columns(const sop_linear_desc *d, F what)
{
    if (d->tokens <= 8) return what(typename shape_of<FORMAT, X, 8>::type());
    if constexpr (sizeof(X) == 2) {
        if (d->tokens > 32) return what(typename shape_of<FORMAT, X, 64>::type());
        if (d->tokens > 16) return what(typename shape_of<FORMAT, X, 32>::type());
    }
    return what(typename shape_of<FORMAT, X, 16>::type());
}
template <int32_t FORMAT, typename F> static sop_status with_x(const sop_linear_desc *d, F what)
{
    switch (d->x_dtype) {
    case SOP_F16: return with_columns<FORMAT, __half>(d, what);
    case SOP_BF16: return with_columns<FORMAT, __nv_bfloat16>(d, what);
    default: return with_columns<FORMAT, float>(d, what);
    }
}
struct shapes {
    template <typename F> static sop_status with(const sop_linear_desc *d, F what)
    {
        switch (d->w_dtype[0]) {
        case SOP_I8_128: return with_x<SOP_I8_128>(d, what);
        case SOP_F8_128: return with_x<SOP_F8_128>(d, what);
        default: return with_x<SOP_I4_128>(d, what);
        }
    }
};

extern "C" const char *sop_linear_stream_quant_sm90_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const int32_t w = d->w_dtype[0];
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    if (w != SOP_I8_128 && w != SOP_F8_128 && w != SOP_I4_128)
        return "the weight is not i8_128, f8_128 or i4_128";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != w) return "the weights differ in format";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->w_stride[j] % 4) return "rows of a weight are no multiple of 16 bytes apart";
    }
    if (d->x_dtype == SOP_F8) return "x is f8";
    if (d->x_dtype == SOP_F32 && d->tokens > 16) return "too many tokens in f32";
    return sop_stream_refuse(d);
}

extern "C" sop_status sop_linear_stream_quant_sm90_plan(const void *desc, const int32_t *params,
                                                        const sop_facts *facts, size_t budget,
                                                        sop_split *split)
{
    (void)params;
    return sop_stream_plan_by<shapes>(desc, facts, budget, split);
}

extern "C" sop_status sop_linear_stream_quant_sm90(const sop_call *call)
{
    return sop_stream_run_by<shapes>(call);
}
