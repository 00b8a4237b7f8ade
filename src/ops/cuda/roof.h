/* ops/cuda/roof.h: a row under no operator: it does nothing but read, and how fast it does is the roof
 * that all others are held against. */
#ifndef OPS_CUDA_ROOF_H
#define OPS_CUDA_ROOF_H

#include "sop/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What it reads: operand 0. */
typedef struct sop_roof_desc {
    int64_t bytes; /* a multiple of 16 */
} sop_roof_desc;

sop_status sop_roof_run(const sop_call *call);

#ifdef __cplusplus
}
#endif

#endif
