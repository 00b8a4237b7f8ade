#include "seams/tagged.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/record.h"

/* Bits 48 to 55: no host address of Linux has them, the kernel faults on any that does. */
static const uintptr_t TAG = (uintptr_t)0x5a << 48, TAG_BITS = (uintptr_t)0xff << 48;

void *tagged_on(void *p)
{
    return p ? (void *)((uintptr_t)p | TAG) : NULL; // NOLINT(performance-no-int-to-ptr)
}

void *tagged_off(const void *p)
{
    const uintptr_t a = (uintptr_t)p;
    return (a & TAG_BITS) == TAG ? (void *)(a & ~TAG_BITS)
                                 : NULL; // NOLINT(performance-no-int-to-ptr)
}

struct tagged {
    sop_device base;
    sop_device *cpu;
    sop_planner *planner;
    tagged_counts counts;
    const char *fatal; /* the row that takes it with it */
    atomic_bool lost;
};

/* What the queue's thread does next. */
struct job {
    const sop_row *row; /* NULL: a copy */
    sop_call call;
    void *dst;
    const void *src;
    size_t bytes;
    int32_t direction;
};

enum { JOBS = 4096 };

struct tagged_queue {
    sop_queue base;
    sop_queue *cpu;
    sop_record *recording;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job job[JOBS]; /* a ring */
    uint64_t put, done;
    bool stop;
    sop_status failed;
    char why[256];
};

static struct tagged *the_device; /* the rows have no other way to it */

void tagged_lose(sop_device *d, const char *row)
{
    ((struct tagged *)d)->fatal = row;
    ((struct tagged *)d)->lost = false;
}

static sop_status enter(void)
{
    return the_device->lost ? sop_fail(SOP_E_INTERNAL, "tagged is lost") : SOP_OK;
}

static sop_status do_run(const struct job *j)
{
    if (the_device->fatal && strcmp(j->row->name, the_device->fatal) == 0) {
        the_device->lost = true;
        return sop_fail(SOP_E_DEVICE, "tagged: a fault that stays");
    }
    return j->row->run(&j->call);
}

static sop_status do_copy(const struct job *j)
{
    const bool in = j->direction == SOP_COPY_IN, out = j->direction == SOP_COPY_OUT;
    void *dst = out ? j->dst : tagged_off(j->dst);
    const void *src = in ? j->src : tagged_off(j->src);
    const bool stray = (out && tagged_off(j->dst)) || (in && tagged_off(j->src));
    if (j->bytes && (!dst || !src || stray)) {
        the_device->counts.refused++;
        return sop_fail(SOP_E_DEVICE, "tagged: a copy from %p to %p in direction %d", j->src,
                        j->dst, j->direction);
    }
    if (j->bytes) memmove(dst, src, j->bytes);
    return SOP_OK;
}

static void *work(void *arg)
{
    struct tagged_queue *q = arg;
    (void)pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->done == q->put && !q->stop) (void)pthread_cond_wait(&q->changed, &q->lock);
        if (q->done == q->put) break;
        const struct job j = q->job[q->done % JOBS];
        const bool skip = q->failed != SOP_OK; /* after a fault nothing runs until wait said so */
        (void)pthread_mutex_unlock(&q->lock);
        sop_status status = SOP_OK;
        if (!skip) status = j.row ? do_run(&j) : do_copy(&j);
        (void)pthread_mutex_lock(&q->lock);
        if (status != SOP_OK) {
            q->failed = status;
            (void)strncpy(q->why, sop_last_error(), sizeof q->why - 1);
        }
        q->done++;
        (void)pthread_cond_broadcast(&q->changed);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return NULL;
}

static sop_status push(struct tagged_queue *q, const struct job *j)
{
    (void)pthread_mutex_lock(&q->lock);
    while (q->put - q->done == JOBS) (void)pthread_cond_wait(&q->changed, &q->lock);
    q->job[q->put++ % JOBS] = *j;
    (void)pthread_cond_broadcast(&q->changed);
    (void)pthread_mutex_unlock(&q->lock);
    return SOP_OK;
}

static void destroy(sop_device *d)
{
    the_device = NULL;
    free(d);
}

static void facts(const sop_device *d, sop_facts *out)
{
    const struct tagged *t = (const struct tagged *)d;
    t->cpu->ops->facts(t->cpu, out);
    out->kind = SOP_DEVICE_TEST;
}

static sop_status reserve(sop_device *d, size_t bytes, void **out)
{
    struct tagged *t = (struct tagged *)d;
    SOP_TRY(t->cpu->ops->reserve(t->cpu, bytes, out));
    *out = tagged_on(*out);
    return SOP_OK;
}

static void release(sop_device *d, void *p, size_t bytes)
{
    struct tagged *t = (struct tagged *)d;
    if (p) t->cpu->ops->release(t->cpu, tagged_off(p), bytes);
}

static int32_t sees_host(const sop_device *d)
{
    (void)d;
    return 0;
}

static sop_status queue_create(sop_device *d, sop_queue **out)
{
    struct tagged *t = (struct tagged *)d;
    struct tagged_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q) return sop_fail(SOP_E_NOMEM, "tagged: a queue");
    const sop_status status = t->cpu->ops->queue_create(t->cpu, &q->cpu);
    if (status != SOP_OK) {
        free(q);
        return status;
    }
    q->base.device = d;
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_cond_init(&q->changed, NULL);
    if (pthread_create(&q->thread, NULL, work, q) != 0) abort();
    *out = &q->base;
    return SOP_OK;
}

static void queue_destroy(sop_queue *queue)
{
    struct tagged_queue *q = (struct tagged_queue *)queue;
    if (!q) return;
    (void)pthread_mutex_lock(&q->lock);
    q->stop = true;
    (void)pthread_cond_broadcast(&q->changed);
    (void)pthread_mutex_unlock(&q->lock);
    (void)pthread_join(q->thread, NULL);
    q->base.device = NULL;
    sop_record_destroy(q->recording);
    the_device->cpu->ops->queue_destroy(q->cpu);
    free(q);
}

static sop_status submit(sop_queue *queue, const sop_row *row, const sop_call *call)
{
    struct tagged_queue *q = (struct tagged_queue *)queue;
    SOP_TRY(enter());
    for (uint32_t i = 0; i < call->n_args; i++)
        if (call->args[i].data && !tagged_off(call->args[i].data)) {
            the_device->counts.refused++;
            return sop_fail(SOP_E_DEVICE, "tagged: operand %u of %s is no address of this device",
                            i, row->name);
        }
    if (call->scratch && !tagged_off(call->scratch))
        return sop_fail(SOP_E_DEVICE, "tagged: the scratch of %s is no address of this device",
                        row->name);
    int64_t extent;
    memcpy(&extent, call->desc, sizeof extent); /* comes first in each desc but a span's */
    if (q->recording && extent > the_device->counts.widest) the_device->counts.widest = extent;
    if (q->recording) return sop_record_call(q->recording, row, call);
    the_device->counts.submitted++;
    return push(q, &(struct job){.row = row, .call = *call});
}

static sop_status copy(sop_queue *queue, void *dst, const void *src, size_t bytes,
                       int32_t direction)
{
    struct tagged_queue *q = (struct tagged_queue *)queue;
    SOP_TRY(enter());
    if (q->recording) return sop_record_copy(q->recording, dst, src, bytes, direction);
    the_device->counts.copied++;
    return push(q, &(struct job){.dst = dst, .src = src, .bytes = bytes, .direction = direction});
}

static sop_status wait_all(sop_queue *queue)
{
    struct tagged_queue *q = (struct tagged_queue *)queue;
    (void)pthread_mutex_lock(&q->lock);
    while (q->done != q->put) (void)pthread_cond_wait(&q->changed, &q->lock);
    const sop_status status = q->failed;
    q->failed = SOP_OK;
    (void)pthread_mutex_unlock(&q->lock);
    return status == SOP_OK ? enter() : sop_fail(status, "%s", q->why);
}

static sop_status record_begin(sop_queue *queue)
{
    return sop_record_create(&((struct tagged_queue *)queue)->recording);
}

static sop_status record_end(sop_queue *queue, sop_graph **out)
{
    struct tagged_queue *q = (struct tagged_queue *)queue;
    *out = (sop_graph *)q->recording;
    q->recording = NULL;
    return SOP_OK;
}

static sop_status replay(sop_queue *queue, sop_graph *g)
{
    the_device->counts.replayed++;
    return sop_record_run((sop_record *)g, queue);
}

static void graph_destroy(sop_graph *g)
{
    sop_record_destroy((sop_record *)g);
}

static const sop_device_ops tagged_ops = {
    .size = sizeof tagged_ops,
    .kind = SOP_DEVICE_TEST,
    .name = "tagged",
    .destroy = destroy,
    .facts = facts,
    .reserve = reserve,
    .release = release,
    .sees_host = sees_host,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .submit = submit,
    .copy = copy,
    .wait = wait_all,
    .record_begin = record_begin,
    .record_end = record_end,
    .replay = replay,
    .graph_destroy = graph_destroy,
};

sop_status tagged_create(sop_device *cpu, sop_planner *cpu_planner, sop_device **out)
{
    struct tagged *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return sop_fail(SOP_E_NOMEM, "tagged: a device");
    *t = (struct tagged){.base = {&tagged_ops}, .cpu = cpu, .planner = cpu_planner};
    the_device = t;
    *out = &t->base;
    return SOP_OK;
}

tagged_counts tagged_counted(const sop_device *d)
{
    return ((const struct tagged *)d)->counts;
}

/* The CPU's choice for this op and desc. */
static sop_status cpu_choice(const char *op, const void *desc, sop_choice *c)
{
    return sop_planner_choose(the_device->planner, sop_op_find(op), desc, 0, SIZE_MAX, c);
}

static sop_status run_op(const char *op, const sop_call *call)
{
    sop_operand args[16];
    sop_choice c;
    SOP_TRY(cpu_choice(op, call->desc, &c));
    for (uint32_t i = 0; i < call->n_args; i++)
        args[i] = (sop_operand){tagged_off(call->args[i].data), call->args[i].bytes};
    sop_call inner = *call;
    inner.args = args;
    inner.scratch = tagged_off(call->scratch);
    inner.split = &c.split;
    inner.queue = ((struct tagged_queue *)call->queue)->cpu;
    return c.row->run(&inner);
}

static sop_status plan_op(const char *op, const void *desc, sop_split *split)
{
    sop_choice c;
    SOP_TRY(cpu_choice(op, desc, &c));
    *split = c.split;
    return SOP_OK;
}

/* Rows read weights in the layout that the CPU's own row reads. */
static const char *refuse_layout(const char *op, const void *desc, uint32_t layout)
{
    sop_choice c;
    if (cpu_choice(op, desc, &c) != SOP_OK) return "the CPU has no row";
    const uint32_t wants = c.row->layout ? c.row->layout : SOP_LAYOUT_PLAIN;
    return wants == layout ? NULL : "the CPU's row reads the other layout";
}

#define OP(op) \
    static sop_status run_##op(const sop_call *call) \
    { \
        return run_op(#op, call); \
    } \
    static sop_status plan_##op(const void *desc, const int32_t *params, const sop_facts *f, \
                                size_t budget, sop_split *split) \
    { \
        (void)params, (void)f, (void)budget; \
        return plan_op(#op, desc, split); \
    } \
    static const char *plain_##op(const void *desc) \
    { \
        return refuse_layout(#op, desc, SOP_LAYOUT_PLAIN); \
    } \
    static const sop_row row_##op = {.size = sizeof(sop_row), \
                                     .device = SOP_DEVICE_TEST, \
                                     .name = "tagged:" #op, \
                                     .route = "c", \
                                     .traits = SOP_ROW_INVARIANT, \
                                     .refuse = plain_##op, \
                                     .plan = plan_##op, \
                                     .run = run_##op};
OP(embed)
OP(rmsnorm)
OP(linear)
OP(rope)
OP(kv_append)
OP(attention)
OP(gated)
OP(add)
OP(softmax)
OP(sample)
OP(finite)
OP(advance)
#undef OP

static const char *panels_linear(const void *desc)
{
    return refuse_layout("linear", desc, SOP_LAYOUT_PANEL16);
}

static const sop_row row_linear_panels = {.size = sizeof(sop_row),
                                          .device = SOP_DEVICE_TEST,
                                          .name = "tagged:linear_panels",
                                          .route = "c",
                                          .traits = SOP_ROW_INVARIANT,
                                          .layout = SOP_LAYOUT_PANEL16,
                                          .refuse = panels_linear,
                                          .plan = plan_linear,
                                          .run = run_linear};

sop_status tagged_add_rows(sop_planner *p)
{
    static const struct {
        const char *op;
        const sop_row *row;
    } all[] = {
        {"embed", &row_embed},          {"rmsnorm", &row_rmsnorm}, {"linear", &row_linear},
        {"linear", &row_linear_panels}, {"rope", &row_rope},       {"kv_append", &row_kv_append},
        {"attention", &row_attention},  {"gated", &row_gated},     {"add", &row_add},
        {"softmax", &row_softmax},      {"sample", &row_sample},   {"finite", &row_finite},
        {"advance", &row_advance}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        SOP_TRY(sop_planner_add(p, all[i].op, all[i].row));
    return SOP_OK;
}
