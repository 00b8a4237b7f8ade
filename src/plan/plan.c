/* Which row runs a desc. A choice is made once for equal bytes of (op, desc, bounds) and kept until
 * something retires it: a quarantine, an added or removed row, a new measurement. */
#include "sop/plan.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "ops/ops.h"
#include "ops/spans/spans.h"
#include "plan/journal.h"
#include "plan/planner.h"
#include "plan/store.h"

struct added {
    const sop_op *op; /* NULL: a span */
    const sop_row *row;
    void *library; /* the handle that brought it, once per library, else NULL */
    char code[SOP_CODE_ID_TEXT];
    uint32_t mark; /* its number in the journal */
};

struct prepared {
    const sop_row *row;
    uint64_t desc_hash;
    void *state;
};

struct entry {
    uint64_t hash;
    const sop_op *op; /* NULL: an empty place */
    void *desc;
    uint32_t bound;
    size_t budget;
    sop_choice choice;
};

struct sop_planner {
    sop_device *device;
    sop_facts facts;
    sop_store *store;
    sop_journal *journal; /* NULL until a row from outside is added */
    char folder[512], fingerprint[SOP_FINGERPRINT_TEXT]; /* of the store; "" is memory alone */
    char code[SOP_CODE_ID_TEXT];                         /* of the built-in rows */
    pthread_mutex_t lock;                                /* of all below */
    uint64_t epoch; /* grows when plans made so far are no longer what would be chosen */
    struct added *added;
    int32_t n_added;
    struct prepared *prepared;
    int32_t n_prepared;
    struct entry *entry; /* [cap], open addressing; cap is a power of two */
    size_t cap, used;
};

sop_status sop_planner_create(sop_device *device, const char *store, sop_planner **out)
{
    *out = NULL;
    sop_planner *p = calloc(1, sizeof *p);
    if (!p) return sop_fail(SOP_E_NOMEM, "planner: %zu bytes", sizeof *p);
    p->device = device;
    device->ops->facts(device, &p->facts);
    p->cap = 1024;
    p->entry = calloc(p->cap, sizeof *p->entry);
    sop_status status = p->entry ? SOP_OK : sop_fail(SOP_E_NOMEM, "planner: a cache");
    sop_fingerprint(device->ops->name, &p->facts, p->fingerprint);
    sop_code_id(sop_op_rmsnorm.rows[0].run, p->code);
    if (store) {
        const char *slash = strrchr(store, '/');
        (void)snprintf(p->folder, sizeof p->folder, "%.*s",
                       slash    ? (int)(slash - store)
                       : *store ? 1
                                : 0,
                       slash ? store : ".");
    } else if (sop_cache_dir(p->folder, sizeof p->folder) != SOP_OK) {
        p->folder[0] = 0;
    }
    if (status == SOP_OK) status = sop_store_open(store, p->fingerprint, &p->store);
    if (status != SOP_OK) {
        free(p->entry);
        free(p);
        return status;
    }
    if (p->folder[0])
        (void)sop_journal_recover(p->folder, p->fingerprint, sop_journal_quarantine, p->store);
    (void)pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return SOP_OK;
}

static void forget_cache(sop_planner *p)
{
    for (size_t i = 0; i < p->cap; i++) free(p->entry[i].desc);
    memset(p->entry, 0, p->cap * sizeof *p->entry);
    p->used = 0;
}

void sop_planner_destroy(sop_planner *p)
{
    if (!p) return;
    forget_cache(p);
    for (int32_t i = 0; i < p->n_prepared; i++)
        if (p->prepared[i].row->release) p->prepared[i].row->release(p->prepared[i].state);
    for (int32_t i = p->n_added; i-- > 0;)
        if (p->added[i].library) (void)dlclose(p->added[i].library);
    if (p->journal) sop_journal_close(p->journal);
    sop_store_close(p->store);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->prepared);
    free(p->added);
    free(p->entry);
    free(p);
}

uint64_t sop_planner_epoch(const sop_planner *p)
{
    return __atomic_load_n(&p->epoch, __ATOMIC_ACQUIRE);
}

const sop_facts *sop_planner_facts(const sop_planner *p)
{
    return &p->facts;
}

void sop_planner_set_ceilings(sop_planner *p, double read_bytes_s, double f32_flops_s,
                              double i8_ops_s)
{
    p->facts.read_bytes_s = read_bytes_s;
    p->facts.f32_flops_s = f32_flops_s;
    p->facts.i8_ops_s = i8_ops_s;
}

sop_device *sop_planner_device(const sop_planner *p)
{
    return p->device;
}

/* Under the lock. */
static void retire(sop_planner *p)
{
    forget_cache(p);
    __atomic_fetch_add(&p->epoch, 1, __ATOMIC_RELEASE);
}

static const char *no_refusal(const void *desc)
{
    (void)desc;
    return NULL;
}

static sop_status add(sop_planner *p, const sop_op *op, const sop_row *row, void *library)
{
    if (row->size != sizeof *row)
        return sop_fail(SOP_E_ARG,
                        "row %s: its size field says %u bytes, this library's row has %zu",
                        row->name ? row->name : "?", row->size, sizeof *row);
    if (!row->name || !row->run || (!op && (!row->span || !row->span[0])))
        return sop_fail(SOP_E_ARG, "row %s: no name, run or span", row->name ? row->name : "?");
    if (!op && row->prepare)
        return sop_fail(SOP_E_ARG, "row %s: a span row has nothing to prepare", row->name);
    if (row->device != p->facts.kind)
        return sop_fail(SOP_E_ARG, "row %s: made for device kind %d, this planner's is %d",
                        row->name, row->device, p->facts.kind);
    for (int32_t i = 0; i < p->n_added; i++)
        if (strcmp(p->added[i].row->name, row->name) == 0)
            return sop_fail(SOP_E_ARG, "row %s: a row of this name was added before", row->name);
    for (int32_t i = 0; op && i < op->n_rows; i++)
        if (strcmp(op->rows[i].name, row->name) == 0)
            return sop_fail(SOP_E_ARG, "row %s: the library has a row of this name", row->name);
    struct added *grown = realloc(p->added, (size_t)(p->n_added + 1) * sizeof *grown);
    if (!grown) return sop_fail(SOP_E_NOMEM, "row %s: a list of %d", row->name, p->n_added + 1);
    p->added = grown;
    struct added *a = &p->added[p->n_added++];
    *a = (struct added){.op = op, .row = row, .library = library};
    sop_code_id(row->run, a->code);
    /* Rows from outside are marked while they run, so that a crash has a name at the next start. */
    if (!p->journal && p->folder[0])
        SOP_TRY(sop_journal_open(p->folder, p->fingerprint, 1, &p->journal));
    if (p->journal) a->mark = sop_journal_row(p->journal, row->name, a->code);
    retire(p);
    return SOP_OK;
}

sop_status sop_planner_add(sop_planner *p, const char *op, const sop_row *row)
{
    const sop_op *under = op ? sop_op_find(op) : NULL;
    if (op && !under) return sop_fail(SOP_E_NOT_FOUND, "row %s: no op \"%s\"", row->name, op);
    (void)pthread_mutex_lock(&p->lock);
    const sop_status status = add(p, under, row, NULL);
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

sop_status sop_planner_remove(sop_planner *p, const sop_row *row)
{
    sop_status status = SOP_E_NOT_FOUND;
    (void)pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; i < p->n_added; i++) {
        if (p->added[i].row != row) continue;
        memmove(&p->added[i], &p->added[i + 1], (size_t)(p->n_added - i - 1) * sizeof *p->added);
        p->n_added--;
        for (int32_t k = p->n_prepared; k-- > 0;)
            if (p->prepared[k].row == row) {
                if (row->release) row->release(p->prepared[k].state);
                p->prepared[k] = p->prepared[--p->n_prepared];
            }
        retire(p);
        status = SOP_OK;
        break;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return status == SOP_OK ? status : sop_fail(status, "row %s: it was not added here", row->name);
}

sop_status sop_planner_load(sop_planner *p, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return sop_fail(SOP_E_NOT_FOUND, "%s: %s", path, dlerror());
    const sop_plugin *plugin = dlsym(library, SOP_PLUGIN_SYMBOL);
    sop_status status = SOP_OK;
    if (!plugin || plugin->size != sizeof *plugin)
        status = sop_fail(SOP_E_FORMAT, "%s: no symbol %s of %zu bytes", path, SOP_PLUGIN_SYMBOL,
                          sizeof *plugin);
    (void)pthread_mutex_lock(&p->lock);
    const int32_t before = p->n_added;
    for (int32_t i = 0; status == SOP_OK && i < plugin->n; i++) {
        const sop_op *op = plugin->op[i] ? sop_op_find(plugin->op[i]) : NULL;
        status = plugin->op[i] && !op
                     ? sop_fail(SOP_E_NOT_FOUND, "%s: no op \"%s\"", path, plugin->op[i])
                     : add(p, op, &plugin->rows[i], i == 0 ? library : NULL);
    }
    if (status != SOP_OK) { /* all of its rows or none */
        p->n_added = before;
        retire(p);
        (void)dlclose(library);
    } else if (p->n_added == before) {
        (void)dlclose(library);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

/* The code that a row of this name is made of. */
static const char *code_of(const sop_planner *p, const char *row)
{
    for (int32_t i = 0; i < p->n_added; i++)
        if (strcmp(p->added[i].row->name, row) == 0) return p->added[i].code;
    return p->code;
}

sop_status sop_planner_quarantine(sop_planner *p, const char *row, const char *why)
{
    (void)pthread_mutex_lock(&p->lock);
    const sop_status status = sop_store_quarantine(p->store, row, code_of(p, row), why);
    retire(p);
    (void)pthread_mutex_unlock(&p->lock);
    sop_log(SOP_LOG_WARN, "plan", "quarantine row=%s why=\"%s\"", row, why);
    return status;
}

const char *sop_planner_quarantined(const sop_planner *p, const char *row)
{
    return sop_store_quarantined(p->store, row, code_of(p, row));
}

sop_status sop_planner_release(sop_planner *p, const char *row)
{
    (void)pthread_mutex_lock(&p->lock);
    const sop_status status = sop_store_release(p->store, row, code_of(p, row));
    if (status == SOP_OK) retire(p);
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

enum { DESC_TEXT = 1024 };

sop_status sop_planner_measured(sop_planner *p, const sop_op *op, const void *desc, const char *row,
                                double ns, int64_t n)
{
    char text[DESC_TEXT];
    sop_desc_print(op, desc, text, sizeof text);
    (void)pthread_mutex_lock(&p->lock);
    const sop_status status = sop_store_put_time(p->store, row, code_of(p, row), text, ns, n);
    retire(p);
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

double sop_planner_time_ns(sop_planner *p, const sop_op *op, const void *desc, const char *row)
{
    if (!sop_store_has_times(p->store)) return 0;
    char text[DESC_TEXT];
    sop_desc_print(op, desc, text, sizeof text);
    return sop_store_time(p->store, row, code_of(p, row), text);
}

/* What prepare made of this row for this desc. make: call prepare when there is nothing yet. */
static sop_status prepared_state(sop_planner *p, const sop_op *op, const sop_row *row,
                                 const void *desc, bool make, void **out)
{
    const uint64_t h = sop_hash(desc, op->desc_bytes, 0);
    for (int32_t i = 0; i < p->n_prepared; i++)
        if (p->prepared[i].row == row && p->prepared[i].desc_hash == h) {
            *out = p->prepared[i].state;
            return SOP_OK;
        }
    if (!make) return SOP_E_UNSUPPORTED;
    struct prepared *grown = realloc(p->prepared, (size_t)(p->n_prepared + 1) * sizeof *grown);
    if (!grown) return sop_fail(SOP_E_NOMEM, "row %s: prepared state", row->name);
    p->prepared = grown;
    SOP_TRY(row->prepare(desc, p->device, out));
    p->prepared[p->n_prepared++] = (struct prepared){row, h, *out};
    return SOP_OK;
}

static uint32_t mark_of(const sop_planner *p, const sop_row *row)
{
    for (int32_t i = 0; i < p->n_added; i++)
        if (p->added[i].row == row) return p->added[i].mark;
    return 0;
}

sop_mark *sop_planner_mark(sop_planner *p)
{
    (void)pthread_mutex_lock(&p->lock);
    sop_mark *mark = p->journal ? sop_journal_mark(p->journal) : NULL;
    (void)pthread_mutex_unlock(&p->lock);
    return mark;
}

void sop_planner_unmark(sop_planner *p, sop_mark *mark)
{
    if (p->journal && mark) sop_journal_unmark(p->journal, mark);
}

/* Why this row cannot serve, or NULL and the choice. */
static const char *refusal(sop_planner *p, const sop_op *op, const sop_row *row, const void *desc,
                           uint32_t bound, size_t budget, sop_choice *choice)
{
    if (row->device != p->facts.kind) return "made for another kind of device";
    if (row->needs & ~p->facts.features) return "the processor lacks what it needs";
    if ((bound & SOP_CHOOSE_PORTABLE) && row->needs)
        return "the configuration asks for a portable variant";
    if ((bound & SOP_CHOOSE_INVARIANT) && !(row->traits & SOP_ROW_INVARIANT))
        return "its result depends on the batch, and numerics is invariant";
    const char *why = sop_store_quarantined(p->store, row->name, code_of(p, row->name));
    if (why) return why;
    why = row->refuse ? row->refuse(desc) : no_refusal(desc);
    if (why) return why;
    *choice = (sop_choice){.row = row, .mark = mark_of(p, row)};
    if (op && row->prepare && /* a span has nothing to prepare */
        prepared_state(p, op, row, desc, bound & SOP_CHOOSE_PREPARE, &choice->prepared) != SOP_OK)
        return bound & SOP_CHOOSE_PREPARE ? sop_last_error() : "not prepared for this shape";
    if (row->plan) {
        const sop_status s = row->plan(desc, NULL, &p->facts, budget, &choice->split);
        if (s == SOP_E_LIMIT) return "its scratch does not fit into what there is";
        if (s != SOP_OK) return sop_last_error();
    }
    return choice->split.scratch_bytes > budget ? "its scratch does not fit into what there is"
                                                : NULL;
}

/* Added row i under op, newest first, NULL past the last; *left: how many are too few. */
static const sop_row *added_row(const sop_planner *p, const sop_op *op, int32_t i, int32_t *left)
{
    for (int32_t k = p->n_added; k-- > 0;)
        if (p->added[k].op == op && i-- == 0) return p->added[k].row;
    *left = i;
    return NULL;
}

const sop_row *sop_planner_row(const sop_planner *p, const sop_op *op, int32_t i)
{
    const sop_row *row = added_row(p, op, i, &i);
    return row || i >= op->n_rows ? row : &op->rows[i];
}

const sop_row *sop_planner_span_row(const sop_planner *p, int32_t i)
{
    return added_row(p, NULL, i, &i);
}

static sop_status choose(sop_planner *p, const sop_op *op, const void *desc, uint32_t bound,
                         size_t budget, sop_skip_fn *skip, void *ctx, sop_choice *out)
{
    const bool timed = sop_store_has_times(p->store);
    char text[DESC_TEXT];
    double best = 0;
    const sop_row *row;
    sop_choice c;
    if (timed) sop_desc_print(op, desc, text, sizeof text);
    *out = (sop_choice){0};
    for (int32_t i = 0; (row = sop_planner_row(p, op, i)) != NULL; i++) {
        const bool behind = out->row && !timed; /* the first that takes it is chosen */
        if (behind && !skip) break;
        if (behind && (row->device != p->facts.kind || strcmp(row->route, out->row->route) == 0))
            continue; /* worth a word is what goes another way */
        const char *why = refusal(p, op, row, desc, bound, budget, &c);
        if (!why && behind) why = "another route; stands behind until it is measured faster";
        if (why) {
            if (skip) skip(ctx, row, why);
            continue;
        }
        const double ns =
            timed ? sop_store_time(p->store, row->name, code_of(p, row->name), text) : 0;
        if (!out->row || (ns > 0 && (best == 0 || ns < best))) {
            if (out->row && skip) skip(ctx, out->row, "measured slower here, or not measured");
            *out = c;
            best = ns;
        } else if (skip && ns > 0) {
            skip(ctx, row, "measured slower here");
        }
    }
    if (out->row) return SOP_OK;
    return sop_fail(SOP_E_UNSUPPORTED, "%s: no variant is left for this shape on this device",
                    op->name);
}

static uint64_t key_of(const sop_op *op, const void *desc, uint32_t bound, size_t budget)
{
    const uint64_t seed = (uint64_t)(uintptr_t)op ^ (uint64_t)bound << 56 ^ (uint64_t)budget << 4;
    return sop_hash(desc, op->desc_bytes, seed);
}

/* The place of a key: where it is, or the empty place where it would be. */
static struct entry *place(sop_planner *p, uint64_t hash, const sop_op *op, const void *desc,
                           uint32_t bound, size_t budget)
{
    for (size_t i = hash & (p->cap - 1);; i = (i + 1) & (p->cap - 1)) {
        struct entry *e = &p->entry[i];
        if (!e->op || (e->hash == hash && e->op == op && e->bound == bound && e->budget == budget &&
                       memcmp(e->desc, desc, op->desc_bytes) == 0))
            return e;
    }
}

sop_status sop_planner_choose(sop_planner *p, const sop_op *op, const void *desc, uint32_t bound,
                              size_t budget, sop_choice *out)
{
    const uint64_t hash = key_of(op, desc, bound, budget);
    sop_status status = SOP_OK;
    (void)pthread_mutex_lock(&p->lock);
    struct entry *e = place(p, hash, op, desc, bound, budget);
    if (e->op) {
        *out = e->choice;
    } else {
        status = choose(p, op, desc, bound, budget, NULL, NULL, out);
        if (status == SOP_OK) {
            if (p->used * 2 >= p->cap) { /* full of classes nobody will ask for again */
                forget_cache(p);
                e = place(p, hash, op, desc, bound, budget);
            }
            void *copy = malloc(op->desc_bytes);
            if (copy) { /* without memory the choice is just not kept */
                memcpy(copy, desc, op->desc_bytes);
                *e = (struct entry){hash, op, copy, bound, budget, *out};
                p->used++;
            }
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

sop_status sop_planner_explain(sop_planner *p, const sop_op *op, const void *desc, uint32_t bound,
                               size_t budget, sop_skip_fn *skip, void *ctx, sop_choice *out)
{
    (void)pthread_mutex_lock(&p->lock);
    const sop_status status = choose(p, op, desc, bound, budget, skip, ctx, out);
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

/* How many the first ops of [n] are when they are those of the list; 0 when they are not. */
static int32_t names(const char *const *span, const sop_op *const *ops, int32_t n)
{
    int32_t m = 0;
    while (span[m] && m < n && strcmp(span[m], ops[m]->name) == 0) m++;
    return span[m] ? 0 : m;
}

bool sop_planner_span(sop_planner *p, const sop_op *const *ops, const void *const *descs, int32_t n,
                      uint32_t bound, size_t budget, sop_skip_fn *skip, void *ctx, sop_choice *out,
                      int32_t *covered)
{
    bool found = false;
    (void)pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; !found; i++) { /* the added ones, newest first, then the library's */
        const sop_row *row =
            i < p->n_added ? p->added[p->n_added - 1 - i].row : &sop_spans[i - p->n_added];
        if (!row->name) break;
        const int32_t m = row->span ? names(row->span, ops, n) : 0;
        if (m == 0) continue;
        const char *why = refusal(p, NULL, row, descs, bound, budget, out);
        if (why && skip) skip(ctx, row, why);
        if (why) continue;
        found = true;
        *covered = m;
        while ((row->traits & SOP_ROW_REPEATS) && names(row->span, ops + *covered, n - *covered)) {
            sop_choice more = {0};
            if (refusal(p, NULL, row, descs + *covered, bound, budget, &more)) break;
            if (memcmp(&more.split, &out->split, sizeof more.split) != 0) break;
            *covered += m;
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return found;
}

struct sop_plan {
    const sop_op *op;
    sop_choice choice;
    size_t need[16]; /* bytes of each operand */
    _Alignas(8) unsigned char desc[];
};

sop_status sop_plan_create(sop_planner *p, const sop_op *op, const void *desc, sop_plan **out)
{
    *out = NULL;
    if (!op) return sop_fail(SOP_E_NOT_FOUND, "plan: no such op");
    sop_plan *plan = calloc(1, sizeof *plan + op->desc_bytes);
    if (!plan) return sop_fail(SOP_E_NOMEM, "%s: a plan of %zu bytes", op->name, sizeof *plan);
    plan->op = op;
    memcpy(plan->desc, desc, op->desc_bytes);
    op->complete(plan->desc);
    sop_status status = op->check(plan->desc);
    if (status == SOP_OK)
        status = sop_planner_choose(p, op, plan->desc, SOP_CHOOSE_PREPARE, SIZE_MAX, &plan->choice);
    if (status != SOP_OK) {
        free(plan);
        return status;
    }
    for (int32_t i = 0; i < op->n_roles; i++) {
        const uint32_t layout = plan->choice.row->layout;
        sop_tensor v;
        op->view(plan->desc, i, &v);
        plan->need[i] = v.bytes;
        if (v.dtype >= 0 && (op->roles[i].flags & SOP_ROLE_WEIGHT) && layout &&
            layout != SOP_LAYOUT_PLAIN)
            plan->need[i] = op->packed_bytes(plan->desc, i, layout);
    }
    *out = plan;
    return SOP_OK;
}

void sop_plan_destroy(sop_plan *plan)
{
    free(plan);
}

const char *sop_plan_variant(const sop_plan *plan)
{
    return plan->choice.row->name;
}

size_t sop_plan_scratch(const sop_plan *plan)
{
    return plan->choice.split.scratch_bytes;
}

sop_status sop_plan_run(const sop_plan *plan, sop_queue *queue, const sop_operand *args,
                        void *scratch)
{
    const sop_op *op = plan->op;
    for (int32_t i = 0; i < op->n_roles; i++) {
        if (!args[i].data && ((op->roles[i].flags & SOP_ROLE_OPTIONAL) || plan->need[i] == 0))
            continue;
        if (!args[i].data || args[i].bytes < plan->need[i])
            return sop_fail(SOP_E_SHAPE, "%s: operand %s has %zu bytes, planned for %zu", op->name,
                            op->roles[i].name, args[i].data ? args[i].bytes : 0, plan->need[i]);
    }
    const sop_call call = {.size = sizeof call,
                           .n_args = (uint32_t)op->n_roles,
                           .desc = plan->desc,
                           .args = args,
                           .split = &plan->choice.split,
                           .prepared = plan->choice.prepared,
                           .scratch = scratch,
                           .queue = queue};
    return queue->device->ops->submit(queue, plan->choice.row, &call);
}
