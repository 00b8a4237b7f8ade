/* attention by cuDNN, over our pages. The library is asked for a kernel that follows lengths and places on
 * the device, so that one serves every step of a class; a small kernel of ours writes them for each step,
 * and another one the results of queries that see nothing, which the library leaves undefined.
 *
 *     scratch -> up to 256 to align | workspace | lists | lse, unless it is asked for */
#include <stdlib.h>

extern "C" {
#include "base/status.h"
}
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/cudnn.cuh"
#include "ops/cuda/cudnn.h"

/* What its kernels over pages want is 0; over other layouts it was up to 768 bytes. */
enum { ALIGNMENT = 256, WORKSPACE = 64 << 10, MOST_SEQS = 1 << 16 };

static size_t lists_bytes(const sop_attention_desc *d)
{
    return (size_t)(5 * (d->seqs + 4)) * sizeof(int32_t) / 64 * 64 + 64;
}

extern "C" const char *sop_attention_cudnn_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (d->mask_heads || d->k != d->v) return "a mask, or keys and values of two widths";
    if (d->q_dtype != d->kv_dtype) return "q is not of the keys' type";
    if (d->k != 64 && d->k != 128) return "heads are neither of 64 nor of 128";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_RING))) return "no path of it is a candidate";
    if (d->window || d->cap > 0 || d->alibi || d->sinks) return "a window, a cap, alibi or sinks";
    if (d->tokens < 64 || d->tokens < 16 * d->seqs) return "fewer than 16 queries a sequence";
    if (d->pages == 0 || d->max_kv == 0 || d->seqs > MOST_SEQS)
        return "an extent is 0 or too large";
    if (d->tokens * d->q_stride > INT32_MAX || d->tokens * d->o_stride > INT32_MAX ||
        d->tokens * d->heads > INT32_MAX)
        return "the queries are over 2^31 elements apart";
    return NULL;
}

extern "C" sop_status sop_attention_cudnn_plan(const void *desc, const int32_t *params,
                                               const sop_facts *facts, size_t budget,
                                               sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    (void)params;
    (void)facts;
    *split = {{0},
              ALIGNMENT + WORKSPACE + lists_bytes(d) +
                  (size_t)(d->tokens * d->heads) * sizeof(float)};
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

extern "C" void sop_attention_cudnn_release(void *state)
{
    sop_cudnn_unplan((sop_cudnn_plan *)state);
}

extern "C" sop_status sop_attention_cudnn_prepare(const void *desc, sop_device *device,
                                                  void **state)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const sop_cudnn *dnn;
    sop_cudnn_plan *plan;
    int32_t index;
    *state = NULL;
    sop_status s = sop_cuda_enter(device, &index);
    if (s == SOP_OK) s = sop_cudnn_open(index, &dnn);
    if (s != SOP_OK) return s;
    /* its time follows this bound: tiles beyond a sequence's end are gone through, too */
    const int64_t queries = d->causal && d->max_kv < d->tokens ? d->max_kv : d->tokens;
    const sop_cudnn_attention a = {
        d->seqs,    queries,    d->max_kv,       d->heads,    d->kv_heads, d->k,
        d->pages,   d->page,    d->table_stride, d->q_stride, d->q_head,   d->o_stride,
        d->o_head,  d->kp_page, d->kp_token,     d->kp_head,  d->vp_page,  d->vp_token,
        d->vp_head, d->scale,   d->kv_dtype,     d->causal};
    s = sop_cudnn_plan_attention(dnn, &a, &plan);
    if (s != SOP_OK) return s;
    if (sop_cudnn_workspace(plan) > WORKSPACE) {
        s = sop_fail(SOP_E_UNSUPPORTED, "cudnn: %zu bytes of workspace, at most %d are there",
                     sop_cudnn_workspace(plan), WORKSPACE);
        sop_cudnn_unplan(plan);
        return s;
    }
    *state = plan;
    return SOP_OK;
}

template <typename T>
static sop_status blind(const sop_call *call, const sop_attention_args &a, float *lse)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    return sop_launch(sop_cudnn_blind<T>, (unsigned)d->seqs, 256, call, a, (int)d->seqs, d->causal,
                      (int)d->heads, (int)d->v, d->o_stride, d->o_head, (T *)a.o, lse);
}

extern "C" sop_status sop_attention_cudnn(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (!sop_attention_aligned(call)) return sop_attention_cuda(call);
    const sop_attention_args a = sop_attention_args_of(call);
    char *workspace =
        (char *)(((uintptr_t)call->scratch + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
    int32_t *list = (int32_t *)(workspace + WORKSPACE);
    const int64_t n = d->seqs + 4; /* places are one more than sequences */
    const cudnn_lists l = {list, list + n, list + 2 * n, list + 3 * n, list + 4 * n};
    float *lse = a.lse && sop_aligned16(a.lse) ? a.lse : (float *)((char *)list + lists_bytes(d));
    if (a.lse && lse != a.lse) return sop_attention_cuda(call);
    sop_status s = sop_launch(sop_cudnn_begin, 1, 256, call, a, l, (int)d->seqs, d->causal,
                              (int)d->q_stride, (int)d->o_stride, (int)d->heads);
    if (s != SOP_OK) return s;
    const sop_cudnn_operands x = {a.q,        a.k_pool,    a.v_pool, a.table, a.o,      lse,
                                  l.q_length, l.kv_length, l.q_at,   l.o_at,  l.lse_at, workspace};
    s = sop_cudnn_run((const sop_cudnn_plan *)call->prepared, &x, sop_stream(call));
    if (s != SOP_OK) return s;
    return d->kv_dtype == SOP_F16 ? blind<__half>(call, a, lse)
                                  : blind<__nv_bfloat16>(call, a, lse);
}
