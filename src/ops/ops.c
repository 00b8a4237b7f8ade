#include "ops/ops.h"

#include <string.h>

static const sop_op *const ops[] = {
    &sop_op_embed,  &sop_op_rope,     &sop_op_kv_append, &sop_op_attention,
    &sop_op_linear, &sop_op_rmsnorm,  &sop_op_layernorm, &sop_op_merge,
    &sop_op_gated,  &sop_op_bias_act, &sop_op_moe_gate,  &sop_op_experts,
    &sop_op_add,    &sop_op_softmax,  &sop_op_sample,    &sop_op_finite,
    NULL,
};

const sop_op *const *sop_ops(void)
{
    return ops;
}

const sop_op *sop_op_find(const char *name)
{
    for (const sop_op *const *op = ops; *op; op++)
        if (strcmp((*op)->name, name) == 0) return *op;
    return NULL;
}
