/* What cuDNN's attention is told about a step, and what it leaves undone. */
#ifndef OPS_ATTENTION_CUDNN_CUH
#define OPS_ATTENTION_CUDNN_CUH

#include "ops/attention/attention.cuh"

/* The library's lists: lengths [seqs], places [seqs + 1]. Sequences that are not live are empty; causal
 * ones are without the first queries, that see no key, so that none has more queries than keys. */
struct cudnn_lists {
    int32_t *q_length, *kv_length, *q_at, *o_at, *lse_at;
};

static __global__ void sop_cudnn_begin(const sop_attention_args a, const cudnn_lists l, int seqs,
                                       int causal, int q_stride, int o_stride, int heads)
{
    sop_begin();
    const int live = (int)sop_live_rows(a.live, seqs);
    for (int s = threadIdx.x; s <= seqs; s += blockDim.x) {
        const int keys = s < live ? a.kv_len[s] : 0;
        int from = a.q_start[s < live ? s : live], n = s < live ? a.q_start[s + 1] - from : 0;
        const int blind = causal && n > keys ? n - keys : 0;
        from += blind, n -= blind;
        l.q_at[s] = from * q_stride;
        l.o_at[s] = from * o_stride;
        l.lse_at[s] = from * heads;
        if (s == seqs) continue;
        l.q_length[s] = n;
        l.kv_length[s] = keys;
    }
}

/* Queries that see no key get 0 and -inf. A CTA is a sequence; most have none. */
template <typename T>
static __global__ void sop_cudnn_blind(const sop_attention_args a, int seqs, int causal, int heads,
                                       int v, int64_t o_stride, int64_t o_head, T *o, float *lse)
{
    sop_begin();
    const int s = blockIdx.x;
    if (s >= (int)sop_live_rows(a.live, seqs)) return;
    const int from = a.q_start[s], n = a.q_start[s + 1] - from, keys = a.kv_len[s];
    const int blind = keys == 0 ? n : causal && n > keys ? n - keys : 0;
    for (int64_t i = threadIdx.x; i < (int64_t)blind * heads * v; i += blockDim.x) {
        const int64_t t = from + i / (heads * v);
        const int h = (int)(i / v % heads), c = (int)(i % v);
        o[t * o_stride + h * o_head + c] = T(0.0f);
        if (c == 0) lse[t * heads + h] = -INFINITY;
    }
}

#endif
