#include "core/host.h"

#include <stdlib.h>

#include "base/status.h"

sop_status sop_host_reserve(sop_device *d, size_t bytes, void **out)
{
    const size_t rounded = (bytes + 63) & ~(size_t)63;
    if (d->ops->kind == SOP_DEVICE_CUDA) return sop_cuda_host_reserve(d, bytes, out);
    *out = aligned_alloc(64, rounded ? rounded : 64);
    return *out ? SOP_OK : sop_fail(SOP_E_NOMEM, "host: %zu bytes", bytes);
}

void sop_host_release(sop_device *d, void *p)
{
    if (d->ops->kind == SOP_DEVICE_CUDA)
        sop_cuda_host_release(d, p);
    else
        free(p);
}
