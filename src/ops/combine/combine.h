/* ops/combine: the contract is in sop/desc.h. */
#ifndef OPS_COMBINE_H
#define OPS_COMBINE_H

#include "sop/desc.h"

sop_status sop_combine_reference(const sop_call *call, const sop_judge *judge); /* combine_ref.c */
sop_status sop_combine_ref(const sop_call *call);
sop_status sop_combine_f32_c(const sop_call *call);    /* combine_c.c */
sop_status sop_combine_f32_avx2(const sop_call *call); /* combine_avx2.c */

/* CUDA: combine_cuda.cu takes everything, combine_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_combine_cuda(const sop_call *call);
const char *sop_combine_wide_refuse(const void *desc);
sop_status sop_combine_wide_sm80(const sop_call *call);

#endif
