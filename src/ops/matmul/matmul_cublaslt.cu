/* matmul by cuBLASLt; sums are ours, by columns of chunks of rows.
 *
 *     scratch -> up to 256 to align | workspace | part sums */
#include <stdlib.h>

extern "C" {
#include "base/status.h"
#include "ops/matmul/matmul.h"
}
#include "ops/cuda/columns.cuh"
#include "ops/cuda/cublaslt.h"

struct way {
    const sop_cublaslt *lt;
    sop_cublaslt_plan plan;
};

extern "C" const char *sop_matmul_cublaslt_refuse(const void *desc)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)desc;
    if (d->a_dtype != SOP_F16 && d->a_dtype != SOP_BF16) return "a is not of 16 bits";
    if (d->b_dtype != d->a_dtype) return "types of a and b differ";
    if (d->y_dtype != d->a_dtype && d->y_dtype != SOP_F32)
        return "y is neither of a's type nor f32";
    if (d->rows == 0 || d->cols == 0 || d->k == 0) return "an extent is 0";
    if (d->a_stride % 8 || d->b_stride % 8 || d->y_stride % 8)
        return "a stride is no multiple of 8 elements";
    if (d->a_stride < (d->transposed ? d->rows : d->k) || d->b_stride < d->cols)
        return "rows of a or b overlap";
    return NULL;
}

extern "C" sop_status sop_matmul_cublaslt_plan(const void *desc, const int32_t *params,
                                               const sop_facts *facts, size_t budget,
                                               sop_split *split)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0},
              SOP_CUBLASLT_ALIGNMENT + SOP_CUBLASLT_WORKSPACE + sop_column_bytes(d->k, d->rows, 1)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

extern "C" void sop_matmul_cublaslt_release(void *state)
{
    struct way *way = (struct way *)state;
    if (way && way->lt) sop_cublaslt_unplan(way->lt, &way->plan);
    free(way);
}

extern "C" sop_status sop_matmul_cublaslt_prepare(const void *desc, sop_device *device,
                                                  void **state)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)desc;
    const sop_cublaslt_product p = {d->rows,     d->cols,    d->k,       d->a_stride,   d->b_stride,
                                    d->y_stride, d->a_dtype, d->y_dtype, d->transposed, 1};
    int32_t index;
    *state = NULL;
    sop_status s = sop_cuda_enter(device, &index);
    if (s != SOP_OK) return s;
    struct way *way = (struct way *)calloc(1, sizeof *way);
    if (!way) return sop_fail(SOP_E_NOMEM, "cublaslt: a plan");
    s = sop_cublaslt_open(index, &way->lt);
    if (s == SOP_OK) s = sop_cublaslt_plan_product(way->lt, &p, &way->plan);
    if (s != SOP_OK) {
        sop_matmul_cublaslt_release(way);
        return s;
    }
    *state = way;
    return SOP_OK;
}

template <typename T>
static __global__ void sop_matmul_sums(const T *a, int64_t k, int64_t rows, int64_t a_row,
                                       int64_t a_sum, int64_t chunk, float *part)
{
    sop_begin();
    sop_columns<1>(k, rows, chunk, part, [&](int64_t c, int64_t i, float(&term)[1]) {
        term[0] = sop_to_float(a[i * a_row + c * a_sum]);
    });
}

template <typename T> static sop_status sum(const sop_call *call, float *part)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)call->desc;
    const sop_status s =
        sop_launch(sop_matmul_sums<T>, sop_column_grid(d->k, d->rows), dim3(32, SOP_COLUMN_LANES),
                   call, (const T *)call->args[SOP_MATMUL_A].data, d->k, d->rows,
                   sop_matmul_a_row(d), sop_matmul_a_sum(d), sop_column_chunk(d->k), part);
    if (s != SOP_OK) return s;
    return sop_column_finish(call, part, sop_column_chunks(d->k), 1, d->rows,
                             (float *)call->args[SOP_MATMUL_SUMS].data, NULL);
}

extern "C" sop_status sop_matmul_cublaslt(const sop_call *call)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)call->desc;
    const struct way *way = (const struct way *)call->prepared;
    const sop_operand *args = call->args;
    for (int i = SOP_MATMUL_A; i <= SOP_MATMUL_Y; i++)
        if (!sop_aligned16(args[i].data)) return sop_matmul_cuda(call);
    const uintptr_t last = SOP_CUBLASLT_ALIGNMENT - 1;
    char *workspace = (char *)(((uintptr_t)call->scratch + last) & ~last);
    const sop_status s =
        sop_cublaslt_run(way->lt, &way->plan, args[SOP_MATMUL_A].data, args[SOP_MATMUL_B].data,
                         args[SOP_MATMUL_Y].data, workspace, sop_stream(call));
    if (s != SOP_OK || !args[SOP_MATMUL_SUMS].data) return s;
    float *part = (float *)(workspace + SOP_CUBLASLT_WORKSPACE);
    return d->a_dtype == SOP_F16 ? sum<__half>(call, part) : sum<__nv_bfloat16>(call, part);
}
