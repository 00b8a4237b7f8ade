#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 50 us of spinning before a thread sleeps: longer than the gap between two operators of a
 * decode step, short enough that an idle process costs nothing. */
enum { SPINS = 20000 };

struct worker {
    sop_pool *pool;
    pthread_t thread;
    int32_t id;
};

struct sop_pool {
    _Alignas(64) atomic_uint go;     /* grows with every loop; what sleepers wait on */
    _Alignas(64) atomic_uint inside; /* workers that look at the loop, or work on it */
    _Alignas(64) atomic_uint open;   /* whether a loop may be joined */
    _Alignas(64) atomic_long next;   /* first piece not yet taken */
    _Alignas(64) atomic_flag busy;
    sop_pool_fn *fn;
    const void *arg;
    int64_t n, grain;
    sop_pool_foreign *foreign;
    void *foreign_ctx;
    atomic_uint sleepers;
    atomic_bool stop;
    int32_t threads, started;
    struct worker worker[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(atomic_uint *at, unsigned seen)
{
    (void)syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *at)
{
    (void)syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static void take_pieces(sop_pool *p, int32_t id)
{
    for (;;) {
        const int64_t begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (begin >= p->n) return;
        const int64_t end = begin + p->grain < p->n ? begin + p->grain : p->n;
        p->fn(p->arg, begin, end, id);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    sop_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        unsigned now;
        int spins = 0;
        while ((now = atomic_load_explicit(&p->go, memory_order_acquire)) == seen) {
            relax();
            if (++spins < SPINS) continue;
            atomic_fetch_add(&p->sleepers, 1);
            if (atomic_load(&p->go) == seen) futex_wait(&p->go, seen);
            atomic_fetch_sub(&p->sleepers, 1);
            spins = 0;
        }
        seen = now;
        if (p->stop) return NULL;
        /* First inside, then a look whether the loop is open: the caller closes it, then looks who
         * is inside. One of the two sees the other. */
        atomic_fetch_add(&p->inside, 1);
        if (atomic_load(&p->open)) take_pieces(p, w->id);
        atomic_fetch_sub_explicit(&p->inside, 1, memory_order_release);
    }
}

static sop_pool *pool_new(int32_t threads)
{
    sop_pool *p = NULL;
    const size_t bytes = sizeof *p + (size_t)threads * sizeof p->worker[0];
    p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!p) return NULL;
    *p = (sop_pool){.threads = threads, .busy = ATOMIC_FLAG_INIT};
    return p;
}

sop_status sop_pool_create(int32_t threads, sop_pool **out)
{
    *out = NULL;
    if (threads < 1 || threads > 1024)
        return sop_fail(SOP_E_ARG, "pool: %d threads, must be 1 to 1024", threads);
    sop_pool *p = pool_new(threads);
    if (!p) return sop_fail(SOP_E_NOMEM, "pool: a pool of %d threads", threads);
    for (int32_t i = 1; i < threads; i++) {
        p->worker[i] = (struct worker){.pool = p, .id = i};
        if (pthread_create(&p->worker[i].thread, NULL, work, &p->worker[i]) != 0) {
            sop_pool_destroy(p);
            return sop_fail(SOP_E_NOMEM, "pool: thread %d of %d did not start", i + 1, threads);
        }
        p->started++;
    }
    *out = p;
    return SOP_OK;
}

sop_status sop_pool_create_on(int32_t threads, sop_pool_foreign *run, void *ctx, sop_pool **out)
{
    *out = NULL;
    if (threads < 1) return sop_fail(SOP_E_ARG, "pool: %d threads, must be >= 1", threads);
    sop_pool *p = pool_new(threads);
    if (!p) return sop_fail(SOP_E_NOMEM, "pool: a pool of %d threads", threads);
    p->foreign = run;
    p->foreign_ctx = ctx;
    *out = p;
    return SOP_OK;
}

void sop_pool_destroy(sop_pool *p)
{
    if (!p) return;
    if (p->started) {
        p->stop = true;
        atomic_fetch_add(&p->go, 1);
        futex_wake(&p->go);
        for (int32_t i = 1; i <= p->started; i++) (void)pthread_join(p->worker[i].thread, NULL);
    }
    free(p);
}

int32_t sop_pool_threads(const sop_pool *p)
{
    return p->threads;
}

static void foreign_piece(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    (void)end, (void)worker;
    take_pieces(*(sop_pool *const *)arg, (int32_t)begin);
}

void sop_pool_run(sop_pool *p, int64_t n, int64_t grain, sop_pool_fn *fn, const void *arg)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->threads == 1 || n <= grain ||
        atomic_flag_test_and_set_explicit(&p->busy, memory_order_acquire)) {
        fn(arg, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (p->foreign) {
        p->foreign(p->foreign_ctx, p->threads, foreign_piece, &p);
    } else {
        atomic_store(&p->open, 1);
        atomic_fetch_add(&p->go, 1);
        if (atomic_load(&p->sleepers)) futex_wake(&p->go);
        take_pieces(p, 0);
        /* A worker that has not come by now is not waited for: on a busy machine it may sleep long. */
        atomic_store(&p->open, 0);
        for (int spins = 0; atomic_load(&p->inside);) {
            relax();
            if (++spins > SPINS) (void)sched_yield(); /* one was put to sleep inside its piece */
        }
    }
    atomic_flag_clear_explicit(&p->busy, memory_order_release);
}

int32_t sop_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}
