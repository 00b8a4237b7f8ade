#include "ops/linear/gemm_sm90.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says. */
enum { WIDTH, CLUSTER, GRID };

static const char *refuse(const sop_linear_desc *d)
{
    const char *why = sop_linear_refuse_16(d);
    if (why) return why;
    for (int j = 0; j < 3; j++)
        if (d->n[j] % 8) return "rows of a weight are no multiple of 8";
    if (d->y_dtype != d->w_dtype[0] && d->y_dtype != SOP_F32)
        return "y is neither f32 nor of the weight's type";
    if (d->y_stride % 8) return "rows of y are no multiple of 16 bytes apart";
    return NULL;
}

extern "C" const char *sop_linear_gemm_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    if (d->x_dtype != d->w_dtype[0]) return "x has not the weight's type";
    if (d->x_stride % 8) return "rows of x are no multiple of 16 bytes apart";
    return refuse(d);
}

/* x is rounded to the weight's type first. */
extern "C" const char *sop_linear_gemm_rounded_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants x as it is";
    if (d->x_dtype == d->w_dtype[0]) return "x needs no rounding";
    return refuse(d);
}

/* The width of tiles that ends first: rounds of all multiprocessors, times the cost of a tile of 128 rows.
 * Narrow ones load more for each product: on an H200 a tile of 128 columns takes 0.56 of one of 256. A
 * cluster of 2 saves 1.5 %. */
static sop_status plan(const sop_linear_desc *d, const sop_facts *facts, sop_split *split)
{
    static const struct {
        int64_t width, cluster;
    } shapes[] = {{256, 2}, {256, 1}, {192, 1}, {144, 1}, {128, 1}, {96, 1}, {64, 1}};
    const int64_t rows = (d->tokens + 127) / 128;
    double best = 0;
    for (int i = 0; i < 7; i++) {
        const int64_t w = shapes[i].width, c = shapes[i].cluster, slots = facts->workers / c;
        const int64_t columns =
            (d->n[0] + w - 1) / w + (d->n[1] + w - 1) / w + (d->n[2] + w - 1) / w;
        const int64_t tiles = (rows + c - 1) / c * columns;
        const double tile = ((double)w + 0.11 * (double)(256 - w)) / 256 * (c == 2 ? 0.985 : 1);
        const double cost = (double)((tiles + slots - 1) / slots) * tile;
        if (best > 0 && cost >= best) continue;
        best = cost;
        split->word[WIDTH] = w;
        split->word[CLUSTER] = c;
        split->word[GRID] = (tiles < slots ? tiles : slots) * c;
    }
    return SOP_OK;
}

extern "C" sop_status sop_linear_gemm_plan(const void *desc, const int32_t *params,
                                           const sop_facts *facts, size_t budget, sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    (void)params;
    *split = {{0}, 0};
    if (d->x_dtype != d->w_dtype[0])
        split->scratch_bytes = (size_t)(d->tokens * sop_linear_staged_stride(d)) * 2;
    return split->scratch_bytes <= budget ? plan(d, facts, split) : SOP_E_LIMIT;
}

template <typename T>
static __global__ void sop_round_x(const void *x, int32_t dtype, int64_t x_stride, int k, T *out,
                                   int64_t k_stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t t = blockIdx.y;
    sop_begin();
    if (i < k) out[t * k_stride + i] = sop_from_float<T>(sop_load_any(x, dtype, t * x_stride + i));
}

template <typename T, int BN, int CL>
static sop_status launch(const sop_call *call, const gemm_maps &maps, const gemm_args &a)
{
    return sop_launch_cluster(sop_gemm_sm90<T, BN, CL>, (unsigned)call->split->word[GRID],
                              GEMM_THREADS, gemm_smem<BN>::bytes, CL, call, maps, a);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t width = call->split->word[WIDTH], cluster = call->split->word[CLUSTER];
    gemm_maps maps;
    gemm_args a = {};
    const void *x = call->args[SOP_LINEAR_X].data;
    char *y = (char *)call->args[SOP_LINEAR_Y].data;
    int64_t x_stride = d->x_stride, at = 0;
    if (d->x_dtype != d->w_dtype[0]) {
        x_stride = sop_linear_staged_stride(d);
        const sop_status s =
            sop_launch(sop_round_x<T>, dim3(sop_blocks(d->k, 256), (unsigned)d->tokens), 256, call,
                       x, d->x_dtype, d->x_stride, (int)d->k, (T *)call->scratch, x_stride);
        if (s != SOP_OK) return s;
        x = call->scratch;
    }
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = y;
    a.y_stride = d->y_stride;
    a.tokens = (int)d->tokens;
    a.k = (int)d->k;
    a.y_f32 = d->y_dtype == SOP_F32;
    sop_status s = sop_linear_weight_maps(call, (uint32_t)(width / cluster), maps.w);
    if (s == SOP_OK)
        s = sop_tensor_map_2d(&maps.x, d->w_dtype[0], x, d->tokens, d->k, x_stride, GEMM_BM);
    for (int j = 0; j < 3 && s == SOP_OK; at += d->n[j++]) {
        a.n[j] = (int)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (d->n[j] && !a.y_f32)
            s = sop_tensor_map_2d(&maps.y[j], d->y_dtype, y + 2 * at, d->tokens, d->n[j],
                                  d->y_stride, 64);
    }
    if (s != SOP_OK) return s;
    switch (width) {
    case 256:
        return cluster == 2 ? launch<T, 256, 2>(call, maps, a) : launch<T, 256, 1>(call, maps, a);
    case 192: return launch<T, 192, 1>(call, maps, a);
    case 144: return launch<T, 144, 1>(call, maps, a);
    case 128: return launch<T, 128, 1>(call, maps, a);
    case 96: return launch<T, 96, 1>(call, maps, a);
    default: return launch<T, 64, 1>(call, maps, a);
    }
}

extern "C" sop_status sop_linear_gemm_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const bool staged = d->x_dtype != d->w_dtype[0], half = d->w_dtype[0] == SOP_F16;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_linear_aligned(call) || !sop_aligned16(call->args[SOP_LINEAR_Y].data) ||
        (!staged && !sop_aligned16(call->args[SOP_LINEAR_X].data)))
        return sop_linear_cuda(call);
    return half ? run<__half>(call) : run<__nv_bfloat16>(call);
}
