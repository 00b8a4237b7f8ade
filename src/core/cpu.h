/* core/cpu.h: what this machine's processor can run. */
#ifndef CORE_CPU_H
#define CORE_CPU_H

#include "sop/variant.h"

/* SOP_CPU_ bits, probed once. SOP_CPU_MASK in the environment clears some, so that one machine can
 * test every level below its own. */
uint32_t sop_cpu_features(void);

/* Words for a set of bits ("avx2 avx512"), for logs; static memory, "none" for 0. */
const char *sop_cpu_text(uint32_t features);

#endif
