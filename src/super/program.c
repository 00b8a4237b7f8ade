#include "super/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/planner.h"

void sop_program_init(sop_program *p)
{
    *p = (sop_program){.logits = -1};
}

void sop_program_finish(sop_program *p)
{
    for (int32_t i = 0; i < p->n_weights; i++) {
        sop_weight *w = &p->weights[i];
        if (w->packed.data) p->device->ops->release(p->device, w->packed.data, w->packed.bytes);
        if (w->plain.data && w->plain.data != w->file)
            p->device->ops->release(p->device, w->plain.data, w->plain.bytes);
        free(w->own);
    }
    free(p->modules);
    free(p->buffers);
    free(p->weights);
    free(p->layers);
    sop_program_init(p);
}

/* One more element at the end of a list; NULL when there is no memory, and then for good. */
static void *grow(void **list, int32_t *n, size_t bytes)
{
    if (*n < 0) return NULL;
    if ((*n & (*n - 1)) == 0) { /* full at every power of two */
        void *grown = realloc(*list, (*n ? 2 * (size_t)*n : 1) * bytes);
        if (!grown) {
            (void)sop_fail(SOP_E_NOMEM, "program: a list of %d elements of %zu bytes", *n + 1,
                           bytes);
            return NULL;
        }
        *list = grown;
    }
    void *at = (char *)*list + (size_t)(*n)++ * bytes;
    memset(at, 0, bytes);
    return at;
}

int32_t sop_program_buffer(sop_program *p, const char *name, int32_t extent, size_t row_bytes)
{
    sop_buffer *b = grow((void **)&p->buffers, &p->n_buffers, sizeof *b);
    if (!b) return -1;
    *b = (sop_buffer){name, extent, 0, row_bytes};
    return p->n_buffers - 1;
}

int32_t sop_program_weight(sop_program *p, const char *name, int32_t dtype, int64_t n, int64_t k,
                           const void *data, size_t bytes)
{
    sop_weight *w = grow((void **)&p->weights, &p->n_weights, sizeof *w);
    if (!w) return -1;
    *w = (sop_weight){.dtype = dtype, .n = n, .k = k, .file = data, .file_bytes = bytes};
    (void)strncpy(w->name, name, sizeof w->name - 1);
    return p->n_weights - 1;
}

int32_t sop_program_floats(sop_program *p, const char *name, const float *data, int64_t n)
{
    float *own = malloc((size_t)(n ? n : 1) * sizeof *own);
    if (!own) {
        (void)sop_fail(SOP_E_NOMEM, "%s: %lld floats", name, (long long)n);
        return -1;
    }
    memcpy(own, data, (size_t)n * sizeof *own);
    const int32_t i = sop_program_weight(p, name, SOP_F32, 1, n, own, (size_t)n * sizeof *own);
    if (i < 0)
        free(own);
    else
        p->weights[i].own = own;
    return i;
}

int32_t sop_program_layer(sop_program *p, sop_kv_layer layer)
{
    sop_kv_layer *y = grow((void **)&p->layers, &p->n_layers, sizeof *y);
    if (!y) return -1;
    *y = layer;
    return p->n_layers - 1;
}

int32_t sop_program_add(sop_program *p, const sop_module *m)
{
    sop_module *at = grow((void **)&p->modules, &p->n_modules, sizeof *at);
    if (!at) return -1;
    *at = *m;
    return p->n_modules - 1;
}

/* The layouts of a linear module's weights that the best rows want at a number of tokens. */
static sop_status wanted(const sop_program *p, sop_planner *planner, const sop_module *m,
                         int64_t tokens, uint32_t bound, uint32_t *layouts)
{
    sop_any_desc d = m->desc;
    sop_choice c;
    (void)p;
    d.linear.tokens = tokens;
    for (int32_t j = 0; j < 3; j++)
        d.linear.layouts[j] = d.linear.n[j] ? SOP_LAYOUT_PLAIN | SOP_LAYOUT_PANEL16 : 0;
    m->op->complete(&d);
    SOP_TRY(m->op->check(&d));
    SOP_TRY(sop_planner_choose(planner, m->op, &d, bound, SIZE_MAX, &c));
    *layouts |= c.row->layout ? c.row->layout : SOP_LAYOUT_PLAIN;
    return SOP_OK;
}

/* want [n_weights]: the layouts each weight is asked for. */
static sop_status ask(const sop_program *p, sop_planner *planner, int32_t max_tokens,
                      uint32_t bound, uint32_t *want)
{
    for (int32_t i = 0; i < p->n_modules; i++) {
        const sop_module *m = &p->modules[i];
        uint32_t layouts = SOP_LAYOUT_PLAIN;
        if (m->op == &sop_op_linear) {
            layouts = 0;
            SOP_TRY(wanted(p, planner, m, 1, bound, &layouts));
            if (max_tokens > 1) SOP_TRY(wanted(p, planner, m, max_tokens, bound, &layouts));
        }
        for (int32_t a = 0; a < m->op->n_roles; a++)
            if (m->args[a].kind == SOP_ARG_WEIGHT)
                want[m->args[a].index] |=
                    m->op->roles[a].flags & SOP_ROLE_WEIGHT ? layouts : SOP_LAYOUT_PLAIN;
    }
    return SOP_OK;
}

/* The desc of a weight alone, for packed_bytes and pack. */
static sop_linear_desc alone(const sop_weight *w)
{
    sop_linear_desc d = {.tokens = 1, .k = w->k, .n = {w->n}, .w_dtype = {w->dtype}};
    sop_op_linear.complete(&d);
    return d;
}

static size_t packed_bytes(const sop_weight *w)
{
    const sop_linear_desc d = alone(w);
    return sop_op_linear.packed_bytes(&d, SOP_LINEAR_W0, SOP_LAYOUT_PANEL16);
}

sop_status sop_program_weight_bytes(sop_program *p, sop_planner *planner, int32_t max_tokens,
                                    uint32_t bound, size_t *out)
{
    uint32_t *want = calloc((size_t)p->n_weights + 1, sizeof *want);
    if (!want) return sop_fail(SOP_E_NOMEM, "program: %d weights", p->n_weights);
    const sop_status status = ask(p, planner, max_tokens, bound, want);
    sop_device *d = sop_planner_device(planner);
    *out = 0;
    for (int32_t i = 0; i < p->n_weights; i++) {
        const sop_weight *w = &p->weights[i];
        if (want[i] & SOP_LAYOUT_PANEL16) *out += packed_bytes(w);
        if (w->own || !(d->ops->sees_host(d) || p->lent)) *out += w->file_bytes;
    }
    free(want);
    return status;
}

struct packing {
    const sop_weight *w;
    void *out;
};

static void pack_panels(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct packing *k = arg;
    const sop_linear_desc d = alone(k->w);
    const int64_t last = 16 * end < k->w->n ? 16 * end : k->w->n;
    (void)worker;
    sop_op_linear.pack(&d, SOP_LINEAR_W0, SOP_LAYOUT_PANEL16, k->w->file, k->out, 16 * begin, last);
}

static sop_status place_packed(sop_program *p, sop_queue *q, sop_weight *w)
{
    sop_device *d = p->device;
    const size_t bytes = packed_bytes(w);
    SOP_TRY(d->ops->reserve(d, bytes, &w->packed.data));
    w->packed.bytes = bytes;
    p->placed_bytes += bytes;
    const bool direct = d->ops->sees_host(d);
    void *host = direct ? w->packed.data : calloc(1, bytes);
    if (!host) return sop_fail(SOP_E_NOMEM, "%s: %zu bytes to pack it", w->name, bytes);
    sop_parallel(q, (w->n + 15) / 16, 8, pack_panels, &(struct packing){w, host});
    sop_status status = SOP_OK;
    if (!direct) {
        status = d->ops->copy(q, w->packed.data, host, bytes, SOP_COPY_IN);
        if (status == SOP_OK) status = d->ops->wait(q);
        free(host);
    }
    w->layouts |= SOP_LAYOUT_PANEL16;
    return status;
}

static sop_status place_plain(sop_program *p, sop_queue *q, sop_weight *w)
{
    sop_device *d = p->device;
    w->layouts |= SOP_LAYOUT_PLAIN;
    if (d->ops->sees_host(d) || (p->lent && !w->own)) {
        union { /* kernels only read it */
            const void *in;
            void *out;
        } cast = {w->file};
        w->plain = (sop_operand){cast.out, w->file_bytes};
        if (w->own) p->placed_bytes += w->file_bytes;
        return SOP_OK;
    }
    SOP_TRY(d->ops->reserve(d, w->file_bytes, &w->plain.data));
    w->plain.bytes = w->file_bytes;
    p->placed_bytes += w->file_bytes;
    size_t there = w->period && w->period < w->file_bytes ? w->period : w->file_bytes;
    SOP_TRY(d->ops->copy(q, w->plain.data, w->file, there, SOP_COPY_IN));
    for (size_t n; there < w->file_bytes; there += n) { /* what repeats itself is doubled there */
        n = there < w->file_bytes - there ? there : w->file_bytes - there;
        SOP_TRY(d->ops->copy(q, (char *)w->plain.data + there, w->plain.data, n, SOP_COPY_WITHIN));
    }
    return d->ops->wait(q);
}

sop_status sop_program_place(sop_program *p, sop_planner *planner, int32_t max_tokens,
                             uint32_t bound, sop_settle_fn *settle, void *ctx)
{
    sop_queue *q = NULL;
    uint32_t *want = calloc((size_t)p->n_weights + 1, sizeof *want);
    if (!want) return sop_fail(SOP_E_NOMEM, "program: %d weights", p->n_weights);
    p->device = sop_planner_device(planner);
    sop_status status = ask(p, planner, max_tokens, bound, want);
    if (status == SOP_OK) status = p->device->ops->queue_create(p->device, &q);
    for (int32_t i = 0; i < p->n_weights && status == SOP_OK; i++) {
        sop_weight *w = &p->weights[i];
        w->keep_plain = (want[i] & SOP_LAYOUT_PLAIN) != 0;
        status = place_plain(p, q, w); /* the reference reads it when every packed row is out */
        if (status == SOP_OK && (want[i] & SOP_LAYOUT_PANEL16)) status = place_packed(p, q, w);
        if (status == SOP_OK && settle && !w->own)
            settle(ctx, w->file, w->file_bytes, w->keep_plain && w->plain.data == w->file);
        if (status == SOP_OK && w->plain.data != w->file) { /* the device has its own */
            free(w->own);
            w->own = NULL;
        }
    }
    for (int32_t i = 0; i < p->n_modules && status == SOP_OK; i++) {
        sop_module *m = &p->modules[i];
        if (m->op != &sop_op_linear) continue;
        for (int32_t j = 0; j < 3; j++)
            if (m->desc.linear.n[j])
                m->desc.linear.layouts[j] = p->weights[m->args[SOP_LINEAR_W0 + j].index].layouts;
    }
    if (q) p->device->ops->queue_destroy(q);
    free(want);
    return status;
}
