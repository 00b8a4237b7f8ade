/* ops/moe_gate: the contract is in sop/desc.h. */
#ifndef OPS_MOE_GATE_H
#define OPS_MOE_GATE_H

#include "sop/desc.h"

/* counts and perm of a call from its ids [pairs]. */
void sop_moe_gate_sort(const sop_call *call, int64_t pairs); /* moe_gate_c.c */

/* Put expert i into ids [n], the best so far of logits x [experts] in their order; at most top stay.
 * Called with rising i; returns how many there are. */
static inline int64_t sop_moe_gate_insert(const float *x, int32_t *ids, int64_t n, int64_t top,
                                          int64_t i)
{
    const float z = x[i];
    int64_t at = n;
    /* larger, or a number where NaN stands */
    while (at > 0 && !(z <= x[ids[at - 1]]) && z == z) at--;
    if (at == top) return n;
    if (n < top) n++;
    for (int64_t j = n - 1; j > at; j--) ids[j] = ids[j - 1];
    ids[at] = (int32_t)i;
    return n;
}

sop_status sop_moe_gate_reference(const sop_call *call, const sop_judge *judge); /* _ref.c */
sop_status sop_moe_gate_ref_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split);
sop_status sop_moe_gate_ref(const sop_call *call);
sop_status sop_moe_gate_f32_c(const sop_call *call);    /* moe_gate_c.c */
sop_status sop_moe_gate_f32_avx2(const sop_call *call); /* moe_gate_avx2.c */
sop_status sop_moe_gate_cuda(const sop_call *call);     /* moe_gate_cuda.cu: takes everything */

#endif
