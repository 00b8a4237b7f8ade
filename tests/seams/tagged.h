/* A second device, in tests only: its own address space, an asynchronous queue, record and replay.
 *
 * Its addresses carry a tag in their upper bits, so that a host pointer that slips in, or one of its
 * own that is touched outside a kernel, faults or is refused. Work is done by a thread of its own, in
 * order, after submit has returned. Its rows run the CPU's kernels on the untagged addresses. */
#ifndef SEAMS_TAGGED_H
#define SEAMS_TAGGED_H

#include "sop/plan.h"

typedef struct tagged_counts {
    uint64_t submitted, replayed, copied, refused;
    int64_t widest; /* the most tokens of a call that was recorded */
} tagged_counts;

/* cpu: a CPU device and its planner, which choose the kernels; both outlive the device. */
sop_status tagged_create(sop_device *cpu, sop_planner *cpu_planner, sop_device **out);
/* Offer its rows, one or two for each op. */
sop_status tagged_add_rows(sop_planner *p);
tagged_counts tagged_counted(const sop_device *d);
/* From now on the device is lost for good when this row runs; NULL: never, and it is back. */
void tagged_lose(sop_device *d, const char *row);

/* The tag on, and off; off gives NULL for an address without it. */
void *tagged_on(void *p);
void *tagged_off(const void *p);

#endif
