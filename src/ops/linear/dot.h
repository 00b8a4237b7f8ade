/* ops/linear/dot.h: sums in 8 parts, which compilers turn into vectors; for portable rows. */
#ifndef OPS_LINEAR_DOT_H
#define OPS_LINEAR_DOT_H

#include <stdint.h>

enum { SOP_DOT_PARTS = 8 };

/* Add the products of n elements to the parts; n is a multiple of 8 but in the last piece of a sum. */
static inline void sop_dot(const float *x, const float *w, int64_t n, float sum[SOP_DOT_PARTS])
{
    int64_t i = 0;
    for (; i + SOP_DOT_PARTS <= n; i += SOP_DOT_PARTS)
        for (int64_t p = 0; p < SOP_DOT_PARTS; p++) sum[p] += x[i + p] * w[i + p];
    for (int64_t p = 0; i + p < n; p++) sum[p] += x[i + p] * w[i + p];
}

static inline float sop_dot_sum(const float s[SOP_DOT_PARTS])
{
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

#endif
