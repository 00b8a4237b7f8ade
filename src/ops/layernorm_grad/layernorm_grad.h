/* ops/layernorm_grad: the contract is in sop/grad.h. */
#ifndef OPS_LAYERNORM_GRAD_H
#define OPS_LAYERNORM_GRAD_H

#include "sop/grad.h"

sop_status sop_layernorm_grad_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_layernorm_grad_ref(const sop_call *call);

sop_status sop_layernorm_grad_f32_c(const sop_call *call); /* layernorm_grad_c.c */
/* Of the rows of a CPU: doubles in scratch, which rows leave for the sums of columns. */
sop_status sop_layernorm_grad_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                   size_t budget, sop_split *split);

/* CUDA: layernorm_grad_cuda.cu takes everything, layernorm_grad_wide_sm80.cu what goes in
 * pieces of 16 bytes */
sop_status sop_layernorm_grad_cuda_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_layernorm_grad_cuda(const sop_call *call);
const char *sop_layernorm_grad_wide_refuse(const void *desc);
sop_status sop_layernorm_grad_wide_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_layernorm_grad_wide_sm80(const sop_call *call);

#endif
