/* ops/linear: the contract is in sop/desc.h, the packed layout in pack.h. */
#ifndef OPS_LINEAR_H
#define OPS_LINEAR_H

#include "sop/desc.h"

extern const char *const sop_linear_cases[];                                   /* linear_cases.c */
sop_status sop_linear_reference(const sop_call *call, const sop_judge *judge); /* linear_ref.c */
sop_status sop_linear_ref(const sop_call *call);
const char *sop_linear_c_refuse(const void *desc); /* linear_c.c */
sop_status sop_linear_c(const sop_call *call);

#endif
