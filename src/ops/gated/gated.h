/* ops/gated: the contract is in sop/desc.h. */
#ifndef OPS_GATED_H
#define OPS_GATED_H

#include "sop/desc.h"

/* The work is cut into blocks of this many columns of a row, so that one token keeps all workers
 * busy; a multiple of 8, so that no lane depends on the cut. */
enum { SOP_GATED_BLOCK = 512 };

sop_status sop_gated_reference(const sop_call *call, const sop_judge *judge); /* gated_ref.c */
sop_status sop_gated_ref(const sop_call *call);
sop_status sop_gated_f32_c(const sop_call *call);    /* gated_c.c */
sop_status sop_gated_f32_avx2(const sop_call *call); /* gated_avx2.c */

/* CUDA: gated_cuda.cu takes everything, gated_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_gated_cuda(const sop_call *call);
const char *sop_gated_wide_refuse(const void *desc);
sop_status sop_gated_wide_sm80(const sop_call *call);

#endif
