/* Where buffers lie: two that are never needed at the same time may share bytes.
 *
 * A buffer lives from the first module that names it to the last; one whose wanted rows are copied as long
 * as they, for a step of one token reads them where they are. Larger ones are placed first, each at the
 * lowest offset where nothing that lives at the same time stands. */
#include <stdlib.h>

#include "base/status.h"
#include "super/state.h"

int64_t sop_extent_of(const sop_step_class *c, int32_t extent)
{
    return extent == SOP_EXTENT_TOKENS ? c->tokens : extent == SOP_EXTENT_SEQS ? c->seqs : c->outs;
}

struct life {
    int32_t first, last;
    size_t bytes;
    bool placed;
};

sop_status sop_place_buffers(const sop_program *p, const sop_super_facts *f, size_t *at,
                             size_t *bytes, size_t *save)
{
    const sop_step_class most = {f->max_tokens, f->max_seqs, f->max_outs, 0, 0};
    struct life *life = calloc((size_t)p->n_buffers + 1, sizeof *life);
    if (!life) return sop_fail(SOP_E_NOMEM, "super: %d buffers", p->n_buffers);
    *bytes = *save = 0;
    for (int32_t b = 0; b < p->n_buffers; b++) {
        const size_t rows = (size_t)sop_extent_of(&most, p->buffers[b].extent);
        life[b] = (struct life){.first = -1,
                                .bytes = (rows * p->buffers[b].row_bytes + 63) & ~(size_t)63};
    }
    for (int32_t i = 0; i < p->n_modules; i++) {
        const sop_module *m = &p->modules[i];
        size_t in_place = 0; /* what a retry of this module must find as it was */
        for (int32_t a = 0; a < m->op->n_roles; a++) {
            if (m->args[a].kind != SOP_ARG_BUFFER) continue;
            const int32_t b = m->args[a].index;
            if (life[b].first < 0) life[b].first = i;
            life[b].last = i;
            if (m->op->roles[a].flags & SOP_ROLE_OUT) in_place += life[b].bytes;
        }
        if (in_place > *save) *save = in_place;
    }
    for (int32_t i = 0; i < p->n_modules; i++) {
        const sop_module *m = &p->modules[i];
        if (m->op != &sop_op_embed || m->args[SOP_EMBED_TABLE].kind != SOP_ARG_BUFFER) continue;
        struct life *from = &life[m->args[SOP_EMBED_TABLE].index];
        const struct life *to = &life[m->args[SOP_EMBED_Y].index];
        if (to->last > from->last) from->last = to->last;
    }
    if (p->logits >= 0) life[p->logits].last = p->n_modules; /* read after the step */
    for (int32_t round = 0; round < p->n_buffers; round++) {
        int32_t big = -1;
        for (int32_t b = 0; b < p->n_buffers; b++)
            if (!life[b].placed && (big < 0 || life[b].bytes > life[big].bytes)) big = b;
        size_t where = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int32_t b = 0; b < p->n_buffers; b++) {
                if (!life[b].placed || life[b].last < life[big].first ||
                    life[big].last < life[b].first)
                    continue;
                if (at[b] < where + life[big].bytes && where < at[b] + life[b].bytes) {
                    where = at[b] + life[b].bytes;
                    moved = true;
                }
            }
        }
        at[big] = where;
        life[big].placed = true;
        if (where + life[big].bytes > *bytes) *bytes = where + life[big].bytes;
    }
    free(life);
    return SOP_OK;
}
