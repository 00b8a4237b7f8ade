/* ops/sample: the contract is in sop/desc.h.
 *
 * top_k, top_p and min_p each keep a prefix of the tokens in the order "larger logit first, then
 * lower index", so what survives all three is a prefix too: a cut. The draw walks the survivors in
 * the order of their indices. */
#ifndef OPS_SAMPLE_H
#define OPS_SAMPLE_H

#include "sop/desc.h"

/* Philox 4x32 with 10 rounds: 128 random bits of (seed, counter).
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011, section 4.3. */
void sop_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* The draw of (seed, counter): uniform in [0, 1), a multiple of 2^-53. */
double sop_sample_uniform(uint64_t seed, uint64_t counter);

/* What differs between portable and vector rows. */
typedef struct sop_sample_kernels {
    /* The largest finite of z [n], -inf when there is none. */
    float (*largest)(const float *z, int64_t n);
    /* w[i] = exp((z[i] - max) / temperature), 0 for a logit that is not finite or under low. */
    void (*weights)(const float *z, int64_t n, float low, double max, double inv_temperature,
                    double *w);
} sop_sample_kernels;

sop_status sop_sample_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                           size_t budget, sop_split *split); /* sample_fast.c */
sop_status sop_sample_fast(const sop_call *call, const sop_sample_kernels *kernels);

sop_status sop_sample_ref_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                               size_t budget, sop_split *split); /* sample_ref.c */
sop_status sop_sample_reference(const sop_call *call, const sop_judge *judge);
sop_status sop_sample_ref(const sop_call *call);
sop_status sop_sample_cuda(const sop_call *call);
const char *sop_sample_split_refuse(const void *desc); /* sample_split_sm80.cu */
sop_status sop_sample_split_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split);
sop_status sop_sample_split_sm80(const sop_call *call);
sop_status sop_sample_f32_c(const sop_call *call);    /* sample_c.c */
sop_status sop_sample_f32_avx2(const sop_call *call); /* sample_avx2.c */

#endif
