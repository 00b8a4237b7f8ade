/* ops/attention: the contract is in sop/desc.h.
 *
 * The fast rows are one core and three splits. The core takes a block: some queries of a sequence, the
 * query heads of one KV head, a range of keys. flash gives it all keys a query sees; tiled and ring
 * give it keys in blocks of a fixed size and merge the parts by their log-sum-exp, tiled in short
 * blocks that spread a decode step over the workers, ring in long ones that bound what is touched at
 * a time, one after another. */
#ifndef OPS_ATTENTION_H
#define OPS_ATTENTION_H

#include "sop/desc.h"

sop_status sop_attention_reference(const sop_call *call,
                                   const sop_judge *judge); /* attention_ref.c */
sop_status sop_attention_plan_ref(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split);
sop_status sop_attention_ref(const sop_call *call);
sop_status sop_attention_f32_c(const sop_call *call);      /* attention_c.c */
sop_status sop_attention_flash_avx2(const sop_call *call); /* attention_avx2.c */
sop_status sop_attention_tiled_avx2(const sop_call *call);
sop_status sop_attention_ring_avx2(const sop_call *call);
sop_status sop_attention_flash_avx512(const sop_call *call); /* attention_avx512.c */
sop_status sop_attention_tiled_avx512(const sop_call *call);
sop_status sop_attention_ring_avx512(const sop_call *call);

/* Keys of a tile, the step of the online softmax. Tiles start at multiples of it from the start of a
 * sequence, whatever the queries: so a query's result has the same bits however its prompt was cut. */
enum { SOP_ATTENTION_TILE = 64 };

/* The keys [lo, hi) that the query at position pos of a sequence of n keys sees; lo = hi: none. */
static inline void sop_attention_sees(const sop_attention_desc *d, int64_t n, int64_t pos,
                                      int64_t *lo, int64_t *hi)
{
    *hi = !d->causal ? n : pos < 0 ? 0 : pos + 1;
    *lo = d->window > 0 && pos - d->window + 1 > 0 ? pos - d->window + 1 : 0;
    if (*lo > *hi) *lo = *hi;
}

/* n queries from token q0 on, position `at` being the first one's among the `keys` of its sequence;
 * the query heads of KV head g; the keys [from, to), that include all the queries see there or no
 * others are wanted. o and lse are where the row of query i and query head h of the group begins:
 * o + i * o_stride + h * o_head, lse + i * lse_stride + h. lse may be NULL. */
typedef struct sop_attention_block {
    const sop_call *call;
    const int32_t *table; /* of the sequence */
    int64_t q0, n, at, keys, g, from, to;
    float *o, *lse;
    const float *sinks; /* of the heads of the group, to be counted here; or NULL */
    int64_t o_stride, o_head, lse_stride;
    float *scratch;
} sop_attention_block;

/* Fill o and lse of a block; a query that sees nothing in it gets 0 and -inf, or its sink. */
typedef void sop_attention_core(const sop_attention_block *b);

/* Whether sop_attention_bias has something to add. */
static inline int sop_attention_biased(const sop_attention_desc *d)
{
    return d->alibi || d->mask_heads > 0;
}

/* Add what alibi and the mask add to the scores z of query i of a block and query head h of its group;
 * z[j] is that of key `at` + j, and those of [lo, hi) are there. */
void sop_attention_bias(const sop_attention_block *b, int64_t i, int64_t h, int64_t at, int64_t lo,
                        int64_t hi, float *z); /* attention_split.c */

/* What the plans write and sop_attention_run reads. */
enum {
    SOP_ATTENTION_QUERIES,    /* of a block */
    SOP_ATTENTION_KEYS,       /* of a block, a multiple of the tile; 0: all */
    SOP_ATTENTION_WAVE,       /* blocks of keys at a time */
    SOP_ATTENTION_CORE_FLOATS /* scratch of the core, for each worker */
};

/* attention_split.c: the plans of the three splits and what runs them. */
sop_status sop_attention_plan_flash(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_attention_plan_tiled(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_attention_plan_ring(const void *desc, const int32_t *params, const sop_facts *facts,
                                   size_t budget, sop_split *split);
sop_status sop_attention_run(const sop_call *call, sop_attention_core *core);

/* (o, lse) over some keys and (o2, lse2) over others become (o, lse) over both; v channels. With an
 * lse of -inf the other side comes out as it went in. */
void sop_attention_merge(float *o, float *lse, const float *o2, float lse2, int64_t v);

/* CUDA: attention_cuda.cu takes everything; few queries, many: attention_decode_sm80.cu,
 * attention_prefill_sm90.cu, attention_prefill_sm80.cu */
sop_status sop_attention_cuda(const sop_call *call);
const char *sop_attention_decode_few_refuse(const void *desc); /* attention_decode_few_sm90.cu */
sop_status sop_attention_decode_few_plan(const void *desc, const int32_t *params,
                                         const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_decode_few_sm90(const sop_call *call);
const char *sop_attention_decode_ring_refuse(const void *desc); /* attention_decode_ring_sm90.cu */
sop_status sop_attention_decode_ring_plan(const void *desc, const int32_t *params,
                                          const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_decode_ring_sm90(const sop_call *call);
const char *sop_attention_decode_refuse(const void *desc);
sop_status sop_attention_decode_plan(const void *desc, const int32_t *params,
                                     const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_decode_sm80(const sop_call *call);
const char *sop_attention_prefill_refuse(const void *desc);
sop_status sop_attention_prefill_plan(const void *desc, const int32_t *params,
                                      const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_prefill_sm90(const sop_call *call);
const char *sop_attention_prefill_sm80_refuse(const void *desc);
sop_status sop_attention_prefill_sm80(const sop_call *call);

/* over codes: attention_decode_bytes_sm80.cu, planned as attention_decode_sm80 */
const char *sop_attention_decode_bytes_refuse(const void *desc);
sop_status sop_attention_decode_bytes_sm80(const sop_call *call);

/* over codes, by rows for 16 bits: attention_codes_sm80.cu */
const char *sop_attention_decode_codes_refuse(const void *desc);
sop_status sop_attention_decode_codes_plan(const void *desc, const int32_t *params,
                                           const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_attention_decode_codes_sm80(const sop_call *call);
const char *sop_attention_prefill_codes_refuse(const void *desc);
sop_status sop_attention_prefill_codes_plan(const void *desc, const int32_t *params,
                                            const sop_facts *facts, size_t budget,
                                            sop_split *split);
sop_status sop_attention_prefill_codes_sm90(const sop_call *call);

/* by a library: attention_cudnn.cu */
const char *sop_attention_cudnn_refuse(const void *desc);
sop_status sop_attention_cudnn_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_attention_cudnn_prepare(const void *desc, sop_device *device, void **state);
void sop_attention_cudnn_release(void *state);
sop_status sop_attention_cudnn(const sop_call *call);

#endif
