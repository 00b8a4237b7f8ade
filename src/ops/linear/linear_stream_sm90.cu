#include "ops/linear/stream_launch.cuh"

/* Two CTAs share a multiprocessor: the next product's weights come while this one ends. With most columns
 * one has it all: of tiles of 128 rows x weighs too much. */
template <int32_t FORMAT, typename X, int C> struct shape_of {
    enum {
        HALF = sizeof(X) == 2,
        MOST = C == 64,
        K = HALF || C <= 16 ? 128 : 64,
        X_DEPTH = !HALF     ? 2
                  : C == 32 ? 4
                            : 3
    };
    typedef stream_shape<FORMAT, X, C, MOST ? 3 : 2, K, K, X_DEPTH, 1, MOST ? 1 : 2> type;
};

/* Calls what(S()) for the kernel's shape that a desc takes. */
template <int32_t FORMAT, typename X, typename F>
static sop_status with_columns(const sop_linear_desc *d, F what)
{
    if (d->tokens <= 8) return what(typename shape_of<FORMAT, X, 8>::type());
    if (d->tokens <= 16) return what(typename shape_of<FORMAT, X, 16>::type());
    if constexpr (sizeof(X) == 2)
        if (d->tokens > 32) return what(typename shape_of<FORMAT, X, 64>::type());
    return what(typename shape_of<FORMAT, X, 32>::type());
}
struct shapes {
    template <typename F> static sop_status with(const sop_linear_desc *d, F what)
    {
        if (d->w_dtype[0] == SOP_F16) return with_columns<SOP_F16, __half>(d, what);
        return d->x_dtype == SOP_F32 ? with_columns<SOP_BF16, float>(d, what)
                                     : with_columns<SOP_BF16, __nv_bfloat16>(d, what);
    }
};

extern "C" const char *sop_linear_stream_sm90_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_refuse_16(d);
    if (why) return why;
    if (d->x_dtype != d->w_dtype[0] && (d->x_dtype != SOP_F32 || d->w_dtype[0] != SOP_BF16))
        return "x has not the weight's type, nor is it f32 beside bf16";
    /* what has many rows fills the multiprocessors with whole ones: linear_skinny_sm90.cu */
    if ((d->tokens <= 16 || d->x_dtype == SOP_F32) && d->k < 4 * (d->n[0] + d->n[1] + d->n[2]))
        return "few tokens or f32, and rows are not short of a quarter of k";
    if (d->x_dtype == SOP_F32 && d->tokens > 32) return "too many tokens in f32";
    return sop_stream_refuse(d);
}

extern "C" sop_status sop_linear_stream_sm90_plan(const void *desc, const int32_t *params,
                                                  const sop_facts *facts, size_t budget,
                                                  sop_split *split)
{
    (void)params;
    return sop_stream_plan_by<shapes>(desc, facts, budget, split);
}

extern "C" sop_status sop_linear_stream_sm90(const sop_call *call)
{
    return sop_stream_run_by<shapes>(call);
}
