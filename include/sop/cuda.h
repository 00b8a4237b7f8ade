/* sop/cuda.h: superop on CUDA streams that somebody else owns: a framework, a program with kernels of
 * its own. No CUDA header is needed. */
#ifndef SOP_CUDA_H
#define SOP_CUDA_H

#include "sop/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The queue of a stream of the caller's: what is submitted to it runs on that stream, in order with
 * all that the caller puts there. It is made at the first call and kept by the device, so asking again
 * is cheap; nobody destroys it, and it may not outlive the stream's own work.
 *
 * device     a CUDA device
 * stream     a cudaStream_t of that device, NULL for its default stream
 * recording  may be NULL; 1 while the stream records a graph: then the queue is of that recording
 *            alone, so that two graphs of one stream may be replayed side by side (of the last 16
 *            recordings, counting one for each stream of it), and rows that would have to be prepared must not be
 *
 * Safe while any stream records. SOP_E_UNSUPPORTED when the device is none of CUDA's, SOP_E_NOMEM,
 * SOP_E_DEVICE. */
SOP_API SOP_MUST_USE sop_status sop_queue_on(sop_device *device, void *stream, sop_queue **out,
                                             int32_t *recording);

/** The cudaStream_t of a queue of CUDA's: where a row from outside launches (call->queue). */
SOP_API void *sop_queue_stream(const sop_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
