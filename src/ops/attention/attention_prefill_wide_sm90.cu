#include "ops/attention/prefill_sm90.cuh"

extern "C" prefill_kernel sop_prefill_160(bool f16, bool extra)
{
    return prefill_kernel_of<160, 160>(f16, extra);
}

extern "C" prefill_kernel sop_prefill_192(bool f16, bool extra)
{
    return prefill_kernel_of<192, 192>(f16, extra);
}
