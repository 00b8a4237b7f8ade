/* What the kernels of attention share: their pointers, whose query a token is, which keys it sees. */
#ifndef OPS_ATTENTION_CUH
#define OPS_ATTENTION_CUH

#include "ops/cuda/elements.cuh"
#include "sop/desc.h"

/* The pointers of a call, as a kernel takes them. */
struct sop_attention_args {
    const void *q, *k_pool, *v_pool;
    const int32_t *table, *q_start, *kv_len, *live;
    const float *k_scales, *v_scales; /* of pools of codes */
    const float *slopes, *sinks;      /* or NULL, as is the mask */
    const void *mask;
    void *o;
    float *lse; /* or NULL */
};

/* The sequence of token t among n: the last that starts at or before it; -1 when there is none. */
SOP_DEV int sop_sequence_of(const int32_t *q_start, int n, int64_t t)
{
    int lo = 0, hi = n + 1; /* the first i with q_start[i] > t is in [lo, hi] */
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (q_start[mid] > t)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo == n + 1 ? -1 : lo - 1;
}

/* The keys [lo, hi) that the query at position pos sees of n. */
SOP_DEV void sop_keys_seen(const sop_attention_desc &d, int64_t n, int64_t pos, int64_t *lo,
                           int64_t *hi)
{
    *hi = !d.causal ? n : pos < 0 ? 0 : pos + 1;
    *lo = d.window > 0 && pos - d.window + 1 > 0 ? pos - d.window + 1 : 0;
    if (*lo > *hi) *lo = *hi;
}

/* One element of a mask as what is added to a score. */
SOP_DEV float sop_mask_at(const void *mask, int32_t dtype, int64_t i)
{
    if (dtype == SOP_U8) return ((const uint8_t *)mask)[i] ? 0 : -INFINITY;
    return sop_load_any(mask, dtype, i);
}

#endif
