/* softmax's contract and its variants. */
#include "ops/softmax/softmax.h"

#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_softmax_desc, reserved);

#define AT(member) offsetof(sop_softmax_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"scale", AT(scale), SOP_FIELD_F32, NULL, "factor of x; 1"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_SOFTMAX_ROLES] = {
    [SOP_SOFTMAX_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_SOFTMAX_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_SOFTMAX_Y] = {"y", SOP_ROLE_OUT, SOP_SOFTMAX_X},
};

static void complete(void *desc)
{
    sop_softmax_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
    if (d->scale == 0) d->scale = 1;
}

static sop_status check(const void *desc)
{
    const sop_softmax_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->y_dtype};
    if (d->tokens < 0 || d->dim < 0)
        return sop_fail(SOP_E_SHAPE, "softmax: tokens=%lld dim=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim);
    if (d->x_stride < 0 || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "softmax: x_stride=%lld y_stride=%lld dim=%lld, must be >= 0, dim",
                        (long long)d->x_stride, (long long)d->y_stride, (long long)d->dim);
    if (!isfinite(d->scale))
        return sop_fail(SOP_E_ARG, "softmax: scale=%g, must be finite", (double)d->scale);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "softmax: types %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_softmax_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_SOFTMAX_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_SOFTMAX_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_SOFTMAX_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_SOFTMAX_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_softmax_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    *out = (sop_cost){5 * n, n * (double)sop_dtype_bytes(d->x_dtype),
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_softmax_desc *d = desc;
    return d->x_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_softmax_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_softmax_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "softmax_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_softmax_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "softmax_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_softmax_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "softmax_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_softmax_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "softmax_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_softmax_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "softmax_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_softmax_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=9 y_stride=10",
    "tokens=3 dim=8 scale=0.125",
    "tokens=2 dim=9",
    "tokens=2 dim=31 scale=-2",
    "tokens=5 dim=4097 scale=0.0883883461",
    "tokens=1 dim=49152", /* smollm2's vocabulary */
    "tokens=2 dim=640 x=f16 y=f16",
    "tokens=2 dim=12288 x=bf16 y=bf16",
    "tokens=3 dim=8192 x=bf16 y=bf16", /* each thread has all of its pieces */
    "tokens=2 dim=8200 scale=0.5 x=f16 y=f16",
    "tokens=2 dim=1536 scale=-1 x_stride=1540 y_stride=1544",
    "tokens=3 dim=16 scale=0.5 x=f64 y=f64",
    NULL,
};

const sop_op sop_op_softmax = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_softmax_desc),
    .name = "softmax",
    .formula = "y = exp(z - max z) / sum, z = scale * x",
    .fields = fields,
    .n_fields = SOP_N(fields),
    .roles = roles,
    .n_roles = SOP_N(roles),
    .rows = rows,
    .n_rows = SOP_N(rows),
    .cases = cases,
    .complete = complete,
    .check = check,
    .view = view,
    .fill = fill,
    .reference = sop_softmax_reference,
    .cost = cost,
    .backward = "softmax_grad",
};
