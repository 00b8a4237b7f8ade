#include "ops/linear/linear_cuda.cuh"
#include "ops/linear/planes_sm90.cuh"

enum { PLANES_TOKENS = 16, ROWS = 0, GRID, FEW, APART }; /* words of a plan */

/* Calls what(S()) for the kernel's shape that a desc takes. Where there are few rows, the CTAs of a cluster
 * share k; from 5 tokens on half as much of x comes to each. Warps of their own ask for x but where one round
 * of 16 columns needs the registers. */
template <typename F>
static sop_status with_shape(const sop_linear_desc *d, bool few, bool apart, F what)
{
    if (d->tokens <= 4)
        return few ? what(planes_shape<4, 1, 2, 1>()) : what(planes_shape<4, 1, 1, 1>());
    if (d->tokens <= 8)
        return few ? what(planes_shape<8, 1, 2, 1>()) : what(planes_shape<8, 2, 2, 1>());
    if (few) return what(planes_shape<16, 1, 2, 1>());
    return apart ? what(planes_shape<16, 2, 2, 1>()) : what(planes_shape<16, 2, 2, 0>());
}

/* Blocks of k, in whole stages. */
static int64_t blocks_of(const sop_linear_desc *d)
{
    return (d->k / 128 + PLANES_BLOCKS - 1) / PLANES_BLOCKS * PLANES_BLOCKS;
}

extern "C" const char *sop_linear_planes_sm90_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != SOP_I4_128) return "a weight is not i4_128";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->w_stride[j] % 4) return "rows of a weight are no multiple of 16 bytes apart";
    }
    if (d->x_dtype != SOP_F32 && d->x_dtype != SOP_BF16 && d->x_dtype != SOP_F16)
        return "x is neither f32, bf16 nor f16";
    if (d->tokens > PLANES_TOKENS) return "too many tokens";
    if (d->n[0] + d->n[1] + d->n[2] > 1 << 22) return "over 4194304 rows";
    return d->k > 1 << 20 ? "over 1048576 columns" : NULL;
}

extern "C" sop_status sop_linear_planes_sm90_plan(const void *desc, const int32_t *params,
                                                  const sop_facts *facts, size_t budget,
                                                  sop_split *split)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    /* half a product's 64 rows at most would be used */
    const bool few = sop_linear_tile_rows(d, facts->workers) <= 32;
    (void)params;
    return with_shape(d, few, true, [&](auto shape) {
        typedef decltype(shape) S;
        const int64_t clusters = facts->workers / S::CL;
        const int64_t rows = sop_linear_tile_rows(d, clusters * S::RG);
        const int64_t wanted = (sop_linear_tiles(d, rows) + S::RG - 1) / S::RG;
        *split = {{0}, (size_t)(blocks_of(d) * (S::TILE + S::STEPS))};
        split->word[ROWS] = rows;
        split->word[GRID] = (wanted < clusters ? wanted : clusters) * S::CL;
        split->word[FEW] = few;
        split->word[APART] = wanted > clusters;
        return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
    });
}

template <typename S> static sop_status run(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const int64_t blocks = blocks_of(d);
    uint8_t *planes = (uint8_t *)call->scratch;
    int2 *steps = (int2 *)(planes + blocks * S::TILE);
    planes_maps maps;
    planes_args a = {};
    sop_status s = sop_launch(sop_planes_of<S::COLUMNS>, sop_blocks(blocks * d->tokens, 4), 128,
                              call, call->args[SOP_LINEAR_X].data, d->x_dtype, d->x_stride,
                              (int)d->tokens, (int)d->k, (int)blocks, planes, steps);
    a.planes = planes;
    a.live = (const int32_t *)call->args[SOP_LINEAR_LIVE].data;
    a.y = call->args[SOP_LINEAR_Y].data;
    a.y_stride = d->y_stride;
    a.y_dtype = d->y_dtype;
    a.tokens = (int32_t)d->tokens;
    a.k = (int32_t)d->k;
    a.rows = (int32_t)call->split->word[ROWS];
    a.x_depth = planes_x_depth<S>(a.rows);
    for (int j = 0; j < 3 && s == SOP_OK; j++) {
        a.n[j] = (int32_t)d->n[j];
        a.bias[j] = sop_linear_bias(call, j);
        if (d->n[j])
            s = sop_tensor_map_words(&maps.w[j], call->args[SOP_LINEAR_W0 + j].data, d->n[j],
                                     d->k / 128 * 17,
                                     d->w_stride[j] * (int64_t)sop_dtype_bytes(SOP_I4_128),
                                     S::PITCH, (uint32_t)a.rows, SOP_TMA_ONCE);
    }
    if (s == SOP_OK)
        s = sop_tensor_map_words(&maps.steps, steps, blocks, 2 * S::COLUMNS, S::STEPS,
                                 2 * S::COLUMNS, S::XB);
    if (s != SOP_OK) return s;
    return sop_launch_cluster(sop_planes_sm90<S>, (unsigned)call->split->word[GRID], S::THREADS,
                              (size_t)planes_smem<S>(a.rows), S::CL, call, maps, a);
}

extern "C" sop_status sop_linear_planes_sm90(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    if (d->tokens == 0) return SOP_OK;
    if (!sop_linear_aligned(call)) return sop_linear_cuda(call);
    return with_shape(d, call->split->word[FEW], call->split->word[APART],
                      [&](auto shape) { return run<decltype(shape)>(call); });
}
