/* ops/call_test.h: run one row by its name, for the tests of this room; where there is a card, its rows too. */
#ifndef OPS_CALL_TEST_H
#define OPS_CALL_TEST_H

#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/op.h"
#include "sop/device.h"

static inline const sop_row *row_named(const sop_op *op, const char *name)
{
    for (int32_t i = 0; i < op->n_rows; i++)
        if (strcmp(op->rows[i].name, name) == 0) return &op->rows[i];
    return NULL;
}

enum { MOST_ROLES_OF_TEST = 16 };

/* Opened once, and never closed; NULL: there is none. */
static inline sop_device *card_of_test(void)
{
    static sop_device *card;
    static int asked;
    if (!asked++) (void)!sop_device_cuda(0, &card);
    return card;
}

/* Whether this machine's processor or card runs the row, without a library. */
static inline int row_runs(const sop_row *row)
{
    sop_facts facts;
    if (row->device == SOP_DEVICE_CPU) return (row->needs & ~sop_cpu_features()) == 0;
    if (row->device != SOP_DEVICE_CUDA || row->prepare || !card_of_test()) return 0;
    card_of_test()->ops->facts(card_of_test(), &facts);
    return (row->needs & ~facts.features) == 0;
}

/* Whether it does and the row takes the desc. */
static inline int row_takes(const sop_row *row, const void *desc)
{
    return row_runs(row) && (!row->refuse || row->refuse(desc) == NULL);
}

/* Operands of the host and where they are on a device: those that share memory share it there too, each as
 * far from a multiple of 256 as here. */
struct block_of_test {
    char *from, *to; /* here */
    char *base, *there;
    int out; /* some of it is written */
};

static inline int blocks_of_test(const sop_op *op, const sop_operand *args,
                                 struct block_of_test *blocks)
{
    int n = 0;
    for (int32_t r = 0; r < op->n_roles; r++) {
        struct block_of_test b = {.from = args[r].data};
        if (!b.from) continue;
        b.to = b.from + args[r].bytes;
        b.out = (op->roles[r].flags & (SOP_ROLE_OUT | SOP_ROLE_PARTIAL)) != 0;
        for (int k = 0; k < n;) {
            if (blocks[k].from >= b.to || b.from >= blocks[k].to) {
                k++;
                continue;
            }
            if (blocks[k].from < b.from) b.from = blocks[k].from;
            if (blocks[k].to > b.to) b.to = blocks[k].to;
            b.out |= blocks[k].out;
            blocks[k] = blocks[--n];
            k = 0;
        }
        blocks[n++] = b;
    }
    return n;
}

/* The blocks to the device or back, and the operands there. */
static inline sop_status move_of_test(sop_queue *queue, struct block_of_test *blocks, int n,
                                      int32_t direction)
{
    const sop_device_ops *ops = queue->device->ops;
    sop_status status = SOP_OK;
    for (int k = 0; k < n && status == SOP_OK; k++) {
        struct block_of_test *b = &blocks[k];
        const size_t bytes = (size_t)(b->to - b->from), shift = (uintptr_t)b->from & 255;
        if (direction == SOP_COPY_IN) {
            status = ops->reserve(queue->device, shift + bytes, (void **)&b->base);
            b->there = b->base + shift;
            if (status == SOP_OK) status = ops->copy(queue, b->there, b->from, bytes, direction);
        } else if (b->out) {
            status = ops->copy(queue, b->from, b->there, bytes, direction);
        }
    }
    return status == SOP_OK ? ops->wait(queue) : status;
}

/* Plan and run on so many threads, or on the card; the scratch holds NaN before. */
static inline sop_status run_row(const sop_op *op, const sop_row *row, const void *desc,
                                 const sop_operand *args, int32_t threads)
{
    const int on_card = row->device == SOP_DEVICE_CUDA;
    sop_device *device = NULL;
    sop_queue *queue = NULL;
    void *scratch = NULL;
    sop_split split = {{0}, 0};
    sop_operand there[MOST_ROLES_OF_TEST];
    struct block_of_test blocks[MOST_ROLES_OF_TEST] = {{0}}, nan = {0};
    sop_facts facts;
    int n = 0;
    sop_status status = SOP_OK;
    if (on_card)
        device = card_of_test();
    else
        status = sop_device_cpu(threads, &device);
    if (status == SOP_OK) status = device->ops->queue_create(device, &queue);
    if (status == SOP_OK) {
        device->ops->facts(device, &facts);
        if (row->plan) status = row->plan(desc, NULL, &facts, SIZE_MAX, &split);
    }
    if (status == SOP_OK && posix_memalign(&scratch, 64, split.scratch_bytes + 64) != 0)
        status = SOP_E_NOMEM;
    if (status == SOP_OK) memset(scratch, 0xff, split.scratch_bytes);
    memcpy(there, args, (size_t)op->n_roles * sizeof *there);
    if (status == SOP_OK && on_card) {
        n = blocks_of_test(op, args, blocks);
        status = move_of_test(queue, blocks, n, SOP_COPY_IN);
        for (int32_t r = 0; r < op->n_roles; r++)
            for (int k = 0; k < n; k++)
                if (there[r].data && (char *)args[r].data >= blocks[k].from &&
                    (char *)args[r].data < blocks[k].to)
                    there[r].data = blocks[k].there + ((char *)args[r].data - blocks[k].from);
        nan.from = scratch;
        nan.to = nan.from + split.scratch_bytes;
        if (status == SOP_OK) status = move_of_test(queue, &nan, 1, SOP_COPY_IN);
    }
    if (status == SOP_OK) {
        const sop_call call = {.size = sizeof call,
                               .n_args = (uint32_t)op->n_roles,
                               .desc = desc,
                               .args = there,
                               .split = &split,
                               .scratch = on_card ? nan.there : scratch,
                               .queue = queue};
        status = device->ops->submit(queue, row, &call);
        if (status == SOP_OK) status = device->ops->wait(queue);
    }
    if (status == SOP_OK && on_card) status = move_of_test(queue, blocks, n, SOP_COPY_OUT);
    for (int k = 0; k < n; k++) device->ops->release(device, blocks[k].base, 0);
    if (on_card) device->ops->release(device, nan.base, 0);
    free(scratch);
    if (queue) device->ops->queue_destroy(queue);
    if (!on_card) sop_device_destroy(device);
    return status;
}

#endif
