/* What the launchers of linear share. */
#ifndef OPS_LINEAR_CUDA_CUH
#define OPS_LINEAR_CUDA_CUH

extern "C" {
#include "ops/linear/linear.h"
}
#include "ops/cuda/tma.cuh"

/* Weights of one 16-bit type, rows and x readable by TMA. */
static inline const char *sop_linear_refuse_16(const sop_linear_desc *d)
{
    const int32_t w = d->w_dtype[0];
    if (w != SOP_BF16 && w != SOP_F16) return "the weight is neither bf16 nor f16";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != w) return "the weights differ in type";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->w_stride[j] % 8) return "rows of a weight are no multiple of 16 bytes apart";
    }
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    return NULL;
}

/* Codes of x times codes of weights, readable by TMA. */
static inline const char *sop_linear_refuse_f8(const sop_linear_desc *d)
{
    if (d->x_dtype != SOP_F8) return "x is not f8";
    if (d->numerics == SOP_NUMERICS_EXACT) return "numerics=exact wants whole sums";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != SOP_F8_128) return "a weight is not f8_128";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->w_stride[j] % 4) return "rows of a weight are no multiple of 16 bytes apart";
    }
    if (!d->n[0] || d->k < 1) return "an extent is 0";
    if (d->x_stride % 16) return "rows of x are no multiple of 16 bytes apart";
    return NULL;
}

/* Bytes, [rows, cols], rows `stride` apart; boxes of 128 of them, swizzled by 128 bytes. */
static inline sop_status sop_linear_codes_map(CUtensorMap *map, const void *p, int64_t rows,
                                              int64_t cols, int64_t stride, uint32_t box_rows)
{
    const int64_t dims[2] = {cols, rows};
    const uint32_t box[2] = {128, box_rows};
    return sop_tensor_map_of(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_128B, p, 2,
                             dims, &stride, box);
}

/* The weights' maps; false where one is not at a multiple of 16 bytes. */
static inline bool sop_linear_aligned(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    for (int j = 0; j < 3; j++)
        if (d->n[j] && !sop_aligned16(call->args[SOP_LINEAR_W0 + j].data)) return false;
    return true;
}

static inline sop_status sop_linear_weight_maps(const sop_call *call, uint32_t box_rows,
                                                CUtensorMap *maps)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        const sop_status s =
            sop_tensor_map_2d(&maps[j], d->w_dtype[j], call->args[SOP_LINEAR_W0 + j].data, d->n[j],
                              d->k, d->w_stride[j], box_rows, SOP_TMA_ONCE);
        if (s != SOP_OK) return s;
    }
    return SOP_OK;
}

static inline const float *sop_linear_bias(const sop_call *call, int j)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    return d->bias >> j & 1 ? (const float *)call->args[SOP_LINEAR_B0 + j].data : NULL;
}

static inline int64_t sop_linear_tiles(const sop_linear_desc *d, int64_t rows)
{
    return (d->n[0] + rows - 1) / rows + (d->n[1] + rows - 1) / rows + (d->n[2] + rows - 1) / rows;
}

/* The least rows of a tile, up to 64, with which the tiles fill the multiprocessors a whole number of
 * times. */
static inline int64_t sop_linear_tile_rows(const sop_linear_desc *d, int64_t workers)
{
    const int64_t n = d->n[0] + d->n[1] + d->n[2];
    for (int64_t times = (n + 64 * workers - 1) / (64 * workers);; times++)
        for (int64_t rows = (n + workers * times - 1) / (workers * times); rows <= 64; rows++)
            if (sop_linear_tiles(d, rows) <= workers * times) return rows;
}

/* x as 16-bit rows for TMA, in scratch: rows of k rounded up to 8. */
static inline int64_t sop_linear_staged_stride(const sop_linear_desc *d)
{
    return (d->k + 7) / 8 * 8;
}

#endif
