/* How the rows by tensor cores are launched; TILES<D, KEYS, CAP, G> is what differs: kernel, its
 * threads, rows of a block and bytes of shared memory. */
#ifndef OPS_ATTENTION_GRAD_LAUNCH_CUH
#define OPS_ATTENTION_GRAD_LAUNCH_CUH

#include "ops/attention_grad/attention_grad_cuda.cuh"
#include "ops/attention_grad/attention_grad_tiles.cuh"

template <template <int, bool, bool, typename> class TILES, int D, bool KEYS, bool CAP, typename G>
static sop_status grad_tiles(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    typedef TILES<D, KEYS, CAP, G> way;
    const unsigned heads = (unsigned)(KEYS ? d->kv_heads : d->heads), seqs = (unsigned)d->seqs;
    const unsigned n = sop_blocks(KEYS ? d->max_kv : d->max_q, way::rows);
    sop_attention_grad_args args = sop_attention_grad_args_of(call);
    /* Tiles of one head that fill a card share what they read in its L2, and are as good as sorted; fewer go
     * with those of all heads, the longest first: 4,096 tokens of H32/8 took 2,157 us by mma, 2,800 by heads. */
    args.by_tiles = n >= 128;
    return sop_launch_cluster(
        way::kernel, args.by_tiles ? dim3(n, heads, seqs) : dim3(heads, seqs, n), way::threads,
        way::shared, 1, call, *d, args, (const float2 *)call->scratch);
}

template <template <int, bool, bool, typename> class TILES, int D, typename G>
static sop_status grad_run(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    const sop_operand *a = call->args;
    const bool cap = d->cap > 0;
    sop_status s = SOP_OK;
    if (d->tokens > 0)
        s = sop_launch(sop_attention_grad_stats, dim3(sop_blocks(d->tokens, 8), (unsigned)d->heads),
                       256, call, *d, (const __nv_bfloat16 *)a[SOP_ATTENTION_GRAD_O].data,
                       (const __nv_bfloat16 *)a[SOP_ATTENTION_GRAD_DO].data,
                       (const float *)a[SOP_ATTENTION_GRAD_LSE].data, (float2 *)call->scratch);
    if (s == SOP_OK && d->keys > 0)
        s = cap ? grad_tiles<TILES, D, true, true, G>(call)
                : grad_tiles<TILES, D, true, false, G>(call);
    if (s == SOP_OK && d->tokens > 0)
        s = cap ? grad_tiles<TILES, D, false, true, G>(call)
                : grad_tiles<TILES, D, false, false, G>(call);
    return s;
}

template <template <int, bool, bool, typename> class TILES>
static sop_status grad_run_any(const sop_call *call)
{
    const sop_attention_grad_desc *d = (const sop_attention_grad_desc *)call->desc;
    for (int i = 0; i < SOP_ATTENTION_GRAD_ROLES; i++)
        if (i != SOP_ATTENTION_GRAD_Q_START && i != SOP_ATTENTION_GRAD_K_START &&
            i != SOP_ATTENTION_GRAD_LSE && !sop_aligned16(call->args[i].data))
            return sop_attention_grad_cuda(call);
    if (d->dq_dtype == SOP_F32)
        return d->k <= 64 && d->v <= 64 ? grad_run<TILES, 64, float>(call)
                                        : grad_run<TILES, 128, float>(call);
    return d->k <= 64 && d->v <= 64 ? grad_run<TILES, 64, __nv_bfloat16>(call)
                                    : grad_run<TILES, 128, __nv_bfloat16>(call);
}

#endif
