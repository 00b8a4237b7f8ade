#include "core/record.h"

#include <stdlib.h>

#include "base/status.h"

struct node {
    const sop_row *row; /* NULL: a copy */
    sop_call call;
    void *dst;
    const void *src;
    size_t bytes;
    int32_t direction;
};

struct sop_record {
    struct node *nodes;
    size_t n, cap;
};

sop_status sop_record_create(sop_record **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SOP_OK : sop_fail(SOP_E_NOMEM, "record: a list");
}

void sop_record_destroy(sop_record *r)
{
    if (!r) return;
    free(r->nodes);
    free(r);
}

static sop_status push(sop_record *r, struct node node)
{
    if (r->n == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 64;
        struct node *grown = realloc(r->nodes, cap * sizeof *grown);
        if (!grown) return sop_fail(SOP_E_NOMEM, "record: %zu nodes", cap);
        r->nodes = grown;
        r->cap = cap;
    }
    r->nodes[r->n++] = node;
    return SOP_OK;
}

sop_status sop_record_call(sop_record *r, const sop_row *row, const sop_call *call)
{
    return push(r, (struct node){.row = row, .call = *call});
}

sop_status sop_record_copy(sop_record *r, void *dst, const void *src, size_t bytes,
                           int32_t direction)
{
    return push(r, (struct node){.dst = dst, .src = src, .bytes = bytes, .direction = direction});
}

sop_status sop_record_run(const sop_record *r, sop_queue *queue)
{
    const sop_device_ops *ops = queue->device->ops;
    for (size_t i = 0; i < r->n; i++) {
        const struct node *n = &r->nodes[i];
        if (n->row)
            SOP_TRY(ops->submit(queue, n->row, &n->call));
        else
            SOP_TRY(ops->copy(queue, n->dst, n->src, n->bytes, n->direction));
    }
    return SOP_OK;
}
