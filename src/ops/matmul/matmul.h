/* ops/matmul: the contract is in sop/grad.h. */
#ifndef OPS_MATMUL_H
#define OPS_MATMUL_H

#include "sop/grad.h"

/* a[i,k] lies at i * a_row + k * a_sum. */
static inline int64_t sop_matmul_a_row(const sop_matmul_desc *d)
{
    return d->transposed ? 1 : d->a_stride;
}
static inline int64_t sop_matmul_a_sum(const sop_matmul_desc *d)
{
    return d->transposed ? d->a_stride : 1;
}

sop_status sop_matmul_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_matmul_ref(const sop_call *call);
sop_status sop_matmul_f32_c(const sop_call *call);    /* matmul_c.c */
sop_status sop_matmul_f32_avx2(const sop_call *call); /* matmul_avx2.c */

/* CUDA: matmul_cuda.cu takes everything, matmul_cublaslt.cu what the library multiplies by tensor cores */
sop_status sop_matmul_cuda(const sop_call *call);
const char *sop_matmul_cublaslt_refuse(const void *desc);
sop_status sop_matmul_cublaslt_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_matmul_cublaslt_prepare(const void *desc, sop_device *device, void **state);
void sop_matmul_cublaslt_release(void *state);
sop_status sop_matmul_cublaslt(const sop_call *call);

#endif
