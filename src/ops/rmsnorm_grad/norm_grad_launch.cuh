/* How rows of norm_grad_wide.cuh are launched; what is left of dw and db is summed by ops/cuda/columns.cuh. */
#ifndef OPS_NORM_GRAD_LAUNCH_CUH
#define OPS_NORM_GRAD_LAUNCH_CUH

#include "ops/cuda/columns.cuh"
#include "ops/cuda/wide_launch.cuh"
#include "ops/rmsnorm_grad/norm_grad_wide.cuh"

/* Pieces of 16 bytes at a row; up to 64 are a warp's. */
static inline bool norm_grad_by_warps(int64_t pieces)
{
    return pieces <= 64;
}

/* Why rows are not taken; or NULL. */
static inline const char *norm_grad_refuse(int32_t dtype, int64_t dim, const int64_t *strides,
                                           int n)
{
    if (dtype == SOP_F64) return "f64 is for the reference";
    if (dim > 4096 * (dtype == SOP_F32 ? 1 : 2)) return "rows are over 16384 bytes long";
    return sop_wide_refuse(dtype, dim, strides, n);
}

/* Fills word 0, the blocks. */
static inline sop_status norm_grad_plan(int32_t dtype, int64_t rows, int64_t dim, int sums,
                                        const sop_facts *facts, size_t budget, sop_split *split)
{
    const int64_t pieces = dim * (dtype == SOP_F32 ? 4 : 2) / 16;
    const bool warps = norm_grad_by_warps(pieces);
    /* 1024 threads a multiprocessor, in at most 8 blocks */
    const int64_t threads = warps ? 256 : sop_wide_threads(pieces, pieces <= 512 ? 1 : 2);
    const int64_t each = threads < 128 ? 8 : 1024 / threads;
    const int64_t most = (int64_t)facts->workers * each;
    const int64_t want = warps ? (rows + 7) / 8 : rows;
    const int64_t blocks = want < most ? want : most;
    *split = {{blocks}, (size_t)(blocks * sums * dim) * sizeof(float)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

template <typename T, bool MEAN>
static sop_status norm_grad_run(const sop_call *call, norm_grad_args a, float *dw, float *db)
{
    const int64_t pieces = a.dim * (int64_t)sizeof(T) / 16;
    const unsigned blocks = (unsigned)call->split->word[0];
    sop_status s = SOP_OK;
    a.part = dw || db ? (float *)call->scratch : NULL;
    if (a.rows > 0) {
        if (pieces <= 32)
            s = sop_launch(sop_norm_grad_wide<T, 1, MEAN, true>, blocks, 256, call, a);
        else if (norm_grad_by_warps(pieces))
            s = sop_launch(sop_norm_grad_wide<T, 2, MEAN, true>, blocks, 256, call, a);
        else if (pieces <= 512)
            s = sop_launch(sop_norm_grad_wide<T, 1, MEAN, false>, blocks,
                           sop_wide_threads(pieces, 1), call, a);
        else
            s = sop_launch(sop_norm_grad_wide<T, 2, MEAN, false>, blocks,
                           sop_wide_threads(pieces, 2), call, a);
    }
    if (s != SOP_OK || !a.part) return s;
    return sop_column_finish(call, a.part, blocks, MEAN ? 2 : 1, a.dim, dw, db);
}

#endif
