/* How the rows for few tokens on compute capability 9.0 plan and launch stream_sm90.cuh, whatever the
 * shape S of the kernel. */
#ifndef OPS_LINEAR_STREAM_LAUNCH_CUH
#define OPS_LINEAR_STREAM_LAUNCH_CUH

#include "ops/linear/linear_cuda.cuh"
#include "ops/linear/stream_sm90.cuh"

enum { STREAM_TOKENS = 64, STREAM_GRID = 0 /* the word of a plan */ };

/* Counts that the kernel's would not hold. */
static inline const char *sop_stream_refuse(const sop_linear_desc *d)
{
    if (d->tokens > STREAM_TOKENS) return "too many tokens";
    if (d->n[0] + d->n[1] + d->n[2] > 1 << 22) return "over 4194304 rows";
    if (d->k > 1 << 20) return "over 1048576 columns";
    if (d->x_dtype != SOP_F32 && d->x_stride % (d->x_dtype == SOP_F8 ? 16 : 8))
        return "rows of x are no multiple of 16 bytes apart";
    return NULL;
}

/* f32 is brought to scratch first. */
static inline bool sop_stream_aligned(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    return sop_linear_aligned(call) &&
           (d->x_dtype == SOP_F32 || sop_aligned16(call->args[SOP_LINEAR_X].data));
}

/* Bytes of the sums of parts of tiles. */
template <typename S> static inline size_t sop_stream_partial(int64_t grid)
{
    return (size_t)(grid * 2 * S::ROWS * S::COLUMNS) * 4;
}

template <typename S>
static inline sop_status sop_stream_plan(const sop_linear_desc *d, const sop_facts *facts,
                                         size_t budget, sop_split *split)
{
    const int64_t units = sop_linear_tiles(d, S::ROWS) * ((d->k + S::K - 1) / S::K);
    const int64_t grid = units < facts->workers ? units : facts->workers;
    *split = {{0}, sop_stream_partial<S>(grid)};
    if (S::PLANES > 1)
        split->scratch_bytes += (size_t)(S::PLANES * d->tokens * sop_linear_staged_stride(d)) * 2;
    split->word[STREAM_GRID] = grid;
    if (units * grid > INT32_MAX) return SOP_E_LIMIT;
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename S> static inline sop_status sop_stream_run(const sop_call *call)
{
    typedef typename S::T T;
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t grid = call->split->word[STREAM_GRID];
    const void *x = call->args[SOP_LINEAR_X].data;
    int64_t x_stride = d->x_stride;
    stream_maps maps;
    stream_args a = {};
    if constexpr (S::PLANES > 1) {
        T *staged = (T *)((char *)call->scratch + sop_stream_partial<S>(grid));
        x_stride = sop_linear_staged_stride(d);
        const sop_status s = sop_launch(
            sop_split_planes<T>, dim3(sop_blocks(d->k, 256), (unsigned)d->tokens), 256, call, x,
            d->x_dtype, d->x_stride, (int)d->tokens, (int)d->k, S::PLANES, staged, x_stride);
        if (s != SOP_OK) return s;
        x = staged;
    }
    if (S::CODES) a.x_scale = (const float *)call->args[SOP_LINEAR_X_SCALE].data;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.partial = (float *)call->scratch;
    a.arrived = (uint32_t *)sop_cuda_counters(call);
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.k = (int32_t)d->k;
    sop_status s =
        S::CODES ? sop_linear_codes_map(&maps.x, x, d->tokens, d->k, x_stride, S::COLUMNS)
                 : sop_tensor_map_2d(&maps.x, std::is_same<T, __half>::value ? SOP_F16 : SOP_BF16,
                                     x, S::PLANES * d->tokens, d->k, x_stride, S::COLUMNS);
    for (int j = 0; j < 3 && s == SOP_OK; j++) {
        const void *w = call->args[SOP_LINEAR_W0 + j].data;
        const int64_t stride = d->w_stride[j] * (int64_t)sop_dtype_bytes(d->w_dtype[j]);
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (!d->n[j]) continue;
        if (S::PLAIN)
            s = sop_tensor_map_2d(&maps.w[j], d->w_dtype[j], w, d->n[j], d->k, d->w_stride[j], 64,
                                  SOP_TMA_ONCE);
        else
            s = sop_tensor_map_words(&maps.w[j], w, d->n[j], d->k / 128 * S::BLOCK_WORDS, stride,
                                     S::PITCH, 64, SOP_TMA_ONCE);
    }
    if (s != SOP_OK) return s;
    return sop_launch_cluster(sop_stream_sm90<S>, (unsigned)grid, S::THREADS, S::SMEM, 1, call,
                              maps, a);
}

/* A row's plan and run. SHAPES::with(desc, what) calls what(S()) for the kernel's shape that a desc takes. */
template <typename SHAPES>
static inline sop_status sop_stream_plan_by(const void *desc, const sop_facts *facts, size_t budget,
                                            sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    return SHAPES::with(
        d, [&](auto shape) { return sop_stream_plan<decltype(shape)>(d, facts, budget, split); });
}

template <typename SHAPES> static inline sop_status sop_stream_run_by(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_stream_aligned(call)) return sop_linear_cuda(call);
    return SHAPES::with(d, [&](auto shape) { return sop_stream_run<decltype(shape)>(call); });
}

#endif
