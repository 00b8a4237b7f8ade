/* combine's contract and its variants. */
#include "ops/combine/combine.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_combine_desc, reserved);

#define AT(member) offsetof(sop_combine_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows of y"},
    {"top", AT(top), SOP_FIELD_I64, NULL, "rows of x for each of them"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"r_stride", AT(r_stride), SOP_FIELD_I64, NULL, "between rows of r"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"r", AT(r_dtype), SOP_FIELD_DTYPE, NULL, "type of r"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_COMBINE_ROLES] = {
    [SOP_COMBINE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_COMBINE_R] = {"r", SOP_ROLE_OPTIONAL, -1},
    [SOP_COMBINE_WEIGHTS] = {"weights", SOP_ROLE_IN, -1},
    [SOP_COMBINE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_COMBINE_Y] = {"y", SOP_ROLE_OUT, SOP_COMBINE_R},
};

static void complete(void *desc)
{
    sop_combine_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->r_stride) d->r_stride = d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_combine_desc *d = desc;
    const int64_t most = INT32_MAX;
    if (d->tokens < 0 || d->dim < 0 || d->tokens > most || d->top < 1 || d->top > most)
        return sop_fail(SOP_E_SHAPE,
                        "combine: tokens=%lld top=%lld dim=%lld, must be 0 to %lld, 1 to %lld, "
                        ">= 0",
                        (long long)d->tokens, (long long)d->top, (long long)d->dim, (long long)most,
                        (long long)most);
    if (d->x_stride < 0 || d->r_stride < 0 || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "combine: x_stride=%lld r_stride=%lld y_stride=%lld dim=%lld, must be "
                        ">= 0, 0, dim",
                        (long long)d->x_stride, (long long)d->r_stride, (long long)d->y_stride,
                        (long long)d->dim);
    if (sop_unit(d->x_dtype) == 0 || sop_unit(d->r_dtype) == 0 || sop_unit(d->y_dtype) == 0)
        return sop_fail(SOP_E_ARG, "combine: types %d %d %d, must be f32, f16 or bf16", d->x_dtype,
                        d->r_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_combine_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_COMBINE_X:
        sop_view3(out, d->x_dtype, d->tokens, d->top, d->dim, d->top * d->x_stride, d->x_stride);
        break;
    case SOP_COMBINE_R: sop_view2(out, d->r_dtype, d->tokens, d->dim, d->r_stride); break;
    case SOP_COMBINE_WEIGHTS: sop_view2(out, SOP_F32, d->tokens, d->top, d->top); break;
    case SOP_COMBINE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_COMBINE_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_COMBINE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_combine_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim, top = (double)d->top;
    *out = (sop_cost){2 * n * top,
                      top * (n * (double)sop_dtype_bytes(d->x_dtype) + 4 * (double)d->tokens),
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_combine_desc *d = desc;
    return d->x_dtype || d->r_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "combine_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = sop_combine_wide_refuse, .run = sop_combine_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "combine_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_combine_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "combine_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_combine_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "combine_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_combine_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "combine_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_combine_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 top=2 dim=64",
    "tokens=2 top=3 dim=0",
    "tokens=1 top=1 dim=1",
    "tokens=3 top=2 dim=7 x_stride=9 r_stride=8 y_stride=11",
    "tokens=3 top=4 dim=8",
    "tokens=2 top=5 dim=9 r_stride=0",
    "tokens=5 top=3 dim=17 x_stride=20",
    "tokens=9 top=4 dim=2048",                      /* Qwen1.5 MoE A2.7B */
    "tokens=3 top=2 dim=4096 x=bf16 y=bf16",        /* Mixtral 8x7B, beside a residual in float32 */
    "tokens=7 top=8 dim=2048 x=bf16 r=bf16 y=bf16", /* OLMoE */
    "tokens=3 top=9 dim=72 x_stride=80 y_stride=88 x=f16 r=f16 y=f16",
    "tokens=3 top=4 dim=40 x=bf16",
    "tokens=2 top=2 dim=4104 x=f16 r=f16", /* three blocks a row */
    "tokens=3 top=2 dim=33 x=f16 r=bf16 y=f32",
    "tokens=3 top=2 dim=32 x=bf16 y=f16", /* beyond: y is of a third type */
    NULL,
};

const sop_op sop_op_combine = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_combine_desc),
    .name = "combine",
    .formula = "y[t] = r[t] + sum over j of weights[t,j] x[t,j]",
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
    .reference = sop_combine_reference,
    .cost = cost,
};
