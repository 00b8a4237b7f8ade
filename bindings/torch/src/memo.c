#include "memo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* 64 are 110 KB a thread: a model's layers call some 10 operators, with the same shapes in each. */
enum { PLACES = 64 };

static _Thread_local struct sop_torch_memo *table;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;

static void leave(void *p)
{
    struct sop_torch_memo *all = p;
    for (int32_t i = 0; i < PLACES; i++) sop_torch_put(all[i].kept);
    free(all);
}

static void begin(void)
{
    have_key = pthread_key_create(&key, leave) == 0;
}

struct sop_torch_memo *sop_torch_memo_of(const int64_t *word, int32_t n)
{
    uint64_t h = 0;
    if (!table) {
        (void)pthread_once(&once, begin);
        table = have_key ? calloc(PLACES, sizeof *table) : NULL;
        if (!table || pthread_setspecific(key, table) != 0) {
            free(table);
            table = NULL;
            return NULL;
        }
    }
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint64_t)word[i]) * 0x9e3779b97f4a7c15u;
    return &table[h >> 58];
}

bool sop_torch_memo_has(const struct sop_torch_memo *m, const int64_t *word, int32_t n)
{
    return m->n_words == n && m->plugins == sop_torch_plugins() &&
           memcmp(m->word, word, (size_t)n * sizeof *word) == 0;
}

void sop_torch_memo_put(struct sop_torch_memo *m, const int64_t *word, int32_t n, struct kept *kept)
{
    sop_torch_hold(kept);
    sop_torch_put(m->kept);
    m->kept = kept;
    m->plugins = sop_torch_plugins();
    m->n_words = n;
    memcpy(m->word, word, (size_t)n * sizeof *word);
}
