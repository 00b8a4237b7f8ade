/* base/clock.h: the one clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

/* Seconds since some point in the past, never stepped and not slewed (CLOCK_MONOTONIC_RAW). */
double sop_now_s(void);

#endif
