#include "engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "sop/cuda.h"

struct kept {
    atomic_int holders; /* the table is one */
    uint64_t hash;
    const struct engine *engine;
    const sop_op *op;
    void *key;      /* [desc_bytes] */
    sop_plan *plan; /* or NULL: what follows, chosen while a stream recorded */
    sop_choice choice;
    void *desc;
};

struct engine {
    sop_device *device;
    sop_planner *planner;
    sop_queue *queue; /* of the CPU */
};

enum {
    CUDA_DEVICES = 64,
    /* Shapes that are kept at most; then all go, and come back as they are asked for. 4096 plans are
     * 2 MB. */
    KEPT = 4096,
    PLACES = 2 * KEPT
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine cpu, serial, cuda[CUDA_DEVICES];
static struct kept *table[PLACES];
static int32_t n_kept;
static _Atomic uint64_t n_plugins;

struct job {
    sop_range_fn *fn;
    const void *arg;
};

static void pieces(int64_t begin, int64_t end, void *ctx)
{
    const struct job *job = ctx;
    for (int64_t i = begin; i < end; i++) job->fn(job->arg, i, i + 1, (int32_t)i);
}

/* Parallel loops run on PyTorch's threads: as many as torch.set_num_threads() says. */
static void on_torch(void *ctx, int64_t n, sop_range_fn *fn, const void *arg)
{
    struct job job = {fn, arg};
    (void)ctx;
    if (sop_shim.parallel_for(0, n, 1, pieces, &job) != 0) pieces(0, n, &job);
}

/* Under the lock. */
static sop_status start(struct engine *e, int32_t index)
{
    sop_status status;
    uint32_t threads = 1;
    if (index >= 0) {
        status = sop_device_cuda(index, &e->device);
    } else {
        if (index == SOP_TORCH_CPU) (void)sop_shim.threads(&threads);
        status = sop_device_cpu_on((int32_t)threads, on_torch, NULL, &e->device);
        if (status == SOP_OK) status = e->device->ops->queue_create(e->device, &e->queue);
    }
    if (status == SOP_OK) status = sop_planner_create(e->device, NULL, &e->planner);
    if (status == SOP_OK) return SOP_OK;
    if (e->queue) e->device->ops->queue_destroy(e->queue);
    sop_device_destroy(e->device);
    memset(e, 0, sizeof *e);
    return status;
}

sop_status sop_torch_place(int32_t index, void *stream, struct place *out)
{
    struct engine *e = index == SOP_TORCH_CPU      ? &cpu
                       : index == SOP_TORCH_SERIAL ? &serial
                                                   : &cuda[index % CUDA_DEVICES];
    sop_status status = SOP_OK;
    if (!__atomic_load_n(&e->planner, __ATOMIC_ACQUIRE)) {
        struct engine made = {0};
        (void)pthread_mutex_lock(&lock);
        if (!e->planner) {
            status = start(&made, index);
            if (status == SOP_OK) {
                e->device = made.device;
                e->queue = made.queue;
                __atomic_store_n(&e->planner, made.planner, __ATOMIC_RELEASE);
            }
        }
        (void)pthread_mutex_unlock(&lock);
        if (status != SOP_OK) return status;
    }
    out->engine = e;
    out->recording = 0;
    out->queue = e->queue;
    return index < 0 ? SOP_OK : sop_queue_on(e->device, stream, &out->queue, &out->recording);
}

static uint64_t hash_of(const struct engine *e, const sop_op *op, const void *desc)
{
    uint64_t h = (uint64_t)(uintptr_t)e ^ (uint64_t)(uintptr_t)op << 7, w = 0;
    for (uint32_t i = 0; i < op->desc_bytes; i += 8) {
        const uint32_t n = op->desc_bytes - i < 8 ? op->desc_bytes - i : 8;
        memcpy(&w, (const char *)desc + i, n);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

void sop_torch_hold(struct kept *k)
{
    atomic_fetch_add(&k->holders, 1);
}

void sop_torch_put(struct kept *k)
{
    if (!k || atomic_fetch_sub(&k->holders, 1) != 1) return;
    sop_plan_destroy(k->plan);
    free(k->key);
    free(k->desc);
    free(k);
}

static struct kept **place_of(uint64_t hash, const struct engine *e, const sop_op *op,
                              const void *desc)
{
    for (uint64_t i = hash % PLACES;; i = (i + 1) % PLACES) {
        const struct kept *k = table[i];
        if (!k || (k->hash == hash && k->op == op && k->engine == e &&
                   memcmp(k->key, desc, op->desc_bytes) == 0))
            return &table[i];
    }
}

/* Under the lock, as keep(). */
static void forget(void)
{
    for (int32_t i = 0; i < PLACES; i++) {
        sop_torch_put(table[i]);
        table[i] = NULL;
    }
    n_kept = 0;
}

static void keep(struct kept *k)
{
    if (n_kept == KEPT) forget();
    struct kept **at = place_of(k->hash, k->engine, k->op, k->key);
    if (*at) return; /* another thread was faster */
    *at = k;
    n_kept++;
    atomic_fetch_add(&k->holders, 1);
}

sop_status sop_torch_get(const struct place *p, const sop_op *op, const void *desc,
                         struct kept **out)
{
    const uint64_t hash = hash_of(p->engine, op, desc);
    (void)pthread_mutex_lock(&lock);
    struct kept *k = *place_of(hash, p->engine, op, desc);
    if (k) atomic_fetch_add(&k->holders, 1);
    (void)pthread_mutex_unlock(&lock);
    *out = k;
    if (k) return SOP_OK;
    k = calloc(1, sizeof *k);
    if (k) k->key = malloc(op->desc_bytes);
    if (k) k->desc = malloc(op->desc_bytes);
    if (!k || !k->key || !k->desc) {
        if (k) free(k->key);
        free(k);
        return SOP_E_NOMEM;
    }
    atomic_init(&k->holders, 1);
    k->hash = hash;
    k->engine = p->engine;
    k->op = op;
    memcpy(k->key, desc, op->desc_bytes);
    memcpy(k->desc, desc, op->desc_bytes);
    sop_status status;
    if (p->recording) {
        /* Nothing may be prepared now; the next call outside of a recording finds the better row. */
        op->complete(k->desc);
        status = op->check(k->desc);
        if (status == SOP_OK)
            status = sop_planner_choose(p->engine->planner, op, k->desc, 0, SIZE_MAX, &k->choice);
    } else {
        status = sop_plan_create(p->engine->planner, op, desc, &k->plan);
    }
    if (status != SOP_OK) {
        sop_torch_put(k);
        return status;
    }
    if (!p->recording) {
        (void)pthread_mutex_lock(&lock);
        keep(k);
        (void)pthread_mutex_unlock(&lock);
    }
    *out = k;
    return SOP_OK;
}

sop_status sop_torch_plugin(int32_t index, const char *path)
{
    const int32_t last = index < 0 ? SOP_TORCH_SERIAL : index;
    struct place place;
    /* Python opened the library for itself alone, and a row from outside may call sop_parallel(). */
    (void)dlopen("libsuperop.so.0", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    for (int32_t i = index; i >= last; i--) {
        sop_status status = sop_torch_place(i, NULL, &place);
        if (status == SOP_OK) status = sop_planner_load(place.engine->planner, path);
        if (status != SOP_OK) return status;
    }
    (void)pthread_mutex_lock(&lock);
    forget(); /* what is asked for again is chosen anew */
    atomic_fetch_add(&n_plugins, 1);
    (void)pthread_mutex_unlock(&lock);
    return SOP_OK;
}

uint64_t sop_torch_plugins(void)
{
    return atomic_load_explicit(&n_plugins, memory_order_relaxed);
}

bool sop_torch_planned(const struct kept *k)
{
    return k->plan != NULL;
}

size_t sop_torch_scratch(const struct kept *k)
{
    return k->plan ? sop_plan_scratch(k->plan) : k->choice.split.scratch_bytes;
}

const char *sop_torch_row(const struct kept *k)
{
    return k->plan ? sop_plan_variant(k->plan) : k->choice.row->name;
}

int64_t sop_torch_kept(void)
{
    (void)pthread_mutex_lock(&lock);
    const int64_t n = n_kept;
    (void)pthread_mutex_unlock(&lock);
    return n;
}

sop_status sop_torch_run(const struct kept *k, const struct place *p, const sop_operand *args,
                         void *scratch)
{
    if (k->plan) return sop_plan_run(k->plan, p->queue, args, scratch);
    const sop_call call = {.size = sizeof call,
                           .n_args = (uint32_t)k->op->n_roles,
                           .desc = k->desc,
                           .args = args,
                           .split = &k->choice.split,
                           .prepared = k->choice.prepared,
                           .scratch = scratch,
                           .queue = p->queue};
    return p->queue->device->ops->submit(p->queue, k->choice.row, &call);
}
