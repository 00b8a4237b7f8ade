/* ops/kv_append: the contract is in sop/desc.h. */
#ifndef OPS_KV_APPEND_H
#define OPS_KV_APPEND_H

#include "sop/desc.h"

sop_status sop_kv_append_reference(const sop_call *call,
                                   const sop_judge *judge); /* kv_append_ref.c */
sop_status sop_kv_append_ref(const sop_call *call);
sop_status sop_kv_append_cuda(const sop_call *call);
const char *sop_kv_append_wide_refuse(const void *desc); /* kv_append_wide_sm80.cu */
sop_status sop_kv_append_wide_sm80(const sop_call *call);
sop_status sop_kv_append_c(const sop_call *call);        /* kv_append_c.c */
sop_status sop_kv_append_f32_avx2(const sop_call *call); /* kv_append_avx2.c */

/* Whether pools of this type hold codes, which their scales make numbers. */
static inline int sop_is_code(int32_t dtype)
{
    return dtype == SOP_I8 || dtype == SOP_F8;
}

/* A pool's view: shape [pages, page, heads, channels]. */
void sop_view_pool(sop_tensor *out, int32_t dtype, const int64_t shape[4], int64_t page_stride,
                   int64_t token_stride, int64_t head_stride);

#endif
