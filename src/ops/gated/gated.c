/* gated's contract and its variants. */
#include "ops/gated/gated.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_gated_desc, reserved);

#define AT(member) offsetof(sop_gated_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row of y"},
    {"up", AT(up), SOP_FIELD_I64, NULL, "where the second half of x starts; dim"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"act", AT(act), SOP_FIELD_WORD, "silu|gelu_tanh|gelu", "activation of the first half"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_GATED_ROLES] = {
    [SOP_GATED_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_GATED_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_GATED_Y] = {"y", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_gated_desc *d = desc;
    if (!d->up) d->up = d->dim;
    if (!d->x_stride) d->x_stride = d->up + d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_gated_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->y_dtype};
    if (d->tokens < 0 || d->dim < 0 || d->up < d->dim)
        return sop_fail(SOP_E_SHAPE, "gated: tokens=%lld dim=%lld up=%lld, must be >= 0, 0, dim",
                        (long long)d->tokens, (long long)d->dim, (long long)d->up);
    if (d->x_stride < 0 || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "gated: x_stride=%lld y_stride=%lld dim=%lld, must be >= 0, dim",
                        (long long)d->x_stride, (long long)d->y_stride, (long long)d->dim);
    if (d->act < SOP_ACT_SILU || d->act > SOP_ACT_GELU)
        return sop_fail(SOP_E_ARG, "gated: act=%d, must be 0 to 2", d->act);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "gated: types %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_gated_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_GATED_X: /* its two halves, up apart */
        sop_view3(out, d->x_dtype, d->tokens, 2, d->dim, d->x_stride, d->up);
        break;
    case SOP_GATED_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_GATED_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_GATED_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_gated_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    /* 4 a formula: exp counts as one */
    *out = (sop_cost){4 * n, 2 * n * (double)sop_dtype_bytes(d->x_dtype),
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_gated_desc *d = desc;
    return d->x_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_gated_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_gated_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "gated_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_gated_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "gated_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_gated_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_gated_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_gated_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_gated_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 up=10 x_stride=19 y_stride=9",
    "tokens=3 dim=8 act=gelu_tanh",
    "tokens=2 dim=9 act=gelu",
    "tokens=2 dim=520 act=gelu_tanh up=530",
    "tokens=1 dim=1536",               /* smollm2 */
    "tokens=3 dim=4864",               /* qwen2.5 0.5B */
    "tokens=5 dim=2048 act=gelu_tanh", /* gemma3 270M */
    "tokens=4 dim=1000 act=gelu",
    "tokens=2 dim=640 x=f16 y=f16",
    "tokens=3 dim=8200 up=8208 x_stride=16416 x=bf16 y=bf16", /* pieces over three blocks */
    "tokens=2 dim=640 x=bf16 y=bf16 act=gelu_tanh",
    "tokens=3 dim=16 act=gelu x=f64 y=f64",
    NULL,
};

const sop_op sop_op_gated = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_gated_desc),
    .name = "gated",
    .formula = "y[t,i] = act(x[t,i]) * x[t,up+i]",
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
    .reference = sop_gated_reference,
    .cost = cost,
    .backward = "gated_grad",
};
