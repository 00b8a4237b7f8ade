/* ops/ops.h: every operator of the library; the lists are in sop/desc.h and sop/grad.h. */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "sop/grad.h"
#include "sop/variant.h"

#define X(name) extern const sop_op sop_op_##name;
SOP_OP_MAP(X)
SOP_GRAD_OP_MAP(X)
#undef X
extern const sop_op sop_op_advance; /* ops/advance/advance.h: the super operator's own */

#endif
