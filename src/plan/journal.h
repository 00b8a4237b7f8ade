/* plan/journal.h: which row was running when a process crashed.
 *
 * Each process has a small file mapped into its memory. Before a row runs, its number is stored
 * there, after it 0: two stores, no system call. The kernel keeps the page when the process dies, so
 * that the next start finds the mark; a lock on the file, which no death can keep, says who is alive.
 *
 * A process that is killed from outside (out of memory, an impatient user) dies inside some row too,
 * and that row is not to blame. So where the process lets us, SIGSEGV, SIGBUS, SIGILL, SIGFPE and
 * SIGABRT are noted in the file on their way to whoever handled them before; a mark without such a
 * note is then no crash. Where it does not let us, any mark is one. */
#ifndef PLAN_JOURNAL_H
#define PLAN_JOURNAL_H

#include <stdint.h>

#include "plan/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_journal sop_journal;
typedef uint32_t sop_mark; /* a place for the row that one queue runs now; 0: none */

/* dir            NULL for sop_cache_dir(); made when it is not there. Where no file can be made the
 *                journal works without one, after one warning
 * fingerprint    as of the store
 * note_signals   handle the signals above, until the last journal that asked for it is closed; they
 *                are noted in the latest
 * out            free it with sop_journal_close()
 *
 * A child made by fork() must not use its parent's journal, and keeps it alive. SOP_E_NOMEM. */
SOP_MUST_USE sop_status sop_journal_open(const char *dir, const char *fingerprint,
                                         int32_t note_signals, sop_journal **out);
void sop_journal_close(sop_journal *j);

/* The number of a row for sop_mark_set(), the same for the same texts; 0, which marks nothing, when
 * the file is full (1,000 rows) or a text is too long (63 bytes of variant, 47 of source). */
uint32_t sop_journal_row(sop_journal *j, const char *variant, const char *source);
/* A place to mark, for one queue; never NULL. When all 32 are taken it is one that nobody reads. */
sop_mark *sop_journal_mark(sop_journal *j);
void sop_journal_unmark(sop_journal *j, sop_mark *mark);

static inline void sop_mark_set(sop_mark *mark, uint32_t row)
{
    *mark = row;
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* before anything that the row does */
}

static inline void sop_mark_clear(sop_mark *mark)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *mark = 0;
}

typedef struct sop_crash {
    const char *variant, *source;
    int32_t pid, signal; /* signal 0: not noted */
    int64_t time;        /* seconds since 1970; the file system's, may be half a minute early */
} sop_crash;
/* Anything but SOP_OK: the crash is told again at the next start. */
typedef sop_status sop_crash_fn(void *ctx, const sop_crash *crash);

/* Read what dead processes of this fingerprint left in dir, tell fn of each row that was marked when
 * one crashed, and remove the files. Safe while others do the same, and while live ones run. Returns
 * how often fn was called. */
int32_t sop_journal_recover(const char *dir, const char *fingerprint, sop_crash_fn *fn, void *ctx);

/* An fn that puts the row into quarantine; ctx is the sop_store. */
sop_status sop_journal_quarantine(void *store, const sop_crash *crash);

#ifdef __cplusplus
}
#endif

#endif
