extern "C" {
#include "ops/kv_append/kv_append.h"
}
#include "ops/cuda/launch.cuh"
#include "ops/kv_append/kv_append.cuh"

sop_status sop_kv_append_cuda(const sop_call *call)
{
    const sop_kv_append_desc *d = (const sop_kv_append_desc *)call->desc;
    const unsigned pieces = sop_blocks(d->heads * (d->k + d->v), 256);
    const dim3 grid((unsigned)d->tokens, pieces < 64 ? pieces : 64);
    if (d->tokens == 0) return SOP_OK;
    return sop_launch(sop_kv_append_any, grid, 256, call, *d, call->args[SOP_KV_APPEND_K].data,
                      call->args[SOP_KV_APPEND_V].data,
                      (const int32_t *)call->args[SOP_KV_APPEND_SLOTS].data,
                      (const int32_t *)call->args[SOP_KV_APPEND_LIVE].data,
                      (const float *)call->args[SOP_KV_APPEND_K_SCALES].data,
                      (const float *)call->args[SOP_KV_APPEND_V_SCALES].data,
                      call->args[SOP_KV_APPEND_K_POOL].data, call->args[SOP_KV_APPEND_V_POOL].data);
}
