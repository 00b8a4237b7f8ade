/* ops/add: the contract is in sop/desc.h. */
#ifndef OPS_ADD_H
#define OPS_ADD_H

#include "sop/desc.h"

sop_status sop_add_reference(const sop_call *call, const sop_judge *judge); /* add_ref.c */
sop_status sop_add_ref(const sop_call *call);
sop_status sop_add_f32_c(const sop_call *call);    /* add_c.c */
sop_status sop_add_f32_avx2(const sop_call *call); /* add_avx2.c */

/* CUDA: add_cuda.cu takes everything, add_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_add_cuda(const sop_call *call);
const char *sop_add_wide_refuse(const void *desc);
sop_status sop_add_wide_sm80(const sop_call *call);

#endif
