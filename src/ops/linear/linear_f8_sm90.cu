#include "ops/linear/gemm_f8_sm90.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says: tokens that the widest tiles do; how the rest is done; CTAs of both. */
enum { HEAD, HEAD_GRID, REST_SHAPE, REST_GRID };

/* Parts of a tile, CTAs of a cluster, and how long a tile of theirs takes on an H200 where one of the first
 * takes 1. */
static const struct {
    int parts, cluster;
    double cost;
} shapes[] = {{4, 2, 1}, {2, 2, 0.7}, {1, 1, 0.45}};
enum { SHAPES = 3 };

extern "C" const char *sop_linear_f8_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_refuse_f8(d);
    if (why) return why;
    for (int j = 0; j < 3; j++)
        if (d->n[j] % 8) return "rows of a weight are no multiple of 8";
    if (d->y_stride % 8) return "rows of y are no multiple of 16 bytes apart";
    return NULL;
}

/* Rounds of all multiprocessors times the cost of a tile; the CTAs. */
static double cost_of(const sop_linear_desc *d, int64_t tokens, int shape, int64_t workers,
                      int64_t *grid)
{
    const int64_t cluster = shapes[shape].cluster, slots = workers / cluster;
    const int64_t wide = 64 * shapes[shape].parts;
    const int64_t tiles = (tokens + wide - 1) / wide * sop_linear_tiles(d, F8_ROWS * cluster);
    *grid = (tiles < slots ? tiles : slots) * cluster;
    return (double)((tiles + slots - 1) / slots) * shapes[shape].cost;
}

/* What ends first: some of the tokens in the widest tiles, and narrower ones for a round that those would not
 * fill. */
extern "C" sop_status sop_linear_f8_sm90_plan(const void *desc, const int32_t *params,
                                              const sop_facts *facts, size_t budget,
                                              sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    double best = 0;
    (void)params;
    (void)budget;
    *split = {{0}, 0};
    for (int64_t head = 0; head < d->tokens + 256; head += 256) {
        const int64_t first = head < d->tokens ? head : d->tokens;
        int64_t head_grid, rest_grid = 0;
        const double cost = cost_of(d, first, 0, facts->workers, &head_grid);
        for (int i = 1; i < SHAPES; i++) {
            const double all = cost + cost_of(d, d->tokens - first, i, facts->workers, &rest_grid);
            if (best > 0 && all >= best) continue;
            best = all;
            split->word[HEAD] = first;
            split->word[HEAD_GRID] = head_grid;
            split->word[REST_SHAPE] = i;
            split->word[REST_GRID] = rest_grid;
        }
    }
    return SOP_OK;
}

template <int PARTS, int CL, typename T>
static sop_status launch(const sop_call *call, int64_t grid, const f8_maps &maps, const f8_args &a)
{
    return sop_launch_cluster(sop_gemm_f8_sm90<PARTS, CL, T>, (unsigned)grid, F8_THREADS,
                              f8_tile<PARTS>::BYTES, CL, call, maps, a);
}
template <int PARTS, int CL>
static sop_status with_y(const sop_call *call, int64_t grid, const f8_maps &maps, const f8_args &a)
{
    switch (((const sop_linear_desc *)call->desc)->y_dtype) {
    case SOP_BF16: return launch<PARTS, CL, __nv_bfloat16>(call, grid, maps, a);
    case SOP_F16: return launch<PARTS, CL, __half>(call, grid, maps, a);
    default: return launch<PARTS, CL, float>(call, grid, maps, a);
    }
}

/* Tokens from `first` on. */
static sop_status multiply(const sop_call *call, int64_t first, int64_t tokens, int shape,
                           int64_t grid)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const char *x = (const char *)call->args[SOP_LINEAR_X].data;
    f8_maps maps;
    f8_args a = {};
    a.x_scale = (const float *)call->args[SOP_LINEAR_X_SCALE].data;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.y_stride = d->y_stride;
    a.first = (int32_t)first;
    a.tokens = (int32_t)(first + tokens);
    a.k = (int32_t)d->k;
    sop_status s =
        sop_linear_codes_map(&maps.x, x, first + tokens, d->k, d->x_stride,
                             (uint32_t)(64 * shapes[shape].parts / shapes[shape].cluster));
    for (int j = 0; j < 3 && s == SOP_OK; j++) {
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (!d->n[j]) continue;
        s = sop_tensor_map_words(&maps.w[j], call->args[SOP_LINEAR_W0 + j].data, d->n[j],
                                 d->k / 128 * 33, d->w_stride[j] * 132, F8_PITCH, F8_ROWS);
    }
    if (s != SOP_OK) return s;
    switch (shape) {
    case 0: return with_y<4, 2>(call, grid, maps, a);
    case 1: return with_y<2, 2>(call, grid, maps, a);
    default: return with_y<1, 1>(call, grid, maps, a);
    }
}

extern "C" sop_status sop_linear_f8_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t head = call->split->word[HEAD];
    if (!sop_linear_aligned(call) || !sop_aligned16(call->args[SOP_LINEAR_X].data) ||
        !sop_aligned16(call->args[SOP_LINEAR_Y].data))
        return sop_linear_cuda(call);
    sop_status s = SOP_OK;
    if (head > 0) s = multiply(call, 0, head, 0, call->split->word[HEAD_GRID]);
    if (s == SOP_OK && head < d->tokens)
        s = multiply(call, head, d->tokens - head, (int)call->split->word[REST_SHAPE],
                     call->split->word[REST_GRID]);
    return s;
}
