/* ops/bias_act_grad: the contract is in sop/grad.h. */
#ifndef OPS_BIAS_ACT_GRAD_H
#define OPS_BIAS_ACT_GRAD_H

#include "sop/grad.h"

/* A task is this many columns of all rows, so that a column's sum is one worker's; a multiple of 8. */
enum { SOP_BIAS_ACT_GRAD_COLUMNS = 64 };

sop_status sop_bias_act_grad_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_bias_act_grad_ref(const sop_call *call);
sop_status sop_bias_act_grad_f32_c(const sop_call *call);    /* bias_act_grad_c.c */
sop_status sop_bias_act_grad_f32_avx2(const sop_call *call); /* bias_act_grad_avx2.c */

/* CUDA: bias_act_grad_cuda.cu takes everything, bias_act_grad_wide_sm80.cu what goes in pieces of 16
 * bytes; the plan is of both */
sop_status sop_bias_act_grad_cuda_plan(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_bias_act_grad_cuda(const sop_call *call);
const char *sop_bias_act_grad_wide_refuse(const void *desc);
sop_status sop_bias_act_grad_wide_sm80(const sop_call *call);

#endif
