/* ops/ops.h: every operator of the library. */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "sop/desc.h"
#include "sop/variant.h"

extern const sop_op sop_op_embed;
extern const sop_op sop_op_rope;
extern const sop_op sop_op_kv_append;
extern const sop_op sop_op_attention;
extern const sop_op sop_op_linear;
extern const sop_op sop_op_rmsnorm;
extern const sop_op sop_op_layernorm;
extern const sop_op sop_op_merge;
extern const sop_op sop_op_gated;
extern const sop_op sop_op_bias_act;
extern const sop_op sop_op_moe_gate;
extern const sop_op sop_op_experts;
extern const sop_op sop_op_add;
extern const sop_op sop_op_softmax;
extern const sop_op sop_op_sample;
extern const sop_op sop_op_finite;

#endif
