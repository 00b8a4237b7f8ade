/* ops/rope: the contract is in sop/desc.h. */
#ifndef OPS_ROPE_H
#define OPS_ROPE_H

#include "sop/desc.h"

sop_status sop_rope_reference(const sop_call *call, const sop_judge *judge); /* rope_ref.c */
sop_status sop_rope_ref(const sop_call *call);
sop_status sop_rope_cuda(const sop_call *call);
const char *sop_rope_wide_refuse(const void *desc); /* rope_wide_sm80.cu */
sop_status sop_rope_wide_sm80(const sop_call *call);
sop_status sop_rope_f32_c(const sop_call *call);    /* rope_c.c */
sop_status sop_rope_f32_avx2(const sop_call *call); /* rope_avx2.c */

/* Scratch of the fast rows: each worker's cosines and sines of one token, rot floats each, so that
 * all heads share them. */
static inline int64_t sop_rope_table_floats(const sop_rope_desc *d)
{
    return (2 * d->rot + 15) & ~(int64_t)15;
}

#endif
