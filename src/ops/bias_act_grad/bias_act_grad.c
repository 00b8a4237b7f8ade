/* bias_act_grad's contract and its variants. */
#include "ops/bias_act_grad/bias_act_grad.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_bias_act_grad_desc, reserved);

#define AT(member) offsetof(sop_bias_act_grad_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"r_stride", AT(r_stride), SOP_FIELD_I64, NULL, "between rows of r"},
    {"dy_stride", AT(dy_stride), SOP_FIELD_I64, NULL, "between rows of dy"},
    {"dx_stride", AT(dx_stride), SOP_FIELD_I64, NULL, "between rows of dx"},
    {"act", AT(act), SOP_FIELD_WORD, "silu|gelu_tanh|gelu|quick_gelu|relu", "the activation"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"r", AT(r_dtype), SOP_FIELD_DTYPE, NULL, "type of r"},
    {"dy", AT(dy_dtype), SOP_FIELD_DTYPE, NULL, "type of dy"},
    {"dx", AT(dx_dtype), SOP_FIELD_DTYPE, NULL, "type of dx"},
};

static const sop_role roles[SOP_BIAS_ACT_GRAD_ROLES] = {
    [SOP_BIAS_ACT_GRAD_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_BIAS_ACT_GRAD_R] = {"r", SOP_ROLE_OPTIONAL, -1},
    [SOP_BIAS_ACT_GRAD_BIAS] = {"bias", SOP_ROLE_OPTIONAL, -1},
    [SOP_BIAS_ACT_GRAD_DY] = {"dy", SOP_ROLE_IN, -1},
    [SOP_BIAS_ACT_GRAD_DX] = {"dx", SOP_ROLE_OUT, -1},
    [SOP_BIAS_ACT_GRAD_DBIAS] = {"dbias", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, -1},
};

static void complete(void *desc)
{
    sop_bias_act_grad_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->r_stride) d->r_stride = d->dim;
    if (!d->dy_stride) d->dy_stride = d->dim;
    if (!d->dx_stride) d->dx_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_bias_act_grad_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->r_dtype, d->dy_dtype, d->dx_dtype};
    if (d->tokens < 0 || d->dim < 0)
        return sop_fail(SOP_E_SHAPE, "bias_act_grad: tokens=%lld dim=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim);
    if (d->x_stride < 0 || d->r_stride < 0 || d->dy_stride < 0 || d->dx_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "bias_act_grad: x_stride=%lld r_stride=%lld dy_stride=%lld dx_stride=%lld "
                        "dim=%lld, must be >= 0, 0, 0, dim",
                        (long long)d->x_stride, (long long)d->r_stride, (long long)d->dy_stride,
                        (long long)d->dx_stride, (long long)d->dim);
    if (d->act < SOP_ACT_SILU || d->act > SOP_ACT_RELU)
        return sop_fail(SOP_E_ARG, "bias_act_grad: act=%d, must be 0 to 4", d->act);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "bias_act_grad: types %d %d %d %d, must be f32, f16 or bf16, "
                        "or all f64",
                        d->x_dtype, d->r_dtype, d->dy_dtype, d->dx_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_bias_act_grad_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_BIAS_ACT_GRAD_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_BIAS_ACT_GRAD_R: sop_view2(out, d->r_dtype, d->tokens, d->dim, d->r_stride); break;
    case SOP_BIAS_ACT_GRAD_DY: sop_view2(out, d->dy_dtype, d->tokens, d->dim, d->dy_stride); break;
    case SOP_BIAS_ACT_GRAD_DX: sop_view2(out, d->dx_dtype, d->tokens, d->dim, d->dx_stride); break;
    case SOP_BIAS_ACT_GRAD_BIAS:
    case SOP_BIAS_ACT_GRAD_DBIAS: sop_view1(out, sop_param_dtype(d->x_dtype), d->dim); break;
    default: break;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_bias_act_grad_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    const size_t in = sop_dtype_bytes(d->x_dtype) + sop_dtype_bytes(d->dy_dtype);
    /* 8 a slope: exp counts as one; two sums, a product */
    *out = (sop_cost){11 * n, n * (double)in + 4 * (double)d->dim,
                      n * (double)sop_dtype_bytes(d->dx_dtype) + 4 * (double)d->dim};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_bias_act_grad_desc *d = desc;
    return d->x_dtype || d->r_dtype || d->dy_dtype || d->dx_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_bias_act_grad_desc *)desc)->x_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "bias_act_grad_wide_sm80", "cuda", SOP_CUDA_SM80, 0,
     .refuse = sop_bias_act_grad_wide_refuse, .plan = sop_bias_act_grad_cuda_plan,
     .run = sop_bias_act_grad_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "bias_act_grad_cuda", "cuda", 0, 0, .refuse = takes_floats,
     .plan = sop_bias_act_grad_cuda_plan, .run = sop_bias_act_grad_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_grad_f32_avx2", "c", SOP_CPU_AVX2, 0,
     .refuse = takes_f32, .run = sop_bias_act_grad_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_grad_f32_c", "c", 0, 0,
     .refuse = takes_f32, .run = sop_bias_act_grad_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "bias_act_grad_ref", "c", 0, SOP_ROW_REFERENCE,
     .refuse = takes_all, .run = sop_bias_act_grad_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1 act=gelu",
    "tokens=3 dim=7 x_stride=9 r_stride=11 dy_stride=10 dx_stride=13 act=quick_gelu",
    "tokens=3 dim=8 act=gelu_tanh",
    "tokens=65 dim=9 act=relu",
    "tokens=33 dim=15 act=silu dy_stride=0",
    "tokens=129 dim=65 act=gelu",
    "tokens=2 dim=513 act=quick_gelu r_stride=0",
    "tokens=17 dim=3072 act=gelu_tanh", /* GPT-2 */
    "tokens=2 dim=5120 act=gelu",       /* Whisper large */
    "tokens=5 dim=4096 act=quick_gelu", /* CLIP ViT-L */
    "tokens=700 dim=40 act=gelu",
    "tokens=130 dim=640 act=quick_gelu x=bf16 r=bf16 dy=bf16 dx=bf16",
    "tokens=65 dim=264 act=gelu x=f16 r=f16 dy=f16 dx=f16 dx_stride=272",
    "tokens=2 dim=4104 act=gelu_tanh x=bf16 r=bf16 dy=bf16 dx=bf16",
    "tokens=3 dim=33 act=gelu_tanh x=bf16 r=f32 dy=f16 dx=f32",
    "tokens=66 dim=72 act=relu x=bf16 r=bf16 dy=bf16 dx=bf16",
    "tokens=3 dim=16 act=gelu x=f64 r=f64 dy=f64 dx=f64",
    NULL,
};

const sop_op sop_op_bias_act_grad = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_bias_act_grad_desc),
    .name = "bias_act_grad",
    .formula = "dx = act'(x + bias + r) * dy; dbias = sum over t of dx",
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
    .reference = sop_bias_act_grad_reference,
    .cost = cost,
};
