/* The core of attention_kernel.h on vectors of 16 floats. */
#include "ops/simd/vf_avx512.h"

#include "ops/attention/attention_kernel.h"

sop_status sop_attention_flash_avx512(const sop_call *call)
{
    return sop_attention_run(call, attend);
}

sop_status sop_attention_tiled_avx512(const sop_call *call)
{
    return sop_attention_run(call, attend);
}

sop_status sop_attention_ring_avx512(const sop_call *call)
{
    return sop_attention_run(call, attend);
}
