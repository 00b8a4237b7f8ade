#include "ops/linear/linear_cuda.cuh"
#include "ops/linear/skinny_quant_sm80.cuh"

/* What the plan says. */
enum { ROWS, STAGES, COLUMNS, PIECES, GRID };

static bool takes(int32_t format)
{
    return format == SOP_I8_128 || format == SOP_F8_128 || format == SOP_I4_128 ||
           format == SOP_Q8_0 || format == SOP_Q4_K;
}

static int64_t stride_bytes(const sop_linear_desc *d, int j)
{
    return d->w_stride[j] * (int64_t)sop_dtype_bytes(d->w_dtype[j]);
}

extern "C" const char *sop_linear_skinny_quant_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const int32_t w = d->w_dtype[0];
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    if (!takes(w)) return "the weight is not i8_128, f8_128, i4_128, q8_0 or q4_k";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != w) return "the weights differ in format";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (stride_bytes(d, j) > INT32_MAX / 65) return "rows of a weight are over 32 MB apart";
    }
    if (d->x_dtype == SOP_F8) return "x is f8";
    if (d->tokens > 64) return "too many tokens";
    if (d->x_stride * (int64_t)sop_dtype_bytes(d->x_dtype) % 16)
        return "rows of x are no multiple of 16 bytes apart";
    return NULL;
}

extern "C" sop_status sop_linear_skinny_quant_plan(const void *desc, const int32_t *params,
                                                   const sop_facts *facts, size_t budget,
                                                   sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const int x_bytes = (int)sop_dtype_bytes(d->x_dtype);
    int columns = 8;
    while (columns < d->tokens) columns *= 2;
    const int steps = quant_steps(d->w_dtype[0], columns, x_bytes);
    const int bytes = quant_bytes(d->w_dtype[0], steps);
    int inside = bytes % 16; /* how far inside a piece a row may start */
    for (int j = 0; j < 3; j++)
        if (d->n[j] && stride_bytes(d, j) % 16) inside = 14;
    const int pieces = (bytes + inside + 15) / 16;
    /* two CTAs share a multiprocessor: the next product's weights come while this one ends; with many
     * columns a ring of some depth takes all there is. Older cards have 99 KB at least; where two stages
     * do not fit, the floor row runs. */
    const int room = (!(facts->features & SOP_CUDA_SM90) ? 99 : columns < 32 ? 113 : 226) * 1024;
    const int stage = quant_stage_bytes(quant_k(steps), pieces, columns, x_bytes);
    const int stages = (room - quant_smem_bytes(stage, columns, 0)) / stage;
    const int64_t rows = sop_linear_tile_rows(d, facts->workers), tiles = sop_linear_tiles(d, rows);
    (void)params, (void)budget;
    *split = {{0}, 0};
    split->word[ROWS] = rows;
    split->word[STAGES] = stages < QUANT_MOST_STAGES ? stages : QUANT_MOST_STAGES;
    split->word[COLUMNS] = columns;
    split->word[PIECES] = pieces;
    split->word[GRID] = tiles < facts->workers ? tiles : facts->workers;
    return SOP_OK;
}

template <int32_t FORMAT, typename X, int NT>
static sop_status launch(const sop_call *call, const quant_args &a)
{
    const int k = quant_k(quant_steps(FORMAT, 8 * NT, sizeof(X)));
    const int stage = quant_stage_bytes(k, a.pieces, 8 * NT, sizeof(X));
    return sop_launch_cluster(sop_skinny_quant_sm80<FORMAT, X, NT>,
                              (unsigned)call->split->word[GRID], QUANT_THREADS,
                              (size_t)quant_smem_bytes(stage, 8 * NT, a.stages), 1, call, a);
}

template <int32_t FORMAT, typename X>
static sop_status launch_columns(const sop_call *call, const quant_args &a)
{
    switch (call->split->word[COLUMNS]) {
    case 8: return launch<FORMAT, X, 1>(call, a);
    case 16: return launch<FORMAT, X, 2>(call, a);
    case 32: return launch<FORMAT, X, 4>(call, a);
    default: return launch<FORMAT, X, 8>(call, a);
    }
}

template <int32_t FORMAT> static sop_status launch_x(const sop_call *call, const quant_args &a)
{
    switch (((const sop_linear_desc *)call->desc)->x_dtype) {
    case SOP_F16: return launch_columns<FORMAT, __half>(call, a);
    case SOP_BF16: return launch_columns<FORMAT, __nv_bfloat16>(call, a);
    default: return launch_columns<FORMAT, float>(call, a);
    }
}

extern "C" sop_status sop_linear_skinny_quant_sm80(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    quant_args a = {};
    if (d->tokens == 0) return SOP_OK;
    if (call->split->word[STAGES] < 2 || !sop_linear_aligned(call) ||
        !sop_aligned16(call->args[SOP_LINEAR_X].data))
        return sop_linear_cuda(call);
    for (int j = 0; j < 3; j++) {
        a.w[j] = (const uint8_t *)call->args[SOP_LINEAR_W0 + j].data;
        a.w_stride[j] = stride_bytes(d, j);
        a.bias[j] = sop_linear_bias(call, j);
        a.n[j] = (int32_t)d->n[j];
    }
    a.x = call->args[SOP_LINEAR_X].data;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.row_bytes = (int64_t)sop_dtype_row_bytes(d->w_dtype[0], d->k);
    a.x_stride = d->x_stride;
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.k = (int32_t)d->k;
    a.rows = (int32_t)call->split->word[ROWS];
    a.stages = (int32_t)call->split->word[STAGES];
    a.pieces = (int32_t)call->split->word[PIECES];
    switch (d->w_dtype[0]) {
    case SOP_I8_128: return launch_x<SOP_I8_128>(call, a);
    case SOP_F8_128: return launch_x<SOP_F8_128>(call, a);
    case SOP_I4_128: return launch_x<SOP_I4_128>(call, a);
    case SOP_Q8_0: return launch_x<SOP_Q8_0>(call, a);
    default: return launch_x<SOP_Q4_K>(call, a);
    }
}
