#include "ops/linear/linear_cuda.cuh"
#include "ops/linear/skinny_sm90.cuh"

/* What the plan says. */
enum { ROWS, STAGES, COLUMNS, BLOCKS, GRID };

/* CTAs of a cluster, by columns of x. */
template <int C> struct cluster_of {
    enum { value = C >= 32 ? 2 : 1 };
};

/* f32 is three bf16. */
static int planes_of(const sop_linear_desc *d)
{
    return d->x_dtype == d->w_dtype[0] ? 1 : 3;
}

extern "C" const char *sop_linear_skinny_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_refuse_16(d);
    if (why) return why;
    if (d->x_dtype != d->w_dtype[0] && (d->x_dtype != SOP_F32 || d->w_dtype[0] != SOP_BF16))
        return "x has not the weight's type, nor is it f32 beside bf16";
    if (d->tokens > 64 || d->tokens * planes_of(d) > SKINNY_COLUMNS) return "too many tokens";
    if (planes_of(d) == 1 && d->x_stride % 8) return "rows of x are no multiple of 16 bytes apart";
    return NULL;
}

extern "C" sop_status sop_linear_skinny_plan(const void *desc, const int32_t *params,
                                             const sop_facts *facts, size_t budget,
                                             sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    int64_t columns = 8;
    while (columns < d->tokens * planes_of(d)) columns *= 2;
    const int64_t workers = columns >= 32 ? facts->workers / 2 * 2 : facts->workers;
    const int64_t rows = sop_linear_tile_rows(d, workers);
    /* two CTAs share a multiprocessor: the next product's weights come while this one ends; with many
     * columns a ring of some depth takes all there is */
    const int64_t room = (columns < 32 ? 104 : 208) * 1024;
    /* a stage of few rows would be shorter than what it costs to wait for one */
    const int blocks = rows <= 32 ? 4 : 2;
    const int64_t stages = (room - skinny_smem_bytes((int)rows, (int)columns, blocks, 0)) /
                           skinny_stage_bytes((int)rows, (int)columns, blocks);
    (void)params;
    *split = {{0}, 0};
    split->word[ROWS] = rows;
    split->word[STAGES] = stages < SKINNY_MOST_STAGES ? stages : SKINNY_MOST_STAGES;
    split->word[COLUMNS] = columns;
    split->word[BLOCKS] = blocks;
    split->word[GRID] = sop_linear_tiles(d, rows);
    if (columns >= 32) split->word[GRID] = (split->word[GRID] + 1) / 2 * 2; /* whole clusters */
    if (split->word[GRID] > workers) split->word[GRID] = workers;
    if (planes_of(d) > 1)
        split->scratch_bytes = (size_t)(planes_of(d) * d->tokens * sop_linear_staged_stride(d)) * 2;
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename T, int C, int B>
static sop_status launch(const sop_call *call, const skinny_maps &maps, const skinny_args &a)
{
    enum { CL = cluster_of<C>::value };
    return sop_launch_cluster(sop_skinny_sm90<T, C, CL, B>, (unsigned)call->split->word[GRID],
                              SKINNY_THREADS, (size_t)skinny_smem_bytes(a.rows, C, B, a.stages), CL,
                              call, maps, a);
}
template <typename T, int C>
static sop_status launch(const sop_call *call, const skinny_maps &maps, const skinny_args &a)
{
    return call->split->word[BLOCKS] == 4 ? launch<T, C, 4>(call, maps, a)
                                          : launch<T, C, 2>(call, maps, a);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int planes = planes_of(d);
    skinny_maps maps;
    skinny_args a = {};
    const void *x = call->args[SOP_LINEAR_X].data;
    int64_t x_stride = d->x_stride;
    if (planes > 1) {
        x_stride = sop_linear_staged_stride(d);
        const sop_status s =
            sop_launch(sop_split_planes<T>, dim3(sop_blocks(d->k, 256), (unsigned)d->tokens), 256,
                       call, x, d->x_dtype, d->x_stride, (int)d->tokens, (int)d->k, planes,
                       (T *)call->scratch, x_stride);
        if (s != SOP_OK) return s;
        x = call->scratch;
    }
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.planes = planes;
    a.k = (int32_t)d->k;
    a.rows = (int32_t)call->split->word[ROWS];
    a.stages = (int32_t)call->split->word[STAGES];
    for (int j = 0; j < 3; j++) {
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
    }
    const int columns = (int)call->split->word[COLUMNS];
    sop_status s = sop_linear_weight_maps(call, (uint32_t)a.rows, maps.w);
    if (s == SOP_OK)
        s = sop_tensor_map_2d(&maps.x, d->w_dtype[0], x, planes * d->tokens, d->k, x_stride,
                              (uint32_t)(columns >= 32 ? columns / 2 : columns));
    if (s != SOP_OK) return s;
    switch (columns) {
    case 8: return launch<T, 8>(call, maps, a);
    case 16: return launch<T, 16>(call, maps, a);
    case 32: return launch<T, 32>(call, maps, a);
    case 64: return launch<T, 64>(call, maps, a);
    default: return launch<T, 128>(call, maps, a);
    }
}

extern "C" sop_status sop_linear_skinny_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_linear_aligned(call) ||
        (planes_of(d) == 1 && !sop_aligned16(call->args[SOP_LINEAR_X].data)))
        return sop_linear_cuda(call);
    return d->w_dtype[0] == SOP_F16 ? run<__half>(call) : run<__nv_bfloat16>(call);
}
