#include <type_traits>

#include "ops/linear/dequant.cuh"
#include "ops/linear/gemm_sm90.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says. */
enum { WIDTH, CLUSTER, GRID, CHUNK };

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
    if (d->x_dtype == SOP_F8) return "x is f8";
    return refuse(d);
}

/* Weights of any format become bf16 first, a chunk of rows at a time. */
extern "C" const char *sop_linear_gemm_widened_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    bool plain = true;
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants weights as they are";
    if (d->x_dtype == SOP_F8) return "x is f8";
    if (d->tokens < 16) return "too few tokens";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->n[j] % 8) return "rows of a weight are no multiple of 8";
        if (d->w_dtype[j] != SOP_BF16 && d->w_dtype[j] != SOP_F16) plain = false;
    }
    if (plain) return "weights have 16 bits";
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    if (d->y_dtype != SOP_BF16 && d->y_dtype != SOP_F32) return "y is neither f32 nor bf16";
    if (d->y_stride % 8) return "rows of y are no multiple of 16 bytes apart";
    if (d->x_dtype == SOP_BF16 && d->x_stride % 8)
        return "rows of x are no multiple of 16 bytes apart";
    return NULL;
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

/* Rows of a chunk: 64 MB of bf16 at most, which mostly stay in the L2, and of such the number whose tiles
 * fill the multiprocessors best. */
static int64_t chunk_rows(const sop_linear_desc *d, int64_t workers)
{
    const int64_t k = sop_linear_staged_stride(d), tall = (d->tokens + 127) / 128;
    const int64_t two = d->n[0] > d->n[1] ? d->n[0] : d->n[1], n = two > d->n[2] ? two : d->n[2];
    int64_t most = ((int64_t)64 << 20) / (2 * k) / 256 * 256, best = 0, rows = 256;
    if (most > 32768) most = 32768; /* of a grid */
    if (most > (n + 255) / 256 * 256) most = (n + 255) / 256 * 256;
    const int64_t step = (most / 32 + 255) / 256 * 256; /* some 16 of them */
    for (int64_t r = most; r >= 256 && r > most / 2; r -= step) {
        const int64_t chunks = n / r, each = (r / 256 * tall + workers - 1) / workers;
        const int64_t rest = ((n % r + 255) / 256 * tall + workers - 1) / workers;
        const int64_t rounds = chunks * each + rest;
        if (best && rounds >= best) continue;
        best = rounds;
        rows = r;
    }
    return rows;
}

/* Scratch: a chunk, x where it is rounded. */
extern "C" sop_status sop_linear_gemm_widened_plan(const void *desc, const int32_t *params,
                                                   const sop_facts *facts, size_t budget,
                                                   sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const int64_t stride = sop_linear_staged_stride(d), rows = chunk_rows(d, facts->workers);
    sop_linear_desc chunk = *d;
    (void)params;
    *split = {{0}, 0};
    chunk.n[0] = rows;
    chunk.n[1] = chunk.n[2] = 0;
    split->word[CHUNK] = rows;
    split->scratch_bytes = (size_t)(rows * stride) * 2;
    if (d->x_dtype != SOP_BF16) split->scratch_bytes += (size_t)(d->tokens * stride) * 2;
    return split->scratch_bytes <= budget ? plan(&chunk, facts, split) : SOP_E_LIMIT;
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

/* Rows of a weight of any format as bf16; 4 columns a thread. */
static __global__ void sop_widen(const uint8_t *w, int32_t dtype, int64_t row_bytes, int k,
                                 __nv_bfloat16 *out, int64_t stride)
{
    const int c = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const uint8_t *row = w + blockIdx.y * row_bytes;
    float v[4];
    sop_begin();
    if (c >= k) return;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = c + i < k ? sop_weight_at(dtype, row, c + i) : 0;
    *(uint2 *)(out + blockIdx.y * stride + c) =
        make_uint2(sop_pack<__nv_bfloat16>(v[0], v[1]), sop_pack<__nv_bfloat16>(v[2], v[3]));
}

template <typename T, int BN, int CL>
static sop_status launch(const sop_call *call, const gemm_maps &maps, const gemm_args &a)
{
    return sop_launch_cluster(sop_gemm_sm90<T, BN, CL>, (unsigned)call->split->word[GRID],
                              GEMM_THREADS, gemm_smem<BN>::bytes, CL, call, maps, a);
}

/* What is multiplied: weights [n, k] in T, rows `stride` apart; at: first column of y. */
struct product {
    const void *x, *w[3];
    const float *bias[3];
    int64_t x_stride, stride[3], n[3], at;
};

template <typename T> static sop_status multiply(const sop_call *call, const product &p)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t width = call->split->word[WIDTH], cluster = call->split->word[CLUSTER];
    const int32_t dtype = std::is_same<T, __half>::value ? SOP_F16 : SOP_BF16;
    gemm_maps maps;
    gemm_args a = {};
    const int64_t element = (int64_t)sop_dtype_bytes(d->y_dtype);
    char *y = (char *)call->args[SOP_LINEAR_Y].data + element * p.at;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = y;
    a.y_stride = d->y_stride;
    a.tokens = (int)d->tokens;
    a.k = (int)d->k;
    a.y_f32 = d->y_dtype == SOP_F32;
    sop_status s = sop_tensor_map_2d(&maps.x, dtype, p.x, d->tokens, d->k, p.x_stride, GEMM_BM);
    for (int j = 0; j < 3 && s == SOP_OK; y += element * p.n[j++]) {
        a.n[j] = (int)p.n[j];
        a.bias[j] = p.bias[j];
        if (!p.n[j]) continue;
        s = sop_tensor_map_2d(&maps.w[j], dtype, p.w[j], p.n[j], d->k, p.stride[j],
                              (uint32_t)(width / cluster));
        if (s == SOP_OK && !a.y_f32)
            s = sop_tensor_map_2d(&maps.y[j], dtype, y, d->tokens, p.n[j], d->y_stride, 64);
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

/* x in T: itself, or rounded to `staged`. */
template <typename T> static sop_status rounded(const sop_call *call, void *staged, product *p)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    p->x = call->args[SOP_LINEAR_X].data;
    p->x_stride = d->x_stride;
    if (d->x_dtype == (std::is_same<T, __half>::value ? SOP_F16 : SOP_BF16)) return SOP_OK;
    const void *x = p->x;
    p->x = staged;
    p->x_stride = sop_linear_staged_stride(d);
    return sop_launch(sop_round_x<T>, dim3(sop_blocks(d->k, 256), (unsigned)d->tokens), 256, call,
                      x, d->x_dtype, d->x_stride, (int)d->k, (T *)staged, p->x_stride);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    product p = {};
    for (int j = 0; j < 3; j++) {
        p.n[j] = d->n[j];
        p.w[j] = call->args[SOP_LINEAR_W0 + j].data;
        p.stride[j] = d->w_stride[j];
        p.bias[j] = sop_linear_bias(call, j);
    }
    const sop_status s = rounded<T>(call, call->scratch, &p);
    return s == SOP_OK ? multiply<T>(call, p) : s;
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

extern "C" sop_status sop_linear_gemm_widened_sm90(const sop_call *call)
{
    typedef __nv_bfloat16 T;
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t chunk = call->split->word[CHUNK], stride = sop_linear_staged_stride(d);
    T *const wide = (T *)call->scratch;
    product p = {};
    if (!sop_aligned16(call->args[SOP_LINEAR_Y].data) ||
        (d->x_dtype == SOP_BF16 && !sop_aligned16(call->args[SOP_LINEAR_X].data)))
        return sop_linear_cuda(call);
    sop_status s = rounded<T>(call, wide + chunk * stride, &p);
    p.w[0] = wide;
    p.stride[0] = stride;
    for (int j = 0; j < 3; j++)
        for (int64_t row = 0; row < d->n[j] && s == SOP_OK; row += chunk, p.at += p.n[0]) {
            const int64_t bytes = d->w_stride[j] * (int64_t)sop_dtype_bytes(d->w_dtype[j]);
            const uint8_t *w = (const uint8_t *)call->args[SOP_LINEAR_W0 + j].data + row * bytes;
            const float *bias = sop_linear_bias(call, j);
            p.n[0] = d->n[j] - row < chunk ? d->n[j] - row : chunk;
            p.bias[0] = bias ? bias + row : NULL;
            s = sop_launch(sop_widen, dim3(sop_blocks(d->k, 1024), (unsigned)p.n[0]), 256, call, w,
                           d->w_dtype[j], bytes, (int)d->k, wide, stride);
            if (s == SOP_OK) s = multiply<T>(call, p);
        }
    return s;
}
