/* ops/cuda/cudnn.h: attention by NVIDIA's cuDNN, for a row of the vendor route. The library is found when
 * the first row is prepared (core/library.h) and stays; nothing links it. */
#ifndef OPS_CUDA_CUDNN_H
#define OPS_CUDA_CUDNN_H

#include "sop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library and its handle for one device. */
typedef struct sop_cudnn sop_cudnn;

/* Softmax of scale q k, times v, over pages, causal or not: queries at the end of their sequence. Types are
 * all f16 or bf16; strides count elements. */
typedef struct sop_cudnn_attention {
    int64_t seqs, tokens, max_kv; /* bounds; tokens of one sequence too */
    int64_t heads, kv_heads, k;
    int64_t pages, page, table_stride;
    int64_t q_stride, q_head, o_stride, o_head;
    int64_t kp_page, kp_token, kp_head, vp_page, vp_token, vp_head;
    float scale;
    int32_t dtype, causal;
} sop_cudnn_attention;

/* What a plan is run on; all on the device. */
typedef struct sop_cudnn_operands {
    const void *q, *k_pool, *v_pool, *table;
    void *o, *lse;                       /* lse [tokens, heads] f32 */
    const int32_t *q_length, *kv_length; /* [seqs] */
    const int32_t *q_at, *o_at, *lse_at; /* [seqs + 1]: the element where each sequence begins */
    void *workspace;
} sop_cudnn_operands;

typedef struct sop_cudnn_plan sop_cudnn_plan;

/* For the device that this thread has set. The handle stays until the process ends; one for each
 * device. SOP_E_NOT_FOUND where there is no library, SOP_E_UNSUPPORTED where it is none that we know or
 * does not take the device. */
sop_status sop_cudnn_open(int32_t device, const sop_cudnn **out);

/* Ask the library how it would run it best. out: free it with sop_cudnn_unplan(); NULL after a failure.
 * SOP_E_UNSUPPORTED with its words where it has no way. */
sop_status sop_cudnn_plan_attention(const sop_cudnn *dnn, const sop_cudnn_attention *a,
                                    sop_cudnn_plan **out);
void sop_cudnn_unplan(sop_cudnn_plan *plan);
size_t sop_cudnn_workspace(const sop_cudnn_plan *plan);

/* Launch it on a stream. SOP_E_DEVICE. */
sop_status sop_cudnn_run(const sop_cudnn_plan *plan, const sop_cudnn_operands *x, void *stream);

#ifdef __cplusplus
}
#endif

#endif
