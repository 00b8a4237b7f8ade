/* ops/attention_grad: the contract is in sop/grad.h. */
#ifndef OPS_ATTENTION_GRAD_H
#define OPS_ATTENTION_GRAD_H

#include "sop/grad.h"

/* The keys [lo, hi) that the query at position pos of a sequence of n keys sees; lo = hi: none. */
static inline void sop_attention_grad_sees(const sop_attention_grad_desc *d, int64_t n, int64_t pos,
                                           int64_t *lo, int64_t *hi)
{
    *hi = !d->causal ? n : pos < 0 ? 0 : pos + 1 < n ? pos + 1 : n;
    *lo = d->window > 0 && pos - d->window + 1 > 0 ? pos - d->window + 1 : 0;
    if (*lo > *hi) *lo = *hi;
}

/* The queries [lo, hi) of a sequence of `queries` whose first is at position at, that see key j. */
static inline void sop_attention_grad_seen_by(const sop_attention_grad_desc *d, int64_t queries,
                                              int64_t at, int64_t j, int64_t *lo, int64_t *hi)
{
    *lo = d->causal && j - at > 0 ? j - at : 0;
    *hi = d->window > 0 && j + d->window - at < queries ? j + d->window - at : queries;
    if (*hi < 0) *hi = 0;
    if (*lo > *hi) *lo = *hi;
}

/* attention_grad_ref.c; lse is that of token t and head h, at position pos of a sequence whose n keys begin
 * at key k0. */
double sop_attention_grad_lse(const sop_attention_grad_desc *d, const sop_operand *args, int64_t t,
                              int64_t h, int64_t k0, int64_t n, int64_t pos);
sop_status sop_attention_grad_reference(const sop_call *call, const sop_judge *judge);
sop_status sop_attention_grad_plan_ref(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_grad_ref(const sop_call *call);

sop_status sop_attention_grad_f32_plan(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_grad_f32_c(const sop_call *call); /* attention_grad_c.c */

/* CUDA: attention_grad_cuda.cu takes everything, _sm80.cu and _sm90.cu bf16 heads of up
 * to 128 channels */
const char *sop_attention_grad_sm80_refuse(const void *desc);
sop_status sop_attention_grad_sm80_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_grad_sm80(const sop_call *call);
sop_status sop_attention_grad_sm90(const sop_call *call);
sop_status sop_attention_grad_cuda_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_grad_cuda(const sop_call *call);

#endif
