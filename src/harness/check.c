/* The comparer. What it proves stands in harness.h. */
#include "harness/harness.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/op.h"
#include "harness/operands.h"

/* With the address sanitizer its red zones stand where the canaries would: they see reads too. */
#if defined(__SANITIZE_ADDRESS__)
enum { CANARY = 0 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { CANARY = 0 };
#else
enum { CANARY = 64 };
#endif
#else
enum { CANARY = 64 };
#endif

enum { THREADS = 3 };

struct sop_checker {
    sop_device *device[THREADS]; /* device i has i + 1 threads */
    sop_queue *queue[THREADS];
    sop_device *other; /* the caller's, whose rows are checked; NULL: those of the CPU */
    sop_queue *other_queue;
    int32_t once; /* a trial has one run */
    char *slab;   /* where its operands lie during a run */
    size_t slab_bytes;
};

/* What the runs of a row differ in, as people read it. */
static const char *who(const struct sop_checker *c, int32_t run)
{
    static const char *const threads[THREADS] = {"1 thread", "2 threads", "3 threads"};
    static const char *const runs[THREADS] = {"the first run", "the second run", "the third run"};
    return c->other ? runs[run] : threads[run];
}

enum live { LIVE_ABSENT, LIVE_HALF, LIVE_NONE };

struct trial {
    const char *name;
    sop_family family;
    int32_t optional; /* optional operands are there */
    enum live live;
    int32_t odd, alias;
};

/* The first two are the ones for large shapes. */
static const struct trial trials[] = {
    {"normal", SOP_FAMILY_NORMAL, 1, LIVE_ABSENT, 0, 0},
    {"outliers, half live, odd address", SOP_FAMILY_OUTLIERS, 1, LIVE_HALF, 1, 0},
    {"cancelling, nothing optional, odd address, in place", SOP_FAMILY_CANCELLING, 0, LIVE_ABSENT,
     1, 1},
    {"uniform, nothing optional", SOP_FAMILY_UNIFORM, 0, LIVE_ABSENT, 0, 0},
    {"normal, none live", SOP_FAMILY_NORMAL, 1, LIVE_NONE, 0, 0},
    {"uniform, half live, in place", SOP_FAMILY_UNIFORM, 1, LIVE_HALF, 0, 1},
    {"far from zero", SOP_FAMILY_FAR, 1, LIVE_ABSENT, 0, 0},
};

static const double large_flops = 3e7;

/* Memory with canaries: [canary | shift | data | canary]. */
struct guarded {
    unsigned char *base, *data;
    size_t bytes, shift;
    int32_t poison; /* what the canaries hold */
};

struct operand {
    sop_tensor view; /* ndim 0: absent */
    struct guarded mem;
    unsigned char *before, *first; /* its bytes before a run; after the first run (outputs) */
    double *value, *bound;         /* [n], outputs; bound < 0: not addressed */
    int64_t n;
    int32_t out, owner; /* owner: the operand whose memory it uses, itself unless in place */
};

/* One trial of one desc. */
struct setup {
    sop_checker *checker;
    const sop_op *op;
    const void *desc;
    const struct trial *trial;
    struct operand operands[SOP_MOST_ROLES];
    sop_operand args[SOP_MOST_ROLES];
    struct guarded packed[SOP_MOST_ROLES]; /* weights in the layout of the row that runs */
    int64_t live;                          /* -1: absent */
    int32_t live_role;                     /* -1: none */
    int32_t same_index;                    /* index operands do not depend on live */
    int64_t judged;                        /* traits the values are for, -1: none yet */
};

/* ---- memory ---- */

static size_t whole(const struct guarded *g)
{
    return CANARY + g->shift + g->bytes + CANARY;
}

static sop_status guarded_new(struct guarded *g, size_t bytes, size_t shift, int32_t poison)
{
    void *base;
    const size_t all = CANARY + shift + bytes + CANARY;
    if (posix_memalign(&base, 64, all ? all : 1) != 0)
        return sop_fail(SOP_E_NOMEM, "check: an operand of %zu bytes", bytes);
    *g = (struct guarded){base, (unsigned char *)base + CANARY + shift, bytes, shift, poison};
    sop_poison(base, all, poison);
    return SOP_OK;
}

/* Whether the bytes around the data are as they were made. */
static int32_t guarded_intact(const struct guarded *g)
{
    const size_t head = CANARY + g->shift, all = whole(g);
    for (size_t i = 0; i < all; i++) {
        if (i == head) i += g->bytes;
        if (i < all && g->base[i] != (unsigned char)(g->poison >> 8 * (i & 1))) return 0;
    }
    return 1;
}

static void operand_finish(struct operand *o)
{
    free(o->mem.base);
    free(o->before);
    free(o->first);
    free(o->value);
    free(o->bound);
}

static void setup_finish(struct setup *s)
{
    for (int32_t r = 0; r < s->op->n_roles; r++) operand_finish(&s->operands[r]);
}

static struct operand *owner(struct setup *s, int32_t role)
{
    return &s->operands[s->operands[role].owner];
}

/* ---- operands ---- */

static int32_t same_view(const sop_tensor *a, const sop_tensor *s)
{
    return a->dtype == s->dtype && a->ndim == s->ndim && a->ndim > 0 &&
           memcmp(a->shape, s->shape, sizeof a->shape) == 0 &&
           memcmp(a->stride, s->stride, sizeof a->stride) == 0;
}

/* How many rows live may say; see harness.h. */
static int64_t live_most(const struct setup *s)
{
    int64_t most = -1;
    for (int32_t r = 0; r < s->op->n_roles; r++) {
        const sop_tensor *v = &s->operands[r].view;
        if ((s->op->roles[r].flags & SOP_ROLE_INDEX) && v->ndim > 0 &&
            (most < 0 || v->shape[0] < most))
            most = v->shape[0];
    }
    return most < 0 ? s->operands[0].view.shape[0] : most;
}

static void unwrite(struct operand *o)
{
    const uint64_t held = sop_unwritten(o->view.dtype);
    const size_t element = sop_dtype_bytes(o->view.dtype);
    for (size_t i = 0; element <= sizeof held && i + element <= o->view.bytes; i += element)
        memcpy(o->mem.data + i, &held, element);
}

static sop_status operand_new(struct setup *s, int32_t role)
{
    struct operand *o = &s->operands[role];
    const uint32_t flags = s->op->roles[role].flags;
    const int32_t alias = s->op->roles[role].alias;
    o->out = (flags & (SOP_ROLE_OUT | SOP_ROLE_PARTIAL)) != 0;
    o->owner = role;
    if (s->trial->alias && o->out && alias >= 0 && same_view(&o->view, &s->operands[alias].view)) {
        o->owner = alias;
        o->view.data = s->operands[alias].mem.data;
    } else {
        const size_t element = sop_dtype_bytes(o->view.dtype);
        /* blocks are aligned in files, and bytes may stand for structs */
        const int32_t may = sop_dtype_block(o->view.dtype) == 1 && element > 1;
        SOP_TRY(guarded_new(&o->mem, o->view.bytes, s->trial->odd && may ? element : 0,
                            o->out ? SOP_POISON_OUT : SOP_POISON));
        o->view.data = o->mem.data;
        if (o->out) unwrite(o);
        o->before = malloc(o->view.bytes + 1);
        if (!o->before) return sop_fail(SOP_E_NOMEM, "check: a copy of an operand");
    }
    s->args[role] = (sop_operand){o->view.data, o->view.bytes};
    if (!o->out) return SOP_OK;
    o->n = sop_view_blocks(&o->view);
    o->first = malloc(o->view.bytes + 1);
    o->value = malloc((size_t)(o->n + 1) * sizeof *o->value);
    o->bound = malloc((size_t)(o->n + 1) * sizeof *o->bound);
    if (!o->first || !o->value || !o->bound)
        return sop_fail(SOP_E_NOMEM, "check: the values of %lld elements", (long long)o->n);
    return SOP_OK;
}

/* Valid values for the INDEX operands, of a call with this live. */
static void fill_index(struct setup *s, int64_t live)
{
    sop_operand args[SOP_MOST_ROLES];
    memcpy(args, s->args, sizeof args);
    if (s->live_role >= 0 && live < 0) args[s->live_role] = (sop_operand){NULL, 0};
    if (s->op->fill) s->op->fill(s->desc, 1 + (uint64_t)(s->trial - trials), live, args);
}

/* Whether index operands differ from their copies in `before`. */
static int32_t index_differs(const struct setup *s)
{
    for (int32_t r = 0; r < s->op->n_roles; r++) {
        const struct operand *o = &s->operands[r];
        if ((s->op->roles[r].flags & SOP_ROLE_INDEX) && o->view.ndim > 0 &&
            memcmp(o->mem.data, o->before, o->view.bytes) != 0)
            return 1;
    }
    return 0;
}

static void keep(struct setup *s)
{
    for (int32_t r = 0; r < s->op->n_roles; r++) {
        struct operand *o = &s->operands[r];
        if (o->before) memcpy(o->before, o->mem.data, o->view.bytes);
    }
}

static sop_status setup_init(struct setup *s)
{
    const sop_op *op = s->op;
    s->live_role = -1;
    s->live = s->judged = -1;
    for (int32_t r = 0; r < op->n_roles; r++) {
        struct operand *o = &s->operands[r];
        op->view(s->desc, r, &o->view);
        if (op->roles[r].flags & SOP_ROLE_LIVE) s->live_role = r;
        if (!s->trial->optional && r != s->live_role && sop_droppable(op, r)) o->view.ndim = 0;
    }
    if (s->live_role >= 0 && s->trial->live == LIVE_ABSENT) s->operands[s->live_role].view.ndim = 0;
    for (int32_t r = 0; r < op->n_roles; r++) {
        struct operand *o = &s->operands[r];
        if (o->view.ndim == 0) continue;
        SOP_TRY(operand_new(s, r));
        if (!o->out) sop_fill(&o->view, s->trial->family, 1000 * (uint64_t)(r + 1) + 7);
    }
    fill_index(s, -1);
    keep(s);
    if (s->live_role < 0 || s->trial->live == LIVE_ABSENT) return SOP_OK;
    s->live = s->trial->live == LIVE_HALF ? (live_most(s) + 1) / 2 : 0;
    *(int32_t *)s->args[s->live_role].data = (int32_t)s->live;
    fill_index(s, s->live);
    s->same_index = !index_differs(s);
    keep(s);
    return SOP_OK;
}

/* Outputs, and so inputs in place, as they were before a run. */
static void put_back(struct setup *s)
{
    for (int32_t i = 0; i < s->op->n_roles; i++)
        if (s->operands[i].out && s->operands[i].view.ndim > 0)
            memcpy(s->args[i].data, owner(s, i)->before, s->operands[i].view.bytes);
}

/* All memory as it was before any run, after one that was at fault: the next row is not to blame. */
static void mend(struct setup *s)
{
    for (int32_t i = 0; i < s->op->n_roles; i++) {
        const struct operand *o = &s->operands[i];
        if (!o->mem.base) continue;
        sop_poison(o->mem.base, whole(&o->mem), o->mem.poison);
        memcpy(o->mem.data, o->before, o->mem.bytes);
    }
}

/* ---- the truth ---- */

static sop_status judge(struct setup *s, uint32_t traits)
{
    const sop_op *op = s->op;
    const sop_row *ref = &op->rows[op->n_rows - 1];
    double *value[SOP_MOST_ROLES] = {0}, *bound[SOP_MOST_ROLES] = {0};
    if (s->judged == traits) return SOP_OK;
    put_back(s);
    for (int32_t r = 0; r < op->n_roles; r++) {
        struct operand *o = &s->operands[r];
        value[r] = o->value;
        bound[r] = o->bound;
        for (int64_t i = 0; i < o->n; i++) o->bound[i] = -1;
    }
    sop_facts facts;
    sop_split split = {{0}, 0};
    struct guarded scratch = {0};
    s->checker->device[0]->ops->facts(s->checker->device[0], &facts);
    if (ref->plan) SOP_TRY(ref->plan(s->desc, NULL, &facts, SIZE_MAX, &split));
    SOP_TRY(guarded_new(&scratch, split.scratch_bytes, 0, SOP_POISON));
    const sop_call call = {.size = sizeof call,
                           .n_args = (uint32_t)op->n_roles,
                           .desc = s->desc,
                           .args = s->args,
                           .split = &split,
                           .scratch = scratch.data,
                           .queue = s->checker->queue[0]};
    const sop_judge into = {traits, op->n_roles, value, bound};
    const sop_status status = op->reference(&call, &into);
    free(scratch.base);
    if (status == SOP_OK) s->judged = traits;
    return status;
}

/* ---- the verdict ---- */

__attribute__((format(printf, 3, 4))) static void fault(const struct setup *s, sop_check_result *r,
                                                        const char *fmt, ...)
{
    va_list ap;
    if (r->verdict == SOP_CHECK_FAIL) return;
    r->verdict = SOP_CHECK_FAIL;
    const int n = snprintf(r->why, sizeof r->why, "%s: ", s->trial->name);
    va_start(ap, fmt);
    (void)vsnprintf(r->why + n, sizeof r->why - (size_t)n, fmt, ap);
    va_end(ap);
}

/* The least magnitude that rounds to infinity. */
static double overflow_at(int32_t dtype)
{
    switch (dtype) {
    case SOP_F16: return 65520;
    case SOP_BF16: return 0x1.ffp127;
    case SOP_F32: return 0x1.ffffffp127;
    default: return INFINITY;
    }
}

/* error / bound, 0 when the classes agree. */
static double ratio_of(double got, double want, double bound, int32_t dtype)
{
    if (!isfinite(want)) return (isnan(want) ? isnan(got) : got == want) ? 0 : INFINITY;
    if (isinf(got))
        return signbit(got) == signbit(want) && fabs(want) + bound >= overflow_at(dtype) ? 0
                                                                                         : INFINITY;
    const double ratio = fabs(got - want) / bound;
    return isnan(ratio) ? (double)INFINITY : ratio;
}

/* Half the distance of subnormal neighbours. */
static double least_half(int32_t dtype)
{
    return dtype == SOP_F16 ? 0x1p-25 : dtype == SOP_BF16 ? 0x1p-134 : 0x1p-150;
}

/* What a reference may be off: it rounds once, through float32. */
static double rounding(int32_t dtype, double want)
{
    return (1 + 0x1p-9) * sop_unit(dtype) * fabs(want) + 1.5 * least_half(dtype);
}

static int32_t unwritten(const unsigned char *at, int32_t dtype)
{
    const uint64_t poison = sop_unwritten(dtype);
    return dtype != SOP_U8 && memcmp(at, &poison, sop_dtype_bytes(dtype)) == 0;
}

/* Every addressed element against its value; then all other bytes against what they were. Destroys
 * the output. */
static void compare(struct setup *s, const sop_row *row, int32_t role, sop_check_result *r)
{
    const struct operand *o = &s->operands[role], *mem = owner(s, role);
    const char *name = s->op->roles[role].name;
    const size_t element = sop_dtype_bytes(o->view.dtype);
    for (int64_t i = 0; i < o->n; i++) {
        if (o->bound[i] < 0) continue;
        const int64_t at = sop_view_at(&o->view, i);
        unsigned char *data = (unsigned char *)o->view.data + (size_t)at * element;
        const double got = sop_load(o->view.data, o->view.dtype, at), want = o->value[i];
        const double bound = row->traits & SOP_ROW_REFERENCE
                                 ? rounding(o->view.dtype, want)
                                 : o->bound[i] + least_half(o->view.dtype);
        const double ratio = ratio_of(got, want, bound, o->view.dtype);
        if (mem == o && unwritten(data, o->view.dtype))
            fault(s, r, "%s[%lld] was not written", name, (long long)i);
        if (!(ratio <= r->worst)) {
            r->worst = ratio;
            r->role = role;
            r->index = i;
            r->got = got;
            r->want = want;
            r->bound = bound;
        }
        if (!(ratio <= 1))
            fault(s, r, "%s[%lld] is %.9g, must be %.9g within %.3g", name, (long long)i, got, want,
                  bound);
        memcpy(data, mem->before + (size_t)at * element, element);
    }
    if (memcmp(mem->mem.data, mem->before, o->view.bytes) != 0)
        fault(s, r, "%s changed where nothing is to be written", name);
}

static void check_surroundings(struct setup *s, int32_t run, sop_check_result *r)
{
    for (int32_t i = 0; i < s->op->n_roles; i++) {
        const struct operand *o = &s->operands[i];
        const char *name = s->op->roles[i].name;
        int32_t shared = o->out;
        if (!o->mem.base) continue;
        if (!guarded_intact(&o->mem))
            fault(s, r, "%s wrote outside of %s", who(s->checker, run), name);
        for (int32_t k = 0; k < s->op->n_roles; k++)
            shared |= k != i && s->operands[k].owner == i && s->operands[k].out;
        if (!shared && memcmp(o->mem.data, o->before, o->view.bytes) != 0)
            fault(s, r, "%s changed the input %s", who(s->checker, run), name);
    }
}

/* ---- a run ---- */

/* The weights in the row's layout; plain where it has none. */
static sop_status pack(struct setup *s, const sop_row *row, sop_operand *args)
{
    if (!sop_row_packs(row)) return SOP_OK;
    for (int32_t r = 0; r < s->op->n_roles; r++) {
        const struct operand *o = &s->operands[r];
        if (!(s->op->roles[r].flags & SOP_ROLE_WEIGHT) || o->view.ndim == 0) continue;
        const int64_t n = o->view.shape[0], half = n / 2 / 16 * 16;
        const size_t bytes = s->op->packed_bytes(s->desc, r, row->layout);
        SOP_TRY(guarded_new(&s->packed[r], bytes, 0, SOP_POISON));
        /* in two pieces, the later one first: how a loader's threads may do it */
        s->op->pack(s->desc, r, row->layout, o->view.data, s->packed[r].data, half, n);
        s->op->pack(s->desc, r, row->layout, o->view.data, s->packed[r].data, 0, half);
        args[r] = (sop_operand){s->packed[r].data, bytes};
    }
    return SOP_OK;
}

/* Blocks of the host with their copies on a device that does not see it. */
struct copies {
    sop_queue *queue;
    struct {
        const struct guarded *host;
        char *at;
    } of[SOP_MOST_ROLES + 1];
    int32_t n;
};

/* Copies of the blocks, each as far from an address that 256 divides as its original. */
static sop_status copy_in(struct sop_checker *c, const struct guarded *const *blocks, int32_t n,
                          struct copies *out)
{
    const sop_device_ops *ops = c->other_queue->device->ops;
    size_t bytes = 0;
    *out = (struct copies){.queue = c->other_queue, .n = n};
    for (int32_t i = 0; i < n; i++) bytes += whole(blocks[i]) + 512;
    if (bytes > c->slab_bytes) {
        if (c->slab) ops->release(c->other, c->slab, c->slab_bytes);
        c->slab = NULL;
        c->slab_bytes = 0;
        SOP_TRY(ops->reserve(c->other, 2 * bytes, (void **)&c->slab));
        c->slab_bytes = 2 * bytes;
    }
    char *at = c->slab;
    for (int32_t i = 0; i < n; i++) {
        out->of[i].host = blocks[i];
        out->of[i].at = at + (uintptr_t)blocks[i]->base % 256;
        SOP_TRY(
            ops->copy(out->queue, out->of[i].at, blocks[i]->base, whole(blocks[i]), SOP_COPY_IN));
        at += (whole(blocks[i]) + 511) & ~(size_t)255;
    }
    return SOP_OK;
}

static void *copy_of(const struct copies *c, const void *host)
{
    for (int32_t i = 0; i < c->n; i++)
        if (c->of[i].host->data == host) return c->of[i].at + CANARY + c->of[i].host->shift;
    return NULL;
}

static sop_status copy_out(const struct copies *c)
{
    const sop_device_ops *ops = c->queue->device->ops;
    for (int32_t i = 0; i < c->n; i++)
        SOP_TRY(ops->copy(c->queue, c->of[i].host->base, c->of[i].at, whole(c->of[i].host),
                          SOP_COPY_OUT));
    return ops->wait(c->queue);
}

/* On a device that does not see the host: everything goes there, canaries too, and comes back. */
static sop_status run_on_copies(struct setup *s, const sop_row *row, const struct guarded *scratch,
                                sop_call *call)
{
    const sop_device_ops *ops = call->queue->device->ops;
    const struct guarded *blocks[SOP_MOST_ROLES + 1];
    sop_operand args[SOP_MOST_ROLES];
    struct copies copies;
    int32_t n = 0;
    for (int32_t i = 0; i < s->op->n_roles; i++) {
        if (!call->args[i].data || s->operands[i].owner != i) continue;
        blocks[n++] = s->packed[i].base ? &s->packed[i] : &s->operands[i].mem;
    }
    blocks[n++] = scratch;
    SOP_TRY(copy_in(s->checker, blocks, n, &copies));
    for (int32_t i = 0; i < s->op->n_roles; i++)
        args[i] = (sop_operand){copy_of(&copies, call->args[i].data), call->args[i].bytes};
    call->args = args;
    call->scratch = copy_of(&copies, scratch->data);
    SOP_TRY(ops->submit(call->queue, row, call));
    return copy_out(&copies);
}

static void run_once(struct setup *s, const sop_row *row, const sop_operand *args, int32_t run,
                     sop_check_result *r)
{
    sop_checker *c = s->checker;
    sop_device *d = c->other ? c->other : c->device[run];
    sop_facts facts;
    sop_split split = {{0}, 0};
    struct guarded scratch = {0};
    void *prepared = NULL;
    put_back(s);
    d->ops->facts(d, &facts);
    sop_status status = row->plan ? row->plan(s->desc, NULL, &facts, SIZE_MAX, &split) : SOP_OK;
    if (status == SOP_OK) status = guarded_new(&scratch, split.scratch_bytes, 0, SOP_POISON);
    if (status == SOP_OK && row->prepare) status = row->prepare(s->desc, d, &prepared);
    if (status == SOP_OK) {
        sop_call call = {.size = sizeof call,
                         .n_args = (uint32_t)s->op->n_roles,
                         .desc = s->desc,
                         .args = args,
                         .split = &split,
                         .prepared = prepared,
                         .scratch = scratch.data,
                         .queue = c->other ? c->other_queue : c->queue[run]};
        if (d->ops->sees_host(d)) {
            status = d->ops->submit(call.queue, row, &call);
            if (status == SOP_OK) status = d->ops->wait(call.queue);
        } else {
            status = run_on_copies(s, row, &scratch, &call);
        }
    }
    if (row->release && prepared) row->release(prepared);
    if (status != SOP_OK)
        fault(s, r, "%s: %s: %s", who(c, run), sop_status_text(status), sop_last_error());
    else if (!guarded_intact(&scratch))
        fault(s, r, "%s wrote outside of the scratch", who(c, run));
    free(scratch.base);
}

static void same_bits(const struct setup *s, int32_t run, sop_check_result *r)
{
    for (int32_t i = 0; i < s->op->n_roles; i++) {
        const struct operand *o = &s->operands[i];
        if (o->out && o->view.ndim > 0 && memcmp(o->view.data, o->first, o->view.bytes) != 0)
            fault(s, r, "%s differs between %s and %s", s->op->roles[i].name, who(s->checker, 0),
                  who(s->checker, run));
    }
}

/* All rows live: those that were live before must come out the same. Tallies are of all of them. */
static void same_rows(struct setup *s, const sop_row *row, const sop_operand *with_live,
                      sop_check_result *r)
{
    sop_operand args[SOP_MOST_ROLES];
    memcpy(args, with_live, sizeof args);
    args[s->live_role] = (sop_operand){NULL, 0};
    run_once(s, row, args, 0, r);
    check_surroundings(s, 0, r);
    for (int32_t i = 0; i < s->op->n_roles; i++) {
        const struct operand *o = &s->operands[i];
        const size_t element = sop_dtype_bytes(o->view.dtype);
        if (s->op->roles[i].flags & SOP_ROLE_TALLY) continue;
        for (int64_t k = 0; o->out && k < o->n; k++) {
            const size_t at = (size_t)sop_view_at(&o->view, k) * element;
            if (o->bound[k] >= 0 &&
                memcmp((unsigned char *)o->view.data + at, o->first + at, element) != 0)
                fault(s, r, "%s[%lld] depends on how many rows are live", s->op->roles[i].name,
                      (long long)k);
        }
    }
}

static sop_status check_row(struct setup *s, const sop_row *row, sop_check_result *r)
{
    sop_operand args[SOP_MOST_ROLES];
    memcpy(args, s->args, sizeof args);
    memset(s->packed, 0, sizeof s->packed);
    sop_status status = judge(s, row->traits);
    if (status == SOP_OK) status = pack(s, row, args);
    const int32_t n_runs = s->checker->once ? 1 : THREADS;
    for (int32_t d = 0; d < n_runs && status == SOP_OK && r->verdict == SOP_CHECK_PASS; d++) {
        run_once(s, row, args, d, r);
        check_surroundings(s, d, r);
        for (int32_t i = 0; i < s->op->n_roles; i++)
            if (s->packed[i].base && !guarded_intact(&s->packed[i]))
                fault(s, r, "something wrote outside of the packed %s", s->op->roles[i].name);
        if (d > 0) {
            same_bits(s, d, r);
            continue;
        }
        for (int32_t i = 0; i < s->op->n_roles; i++)
            if (s->operands[i].first)
                memcpy(s->operands[i].first, s->operands[i].view.data, s->operands[i].view.bytes);
        for (int32_t i = 0; i < s->op->n_roles; i++)
            if (s->operands[i].first && r->verdict == SOP_CHECK_PASS) compare(s, row, i, r);
    }
    if (status == SOP_OK && r->verdict == SOP_CHECK_PASS && s->live >= 0 && s->same_index &&
        (row->traits & SOP_ROW_INVARIANT))
        same_rows(s, row, args, r);
    for (int32_t i = 0; i < s->op->n_roles; i++) free(s->packed[i].base);
    if (r->verdict == SOP_CHECK_FAIL) mend(s);
    r->trials++;
    return status;
}

/* A whole output without a live count has every element from the reference. */
static sop_status reference_is_whole(const struct setup *s)
{
    for (int32_t r = 0; r < s->op->n_roles; r++) {
        const struct operand *o = &s->operands[r];
        if (s->live >= 0 || s->op->roles[r].flags & SOP_ROLE_PARTIAL) continue;
        for (int64_t i = 0; i < o->n; i++)
            if (o->bound[i] < 0)
                return sop_fail(SOP_E_INTERNAL,
                                "check: %s: the reference leaves %s[%lld] unwritten", s->op->name,
                                s->op->roles[r].name, (long long)i);
    }
    return SOP_OK;
}

static void result_init(const sop_checker *c, sop_check_result *r, const sop_row *row,
                        const void *desc)
{
    char text[64];
    const char *why = sop_row_refusal(c->other ? c->other : c->device[0], row, desc, text);
    *r = (sop_check_result){.verdict = why ? SOP_CHECK_SKIP : SOP_CHECK_PASS};
    (void)snprintf(r->why, sizeof r->why, "%s", why ? why : "");
}

sop_status sop_check(sop_checker *c, const sop_op *op, const sop_row *const *rows, int32_t n_rows,
                     const void *desc, sop_check_result *results)
{
    sop_cost cost;
    if (op->n_roles > SOP_MOST_ROLES || op->desc_bytes > SOP_MOST_DESC_BYTES)
        return sop_fail(SOP_E_LIMIT,
                        "check: %s has %d roles and a desc of %u bytes, at most %d, %d", op->name,
                        op->n_roles, op->desc_bytes, SOP_MOST_ROLES, SOP_MOST_DESC_BYTES);
    for (int32_t i = 0; i < n_rows; i++) result_init(c, &results[i], rows[i], desc);
    op->cost(desc, &cost);
    const int32_t n = cost.flops > large_flops ? 2 : SOP_N(trials);
    for (int32_t t = 0; t < n; t++) {
        struct setup s = {.checker = c, .op = op, .desc = desc, .trial = &trials[t]};
        sop_status status = setup_init(&s);
        for (int32_t i = 0; i < n_rows && status == SOP_OK; i++) {
            if (results[i].verdict != SOP_CHECK_PASS) continue;
            status = check_row(&s, rows[i], &results[i]);
            if (status == SOP_OK) status = reference_is_whole(&s);
        }
        setup_finish(&s);
        SOP_TRY(status);
    }
    return SOP_OK;
}

static sop_status create(sop_device *other, sop_checker **out)
{
    sop_checker *c = calloc(1, sizeof *c);
    sop_status status = SOP_OK;
    *out = NULL;
    if (!c) return sop_fail(SOP_E_NOMEM, "check: a checker");
    c->other = other;
    for (int32_t i = 0; i < THREADS && status == SOP_OK; i++) {
        status = sop_device_cpu(other ? 0 : i + 1, &c->device[i]);
        if (status == SOP_OK) status = c->device[i]->ops->queue_create(c->device[i], &c->queue[i]);
        if (other) break; /* for the reference alone */
    }
    if (status == SOP_OK && other) status = other->ops->queue_create(other, &c->other_queue);
    if (status != SOP_OK) {
        sop_checker_destroy(c);
        return status;
    }
    *out = c;
    return SOP_OK;
}

sop_status sop_checker_create(sop_checker **out)
{
    return create(NULL, out);
}

sop_status sop_checker_create_on(sop_device *d, sop_checker **out)
{
    return create(d, out);
}

void sop_checker_once(sop_checker *c)
{
    c->once = 1;
}

void sop_checker_destroy(sop_checker *c)
{
    if (!c) return;
    for (int32_t i = 0; i < THREADS; i++) {
        if (c->queue[i]) c->device[i]->ops->queue_destroy(c->queue[i]);
        sop_device_destroy(c->device[i]);
    }
    if (c->slab) c->other->ops->release(c->other, c->slab, c->slab_bytes);
    if (c->other_queue) c->other->ops->queue_destroy(c->other_queue);
    free(c);
}
