/* ops/softmax_grad: the contract is in sop/grad.h. */
#ifndef OPS_SOFTMAX_GRAD_H
#define OPS_SOFTMAX_GRAD_H

#include "sop/grad.h"

sop_status sop_softmax_grad_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_softmax_grad_ref(const sop_call *call);
sop_status sop_softmax_grad_f32_c(const sop_call *call); /* softmax_grad_c.c */

/* CUDA: softmax_grad_cuda.cu takes everything, softmax_grad_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_softmax_grad_cuda(const sop_call *call);
const char *sop_softmax_grad_wide_refuse(const void *desc);
sop_status sop_softmax_grad_wide_sm80(const sop_call *call);

#endif
