/* base/status.h: the inside of sop/status.h. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include "sop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keeps the sentence for sop_last_error() and returns s, so a check is one statement. */
__attribute__((format(printf, 2, 3))) sop_status sop_fail(sop_status s, const char *fmt, ...);

#ifdef __clang_analyzer__ /* it sees one file at a time: here it learns that s comes back */
#define sop_fail(s, ...) ((void)sop_fail(s, __VA_ARGS__), (s))
#endif

/* Hands a failure on unchanged: its sentence was written where it happened. */
#define SOP_TRY(expr) \
    do { \
        const sop_status try_ = (expr); \
        if (try_ != SOP_OK) return try_; \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
