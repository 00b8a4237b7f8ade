/* ops/gated_grad: the contract is in sop/grad.h. */
#ifndef OPS_GATED_GRAD_H
#define OPS_GATED_GRAD_H

#include "sop/grad.h"

sop_status sop_gated_grad_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_gated_grad_ref(const sop_call *call);
sop_status sop_gated_grad_f32_c(const sop_call *call);    /* gated_grad_c.c */
sop_status sop_gated_grad_f32_avx2(const sop_call *call); /* gated_grad_avx2.c */

/* CUDA: gated_grad_cuda.cu takes everything, gated_grad_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_gated_grad_cuda(const sop_call *call);
const char *sop_gated_grad_wide_refuse(const void *desc);
sop_status sop_gated_grad_wide_sm80(const sop_call *call);

#endif
