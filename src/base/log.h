/* base/log.h: one line of key=value for whoever looks after the machine.
 *
 *     sop_log(SOP_LOG_WARN, "plan", "op=%s why=\"%s\"", op, why);   ->   warn plan op=linear why="..."
 *
 * SOP_LOG=warn,plan=debug in the environment, read once, says what is shown: a level for all areas,
 * then areas with their own. The levels are off, error, warn (the standard), info, debug. A line that
 * is not shown costs one load and one comparison; its arguments are not evaluated. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SOP_LOG_OFF, SOP_LOG_ERROR, SOP_LOG_WARN, SOP_LOG_INFO, SOP_LOG_DEBUG };

/* NOLINTBEGIN(readability-identifier-naming): used like functions */
#define sop_log(level, area, ...) \
    do { \
        if (sop_log_shows(level, area)) sop_log_line(level, area, __VA_ARGS__); \
    } while (0)

/* The same for an event that repeats: shown the first time for this area and key (a text) in the life
 * of the process. */
#define sop_log_once(level, area, key, ...) \
    do { \
        if (sop_log_shows(level, area) && sop_log_first(area, key)) \
            sop_log_line(level, area, __VA_ARGS__); \
    } while (0)
/* NOLINTEND(readability-identifier-naming) */

/* Gets each line without its end; lines come one at a time, and what the sink itself logs is lost. */
typedef void sop_log_sink_fn(void *ctx, int level, const char *line);
/* NULL: standard error, one write a line. */
void sop_log_sink(sop_log_sink_fn *sink, void *ctx);

/* Replaces what SOP_LOG said. SOP_E_ARG names the word that is no level; then nothing changes. */
sop_status sop_log_filter(const char *text);

/* What the macros are made of. */
extern int sop_log_most; /* no area shows more; SOP_LOG_DEBUG until SOP_LOG was read */
int sop_log_allows(int level, const char *area);
int sop_log_first(const char *area, const char *key);
__attribute__((format(printf, 3, 4))) void sop_log_line(int level, const char *area,
                                                        const char *fmt, ...);

static inline int sop_log_shows(int level, const char *area)
{
    return level <= __atomic_load_n(&sop_log_most, __ATOMIC_RELAXED) && sop_log_allows(level, area);
}

#ifdef __cplusplus
}
#endif

#endif
