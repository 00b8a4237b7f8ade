/* 12 tokens x 32 rows: 24 sums, 2 vectors of weights. */
#include <immintrin.h>

#include "ops/linear/panels.h"
#include "ops/simd/vb_avx512.h"

#define SOP_F32X_WIDEST 12
enum { PANELS = 2, KC = 256 };

#include "ops/linear/linear_f32x.h"

sop_status sop_linear_f32x_avx512(const sop_call *call)
{
    return run(call);
}
