/* linear by NVIDIA's CUTLASS, many tokens on any card: one product for each weight, in tiles of 128 x 128
 * by warps (mma.sync), four of them under way. The count of live rows is put in where the kernel runs. A
 * bias is the source of the epilogue, all of whose rows are one. */
#include <istream>
#include <ostream>

/* CUTLASS includes <iostream>, whose static object would need the C++ library. */
#define _GLIBCXX_IOSTREAM 1
namespace std
{
extern istream cin;
extern ostream cout, cerr, clog;
} // namespace std
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

extern "C" {
#include "ops/linear/linear.h"
}
#include "ops/cuda/elements.cuh"
#include "ops/linear/linear_cuda.cuh"

namespace gemm = cutlass::gemm;

enum { TILE = 128, STAGES = 4 };

template <typename T, typename Y>
using cutlass_product = typename gemm::kernel::DefaultGemm<
    T, cutlass::layout::RowMajor, 8, T, cutlass::layout::ColumnMajor, 8, Y,
    cutlass::layout::RowMajor, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    gemm::GemmShape<TILE, TILE, 32>, gemm::GemmShape<64, 64, 32>, gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<Y, 16 / sizeof(Y), float, float>,
    gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

template <typename P>
static __global__ void __launch_bounds__(P::kThreadCount)
    sop_linear_cutlass(typename P::Params params, const int32_t *live)
{
    extern __shared__ int4 memory[];
    sop_begin();
    const int rows = (int)sop_live_rows(live, params.problem_size.m());
    const typename P::ThreadblockSwizzle swizzle;
    if (swizzle.get_tile_offset(params.swizzle_log_tile).m() * TILE >= rows) return;
    params.problem_size.m() = rows;
    P product;
    product(params, *(typename P::SharedStorage *)memory);
}

extern "C" const char *sop_linear_cutlass_refuse(const void *desc)
{
    const sop_linear_desc *d = (const sop_linear_desc *)desc;
    const char *why = sop_linear_gemm_refuse(desc); /* the same types and alignment */
    if (why) return why;
    if (d->tokens < 16) return "fewer than 16 tokens";
    if (d->k % 8) return "k is no multiple of 8";
    if (d->bias && d->y_dtype != SOP_F32) return "a bias is f32, y is not";
    return NULL;
}

template <typename T, typename Y> static sop_status run(const sop_call *call, int j, Y *y)
{
    typedef cutlass_product<T, Y> product;
    typedef typename product::ThreadblockSwizzle swizzle;
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const float *bias = sop_linear_bias(call, j);
    const gemm::GemmCoord size((int)d->tokens, (int)d->n[j], (int)d->k);
    const gemm::GemmCoord tiles =
        swizzle::get_tiled_shape(size, gemm::GemmCoord(TILE, TILE, 32), 1);
    const typename product::Params params(
        size, tiles, {(T *)call->args[SOP_LINEAR_X].data, d->x_stride},
        {(T *)call->args[SOP_LINEAR_W0 + j].data, d->w_stride[j]},
        {bias ? (Y *)const_cast<float *>(bias) : y, bias ? 0 : d->y_stride}, {y, d->y_stride},
        {1.0f, bias ? 1.0f : 0.0f});
    return sop_launch_cluster(sop_linear_cutlass<product>, swizzle::get_grid_shape(tiles),
                              product::kThreadCount, sizeof(typename product::SharedStorage), 1,
                              call, params, (const int32_t *)call->args[SOP_LINEAR_LIVE].data);
}

template <typename T, typename Y> static sop_status run_all(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    Y *y = (Y *)call->args[SOP_LINEAR_Y].data;
    for (int j = 0; j < 3; y += d->n[j++]) {
        if (!d->n[j]) continue;
        const sop_status s = run<T, Y>(call, j, y);
        if (s != SOP_OK) return s;
    }
    return SOP_OK;
}

extern "C" sop_status sop_linear_cutlass(const sop_call *call)
{
    const sop_linear_desc *d = (const sop_linear_desc *)call->desc;
    const bool half = d->w_dtype[0] == SOP_F16, wide = d->y_dtype == SOP_F32;
    bool aligned = sop_linear_aligned(call) && sop_aligned16(call->args[SOP_LINEAR_X].data) &&
                   sop_aligned16(call->args[SOP_LINEAR_Y].data);
    for (int j = 0; j < 3; j++) aligned = aligned && sop_aligned16(sop_linear_bias(call, j));
    if (!aligned) return sop_linear_cuda(call);
    if (half)
        return wide ? run_all<cutlass::half_t, float>(call)
                    : run_all<cutlass::half_t, cutlass::half_t>(call);
    return wide ? run_all<cutlass::bfloat16_t, float>(call)
                : run_all<cutlass::bfloat16_t, cutlass::bfloat16_t>(call);
}
