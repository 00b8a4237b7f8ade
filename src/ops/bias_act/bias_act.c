/* bias_act's contract and its variants. */
#include "ops/bias_act/bias_act.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_bias_act_desc, reserved);

#define AT(member) offsetof(sop_bias_act_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"r_stride", AT(r_stride), SOP_FIELD_I64, NULL, "between rows of r"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"act", AT(act), SOP_FIELD_WORD, "silu|gelu_tanh|gelu|quick_gelu|relu", "the activation"},
    {"residual", AT(residual), SOP_FIELD_WORD, "inside|after", "where r is added"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"r", AT(r_dtype), SOP_FIELD_DTYPE, NULL, "type of r"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_BIAS_ACT_ROLES] = {
    [SOP_BIAS_ACT_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_BIAS_ACT_R] = {"r", SOP_ROLE_OPTIONAL, -1},
    [SOP_BIAS_ACT_BIAS] = {"bias", SOP_ROLE_OPTIONAL, -1},
    [SOP_BIAS_ACT_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_BIAS_ACT_Y] = {"y", SOP_ROLE_OUT, SOP_BIAS_ACT_X},
};

static void complete(void *desc)
{
    sop_bias_act_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->r_stride) d->r_stride = d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_bias_act_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->r_dtype, d->y_dtype};
    if (d->tokens < 0 || d->dim < 0)
        return sop_fail(SOP_E_SHAPE, "bias_act: tokens=%lld dim=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim);
    if (d->x_stride < 0 || d->r_stride < 0 || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "bias_act: x_stride=%lld r_stride=%lld y_stride=%lld dim=%lld, "
                        "must be >= 0, 0, dim",
                        (long long)d->x_stride, (long long)d->r_stride, (long long)d->y_stride,
                        (long long)d->dim);
    if (d->act < SOP_ACT_SILU || d->act > SOP_ACT_RELU)
        return sop_fail(SOP_E_ARG, "bias_act: act=%d, must be 0 to 4", d->act);
    if (d->residual < SOP_RESIDUAL_INSIDE || d->residual > SOP_RESIDUAL_AFTER)
        return sop_fail(SOP_E_ARG, "bias_act: residual=%d, must be 0 or 1", d->residual);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "bias_act: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->r_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_bias_act_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_BIAS_ACT_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_BIAS_ACT_R: sop_view2(out, d->r_dtype, d->tokens, d->dim, d->r_stride); break;
    case SOP_BIAS_ACT_BIAS: sop_view1(out, sop_param_dtype(d->x_dtype), d->dim); break;
    case SOP_BIAS_ACT_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_BIAS_ACT_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_BIAS_ACT_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_bias_act_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    /* 4 an activation: exp counts as one; two sums */
    *out = (sop_cost){6 * n, n * (double)sop_dtype_bytes(d->x_dtype) + 4 * (double)d->dim,
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_bias_act_desc *d = desc;
    return d->x_dtype || d->r_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_bias_act_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_bias_act_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "bias_act_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_bias_act_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "bias_act_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_bias_act_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_bias_act_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_bias_act_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_bias_act_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1 act=gelu",
    "tokens=3 dim=7 x_stride=9 r_stride=11 y_stride=10 act=quick_gelu",
    "tokens=3 dim=8 act=gelu_tanh residual=after",
    "tokens=2 dim=9 act=relu",
    "tokens=2 dim=15 act=relu residual=after",
    "tokens=3 dim=17 act=silu residual=after",
    "tokens=2 dim=511 act=quick_gelu residual=after",
    "tokens=2 dim=513 act=gelu x_stride=514 r_stride=0",
    "tokens=17 dim=3072 act=gelu_tanh", /* GPT-2 */
    "tokens=2 dim=5120 act=gelu",       /* Whisper large */
    "tokens=5 dim=4096 act=quick_gelu", /* CLIP ViT-L */
    "tokens=3 dim=1000 act=gelu residual=after",
    "tokens=2 dim=640 act=quick_gelu x=bf16 r=bf16 y=bf16",
    "tokens=2 dim=640 act=gelu residual=after x=f16 r=f16 y=f16",
    "tokens=3 dim=33 act=gelu_tanh x=bf16 r=f32 y=f16",
    "tokens=5 dim=4104 act=gelu x=bf16 r=f32 y=bf16 y_stride=4112", /* three blocks a row */
    "tokens=3 dim=72 act=gelu_tanh x=f16 r=f16 y=f16 x_stride=80 r_stride=0",
    "tokens=2 dim=264 act=silu x=bf16 r=bf16 y=bf16",
    "tokens=9 dim=1032 act=gelu x=bf16 r=bf16 y=bf16", /* one row over twice four, one piece over a block */
    "tokens=2 dim=8 act=relu x=bf16 r=bf16 y=bf16",
    "tokens=2 dim=16 act=gelu x=bf16 r=f16 y=bf16",           /* beyond: r is of a third type */
    "tokens=2 dim=16 act=gelu x=f16 r=f16 y=f16 x_stride=20", /* beyond: a stride */
    "tokens=3 dim=33 act=relu x=f16 r=bf16 y=f32",
    "tokens=3 dim=16 act=gelu x=f64 r=f64 y=f64",
    NULL,
};

const sop_op sop_op_bias_act = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_bias_act_desc),
    .name = "bias_act",
    .formula = "y = act(x + bias + r), or act(x + bias) + r",
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
    .reference = sop_bias_act_reference,
    .cost = cost,
    .backward = "bias_act_grad",
};
