/* ops/layernorm: the contract is in sop/desc.h. */
#ifndef OPS_LAYERNORM_H
#define OPS_LAYERNORM_H

#include "sop/desc.h"

/* One row of f32 with its sums in double, s already in it; w, b NULL: 1, 0. y may be s. */
void sop_layernorm_row(const float *s, const float *w, const float *b, float *y, int64_t dim,
                       float eps); /* layernorm_c.c */

sop_status sop_layernorm_reference(const sop_call *call,
                                   const sop_judge *judge); /* layernorm_ref.c */
sop_status sop_layernorm_ref(const sop_call *call);
sop_status sop_layernorm_f32_c(const sop_call *call);    /* layernorm_c.c */
sop_status sop_layernorm_f32_avx2(const sop_call *call); /* layernorm_avx2.c */

/* CUDA: layernorm_cuda.cu takes everything, layernorm_wide_sm80.cu what goes in pieces of 16 bytes */
sop_status sop_layernorm_cuda(const sop_call *call);
const char *sop_layernorm_wide_refuse(const void *desc);
sop_status sop_layernorm_wide_sm80(const sop_call *call);

#endif
