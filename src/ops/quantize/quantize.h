/* ops/quantize: the contract is in sop/desc.h. */
#ifndef OPS_QUANTIZE_H
#define OPS_QUANTIZE_H

#include "sop/desc.h"

/* The largest code, and the least scale: the least normal number, so that its inverse is finite. */
#define SOP_QUANTIZE_MOST 448.0f
#define SOP_QUANTIZE_LEAST 0x1p-126f

sop_status sop_quantize_reference(const sop_call *call,
                                  const sop_judge *judge); /* quantize_ref.c */
sop_status sop_quantize_ref(const sop_call *call);
sop_status sop_quantize_f32_c(const sop_call *call);    /* quantize_c.c */
sop_status sop_quantize_cuda(const sop_call *call);     /* quantize_cuda.cu */
const char *sop_quantize_wide_refuse(const void *desc); /* quantize_wide_sm80.cu */
sop_status sop_quantize_wide_sm80(const sop_call *call);

#endif
