/* The scales of keys and values of 8 bits, measured before the first request: a prompt of random tokens is
 * run module by module, and before a layer's keys and values go into their pools, the largest of each
 * head says its scale. Nothing of the prompt stays. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "ops/kv_append/kv_append.h"
#include "ops/linear/dequant.h"
#include "super/state.h"

enum { TOKENS = 128, ROUNDS = 16 };

struct measure {
    sop_super *s;
    float *most; /* [layers, 2, heads]: the largest so far */
    void *rows;  /* as large as an operand of new keys */
    float *head; /* one key or value */
    int64_t heads;
};

/* i8: what is a little larger than all that was met still has a code. f8 has nearly the same precision
 * everywhere, so that twice as much costs nothing. */
static float scale_of(float most, int32_t dtype)
{
    const float scale = dtype == SOP_I8 ? 1.1f * most / 127 : 2 * most / 448;
    return scale > 0 && isfinite(scale) ? scale : 1;
}

/* One operand of a kv_append: w 0 its keys, 1 its values. */
static sop_status measure(const struct measure *m, const sop_call *call, int32_t layer, int32_t w,
                          int64_t tokens)
{
    const sop_kv_append_desc *d = call->desc;
    const sop_device_ops *ops = m->s->device->ops;
    const sop_operand x = call->args[w ? SOP_KV_APPEND_V : SOP_KV_APPEND_K];
    const sop_operand to = sop_kv_scales(m->s->kv, layer, w);
    const int64_t stride = w ? d->v_stride : d->k_stride, apart = w ? d->v_head : d->k_head;
    const int64_t n = w ? d->v : d->k;
    const size_t bytes =
        (size_t)((tokens - 1) * stride + (d->heads - 1) * apart + n) * sop_dtype_bytes(d->x_dtype);
    float *most = m->most + (2 * (int64_t)layer + w) * m->heads;
    SOP_TRY(ops->copy(m->s->queue, m->rows, x.data, bytes, SOP_COPY_OUT));
    SOP_TRY(ops->wait(m->s->queue));
    float *scales = m->rows; /* once they are read */
    for (int64_t h = 0; h < d->heads; h++)
        for (int64_t t = 0; t < tokens; t++) {
            const size_t at = (size_t)(t * stride + h * apart) * sop_dtype_bytes(d->x_dtype);
            sop_dequant_row(d->x_dtype, (const char *)m->rows + at, n, m->head);
            for (int64_t i = 0; i < n; i++) most[h] = fmaxf(most[h], fabsf(m->head[i]));
        }
    for (int64_t h = 0; h < d->heads; h++) scales[h] = scale_of(most[h], d->kv_dtype);
    SOP_TRY(ops->copy(m->s->queue, to.data, scales, to.bytes, SOP_COPY_IN));
    return ops->wait(m->s->queue);
}

static sop_status run(const struct measure *m, const sop_steps *steps, int64_t tokens)
{
    sop_super *s = m->s;
    for (int32_t i = 0; i < steps->n_nodes; i++) {
        const sop_node *node = &steps->nodes[i];
        const sop_module *first = &s->program->modules[node->module];
        for (int32_t k = 1; k < node->n_modules; k++)
            if (first[k].op == &sop_op_kv_append)
                return sop_fail(SOP_E_UNSUPPORTED,
                                "%s: keys go from their projection into pools of codes, whose "
                                "scales are not known yet",
                                node->row->name);
        for (int32_t w = 0; w < 2 && first->op == &sop_op_kv_append; w++)
            SOP_TRY(measure(m, &node->call, first->layer, w, tokens));
        SOP_TRY(s->device->ops->submit(s->queue, node->row, &node->call));
    }
    return s->device->ops->wait(s->queue);
}

static sop_status prompt(const struct measure *m, uint64_t *seed, int32_t n)
{
    sop_super *s = m->s;
    const sop_step_class class = sop_steps_class(s, n, 1, 0, sop_steps_paths(s, 1, n, n), n);
    int32_t ids[TOKENS], seq;
    sop_steps *steps;
    for (int32_t i = 0; i < n; i++) {
        *seed = *seed * UINT64_C(6364136223846793005) + 1; /* Knuth's */
        ids[i] = (int32_t)((*seed >> 33) % (uint64_t)s->facts.vocab);
    }
    SOP_TRY(sop_steps_get(s, &class, &steps));
    SOP_TRY(sop_kv_open(s->kv, &seq));
    const sop_step_item item = {.seq = seq, .n_ids = n, .ids = ids};
    sop_status status = sop_kv_reserve(s->kv, s->queue, seq, n);
    if (status == SOP_OK) status = sop_inputs_send(s, &item, 1);
    if (status == SOP_OK) status = run(m, steps, n);
    sop_kv_close(s->kv, seq);
    return status;
}

sop_status sop_scales_measure(sop_super *s)
{
    const sop_program *p = s->program;
    const sop_super_facts *f = &s->facts;
    struct measure m = {.s = s};
    int32_t n = TOKENS < f->max_tokens ? TOKENS : f->max_tokens;
    uint64_t seed = 1;
    size_t row = 0;
    if (!sop_is_code(p->kv_dtype)) return SOP_OK;
    if (f->ctx < n) n = (int32_t)f->ctx;
    int64_t widest = 0;
    for (int32_t l = 0; l < p->n_layers; l++) {
        const sop_kv_layer *y = &p->layers[l];
        if (y->heads > m.heads) m.heads = y->heads;
        if (y->k > widest) widest = y->k;
        if (y->v > widest) widest = y->v;
    }
    for (int32_t b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].row_bytes > row) row = p->buffers[b].row_bytes;
    m.most = calloc((size_t)(2 * (int64_t)p->n_layers * m.heads) + 1, sizeof *m.most);
    m.rows = malloc((size_t)n * row + 1);
    m.head = malloc((size_t)widest * sizeof *m.head + 1);
    sop_status status = SOP_OK;
    if (!m.most || !m.rows || !m.head)
        status = sop_fail(SOP_E_NOMEM, "scales: %zu bytes of new keys", (size_t)n * row);
    for (int32_t r = 0; status == SOP_OK && r < ROUNDS && r * n < TOKENS; r++)
        status = prompt(&m, &seed, n);
    free(m.most);
    free(m.rows);
    free(m.head);
    return status;
}
