/* ops/embed: the contract is in sop/desc.h. */
#ifndef OPS_EMBED_H
#define OPS_EMBED_H

#include "sop/desc.h"

sop_status sop_embed_reference(const sop_call *call, const sop_judge *judge); /* embed_ref.c */
sop_status sop_embed_ref(const sop_call *call);
sop_status sop_embed_cuda(const sop_call *call);
const char *sop_embed_wide_refuse(const void *desc); /* embed_wide_sm80.cu */
sop_status sop_embed_wide_sm80(const sop_call *call);
sop_status sop_embed_c(const sop_call *call); /* embed_c.c */
sop_status sop_embed_avx2(const sop_call *call);

#endif
