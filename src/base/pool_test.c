#include "base/pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/test.h"

enum { N = 1000 };

typedef struct {
    atomic_int hits[N];
    sop_pool *pool;
    atomic_int worst_worker;
} loop;

static void hit(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    loop *l = *(loop *const *)arg;
    int seen = atomic_load(&l->worst_worker);
    while (worker > seen && !atomic_compare_exchange_weak(&l->worst_worker, &seen, worker))
        continue;
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&l->hits[i], 1);
}

static void nested(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    loop *l = *(loop *const *)arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) sop_pool_run(l->pool, N / 10, 1, hit, &l);
}

static void each_index_runs_once_at_any_grain_and_thread_count(void)
{
    for (int32_t threads = 1; threads <= 4; threads++) {
        sop_pool *p;
        CHECK(sop_pool_create(threads, &p) == SOP_OK);
        for (int64_t grain = 1; grain < 2 * N; grain = grain * 3 + 1) {
            loop *l = calloc(1, sizeof *l);
            sop_pool_run(p, N, grain, hit, &l);
            int bad = 0;
            for (int i = 0; i < N; i++) bad += l->hits[i] != 1;
            CHECK(bad == 0);
            CHECK(l->worst_worker < threads);
            free(l);
        }
        sop_pool_destroy(p);
    }
}

static void a_loop_inside_a_loop_runs_on_its_caller(void)
{
    sop_pool *p;
    CHECK(sop_pool_create(3, &p) == SOP_OK);
    loop *l = calloc(1, sizeof *l);
    l->pool = p;
    sop_pool_run(p, 10, 1, nested, &l);
    int bad = 0;
    for (int i = 0; i < N / 10; i++) bad += l->hits[i] != 10;
    CHECK(bad == 0);
    free(l);
    sop_pool_destroy(p);
}

static void backwards(void *ctx, int64_t n, sop_pool_fn *fn, const void *arg)
{
    (void)ctx;
    for (int64_t i = n; i-- > 0;) fn(arg, i, i + 1, (int32_t)i);
}

static void a_callers_own_parallel_for_serves_too(void)
{
    sop_pool *p;
    CHECK(sop_pool_create_on(3, backwards, NULL, &p) == SOP_OK);
    loop *l = calloc(1, sizeof *l);
    sop_pool_run(p, N, 7, hit, &l);
    int bad = 0;
    for (int i = 0; i < N; i++) bad += l->hits[i] != 1;
    CHECK(bad == 0);
    free(l);
    sop_pool_destroy(p);
}

static void a_thousand_short_loops_neither_hang_nor_miss(void)
{
    sop_pool *p;
    CHECK(sop_pool_create(2, &p) == SOP_OK);
    loop *l = calloc(1, sizeof *l);
    for (int k = 0; k < 1000; k++) sop_pool_run(p, 4, 1, hit, &l);
    CHECK(l->hits[0] == 1000 && l->hits[3] == 1000);
    free(l);
    sop_pool_destroy(p);
}

int main(void)
{
    RUN(each_index_runs_once_at_any_grain_and_thread_count);
    RUN(a_loop_inside_a_loop_runs_on_its_caller);
    RUN(a_callers_own_parallel_for_serves_too);
    RUN(a_thousand_short_loops_neither_hang_nor_miss);
    return test_report();
}
