/* ops/softmax: the contract is in sop/desc.h. A NaN or +inf makes its whole row NaN. */
#ifndef OPS_SOFTMAX_H
#define OPS_SOFTMAX_H

#include "sop/desc.h"

sop_status sop_softmax_reference(const sop_call *call, const sop_judge *judge); /* softmax_ref.c */
sop_status sop_softmax_ref(const sop_call *call);
sop_status sop_softmax_f32_c(const sop_call *call);    /* softmax_c.c */
sop_status sop_softmax_f32_avx2(const sop_call *call); /* softmax_avx2.c */

/* CUDA: softmax_cuda.cu takes everything, softmax_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_softmax_cuda(const sop_call *call);
const char *sop_softmax_wide_refuse(const void *desc);
sop_status sop_softmax_wide_sm80(const sop_call *call);

#endif
