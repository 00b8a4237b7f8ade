/* ops/experts: the contract is in sop/desc.h. */
#ifndef OPS_EXPERTS_H
#define OPS_EXPERTS_H

#include "sop/desc.h"

/* The rows [*first, result) of expert e. */
int64_t sop_experts_end(const sop_call *call, int64_t e, int64_t *first);

/* Where row i of the sorted ones is in x and in y. */
static inline int64_t sop_experts_in(const sop_call *call, int64_t i)
{
    const sop_experts_desc *d = (const sop_experts_desc *)call->desc;
    return d->gather ? ((const int32_t *)call->args[SOP_EXPERTS_PERM].data)[i] / d->gather : i;
}
static inline int64_t sop_experts_out(const sop_call *call, int64_t i)
{
    const sop_experts_desc *d = (const sop_experts_desc *)call->desc;
    return d->scatter ? ((const int32_t *)call->args[SOP_EXPERTS_PERM].data)[i] : i;
}

sop_status sop_experts_reference(const sop_call *call, const sop_judge *judge); /* experts_ref.c */
sop_status sop_experts_ref(const sop_call *call);
sop_status sop_experts_c(const sop_call *call);    /* experts_c.c */
sop_status sop_experts_avx2(const sop_call *call); /* experts_avx2.c */

/* CUDA: experts_cuda.cu takes everything, experts_gemm_sm90.cu 16-bit elements that TMA can read */
sop_status sop_experts_cuda(const sop_call *call);
const char *sop_experts_gemm_refuse(const void *desc);
sop_status sop_experts_gemm_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split);
sop_status sop_experts_gemm_sm90(const sop_call *call);

#endif
