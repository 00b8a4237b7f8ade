#include "ops/linear/gemm_sm80.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says: the tile. */
enum { HEIGHT, WIDTH };

/* The tile that ends first: rounds of all multiprocessors, times what a tile costs; two of the smaller ones
 * share a multiprocessor. */
extern "C" sop_status sop_linear_gemm_sm80_plan(const void *desc, const int32_t *params,
                                                const sop_facts *facts, size_t budget,
                                                sop_split *split)
{
    static const struct {
        int64_t height, width;
        double cost;
    } shapes[] = {{128, 256, 1}, {128, 128, 0.55}, {64, 128, 0.32}};
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    double best = 0;
    (void)params, (void)budget;
    *split = {{0}, 0};
    for (int i = 0; i < 3; i++) {
        const int64_t tiles = (d->tokens + shapes[i].height - 1) / shapes[i].height *
                              sop_linear_tiles(d, shapes[i].width);
        const double cost =
            (double)((tiles + facts->workers - 1) / facts->workers) * shapes[i].cost;
        if (best > 0 && cost >= best) continue;
        best = cost;
        split->word[HEIGHT] = shapes[i].height;
        split->word[WIDTH] = shapes[i].width;
    }
    return SOP_OK;
}

template <typename T, int BM, int BN>
static sop_status launch(const sop_call *call, const gemm80_args &a)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const unsigned tiles = (unsigned)((d->tokens + BM - 1) / BM * sop_linear_tiles(d, BN));
    return sop_launch_cluster(sop_gemm_sm80<T, BM, BN>, tiles, GEMM80_THREADS,
                              gemm80_smem<BM, BN>::bytes, 1, call, a);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    gemm80_args a = {};
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.x = call->args[SOP_LINEAR_X].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.x_stride = d->x_stride, a.y_stride = d->y_stride;
    a.tokens = (int)d->tokens, a.k = (int)d->k, a.y_f32 = d->y_dtype == SOP_F32;
    for (int j = 0; j < 3; j++) {
        a.w[j] = call->args[SOP_LINEAR_W0 + j].data;
        a.w_stride[j] = d->w_stride[j];
        a.n[j] = (int)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
    }
    if (call->split->word[WIDTH] == 256) return launch<T, 128, 256>(call, a);
    return call->split->word[HEIGHT] == 128 ? launch<T, 128, 128>(call, a)
                                            : launch<T, 64, 128>(call, a);
}

extern "C" sop_status sop_linear_gemm_sm80(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_linear_aligned(call) || !sop_aligned16(call->args[SOP_LINEAR_Y].data) ||
        !sop_aligned16(call->args[SOP_LINEAR_X].data))
        return sop_linear_cuda(call);
    return d->w_dtype[0] == SOP_F16 ? run<__half>(call) : run<__nv_bfloat16>(call);
}
