/* ops/call_test.h: run one row by its name, for the tests of this room; where there is a card, its rows too. */
#ifndef OPS_CALL_TEST_H
#define OPS_CALL_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
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

/* What serves where a row of the card refuses: the last of them. */
static inline const sop_row *floor_of_test(const sop_op *op)
{
    const sop_row *last = NULL;
    for (int32_t i = 0; i < op->n_rows; i++)
        if (op->rows[i].device == SOP_DEVICE_CUDA) last = &op->rows[i];
    return last;
}

/* Operands of the host, and where they are on the card: those that share memory share it there too, each as
 * far from a multiple of 256 as here. The last block is the scratch. */
struct block_of_test {
    char *from, *to, *there;
    int out; /* some of it is written */
};

static inline int blocks_of_test(const sop_op *op, const void *desc, const sop_operand *args,
                                 struct block_of_test *blocks)
{
    int n = 0;
    for (int32_t r = 0; r < op->n_roles; r++) {
        struct block_of_test b = {.from = args[r].data};
        sop_tensor view;
        if (!b.from) continue;
        op->view(desc, r, &view); /* tests leave bytes out */
        b.to = b.from + (args[r].bytes ? args[r].bytes : view.bytes);
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

/* Memory of the card that lasts, and a place in it for each block. */
static inline sop_status place_of_test(sop_device *card, struct block_of_test *blocks, int n)
{
    static char *slab;
    static size_t slab_bytes;
    size_t bytes = 0;
    for (int k = 0; k < n; k++) bytes += 512 + (size_t)(blocks[k].to - blocks[k].from);
    if (bytes > slab_bytes) {
        card->ops->release(card, slab, slab_bytes);
        slab_bytes = 0;
        const sop_status status = card->ops->reserve(card, bytes, (void **)&slab);
        if (status != SOP_OK) return status;
        slab_bytes = bytes;
    }
    char *at = slab; /* a multiple of 256 */
    for (int k = 0; k < n; k++) {
        const size_t size = (size_t)(blocks[k].to - blocks[k].from);
        blocks[k].there = at + ((uintptr_t)blocks[k].from & 255);
        at += (((uintptr_t)blocks[k].from & 255) + size + 255) & ~(size_t)255;
    }
    return SOP_OK;
}

/* On the card, with scratch that holds NaN. */
static inline sop_status run_on_card(sop_queue *queue, const sop_op *op, const sop_row *row,
                                     const sop_call *call)
{
    const sop_device_ops *ops = queue->device->ops;
    struct block_of_test blocks[MOST_ROLES_OF_TEST + 1];
    sop_operand there[MOST_ROLES_OF_TEST];
    const int n = blocks_of_test(op, call->desc, call->args, blocks);
    blocks[n] = (struct block_of_test){.from = call->scratch};
    blocks[n].to = blocks[n].from + call->split->scratch_bytes;
    sop_call as = *call;
    sop_status status = place_of_test(queue->device, blocks, n + 1);
    for (int k = 0; k <= n && status == SOP_OK; k++)
        status = ops->copy(queue, blocks[k].there, blocks[k].from,
                           (size_t)(blocks[k].to - blocks[k].from), SOP_COPY_IN);
    for (int32_t r = 0; r < op->n_roles; r++) {
        there[r] = call->args[r];
        for (int k = 0; k < n && there[r].data; k++)
            if ((char *)call->args[r].data >= blocks[k].from &&
                (char *)call->args[r].data < blocks[k].to)
                there[r].data = blocks[k].there + ((char *)call->args[r].data - blocks[k].from);
    }
    as.args = there;
    as.scratch = blocks[n].there;
    if (status == SOP_OK) status = ops->submit(queue, row, &as);
    for (int k = 0; k < n && status == SOP_OK; k++)
        if (blocks[k].out)
            status = ops->copy(queue, blocks[k].from, blocks[k].there,
                               (size_t)(blocks[k].to - blocks[k].from), SOP_COPY_OUT);
    return status;
}

/* Plan and run on so many threads, or on the card; the scratch holds NaN before. */
static inline sop_status run_row(const sop_op *op, const sop_row *row, const void *desc,
                                 const sop_operand *args, int32_t threads)
{
    const int on_card = row->device == SOP_DEVICE_CUDA;
    sop_device *device = on_card ? card_of_test() : NULL;
    sop_queue *queue = NULL;
    void *scratch = NULL;
    sop_split split = {{0}, 0};
    sop_facts facts;
    if (on_card && row->refuse && row->refuse(desc)) row = floor_of_test(op);
    sop_status status = on_card ? SOP_OK : sop_device_cpu(threads, &device);
    if (status == SOP_OK) status = device->ops->queue_create(device, &queue);
    if (status == SOP_OK) {
        device->ops->facts(device, &facts);
        if (row->plan) status = row->plan(desc, NULL, &facts, SIZE_MAX, &split);
    }
    if (status == SOP_OK && posix_memalign(&scratch, 256, split.scratch_bytes + 64) != 0)
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
        status =
            on_card ? run_on_card(queue, op, row, &call) : device->ops->submit(queue, row, &call);
        if (status == SOP_OK) status = device->ops->wait(queue);
    }
    if (status != SOP_OK && on_card) printf("%s: %s\n", row->name, sop_last_error());
    free(scratch);
    if (queue) device->ops->queue_destroy(queue);
    if (!on_card) sop_device_destroy(device);
    return status;
}

#endif
