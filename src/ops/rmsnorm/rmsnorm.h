/* ops/rmsnorm: the contract is in sop/desc.h. */
#ifndef OPS_RMSNORM_H
#define OPS_RMSNORM_H

#include "sop/desc.h"

sop_status sop_rmsnorm_reference(const sop_call *call, const sop_judge *judge); /* rmsnorm_ref.c */
sop_status sop_rmsnorm_ref(const sop_call *call);
sop_status sop_rmsnorm_f32_c(const sop_call *call);    /* rmsnorm_c.c */
sop_status sop_rmsnorm_f32_avx2(const sop_call *call); /* rmsnorm_avx2.c */

/* CUDA: rmsnorm_cuda.cu takes everything, rmsnorm_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_rmsnorm_cuda(const sop_call *call);
const char *sop_rmsnorm_wide_refuse(const void *desc);
sop_status sop_rmsnorm_wide_sm80(const sop_call *call);

#endif
