/* core/op.h: what an operator's own files share: the declarations of a desc's fields, and how a
 * reference hands over its results. */
#ifndef CORE_OP_H
#define CORE_OP_H

#include <stddef.h>

#include "core/f16.h"
#include "sop/variant.h"

/* A struct has no padding bytes when its last member ends where it ends and the rest is made of
 * whole 8-byte words; with canonical floats, equal bytes then mean the same problem. */
#define SOP_DESC_IS_PACKED(type, last) \
    _Static_assert(offsetof(type, last) + sizeof(((type *)0)->last) == sizeof(type), \
                   #type " ends in padding")

#define SOP_N(array) ((int32_t)(sizeof(array) / sizeof *(array)))

/* u of float32, float16, bfloat16: half the distance of two neighbours at 1. */
#define SOP_U32 0x1p-24
#define SOP_U16 0x1p-11
#define SOP_UB16 0x1p-8
double sop_unit(int32_t dtype); /* u of a type, 0 for others */

/* One element of an array of this dtype, as a double, at place i; n of them from there; and one rounded
 * into it. Plain types only. */
double sop_load(const void *data, int32_t dtype, int64_t i);
void sop_load_row(const void *data, int32_t dtype, int64_t i, int64_t n, double *out);
void sop_store(void *data, int32_t dtype, int64_t i, double value);

/* A reference's result: element `at` (in strides) of the operand of role, which is element `index` of
 * the dense output. bound: how far a right variant may be from value, the rounding of the output
 * type not counted (added here). */
void sop_put(const sop_call *call, const sop_judge *judge, int32_t role, int32_t dtype, int64_t at,
             int64_t index, double value, double bound);

/* Views for op->view: shape and strides in elements, last stride 1; bytes follow from them. */
void sop_view1(sop_tensor *out, int32_t dtype, int64_t n);
void sop_view2(sop_tensor *out, int32_t dtype, int64_t rows, int64_t cols, int64_t stride);
void sop_view3(sop_tensor *out, int32_t dtype, int64_t a, int64_t b, int64_t c, int64_t a_stride,
               int64_t b_stride);

/* How many live rows a call has: the LIVE operand if there is one, at most most. */
static inline int64_t sop_live(const sop_call *call, int32_t role, int64_t most)
{
    const int32_t *live = call->args[role].data;
    if (!live) return most;
    return *live < 0 ? 0 : *live < most ? *live : most;
}

/* A seeded stream for fill and tests: the same everywhere. */
uint64_t sop_random(uint64_t *state);

#endif
