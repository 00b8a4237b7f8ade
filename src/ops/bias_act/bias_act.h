/* ops/bias_act: the contract is in sop/desc.h. */
#ifndef OPS_BIAS_ACT_H
#define OPS_BIAS_ACT_H

#include "sop/desc.h"

/* The work is cut into blocks of this many columns of a row, so that one token keeps all workers
 * busy; a multiple of 8, so that no lane depends on the cut. */
enum { SOP_BIAS_ACT_BLOCK = 512 };

sop_status sop_bias_act_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_bias_act_ref(const sop_call *call);
sop_status sop_bias_act_f32_c(const sop_call *call);    /* bias_act_c.c */
sop_status sop_bias_act_f32_avx2(const sop_call *call); /* bias_act_avx2.c */

/* CUDA: bias_act_cuda.cu takes everything, bias_act_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_bias_act_cuda(const sop_call *call);
const char *sop_bias_act_wide_refuse(const void *desc);
sop_status sop_bias_act_wide_sm80(const sop_call *call);

#endif
