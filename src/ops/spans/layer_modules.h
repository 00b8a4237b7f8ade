/* ops/spans/layer_modules.h: a decoder layer as a span: what its rows share. */
#ifndef OPS_SPANS_LAYER_MODULES_H
#define OPS_SPANS_LAYER_MODULES_H

#include <stdbool.h>

#include "sop/desc.h"

/* The modules of the span, and where the operands of each begin. */
enum { NORM1, QKV, ROPE, APPEND, CORE, OUTPUT, NORM2, GATE_UP, GATED, DOWN, MODULES };
enum {
    AT_NORM1 = 0,
    AT_QKV = AT_NORM1 + SOP_RMSNORM_ROLES,
    AT_ROPE = AT_QKV + SOP_LINEAR_ROLES,
    AT_APPEND = AT_ROPE + SOP_ROPE_ROLES,
    AT_CORE = AT_APPEND + SOP_KV_APPEND_ROLES,
    AT_OUTPUT = AT_CORE + SOP_ATTENTION_ROLES,
    AT_NORM2 = AT_OUTPUT + SOP_LINEAR_ROLES,
    AT_GATE_UP = AT_NORM2 + SOP_RMSNORM_ROLES,
    AT_GATED = AT_GATE_UP + SOP_LINEAR_ROLES,
    AT_DOWN = AT_GATED + SOP_GATED_ROLES,
    LAYER_ARGS = AT_DOWN + SOP_LINEAR_ROLES
};

/* Why kernels cannot take the modules of a layer as one; NULL: they can. desc: of[MODULES] */
const char *sop_layer_refuse(const void *desc);

/* Whether each module of a layer reads what the one before it wrote. of: [MODULES], a: [LAYER_ARGS] */
bool sop_layer_is_chained(const void *const *of, const sop_operand *a);

/* Whether a layer differs from the one before it in its weights and its cache alone, and reads what that
 * wrote; both stand before it in of and a. */
bool sop_layer_follows(const void *const *of, const sop_operand *a);

#endif
