/* gated_grad's contract and its variants. */
#include "ops/gated_grad/gated_grad.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_gated_grad_desc, dx_dtype);

#define AT(member) offsetof(sop_gated_grad_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row of dy"},
    {"up", AT(up), SOP_FIELD_I64, NULL, "where the second half of x starts; dim"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"dy_stride", AT(dy_stride), SOP_FIELD_I64, NULL, "between rows of dy"},
    {"dgate_stride", AT(dgate_stride), SOP_FIELD_I64, NULL, "between rows of dgate"},
    {"dup_stride", AT(dup_stride), SOP_FIELD_I64, NULL, "between rows of dup"},
    {"act", AT(act), SOP_FIELD_WORD, "silu|gelu_tanh|gelu", "the activation"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"dy", AT(dy_dtype), SOP_FIELD_DTYPE, NULL, "type of dy"},
    {"dx", AT(dx_dtype), SOP_FIELD_DTYPE, NULL, "type of dgate and dup"},
};

static const sop_role roles[SOP_GATED_GRAD_ROLES] = {
    [SOP_GATED_GRAD_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_GATED_GRAD_DY] = {"dy", SOP_ROLE_IN, -1},
    [SOP_GATED_GRAD_DGATE] = {"dgate", SOP_ROLE_OUT, -1},
    [SOP_GATED_GRAD_DUP] = {"dup", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_gated_grad_desc *d = desc;
    if (!d->up) d->up = d->dim;
    if (!d->x_stride) d->x_stride = d->up + d->dim;
    if (!d->dy_stride) d->dy_stride = d->dim;
    if (!d->dgate_stride) d->dgate_stride = d->dim;
    if (!d->dup_stride) d->dup_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_gated_grad_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->dy_dtype, d->dx_dtype};
    if (d->tokens < 0 || d->dim < 0 || d->up < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "gated_grad: tokens=%lld dim=%lld up=%lld, must be >= 0, 0, dim",
                        (long long)d->tokens, (long long)d->dim, (long long)d->up);
    if (d->x_stride < 0 || d->dy_stride < 0 || d->dgate_stride < d->dim || d->dup_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "gated_grad: x_stride=%lld dy_stride=%lld dgate_stride=%lld "
                        "dup_stride=%lld dim=%lld, must be >= 0, 0, dim, dim",
                        (long long)d->x_stride, (long long)d->dy_stride, (long long)d->dgate_stride,
                        (long long)d->dup_stride, (long long)d->dim);
    if (d->act < SOP_ACT_SILU || d->act > SOP_ACT_GELU)
        return sop_fail(SOP_E_ARG, "gated_grad: act=%d, must be 0 to 2", d->act);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "gated_grad: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->dy_dtype, d->dx_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_gated_grad_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_GATED_GRAD_X:
        sop_view2(out, d->x_dtype, d->tokens, d->up + d->dim, d->x_stride);
        break;
    case SOP_GATED_GRAD_DY: sop_view2(out, d->dy_dtype, d->tokens, d->dim, d->dy_stride); break;
    case SOP_GATED_GRAD_DGATE:
        sop_view2(out, d->dx_dtype, d->tokens, d->dim, d->dgate_stride);
        break;
    case SOP_GATED_GRAD_DUP: sop_view2(out, d->dx_dtype, d->tokens, d->dim, d->dup_stride); break;
    default: break;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_gated_grad_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    const size_t in = 2 * sop_dtype_bytes(d->x_dtype) + sop_dtype_bytes(d->dy_dtype);
    *out = (sop_cost){12 * n, n * (double)in, 2 * n * (double)sop_dtype_bytes(d->dx_dtype)};
}

static const char *takes_f32(const void *desc)
{
    const sop_gated_grad_desc *d = desc;
    return d->x_dtype || d->dy_dtype || d->dx_dtype ? "a type is not f32" : NULL;
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_gated_grad_desc *)desc)->x_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "gated_grad_wide_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_INVARIANT, .refuse = sop_gated_grad_wide_refuse, .run = sop_gated_grad_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "gated_grad_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_gated_grad_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_grad_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_gated_grad_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_grad_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_gated_grad_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "gated_grad_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_gated_grad_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 up=10 x_stride=19 dy_stride=8 dgate_stride=9 dup_stride=11",
    "tokens=3 dim=8 act=gelu_tanh",
    "tokens=2 dim=9 act=gelu",
    "tokens=2 dim=520 act=gelu_tanh up=530 dy_stride=0",
    "tokens=3 dim=4864",               /* qwen2.5 0.5B */
    "tokens=5 dim=2048 act=gelu_tanh", /* gemma3 270M */
    "tokens=4 dim=1000 act=gelu",
    "tokens=2 dim=640 x=f16 dy=f16 dx=f16",
    "tokens=3 dim=4104 up=4112 x_stride=8224 x=bf16 dy=bf16 dx=bf16",
    "tokens=2 dim=640 x=bf16 dy=f32 dx=bf16 act=gelu_tanh",
    "tokens=3 dim=16 act=gelu x=f64 dy=f64 dx=f64",
    NULL,
};

const sop_op sop_op_gated_grad = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_gated_grad_desc),
    .name = "gated_grad",
    .formula = "dgate = act'(x[t,i]) * x[t,up+i] * dy; dup = act(x[t,i]) * dy",
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
    .reference = sop_gated_grad_reference,
    .cost = cost,
};
