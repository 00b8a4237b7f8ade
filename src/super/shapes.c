/* The shapes of a super operator's modules over the classes that its steps can be of: what is worth
 * measuring. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "super/state.h"

struct shapes {
    sop_shape *list;
    int32_t n, cap;
};

static sop_status add(struct shapes *k, const sop_op *op, const sop_any_desc *desc, uint32_t bound)
{
    for (int32_t i = 0; i < k->n; i++)
        if (k->list[i].op == op && k->list[i].bound == bound &&
            memcmp(&k->list[i].desc, desc, op->desc_bytes) == 0)
            return SOP_OK;
    if (k->n == k->cap) {
        const int32_t cap = k->cap ? 2 * k->cap : 64;
        sop_shape *grown = realloc(k->list, (size_t)cap * sizeof *grown);
        if (!grown) return sop_fail(SOP_E_NOMEM, "super: a list of %d shapes", cap);
        k->list = grown;
        k->cap = cap;
    }
    k->list[k->n++] = (sop_shape){op, *desc, bound};
    return SOP_OK;
}

static sop_status add_class(const sop_super *s, struct shapes *k, const sop_step_class *c)
{
    for (int32_t i = 0; i < s->program->n_modules; i++) {
        const sop_module *m = &s->program->modules[i];
        sop_any_desc desc;
        if (sop_extent_of(c, m->extent) == 0) continue;
        sop_steps_desc(s, m, c, &desc);
        SOP_TRY(add(k, m->op, &desc, sop_steps_bound(s, m)));
    }
    return SOP_OK;
}

sop_status sop_super_shapes(const sop_super *s, sop_shape **out, int32_t *n)
{
    const sop_super_facts *f = &s->facts;
    struct shapes k = {0};
    sop_status status = SOP_OK;
    for (int32_t tokens = 1;; tokens = 2 * tokens < f->max_tokens ? 2 * tokens : f->max_tokens) {
        const int32_t most = tokens < f->max_seqs ? tokens : f->max_seqs;
        for (int32_t seqs = 1; seqs <= most; seqs = seqs == most ? most + 1 : most)
            for (int far = 0; far < 2 && status == SOP_OK; far++) {
                const uint32_t paths =
                    sop_steps_paths(s, seqs, (tokens + seqs - 1) / seqs, far ? f->ctx : 1);
                const sop_step_class c =
                    sop_steps_class(s, tokens, seqs, seqs < f->max_outs ? seqs : f->max_outs, paths,
                                    far ? f->ctx : 1);
                status = add_class(s, &k, &c);
            }
        if (tokens == f->max_tokens || status != SOP_OK) break;
    }
    if (status != SOP_OK) {
        free(k.list);
        k = (struct shapes){0};
    }
    *out = k.list;
    *n = k.n;
    return status;
}
