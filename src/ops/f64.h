/* ops/f64.h: doubles as operands. They are for the references alone, which gradients are checked on: all
 * operands of numbers are doubles then, those of fixed type float32 too. */
#ifndef OPS_F64_H
#define OPS_F64_H

#include "core/op.h"

/* Whether n types are f32, f16 and bf16 at will, or all f64. */
static inline int sop_types_fit(const int32_t *dtypes, int n)
{
    int doubles = 0, others = 0;
    for (int i = 0; i < n; i++) {
        doubles += dtypes[i] == SOP_F64;
        others += sop_unit(dtypes[i]) > 0;
    }
    return doubles == n || others == n;
}

/* The type of an operand that is float32 beside operands of this type. */
static inline int32_t sop_param_dtype(int32_t dtype)
{
    return dtype == SOP_F64 ? SOP_F64 : SOP_F32;
}

/* Why a row that is no reference does not take this type; or NULL. */
static inline const char *sop_refuse_f64(int32_t dtype)
{
    return dtype == SOP_F64 ? "f64 is for the reference" : NULL;
}

#endif
