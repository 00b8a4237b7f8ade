extern "C" {
#include "ops/matmul/matmul.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/matmul/matmul.cuh"

sop_status sop_matmul_cuda(const sop_call *call)
{
    const sop_matmul_desc *d = (const sop_matmul_desc *)call->desc;
    const sop_operand *a = call->args;
    const dim3 grid(sop_blocks(d->rows, 64), d->cols ? sop_blocks(d->cols, 64) : 1);
    if (d->rows == 0) return SOP_OK;
    return sop_launch(sop_matmul_any, grid, 256, call, *d, a[SOP_MATMUL_A].data,
                      a[SOP_MATMUL_B].data, a[SOP_MATMUL_Y].data, (float *)a[SOP_MATMUL_SUMS].data);
}
