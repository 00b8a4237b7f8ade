#include "ops/ops.h"

#include <string.h>

#define X(name) &sop_op_##name,
static const sop_op *const ops[] = {SOP_OP_MAP(X) SOP_GRAD_OP_MAP(X) X(advance) NULL};
#undef X

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
