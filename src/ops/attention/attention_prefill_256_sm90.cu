#include "ops/attention/prefill_sm90.cuh"

extern "C" prefill_kernel sop_prefill_192_128(bool f16, bool extra)
{
    return prefill_kernel_of<192, 128>(f16, extra);
}

extern "C" prefill_kernel sop_prefill_256(bool f16, bool extra)
{
    return prefill_kernel_of<256, 256>(f16, extra);
}
