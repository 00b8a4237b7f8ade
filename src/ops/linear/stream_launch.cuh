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
    return NULL;
}

template <typename S>
static inline sop_status sop_stream_plan(const sop_linear_desc *d, const sop_facts *facts,
                                         size_t budget, sop_split *split)
{
    const int64_t units = sop_linear_tiles(d, S::ROWS) * ((d->k + S::K - 1) / S::K);
    const int64_t grid = units < facts->workers ? units : facts->workers;
    *split = {{0}, (size_t)(grid * 2 * S::ROWS * S::COLUMNS) * 4};
    split->word[STREAM_GRID] = grid;
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename S> static inline sop_status sop_stream_run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t x_bytes = d->x_stride * (int64_t)sop_dtype_bytes(d->x_dtype);
    stream_maps maps;
    stream_args a = {};
    a.x = call->args[SOP_LINEAR_X].data;
    a.x_wide = sop_aligned16(a.x) && x_bytes % 16 == 0;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.partial = (float *)call->scratch;
    a.arrived = sop_cuda_counters(call);
    a.x_stride = d->x_stride;
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.k = (int32_t)d->k;
    for (int j = 0; j < 3; j++) {
        const void *w = call->args[SOP_LINEAR_W0 + j].data;
        const int64_t stride = d->w_stride[j] * (int64_t)sop_dtype_bytes(d->w_dtype[j]);
        sop_status s = SOP_OK;
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (!d->n[j]) continue;
        if (S::PLAIN)
            s = sop_tensor_map_2d(&maps.w[j], d->w_dtype[j], w, d->n[j], d->k, d->w_stride[j], 64);
        else
            s = sop_tensor_map_words(&maps.w[j], w, d->n[j], d->k / 128 * S::BLOCK_WORDS, stride,
                                     S::PITCH, 64);
        if (s != SOP_OK) return s;
    }
    return sop_launch_cluster(sop_stream_sm90<S>, (unsigned)call->split->word[STREAM_GRID],
                              S::THREADS, S::SMEM, 1, call, maps, a);
}

#endif
