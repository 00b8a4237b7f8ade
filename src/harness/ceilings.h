/* harness/ceilings.h: loops that do nothing but reach a limit of the processor. The room's own. */
#ifndef HARNESS_CEILINGS_H
#define HARNESS_CEILINGS_H

#include <stddef.h>
#include <stdint.h>

#include "harness/harness.h"

typedef struct sop_ceiling_loops {
    void (*read)(const void *p, size_t bytes); /* bytes a multiple of 1024, p 64-byte aligned */
    void (*f32)(int64_t steps);                /* multiply and add */
    void (*i8)(int64_t steps);                 /* multiply and add of bytes into int32 */
    double f32_flops, i8_ops;                  /* of one step */
} sop_ceiling_loops;

extern const sop_ceiling_loops sop_ceiling_loops_avx2;   /* ceilings_avx2.c */
extern const sop_ceiling_loops sop_ceiling_loops_avx512; /* ceilings_avx512.c: with VNNI */

#endif
