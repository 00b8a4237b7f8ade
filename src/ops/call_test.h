/* ops/call_test.h: run one row by its name, for the tests of this room. */
#ifndef OPS_CALL_TEST_H
#define OPS_CALL_TEST_H

#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "sop/device.h"

static inline const sop_row *row_named(const sop_op *op, const char *name)
{
    for (int32_t i = 0; i < op->n_rows; i++)
        if (strcmp(op->rows[i].name, name) == 0) return &op->rows[i];
    return NULL;
}

/* Whether this machine's processor runs the row. */
static inline int row_runs(const sop_row *row)
{
    return row->device == SOP_DEVICE_CPU && (row->needs & ~sop_cpu_features()) == 0;
}

/* Whether it does and the row takes the desc. */
static inline int row_takes(const sop_row *row, const void *desc)
{
    return row_runs(row) && row->refuse(desc) == NULL;
}

/* Plan and run on so many threads; the scratch holds NaN before. */
static inline sop_status run_row(const sop_op *op, const sop_row *row, const void *desc,
                                 const sop_operand *args, int32_t threads)
{
    sop_device *device = NULL;
    sop_queue *queue = NULL;
    void *scratch = NULL;
    sop_split split = {{0}, 0};
    sop_facts facts;
    sop_status status = sop_device_cpu(threads, &device);
    if (status == SOP_OK) status = device->ops->queue_create(device, &queue);
    if (status == SOP_OK) {
        device->ops->facts(device, &facts);
        if (row->plan) status = row->plan(desc, NULL, &facts, SIZE_MAX, &split);
    }
    if (status == SOP_OK && posix_memalign(&scratch, 64, split.scratch_bytes + 64) != 0)
        status = SOP_E_NOMEM;
    if (status == SOP_OK) {
        memset(scratch, 0xff, split.scratch_bytes);
        const sop_call call = {.size = sizeof call,
                               .n_args = (uint32_t)op->n_roles,
                               .desc = desc,
                               .args = args,
                               .split = &split,
                               .scratch = scratch,
                               .queue = queue};
        status = device->ops->submit(queue, row, &call);
        if (status == SOP_OK) status = device->ops->wait(queue);
    }
    free(scratch);
    if (queue) device->ops->queue_destroy(queue);
    sop_device_destroy(device);
    return status;
}

#endif
