/* base/pool.h: the threads of the process that share one loop at a time.
 *
 * A loop over [0, n) is handed out in pieces of grain from one counter, so a slow core takes fewer.
 * Workers spin for a while after a loop (decode has a loop every few microseconds), then sleep. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdint.h>

#include "base/status.h"

typedef struct sop_pool sop_pool;
typedef void sop_pool_fn(const void *arg, int64_t begin, int64_t end, int32_t worker);
/* A foreign parallel-for: calls fn(arg, i, i + 1, i) for each i < n and returns when all are done. */
typedef void sop_pool_foreign(void *ctx, int64_t n, sop_pool_fn *fn, const void *arg);

/* threads >= 1, the caller of a loop being one of them. */
sop_status sop_pool_create(int32_t threads, sop_pool **out);
sop_status sop_pool_create_on(int32_t threads, sop_pool_foreign *run, void *ctx, sop_pool **out);
void sop_pool_destroy(sop_pool *p);
int32_t sop_pool_threads(const sop_pool *p);

/* Returns when all of [0, n) is done. worker is below sop_pool_threads(). A loop that is started
 * while another runs (from a worker or another thread) runs on its caller alone, as worker 0 of
 * nobody: so scratch by worker belongs to the call, not to the pool. */
void sop_pool_run(sop_pool *p, int64_t n, int64_t grain, sop_pool_fn *fn, const void *arg);

/* Cores this process may use. */
int32_t sop_cores(void);

#endif
