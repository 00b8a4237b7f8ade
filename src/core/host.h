/* core/host.h: memory of the host that a device copies to and from while the caller goes on: pinned where
 * the device is a GPU. A queue's copies from any other memory may make the caller wait. */
#ifndef CORE_HOST_H
#define CORE_HOST_H

#include "sop/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 64-byte aligned. Called while sizing, never while running. SOP_E_NOMEM with the bytes. */
sop_status sop_host_reserve(sop_device *d, size_t bytes, void **out);
void sop_host_release(sop_device *d, void *p);

/* The same on a GPU: device_cuda.c. */
sop_status sop_cuda_host_reserve(sop_device *d, size_t bytes, void **out);
void sop_cuda_host_release(sop_device *d, void *p);

#ifdef __cplusplus
}
#endif

#endif
