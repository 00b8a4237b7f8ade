/* 6 tokens x 16 rows: 12 sums, 2 vectors of weights, one value of x. */
#include <immintrin.h>

#include "ops/linear/panels.h"
#include "ops/simd/vb_avx2.h"

#define SOP_F32X_WIDEST 6
enum { PANELS = 1, KC = 256 };

#include "ops/linear/linear_f32x.h"

sop_status sop_linear_f32x_avx2(const sop_call *call)
{
    return run(call);
}

const char *sop_linear_f32x_refuse(const void *desc)
{
    return sop_panels_refuse(desc);
}

sop_status sop_linear_f32x_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                size_t budget, sop_split *split)
{
    (void)params, (void)facts, (void)budget;
    *split = (sop_split){.scratch_bytes = sop_tiles_bytes(desc) + sop_stage_y_bytes(desc)};
    return SOP_OK;
}
