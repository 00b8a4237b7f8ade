#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

enum { AREAS = 16, AREA_TEXT = 24, LINE = 1024 };

struct filter {
    int level, n;
    struct {
        char name[AREA_TEXT];
        int level;
    } area[AREAS];
    const struct filter *before; /* readers take no lock, so an old one is never freed */
};

static const char *const level_text[] = {"off", "error", "warn", "info", "debug"};
static const struct filter standard = {.level = SOP_LOG_WARN};
static const struct filter *_Atomic current = &standard;
static pthread_once_t environment = PTHREAD_ONCE_INIT;

int sop_log_most = SOP_LOG_DEBUG;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of the sink and of changing the filter */
static sop_log_sink_fn *sink_fn;
static void *sink_ctx;
static _Thread_local int logging;

static int level_of(const char *word, size_t n)
{
    for (int i = 0; i < (int)(sizeof level_text / sizeof *level_text); i++)
        if (strlen(level_text[i]) == n && memcmp(level_text[i], word, n) == 0) return i;
    return -1;
}

/* Returns NULL, or the word of text that is wrong and its length. */
static const char *parse(const char *text, struct filter *f, size_t *bad)
{
    for (;;) {
        const size_t n = strcspn(text, ",");
        const char *equals = memchr(text, '=', n);
        const char *word = equals ? equals + 1 : text;
        const int level = level_of(word, n - (size_t)(word - text));
        const size_t name = equals ? (size_t)(equals - text) : 0;
        *bad = n;
        if (n && (level < 0 || name >= AREA_TEXT || (equals && (!name || f->n == AREAS))))
            return text;
        if (equals) {
            memcpy(f->area[f->n].name, text, name);
            f->area[f->n++].level = level;
        } else if (n) {
            f->level = level;
        }
        if (!text[n]) return NULL;
        text += n + 1;
    }
}

/* The filter belongs to the process from now on. */
static void use(struct filter *f)
{
    int most = f->level;
    for (int i = 0; i < f->n; i++) most = f->area[i].level > most ? f->area[i].level : most;
    (void)pthread_mutex_lock(&lock);
    f->before = atomic_load(&current);
    atomic_store(&current, f);
    __atomic_store_n(&sop_log_most, most, __ATOMIC_RELAXED);
    (void)pthread_mutex_unlock(&lock);
}

static void read_environment(void)
{
    const char *text = getenv("SOP_LOG");
    struct filter *f = calloc(1, sizeof *f);
    size_t bad = 0;
    if (!f) return;
    f->level = SOP_LOG_WARN;
    const char *word = text ? parse(text, f, &bad) : NULL;
    if (word) *f = standard;
    use(f);
    if (word)
        sop_log_line(SOP_LOG_WARN, "log",
                     "SOP_LOG=\"%s\" wrong=\"%.*s\" why=\"off, error, warn, info or debug, and "
                     "area=level, are separated by commas\"",
                     text, (int)bad, word);
}

sop_status sop_log_filter(const char *text)
{
    (void)pthread_once(&environment, read_environment);
    struct filter *f = calloc(1, sizeof *f);
    if (!f) return sop_fail(SOP_E_NOMEM, "log: a filter of %zu bytes", sizeof *f);
    size_t bad;
    f->level = SOP_LOG_WARN;
    const char *word = parse(text, f, &bad);
    if (word) {
        free(f);
        return sop_fail(
            SOP_E_ARG,
            "log: \"%.*s\" is neither a level (off, error, warn, info, debug) nor one of "
            "at most %d area=level",
            (int)bad, word, AREAS);
    }
    use(f);
    return SOP_OK;
}

int sop_log_allows(int level, const char *area)
{
    (void)pthread_once(&environment, read_environment);
    const struct filter *f = atomic_load_explicit(&current, memory_order_acquire);
    for (int i = f->n; i-- > 0;)
        if (strcmp(f->area[i].name, area) == 0) return level <= f->area[i].level;
    return level <= f->level;
}

int sop_log_first(const char *area, const char *key)
{
    enum { SEEN = 1024 };
    static _Atomic uint64_t seen[SEEN];
    const uint64_t h = sop_hash(key, strlen(key), sop_hash(area, strlen(area), 1)) | 1;
    for (size_t i = 0; i < SEEN; i++) {
        _Atomic uint64_t *place = &seen[(h + i) % SEEN];
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(place, &there, h)) return 1;
        if (there == h) return 0;
    }
    return 0; /* a thousand different events were told: enough */
}

void sop_log_sink(sop_log_sink_fn *sink, void *ctx)
{
    (void)pthread_mutex_lock(&lock);
    sink_fn = sink;
    sink_ctx = ctx;
    (void)pthread_mutex_unlock(&lock);
}

void sop_log_line(int level, const char *area, const char *fmt, ...)
{
    if (logging) return;
    const int error = errno;
    char line[LINE + 1];
    const int head = snprintf(line, LINE, "%s %.*s ", level_text[level], AREA_TEXT, area);
    va_list ap;
    va_start(ap, fmt);
    const int body = vsnprintf(line + head, (size_t)(LINE - head), fmt, ap);
    va_end(ap);
    size_t n = strlen(line);
    if (body >= LINE - head) line[n - 3] = line[n - 2] = line[n - 1] = '.';
    for (size_t i = 0; i < n; i++) /* one event is one line, whatever a text in it holds */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    logging = 1;
    (void)pthread_mutex_lock(&lock);
    if (sink_fn) {
        sink_fn(sink_ctx, level, line);
    } else {
        line[n++] = '\n';
        const ssize_t wrote = write(STDERR_FILENO, line, n);
        (void)wrote; /* nobody to tell */
    }
    (void)pthread_mutex_unlock(&lock);
    logging = 0;
    errno = error;
}
