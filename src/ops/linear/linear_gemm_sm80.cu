#include "ops/linear/gemm_sm80.cuh"
#include "ops/linear/linear_cuda.cuh"

/* What the plan says. */
enum { SHAPE, GRID, SLOTS };

/* Tiles, best for many first. Both fit the 99 KB that a CTA may have on 8.9. */
typedef gemm80_shape<128, 256, 32, 4, 64, 64> large;
typedef gemm80_shape<64, 128, 64, 4, 32, 64> small;

/* The tile that ends first: rounds of all multiprocessors, times what a k of a tile costs, of which the large
 * one takes 17 ns on an H200. Where the last round is shared it is as long as what remains, and has a price:
 * sums go through memory. */
extern "C" sop_status sop_linear_gemm_sm80_plan(const void *desc, const int32_t *params,
                                                const sop_facts *facts, size_t budget,
                                                sop_split *split)
{
    static const struct {
        int64_t height, width;
        double cost, price;
        size_t partial;
    } shapes[] = {{large::BM, large::BN, 1, 900, large::SUMS * large::THREADS * 8},
                  {small::BM, small::BN, 0.45, 360, small::SUMS * small::THREADS * 8}};
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    double best = 0;
    (void)params;
    *split = {{0}, 0};
    for (int i = 0; i < 4; i++) {
        const bool shared = i % 2;
        const int64_t tiles = (d->tokens + shapes[i / 2].height - 1) / shapes[i / 2].height *
                              sop_linear_tiles(d, shapes[i / 2].width);
        const int64_t slots = facts->workers;
        const size_t scratch = shared ? (size_t)slots * shapes[i / 2].partial : 0;
        const double rounds =
            shared ? (double)tiles / (double)slots : (double)((tiles + slots - 1) / slots);
        const double cost =
            rounds * shapes[i / 2].cost * (double)d->k + (shared ? shapes[i / 2].price : 0);
        if ((i > 0 && cost >= best) || scratch > budget) continue;
        best = cost;
        split->word[SHAPE] = i / 2;
        split->word[GRID] = shared || tiles > slots ? slots : tiles;
        split->word[SLOTS] = shared ? slots : 0;
        split->scratch_bytes = scratch;
    }
    return SOP_OK;
}

template <typename T, typename S> static sop_status launch(const sop_call *call, gemm80_args &a)
{
    a.least = 512 / S::BK;
    return sop_launch_cluster(sop_gemm_sm80<T, S>, (unsigned)call->split->word[GRID], S::THREADS,
                              S::SMEM, 1, call, a);
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    gemm80_args a = {};
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.x = call->args[SOP_LINEAR_X].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.partial = (float *)call->scratch;
    a.arrived = sop_cuda_counters(call);
    a.x_stride = d->x_stride, a.y_stride = d->y_stride;
    a.tokens = (int)d->tokens, a.k = (int)d->k, a.y_f32 = d->y_dtype == SOP_F32;
    a.slots = (int)call->split->word[SLOTS];
    for (int j = 0; j < 3; j++) {
        a.w[j] = call->args[SOP_LINEAR_W0 + j].data;
        a.w_stride[j] = d->w_stride[j];
        a.n[j] = (int)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
    }
    return call->split->word[SHAPE] == 0 ? launch<T, large>(call, a) : launch<T, small>(call, a);
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
