/* ops/finite: the contract is in sop/desc.h. */
#ifndef OPS_FINITE_H
#define OPS_FINITE_H

#include "sop/desc.h"

/* Add n to the count, which stops at its largest value. Workers add in any order: the sum is the
 * same. */
/* NOLINTNEXTLINE(readability-non-const-parameter): it does not see through the exchange */
static inline void sop_finite_add(int32_t *count, int64_t n)
{
    int32_t was = __atomic_load_n(count, __ATOMIC_RELAXED), now;
    do {
        now = n > INT32_MAX - was ? INT32_MAX : was + (int32_t)n;
    } while (n &&
             !__atomic_compare_exchange_n(count, &was, now, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

sop_status sop_finite_reference(const sop_call *call, const sop_judge *judge); /* finite_ref.c */
sop_status sop_finite_ref(const sop_call *call);
sop_status sop_finite_cuda(const sop_call *call);
const char *sop_finite_wide_refuse(const void *desc); /* finite_wide_sm80.cu */
sop_status sop_finite_wide_sm80(const sop_call *call);
sop_status sop_finite_f32_c(const sop_call *call);    /* finite_c.c */
sop_status sop_finite_f32_avx2(const sop_call *call); /* finite_avx2.c */

#endif
