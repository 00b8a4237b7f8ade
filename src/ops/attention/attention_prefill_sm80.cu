#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/prefill_sm80.cuh"

/* run is NULL when there is none for heads of k. */
struct prefill_kernel {
    void (*run)(const prefill80_args);
    int64_t queries;
    size_t bytes; /* of shared memory */
};
template <typename T, int HEAD> static prefill_kernel kernel(void)
{
    typedef prefill80_shape<HEAD> shape;
    return {sop_prefill_sm80<T, HEAD>, shape::QUERIES, shape::SMEM};
}
template <typename T> static prefill_kernel kernel_of(int64_t k)
{
    switch (k) {
    case 64: return kernel<T, 64>();
    case 80: return kernel<T, 80>();
    case 96: return kernel<T, 96>();
    case 112: return kernel<T, 112>();
    case 128: return kernel<T, 128>();
    case 256: return kernel<T, 256>();
    default: return {NULL, 0, 0};
    }
}

extern "C" const char *sop_attention_prefill_sm80_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (d->mask_heads) return "a mask is taken by the row of 9.0 alone";
    if (d->k != d->v) return "keys and values differ in width";
    if (!kernel_of<__half>(d->k).run) return "heads are not of 64 to 128 by 16, or 256";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_RING))) return "no path of it is a candidate";
    if (d->window > INT32_MAX || d->max_kv > INT32_MAX - 256) return "sequences are too long";
    if (d->tokens / 64 + d->seqs > 65535) return "over 65535 tiles of queries";
    /* where a key lies counts pieces of 16 bytes in 32 bits */
    if (d->pages * d->kp_page / 8 >= UINT32_MAX || d->pages * d->vp_page / 8 >= UINT32_MAX)
        return "a pool has over 64 GB";
    return NULL;
}

template <typename T> static sop_status run(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const prefill_kernel kernel = kernel_of<T>(d->k);
    const prefill80_args p = {sop_attention_args_of(call),
                              d->q_stride,
                              d->q_head,
                              d->o_stride,
                              d->o_head,
                              d->kp_page,
                              d->kp_token,
                              d->kp_head,
                              d->vp_page,
                              d->vp_token,
                              d->vp_head,
                              (int)d->seqs,
                              (int)d->heads,
                              (int)(d->heads / d->kv_heads),
                              (int)d->page,
                              (int)d->table_stride,
                              (int)d->window,
                              d->causal,
                              d->q_dtype == SOP_F32,
                              UINT32_MAX / (uint32_t)d->page,
                              d->scale,
                              d->cap};
    const dim3 grid((unsigned)d->heads, (unsigned)(d->tokens / kernel.queries + d->seqs));
    return sop_launch_cluster(kernel.run, grid, PREFILL80_THREADS, kernel.bytes, 1, call, p);
}

extern "C" sop_status sop_attention_prefill_sm80(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (d->pages == 0 || !sop_attention_aligned(call)) return sop_attention_cuda(call);
    return d->kv_dtype == SOP_F16 ? run<__half>(call) : run<__nv_bfloat16>(call);
}
