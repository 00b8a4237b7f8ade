#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

const char *sop_status_text(sop_status s)
{
    switch (s) {
#define X(name, value, text) \
    case SOP_##name: return text;
        SOP_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *sop_last_error(void)
{
    return last_error;
}

#undef sop_fail
sop_status sop_fail(sop_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return s;
}
