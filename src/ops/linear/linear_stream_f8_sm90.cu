#include "ops/linear/few_f8_sm90.cuh"
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

/* What the plan says where each CTA has whole tiles (few_f8_sm90.cuh), behind the grid: rows of a tile, 0
 * elsewhere; units and stages of x of its rings. */
enum { ROWS = STREAM_GRID + 1, UNITS, X_STAGES };

/* Rows of a multiprocessor from which on it has whole tiles: with fewer the four warpgroups would multiply
 * more than twice what there is. */
enum { WHOLE_ROWS = 129 };

/* From where x weighs, two CTAs share it. */
template <typename F> static sop_status with_whole(const sop_linear_desc *d, F what)
{
    if (d->tokens <= 8) return what(few_f8_shape<8, 1>());
    if (d->tokens <= 16) return what(few_f8_shape<16, 1>());
    if (d->tokens <= 32) return what(few_f8_shape<32, 2>());
    return what(few_f8_shape<64, 2>());
}

/* The least rows of a tile with which each multiprocessor has at most one; 0: the rows are too few for it, or
 * too many. With two of 144 rows each Qwen2-7B's gate and up take 40, 43 and 50 us (16, 32, 64 tokens) on an
 * H200, shared by all 37, 43 and 47. */
static int64_t whole_rows(const sop_linear_desc *d, int64_t workers)
{
    const int64_t n = d->n[0] + d->n[1] + d->n[2];
    if (n < WHOLE_ROWS * workers) return 0;
    for (int64_t rows = (n + 8 * workers - 1) / (8 * workers) * 8; rows <= FEW_F8_MOST_ROWS;
         rows += 8)
        if (few_f8_box((int)rows) > 8 && sop_linear_tiles(d, rows) <= workers) return rows;
    return 0;
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
    return with_whole(d, [&](auto shape) {
        typedef decltype(shape) S;
        const int64_t workers = facts->workers / S::CL * S::CL;
        const int64_t rows = workers > 0 ? whole_rows(d, workers) : 0;
        if (!rows) return sop_stream_plan_by<shapes>(desc, facts, budget, split);
        const int64_t tiles = (sop_linear_tiles(d, rows) + S::CL - 1) / S::CL * S::CL;
        const int64_t unit = few_f8_unit((int)rows);
        int64_t units = (S::ROOM - FEW_F8_LEAST_X * S::X_STAGE) / unit;
        if (units > FEW_F8_MOST) units = FEW_F8_MOST;
        int64_t x_stages = (S::ROOM - units * unit) / S::X_STAGE;
        if (x_stages > FEW_F8_MOST) x_stages = FEW_F8_MOST;
        *split = {{0}, 0};
        split->word[STREAM_GRID] = tiles < workers ? tiles : workers;
        split->word[ROWS] = rows;
        split->word[UNITS] = units;
        split->word[X_STAGES] = x_stages;
        return SOP_OK;
    });
}

template <typename S> static sop_status run_whole(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    few_f8_maps maps;
    few_f8_args a = {};
    a.x_scale = (const float *)call->args[SOP_LINEAR_X_SCALE].data;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.k = (int32_t)d->k;
    a.rows = (int32_t)call->split->word[ROWS];
    a.units = (int32_t)call->split->word[UNITS];
    a.x_stages = (int32_t)call->split->word[X_STAGES];
    sop_status s = sop_linear_codes_map(&maps.x, call->args[SOP_LINEAR_X].data, d->tokens, d->k,
                                        d->x_stride, S::C / S::CL);
    for (int j = 0; j < 3 && s == SOP_OK; j++) {
        const int64_t dims[2] = {d->k / 128 * 33, d->n[j]}, stride = d->w_stride[j] * 132;
        const uint32_t box[2] = {32, (uint32_t)few_f8_box(a.rows)};
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (d->n[j])
            s = sop_tensor_map_of(&maps.w[j], CU_TENSOR_MAP_DATA_TYPE_UINT32,
                                  CU_TENSOR_MAP_SWIZZLE_128B, call->args[SOP_LINEAR_W0 + j].data, 2,
                                  dims, &stride, box, SOP_TMA_ONCE);
    }
    if (s != SOP_OK) return s;
    const int rings = a.units * few_f8_unit(a.rows) + a.x_stages * S::X_STAGE;
    return sop_launch_cluster(sop_few_f8_sm90<S>, (unsigned)call->split->word[STREAM_GRID],
                              FEW_F8_THREADS, rings + sizeof(few_f8_sides), S::CL, call, maps, a);
}

extern "C" sop_status sop_linear_stream_f8_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (!call->split->word[ROWS]) return sop_stream_run_by<shapes>(call);
    if (d->tokens == 0) return SOP_OK;
    if (!sop_stream_aligned(call)) return sop_linear_cuda(call);
    return with_whole(d, [&](auto shape) { return run_whole<decltype(shape)>(call); });
}
