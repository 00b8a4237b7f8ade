#include "plan/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { MARKS = 32, ROWS = 1000, VARIANT_TEXT = 64, SOURCE_TEXT = 48, DIR_TEXT = 4096 };

static const char magic[8] = "sopjrnl1";
static const char prefix[] = "running-";

/* The file; 110 kB. */
struct page {
    char magic[sizeof magic];
    int32_t pid;
    int32_t notes_signals; /* whether signal would be set */
    volatile int32_t signal;
    uint32_t n_rows;
    char fingerprint[SOP_FINGERPRINT_TEXT];
    struct {
        _Alignas(64) sop_mark row; /* a cache line for each queue */
    } mark[MARKS];
    struct {
        char variant[VARIANT_TEXT], source[SOURCE_TEXT];
    } row[ROWS];
};

struct sop_journal {
    struct page *page;
    int dir, file; /* -1: the page is memory only */
    char name[48];
    sop_mark spare;
    pthread_mutex_t lock; /* of the rows and of which marks are taken */
    int taken[MARKS];
};

/* ---- signals ---- */

static const int noted[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
enum { N_NOTED = sizeof noted / sizeof *noted };

static pthread_mutex_t handlers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before[N_NOTED];
static int n_noting;
static struct page *watched; /* by the handler */

/* Notes the signal and steps aside: a fault happens again when this returns, a signal that was sent is
 * sent again, and then whoever was there before us gets it. */
static void note(int signal, siginfo_t *info, void *context)
{
    struct page *page = __atomic_load_n(&watched, __ATOMIC_ACQUIRE);
    (void)context;
    if (page && page->pid == getpid()) page->signal = signal;
    for (int i = 0; i < N_NOTED; i++)
        if (noted[i] == signal) (void)sigaction(signal, &before[i], NULL);
    if (info->si_code <= 0) (void)raise(signal);
}

static void start_noting(struct page *page)
{
    struct sigaction ours = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    (void)sigemptyset(&ours.sa_mask);
    (void)pthread_mutex_lock(&handlers_lock);
    if (n_noting++ == 0)
        for (int i = 0; i < N_NOTED; i++) (void)sigaction(noted[i], &ours, &before[i]);
    __atomic_store_n(&watched, page, __ATOMIC_RELEASE);
    (void)pthread_mutex_unlock(&handlers_lock);
}

static void stop_noting(const struct page *page)
{
    struct sigaction now;
    (void)pthread_mutex_lock(&handlers_lock);
    if (watched == page) __atomic_store_n(&watched, NULL, __ATOMIC_RELEASE);
    if (--n_noting == 0)
        for (int i = 0; i < N_NOTED; i++) /* not one that came after us */
            if (sigaction(noted[i], NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
                now.sa_sigaction == note)
                (void)sigaction(noted[i], &before[i], NULL);
    (void)pthread_mutex_unlock(&handlers_lock);
}

/* ---- the file of this process ---- */

/* Open and locked: 1; 0 when the lock belongs to a live process; -1 when the file is gone or no file. */
static int lock_file(int file, struct stat *st)
{
    if (flock(file, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? 0 : -1;
    return fstat(file, st) == 0 && S_ISREG(st->st_mode) && st->st_nlink > 0 ? 1 : -1;
}

/* A file that is ours alone. Between its making and its lock another start may take it for a dead
 * process's and remove it: then the next name. */
static sop_status make_file(sop_journal *j, const char *dir)
{
    struct stat st;
    int error = EAGAIN;
    SOP_TRY(sop_make_dirs(dir));
    j->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->dir < 0) return sop_fail(SOP_E_IO, "%s: %s", dir, strerror(errno));
    for (int try = 0; try < 1000; try++) {
        (void)snprintf(j->name, sizeof j->name, "%s%d-%d", prefix, (int)getpid(), try);
        j->file = openat(j->dir, j->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (j->file < 0) {
            error = errno;
            if (error == EEXIST) continue; /* of an earlier process of this number */
            break;
        }
        if (lock_file(j->file, &st) == 1) {
            /* All blocks now: a full disk must not become a SIGBUS at a mark. */
            error = posix_fallocate(j->file, 0, sizeof *j->page);
            void *page =
                error ? MAP_FAILED
                      : mmap(NULL, sizeof *j->page, PROT_READ | PROT_WRITE, MAP_SHARED, j->file, 0);
            if (page != MAP_FAILED) {
                j->page = page;
                return SOP_OK;
            }
            if (!error) error = errno;
            (void)unlinkat(j->dir, j->name, 0);
            break;
        }
        (void)close(j->file);
        j->file = -1;
    }
    return sop_fail(SOP_E_IO, "%s/%s: %s", dir, j->name, strerror(error));
}

sop_status sop_journal_open(const char *dir, const char *fingerprint, int32_t note_signals,
                            sop_journal **out)
{
    char cache[DIR_TEXT] = "";
    *out = NULL;
    sop_journal *j = calloc(1, sizeof *j);
    if (!j) return sop_fail(SOP_E_NOMEM, "journal: %zu bytes", sizeof *j);
    j->dir = j->file = -1;
    (void)pthread_mutex_init(&j->lock, NULL);
    const int named = dir || sop_cache_dir(cache, sizeof cache) == SOP_OK;
    if (!dir) dir = cache;
    if (!named || make_file(j, dir) != SOP_OK) {
        sop_log_once(SOP_LOG_WARN, "cache", dir,
                     "why=\"%s\" path=\"%s\" now=\"a crash will not be found\" "
                     "setting=\"XDG_CACHE_HOME, a folder that can be written\"",
                     sop_last_error(), dir);
        j->page = aligned_alloc(_Alignof(struct page), sizeof *j->page);
        if (j->page) memset(j->page, 0, sizeof *j->page);
    }
    if (!j->page) {
        sop_journal_close(j);
        return sop_fail(SOP_E_NOMEM, "journal: %zu bytes", sizeof *j->page);
    }
    memcpy(j->page->magic, magic, sizeof magic);
    j->page->pid = getpid();
    (void)snprintf(j->page->fingerprint, sizeof j->page->fingerprint, "%s", fingerprint);
    j->page->notes_signals = note_signals != 0;
    if (note_signals) start_noting(j->page);
    *out = j;
    return SOP_OK;
}

void sop_journal_close(sop_journal *j)
{
    if (!j) return;
    if (j->page && j->page->notes_signals) stop_noting(j->page);
    if (j->page && j->file >= 0) {
        (void)unlinkat(j->dir, j->name, 0);
        (void)munmap(j->page, sizeof *j->page);
    } else {
        free(j->page);
    }
    if (j->file >= 0) (void)close(j->file);
    if (j->dir >= 0) (void)close(j->dir);
    (void)pthread_mutex_destroy(&j->lock);
    free(j);
}

uint32_t sop_journal_row(sop_journal *j, const char *variant, const char *source)
{
    struct page *page = j->page;
    if (strlen(variant) >= VARIANT_TEXT || strlen(source) >= SOURCE_TEXT) return 0;
    (void)pthread_mutex_lock(&j->lock);
    uint32_t i = 0;
    while (i < page->n_rows &&
           (strcmp(page->row[i].variant, variant) != 0 || strcmp(page->row[i].source, source) != 0))
        i++;
    if (i == page->n_rows && i < ROWS) {
        memcpy(page->row[i].variant, variant, strlen(variant) + 1);
        memcpy(page->row[i].source, source, strlen(source) + 1);
        page->n_rows++;
    }
    (void)pthread_mutex_unlock(&j->lock);
    return i < ROWS ? i + 1 : 0;
}

sop_mark *sop_journal_mark(sop_journal *j)
{
    sop_mark *mark = &j->spare;
    (void)pthread_mutex_lock(&j->lock);
    for (int i = 0; i < MARKS && mark == &j->spare; i++)
        if (!j->taken[i]) {
            j->taken[i] = 1;
            mark = &j->page->mark[i].row;
        }
    (void)pthread_mutex_unlock(&j->lock);
    return mark;
}

void sop_journal_unmark(sop_journal *j, sop_mark *mark)
{
    (void)pthread_mutex_lock(&j->lock);
    for (int i = 0; i < MARKS; i++)
        if (mark == &j->page->mark[i].row) {
            sop_mark_clear(mark);
            j->taken[i] = 0;
        }
    (void)pthread_mutex_unlock(&j->lock);
}

/* ---- the files of dead processes ---- */

/* Tells fn of the rows to blame; whether the file has done its work. */
static int judge(const struct page *page, const char *fingerprint, int64_t time, sop_crash_fn *fn,
                 void *ctx, int32_t *told)
{
    int done = 1;
    if (memcmp(page->magic, magic, sizeof magic) != 0) return 1;
    if (page->notes_signals && !page->signal) return 1; /* killed from outside, or it ended well */
    for (int i = 0; i < MARKS; i++) {
        const sop_mark row = page->mark[i].row;
        if (!row || row > ROWS) continue;
        const char *variant = page->row[row - 1].variant, *source = page->row[row - 1].source;
        if (!*variant || !memchr(variant, 0, VARIANT_TEXT) || !memchr(source, 0, SOURCE_TEXT))
            continue;
        if (strncmp(page->fingerprint, fingerprint, sizeof page->fingerprint) != 0)
            return 0; /* for the next start on its own machine */
        const sop_crash crash = {variant, source, page->pid, page->signal, time};
        (*told)++;
        if (fn(ctx, &crash) != SOP_OK) done = 0;
    }
    return done;
}

int32_t sop_journal_recover(const char *dir, const char *fingerprint, sop_crash_fn *fn, void *ctx)
{
    char cache[DIR_TEXT];
    int32_t told = 0;
    struct stat st;
    const struct dirent *entry;
    if (!dir && sop_cache_dir(cache, sizeof cache) != SOP_OK) return 0;
    DIR *folder = opendir(dir ? dir : cache);
    struct page *page = malloc(sizeof *page);
    while (folder && page && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0) continue;
        const int file =
            openat(dirfd(folder), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) continue;
        if (lock_file(file, &st) == 1 &&
            (read(file, page, sizeof *page) != sizeof *page || /* not even made */
             judge(page, fingerprint, st.st_mtime, fn, ctx, &told)))
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        (void)close(file);
    }
    free(page);
    if (folder) (void)closedir(folder);
    return told;
}

sop_status sop_journal_quarantine(void *store, const sop_crash *crash)
{
    char when[32], reason[160];
    struct tm tm;
    const time_t seconds = (time_t)crash->time;
    const char *name = crash->signal > 0 ? sigabbrev_np(crash->signal) : NULL;
    if (!gmtime_r(&seconds, &tm) || !strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm))
        (void)snprintf(when, sizeof when, "second %lld", (long long)crash->time);
    (void)snprintf(reason, sizeof reason, "crashed on %s%s%s, process %d", when,
                   name ? " with SIG" : "", name ? name : "", crash->pid);
    sop_log(SOP_LOG_WARN, "plan", "quarantine row=%s why=\"%s\"", crash->variant, reason);
    SOP_TRY(sop_store_quarantine(store, crash->variant, crash->source, reason));
    if (sop_store_on_disk(store)) return SOP_OK;
    return sop_fail(SOP_E_IO, "%s is in quarantine in memory only",
                    crash->variant); /* tell it again */
}
