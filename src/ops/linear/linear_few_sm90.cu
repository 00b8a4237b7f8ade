#include "ops/linear/few_sm90.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says. */
enum { ROWS, STAGES, LATE, GRID };

/* Bytes: of weights up to which two kernels share a multiprocessor; of shared memory of such a one, and what
 * one can have alone; of weights of a CTA not yet asked for when the next kernel may begin. */
enum { SHORT = 64 << 20, HALF = 112 << 10, ALL = 227 << 10, LATE_BYTES = 24 << 10 };

/* More rows do not fit the multiprocessors at once: linear_skinny_sm90.cu. */
enum { MOST_ROWS = 64, WORKERS = 132, MOST_TOKENS = 64 };

static int64_t all_rows(const sop_linear_desc *d)
{
    return d->n[0] + d->n[1] + d->n[2];
}
static bool is_short(const sop_linear_desc *d)
{
    return d->tokens <= 32 && all_rows(d) * d->k * 2 <= SHORT;
}
/* CTAs that share k: where x weighs a cluster has the rows of two tiles, and each CTA reads half of x. */
static int64_t cluster_of(const sop_linear_desc *d)
{
    return d->tokens > 32 || (d->tokens > 16 && !is_short(d)) ? 2 : 1;
}

/* Blocks of 64 columns of row-major [rows, k], S::BLOCKS of them and `box` rows at a time. */
template <typename S>
static sop_status blocks_map(CUtensorMap *map, int32_t dtype, const void *p, int64_t rows,
                             int64_t k, int64_t stride, int64_t box, int often)
{
    const int64_t dims[3] = {64, rows, k / 64}, strides[2] = {2 * stride, 128};
    const uint32_t boxes[3] = {64, (uint32_t)box, S::BLOCKS};
    return sop_tensor_map(map, dtype, p, 3, dims, strides, boxes, often);
}

/* Calls what(S()) for the kernel's shape. */
template <typename T, int C, int CL, int BLOCKS, typename F>
static sop_status with_tiles(int64_t rows, F what)
{
    enum { GROUPS = C == 64 ? 2 : 1 };
    if (rows <= 32 * CL) return what(few_shape<T, C, 2 * CL, CL, BLOCKS, GROUPS>());
    if (CL == 2 && rows <= 80) return what(few_shape<T, C, 5 * CL / 2, CL, BLOCKS, GROUPS>());
    if (rows <= 48 * CL) return what(few_shape<T, C, 3 * CL, CL, BLOCKS, GROUPS>());
    return what(few_shape<T, C, 4 * CL, CL, BLOCKS, GROUPS>());
}
template <typename T, typename F>
static sop_status with_columns(const sop_linear_desc *d, int64_t rows, F what)
{
    /* a stage of few rows would be shorter than what it costs to wait for one */
    const bool small = is_short(d) && rows > 32;
    if (d->tokens > 32) return with_tiles<T, 64, 2, 2>(rows, what);
    if (d->tokens > 16)
        return is_short(d) ? with_tiles<T, 32, 1, 2>(rows, what)
                           : with_tiles<T, 32, 2, 2>(rows, what);
    if (d->tokens > 8)
        return small ? with_tiles<T, 16, 1, 2>(rows, what) : with_tiles<T, 16, 1, 4>(rows, what);
    return small ? with_tiles<T, 8, 1, 2>(rows, what) : with_tiles<T, 8, 1, 4>(rows, what);
}
template <typename F> static sop_status with_shape(const sop_linear_desc *d, int64_t rows, F what)
{
    return d->w_dtype[0] == SOP_F16 ? with_columns<__half>(d, rows, what)
                                    : with_columns<__nv_bfloat16>(d, rows, what);
}

extern "C" const char *sop_linear_few_sm90_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_refuse_16(d);
    if (why) return why;
    if (d->x_dtype != d->w_dtype[0]) return "x has not the weight's type";
    if (d->tokens > MOST_TOKENS) return "too many tokens";
    if (d->k % 64) return "columns are no multiple of 64";
    if (d->x_stride % 8) return "rows of x are no multiple of 16 bytes apart";
    if (all_rows(d) > MOST_ROWS * WORKERS) return "over 8448 rows";
    if (d->tokens > 8 && all_rows(d) * cluster_of(d) < d->tokens * WORKERS)
        return "x weighs more than a multiprocessor's rows";
    return NULL;
}

extern "C" sop_status sop_linear_few_sm90_plan(const void *desc, const int32_t *params,
                                               const sop_facts *facts, size_t budget,
                                               sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const int64_t cl = cluster_of(d), workers = facts->workers > cl ? facts->workers / cl : 1;
    int64_t rows = (all_rows(d) + workers - 1) / workers;
    while (rows < MOST_ROWS * cl && sop_linear_tiles(d, rows) > workers) rows++;
    if (rows > MOST_ROWS * cl) rows = MOST_ROWS * cl; /* a part of a card */
    (void)params;
    (void)budget;
    *split = {{0}, 0};
    split->word[ROWS] = rows;
    split->word[GRID] = sop_linear_tiles(d, rows) * cl;
    return with_shape(d, rows, [&](auto shape) {
        typedef decltype(shape) S;
        const int m = (int)d->tokens, r = (int)rows;
        const int64_t stage = few_stage_bytes<S>(r, m);
        int64_t stages = ((is_short(d) ? HALF : ALL) - S::BEHIND) / stage;
        if (stages > FEW_MOST_STAGES) stages = FEW_MOST_STAGES;
        /* a group of warps keeps its stages: no barrier may be a round ahead of it */
        split->word[STAGES] = stages / S::GROUPS * S::GROUPS;
        split->word[LATE] = is_short(d) ? LATE_BYTES / (S::BLOCKS * 128 * rows) + 1 : INT32_MAX;
        return SOP_OK;
    });
}

extern "C" sop_status sop_linear_few_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_linear_aligned(call) || !sop_aligned16(call->args[SOP_LINEAR_X].data))
        return sop_linear_cuda(call);
    const int64_t rows = call->split->word[ROWS];
    return with_shape(d, rows, [&](auto shape) {
        typedef decltype(shape) S;
        few_maps maps;
        few_args a = {};
        a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
        a.y = call->args[SOP_LINEAR_Y].data;
        a.y_stride = d->y_stride;
        a.y_dtype = d->y_dtype;
        a.tokens = (int32_t)d->tokens;
        a.k = (int32_t)d->k;
        a.rows = (int32_t)rows;
        a.stages = (int32_t)call->split->word[STAGES];
        a.late = (int32_t)call->split->word[LATE];
        sop_status s = blocks_map<S>(&maps.x, d->w_dtype[0], call->args[SOP_LINEAR_X].data,
                                     d->tokens, d->k, d->x_stride, d->tokens, SOP_TMA_AGAIN);
        for (int j = 0; j < 3 && s == SOP_OK; j++) {
            a.n[j] = (int32_t)d->n[j];
            if (j) {
                a.tile[j] = a.tile[j - 1] + (a.n[j - 1] + a.rows - 1) / a.rows;
                a.at[j] = a.at[j - 1] + a.n[j - 1];
            }
            a.bias[j] = sop_linear_bias(call, j);
            if (d->n[j])
                s = blocks_map<S>(&maps.w[j], d->w_dtype[j], call->args[SOP_LINEAR_W0 + j].data,
                                  d->n[j], d->k, d->w_stride[j], rows, SOP_TMA_ONCE);
        }
        if (s != SOP_OK) return s;
        return sop_launch_cluster(sop_few_sm90<S>, (unsigned)call->split->word[GRID], FEW_THREADS,
                                  (size_t)few_ring_bytes<S>(a.rows, a.tokens, a.stages) + S::BEHIND,
                                  S::CL, call, maps, a);
    });
}
