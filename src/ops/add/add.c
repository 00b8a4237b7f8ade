/* add's contract and its variants. */
#include "ops/add/add.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_add_desc, reserved);

#define AT(member) offsetof(sop_add_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"a_stride", AT(a_stride), SOP_FIELD_I64, NULL, "between rows of a"},
    {"b_stride", AT(b_stride), SOP_FIELD_I64, NULL, "between rows of b"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"a", AT(a_dtype), SOP_FIELD_DTYPE, NULL, "type of a"},
    {"b", AT(b_dtype), SOP_FIELD_DTYPE, NULL, "type of b"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_ADD_ROLES] = {
    [SOP_ADD_A] = {"a", SOP_ROLE_IN, -1},
    [SOP_ADD_B] = {"b", SOP_ROLE_IN, -1},
    [SOP_ADD_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_ADD_Y] = {"y", SOP_ROLE_OUT, SOP_ADD_A},
};

static void complete(void *desc)
{
    sop_add_desc *d = desc;
    if (!d->a_stride) d->a_stride = d->dim;
    if (!d->b_stride) d->b_stride = d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_add_desc *d = desc;
    if (d->tokens < 0 || d->dim < 0)
        return sop_fail(SOP_E_SHAPE, "add: tokens=%lld dim=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim);
    if (d->a_stride < 0 || d->b_stride < 0 || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "add: a_stride=%lld b_stride=%lld y_stride=%lld dim=%lld, must be >= 0, 0, "
                        "dim",
                        (long long)d->a_stride, (long long)d->b_stride, (long long)d->y_stride,
                        (long long)d->dim);
    if (sop_unit(d->a_dtype) == 0 || sop_unit(d->b_dtype) == 0 || sop_unit(d->y_dtype) == 0)
        return sop_fail(SOP_E_ARG, "add: types %d %d %d, must be f32, f16 or bf16", d->a_dtype,
                        d->b_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_add_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_ADD_A: sop_view2(out, d->a_dtype, d->tokens, d->dim, d->a_stride); break;
    case SOP_ADD_B: sop_view2(out, d->b_dtype, d->tokens, d->dim, d->b_stride); break;
    case SOP_ADD_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_ADD_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_ADD_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_add_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    const size_t read = sop_dtype_bytes(d->a_dtype) + sop_dtype_bytes(d->b_dtype);
    *out = (sop_cost){n, n * (double)read, n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_add_desc *d = desc;
    return d->a_dtype || d->b_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "add_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = sop_add_wide_refuse, .run = sop_add_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "add_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_add_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "add_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_add_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "add_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_add_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "add_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_add_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 a_stride=9 b_stride=8 y_stride=11",
    "tokens=3 dim=8",
    "tokens=2 dim=9",
    "tokens=1 dim=576",  /* smollm2 */
    "tokens=33 dim=896", /* qwen2.5 0.5B */
    "tokens=2 dim=640 a=f16 b=f16 y=f16",
    "tokens=2 dim=640 a=bf16 b=f32 y=bf16",
    NULL,
};

const sop_op sop_op_add = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_add_desc),
    .name = "add",
    .formula = "y = a + b",
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
    .reference = sop_add_reference,
    .cost = cost,
};
