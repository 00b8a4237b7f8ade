/* ops/merge: the contract is in sop/desc.h. */
#ifndef OPS_MERGE_H
#define OPS_MERGE_H

#include "sop/desc.h"

sop_status sop_merge_reference(const sop_call *call, const sop_judge *judge); /* merge_ref.c */
sop_status sop_merge_ref(const sop_call *call);
sop_status sop_merge_f32_c(const sop_call *call);    /* merge_c.c */
sop_status sop_merge_f32_avx2(const sop_call *call); /* merge_avx2.c */
sop_status sop_merge_cuda(const sop_call *call);     /* merge_cuda.cu: takes everything */

#endif
