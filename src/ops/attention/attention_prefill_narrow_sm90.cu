#include "ops/attention/prefill_sm90.cuh"

extern "C" prefill_kernel sop_prefill_80(bool f16, bool extra)
{
    return prefill_kernel_of<80, 80>(f16, extra);
}

extern "C" prefill_kernel sop_prefill_96(bool f16, bool extra)
{
    return prefill_kernel_of<96, 96>(f16, extra);
}

extern "C" prefill_kernel sop_prefill_112(bool f16, bool extra)
{
    return prefill_kernel_of<112, 112>(f16, extra);
}
