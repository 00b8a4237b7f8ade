/* rmsnorm_grad's contract and its variants. */
#include "ops/rmsnorm_grad/rmsnorm_grad.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_rmsnorm_grad_desc, dx_dtype);

#define AT(member) offsetof(sop_rmsnorm_grad_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "groups in a row that are normalised apart; 1"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "channels of a group"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"x_head", AT(x_head), SOP_FIELD_I64, NULL, "between groups of x"},
    {"dy_stride", AT(dy_stride), SOP_FIELD_I64, NULL, "between tokens of dy"},
    {"dy_head", AT(dy_head), SOP_FIELD_I64, NULL, "between groups of dy"},
    {"dr_stride", AT(dr_stride), SOP_FIELD_I64, NULL, "between tokens of dr"},
    {"dr_head", AT(dr_head), SOP_FIELD_I64, NULL, "between groups of dr"},
    {"dx_stride", AT(dx_stride), SOP_FIELD_I64, NULL, "between tokens of dx"},
    {"dx_head", AT(dx_head), SOP_FIELD_I64, NULL, "between groups of dx"},
    {"eps", AT(eps), SOP_FIELD_F32, NULL, "added to the mean square; 1e-6"},
    {"offset", AT(offset), SOP_FIELD_F32, NULL, "added to w"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"dy", AT(dy_dtype), SOP_FIELD_DTYPE, NULL, "type of dy"},
    {"dr", AT(dr_dtype), SOP_FIELD_DTYPE, NULL, "type of dr"},
    {"dx", AT(dx_dtype), SOP_FIELD_DTYPE, NULL, "type of dx"},
};

static const sop_role roles[SOP_RMSNORM_GRAD_ROLES] = {
    [SOP_RMSNORM_GRAD_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_RMSNORM_GRAD_W] = {"w", SOP_ROLE_IN, -1},
    [SOP_RMSNORM_GRAD_DY] = {"dy", SOP_ROLE_IN, -1},
    [SOP_RMSNORM_GRAD_DR] = {"dr", SOP_ROLE_OPTIONAL, -1},
    [SOP_RMSNORM_GRAD_DX] = {"dx", SOP_ROLE_OUT, -1},
    [SOP_RMSNORM_GRAD_DW] = {"dw", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, -1},
};

static void complete(void *desc)
{
    sop_rmsnorm_grad_desc *d = desc;
    if (!d->heads) d->heads = 1;
    if (!d->x_head) d->x_head = d->dim;
    if (!d->dy_head) d->dy_head = d->dim;
    if (!d->dr_head) d->dr_head = d->dim;
    if (!d->dx_head) d->dx_head = d->dim;
    if (!d->x_stride) d->x_stride = d->heads * d->x_head;
    if (!d->dy_stride) d->dy_stride = d->heads * d->dy_head;
    if (!d->dr_stride) d->dr_stride = d->heads * d->dr_head;
    if (!d->dx_stride) d->dx_stride = d->heads * d->dx_head;
    if (d->eps == 0) d->eps = 1e-6f;
}

static sop_status check(const void *desc)
{
    const sop_rmsnorm_grad_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->dy_dtype, d->dr_dtype, d->dx_dtype};
    if (d->tokens < 0 || d->heads < 1 || d->dim < 1)
        return sop_fail(SOP_E_SHAPE,
                        "rmsnorm_grad: tokens=%lld heads=%lld dim=%lld, must be >= 0, 1, 1",
                        (long long)d->tokens, (long long)d->heads, (long long)d->dim);
    if (d->x_stride < 0 || d->x_head < 0 || d->dy_stride < 0 || d->dy_head < 0 ||
        d->dr_stride < 0 || d->dr_head < 0 || d->dx_head < d->dim ||
        d->dx_stride < d->heads * d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "rmsnorm_grad: dx_stride=%lld dx_head=%lld: rows of dx would overlap, or "
                        "another stride is below 0",
                        (long long)d->dx_stride, (long long)d->dx_head);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "rmsnorm_grad: types %d %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->dy_dtype, d->dr_dtype, d->dx_dtype);
    if (!(d->eps > 0))
        return sop_fail(SOP_E_ARG, "rmsnorm_grad: eps=%g, must be > 0", (double)d->eps);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_rmsnorm_grad_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_RMSNORM_GRAD_X:
        sop_view3(out, d->x_dtype, d->tokens, d->heads, d->dim, d->x_stride, d->x_head);
        break;
    case SOP_RMSNORM_GRAD_DY:
        sop_view3(out, d->dy_dtype, d->tokens, d->heads, d->dim, d->dy_stride, d->dy_head);
        break;
    case SOP_RMSNORM_GRAD_DR:
        sop_view3(out, d->dr_dtype, d->tokens, d->heads, d->dim, d->dr_stride, d->dr_head);
        break;
    case SOP_RMSNORM_GRAD_DX:
        sop_view3(out, d->dx_dtype, d->tokens, d->heads, d->dim, d->dx_stride, d->dx_head);
        break;
    case SOP_RMSNORM_GRAD_W:
    case SOP_RMSNORM_GRAD_DW: sop_view1(out, sop_param_dtype(d->x_dtype), d->dim); break;
    default: break;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_rmsnorm_grad_desc *d = desc;
    const double n = (double)d->tokens * (double)d->heads * (double)d->dim;
    const size_t in = sop_dtype_bytes(d->x_dtype) + sop_dtype_bytes(d->dy_dtype);
    *out = (sop_cost){11 * n, n * (double)in + 4 * (double)d->dim,
                      n * (double)sop_dtype_bytes(d->dx_dtype) + 4 * (double)d->dim};
}

static const char *takes_f32(const void *desc)
{
    const sop_rmsnorm_grad_desc *d = desc;
    return d->x_dtype || d->dy_dtype || d->dr_dtype || d->dx_dtype ? "a type is not f32" : NULL;
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_rmsnorm_grad_desc *)desc)->x_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rmsnorm_grad_wide_sm80", "cuda", SOP_CUDA_SM80, 0,
     .refuse = sop_rmsnorm_grad_wide_refuse, .plan = sop_rmsnorm_grad_wide_plan, .run = sop_rmsnorm_grad_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rmsnorm_grad_cuda", "cuda", 0, 0, .refuse = takes_floats,
     .plan = sop_rmsnorm_grad_cuda_plan, .run = sop_rmsnorm_grad_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_grad_f32_avx2", "c", SOP_CPU_AVX2, 0,
     .refuse = takes_f32,
     .plan = sop_rmsnorm_grad_plan, .run = sop_rmsnorm_grad_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_grad_f32_c", "c", 0, 0, .refuse = takes_f32,
     .plan = sop_rmsnorm_grad_plan, .run = sop_rmsnorm_grad_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_grad_ref", "c", 0, SOP_ROW_REFERENCE,
     .refuse = takes_all, .plan = sop_rmsnorm_grad_plan, .run = sop_rmsnorm_grad_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=20 dy_stride=9 dr_stride=10 dx_stride=17",
    "tokens=3 dim=8 offset=1",
    "tokens=65 dim=9 eps=1e-5",
    "tokens=2 dim=15 dy_stride=0",
    "tokens=3 heads=5 dim=64",
    "tokens=7 heads=3 dim=33 x_head=40 dy_head=34 dr_head=35 dx_head=36 dx_stride=120",
    "tokens=300 dim=40",
    "tokens=130 heads=14 dim=64 x=bf16 dy=bf16 dr=bf16 dx=bf16", /* q of qwen2.5 0.5B */
    "tokens=17 dim=896",
    "tokens=3 dim=640 offset=1 x=bf16 dy=bf16 dr=bf16 dx=bf16", /* gemma3 270M */
    "tokens=5 dim=2560",
    "tokens=2 dim=2561",
    "tokens=4 dim=4096 x=bf16 dy=bf16 dr=bf16 dx=bf16",
    "tokens=70 dim=1000 x=f16 dy=f16 dr=f16 dx=f16",
    "tokens=2 dim=33 x=f16 dy=bf16 dr=f32 dx=bf16",
    "tokens=2 dim=8192 x=bf16 dy=bf16 dr=bf16 dx=bf16",
    "tokens=3 heads=2 dim=16 offset=1 x=f64 dy=f64 dr=f64 dx=f64",
    NULL,
};

const sop_op sop_op_rmsnorm_grad = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_rmsnorm_grad_desc),
    .name = "rmsnorm_grad",
    .formula = "dx = c (g - x c mean(g x c)) + dr, g = (offset + w) dy; dw = sum of dy x c",
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
    .reference = sop_rmsnorm_grad_reference,
    .cost = cost,
};
