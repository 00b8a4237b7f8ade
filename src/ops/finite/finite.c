/* finite's contract and its variants. */
#include "ops/finite/finite.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_finite_desc, allow_neg_inf);

#define AT(member) offsetof(sop_finite_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"allow_neg_inf", AT(allow_neg_inf), SOP_FIELD_I32, NULL, "1: -inf counts as finite"},
};

static const sop_role roles[SOP_FINITE_ROLES] = {
    [SOP_FINITE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_FINITE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_FINITE_COUNT] = {"count", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_finite_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_finite_desc *d = desc;
    if (d->tokens < 0 || d->dim < 0 || d->x_stride < 0)
        return sop_fail(SOP_E_SHAPE, "finite: tokens=%lld dim=%lld x_stride=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim, (long long)d->x_stride);
    if (sop_unit(d->x_dtype) == 0)
        return sop_fail(SOP_E_ARG, "finite: type %d, must be f32, f16 or bf16", d->x_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_finite_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_FINITE_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_FINITE_LIVE:
    case SOP_FINITE_COUNT: sop_view1(out, SOP_I32, 1); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_FINITE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_finite_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    *out = (sop_cost){n, n * (double)sop_dtype_bytes(d->x_dtype), sizeof(int32_t)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_finite_desc *d = desc;
    return d->x_dtype ? "x is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "finite_wide_sm80", "cuda", SOP_CUDA_SM80, 0,
     .refuse = sop_finite_wide_refuse, .run = sop_finite_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "finite_cuda", "cuda", 0, 0,
     .refuse = takes_all, .run = sop_finite_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "finite_f32_avx2", "c", SOP_CPU_AVX2, 0,
     .refuse = takes_f32, .run = sop_finite_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "finite_f32_c", "c", 0, 0,
     .refuse = takes_f32, .run = sop_finite_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "finite_ref", "c", 0, SOP_ROW_REFERENCE,
     .refuse = takes_all, .run = sop_finite_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=9",
    "tokens=3 dim=17 allow_neg_inf=1",
    "tokens=33 dim=896",
    "tokens=9 dim=904 x_stride=912 x=bf16",
    "tokens=9 dim=900 x=f16", /* beyond: rows of no multiple of 16 bytes */
    "tokens=2 dim=640 x=f16",
    "tokens=2 dim=640 x=bf16 allow_neg_inf=1",
    NULL,
};

const sop_op sop_op_finite = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_finite_desc),
    .name = "finite",
    .formula = "count = how many of x are NaN, +inf or -inf",
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
    .reference = sop_finite_reference,
    .cost = cost,
};
