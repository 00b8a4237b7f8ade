/* softmax_grad's contract and its variants. */
#include "ops/softmax_grad/softmax_grad.h"

#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_softmax_grad_desc, dx_dtype);

#define AT(member) offsetof(sop_softmax_grad_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "elements of a row"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"dy_stride", AT(dy_stride), SOP_FIELD_I64, NULL, "between rows of dy"},
    {"dx_stride", AT(dx_stride), SOP_FIELD_I64, NULL, "between rows of dx"},
    {"scale", AT(scale), SOP_FIELD_F32, NULL, "factor of the forward operator's x; 1"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
    {"dy", AT(dy_dtype), SOP_FIELD_DTYPE, NULL, "type of dy"},
    {"dx", AT(dx_dtype), SOP_FIELD_DTYPE, NULL, "type of dx"},
};

static const sop_role roles[SOP_SOFTMAX_GRAD_ROLES] = {
    [SOP_SOFTMAX_GRAD_Y] = {"y", SOP_ROLE_IN, -1},
    [SOP_SOFTMAX_GRAD_DY] = {"dy", SOP_ROLE_IN, -1},
    [SOP_SOFTMAX_GRAD_DX] = {"dx", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_softmax_grad_desc *d = desc;
    if (!d->y_stride) d->y_stride = d->dim;
    if (!d->dy_stride) d->dy_stride = d->dim;
    if (!d->dx_stride) d->dx_stride = d->dim;
    if (d->scale == 0) d->scale = 1;
}

static sop_status check(const void *desc)
{
    const sop_softmax_grad_desc *d = desc;
    const int32_t types[] = {d->y_dtype, d->dy_dtype, d->dx_dtype};
    if (d->tokens < 0 || d->dim < 0)
        return sop_fail(SOP_E_SHAPE, "softmax_grad: tokens=%lld dim=%lld, must be >= 0",
                        (long long)d->tokens, (long long)d->dim);
    if (d->y_stride < 0 || d->dy_stride < 0 || d->dx_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "softmax_grad: y_stride=%lld dy_stride=%lld dx_stride=%lld dim=%lld, must "
                        "be >= 0, 0, dim",
                        (long long)d->y_stride, (long long)d->dy_stride, (long long)d->dx_stride,
                        (long long)d->dim);
    if (!isfinite(d->scale))
        return sop_fail(SOP_E_ARG, "softmax_grad: scale=%g, must be finite", (double)d->scale);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "softmax_grad: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->y_dtype, d->dy_dtype, d->dx_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_softmax_grad_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_SOFTMAX_GRAD_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    case SOP_SOFTMAX_GRAD_DY: sop_view2(out, d->dy_dtype, d->tokens, d->dim, d->dy_stride); break;
    case SOP_SOFTMAX_GRAD_DX: sop_view2(out, d->dx_dtype, d->tokens, d->dim, d->dx_stride); break;
    default: break;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_softmax_grad_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    const size_t in = sop_dtype_bytes(d->y_dtype) + sop_dtype_bytes(d->dy_dtype);
    *out = (sop_cost){5 * n, n * (double)in, n * (double)sop_dtype_bytes(d->dx_dtype)};
}

static const char *takes_f32(const void *desc)
{
    const sop_softmax_grad_desc *d = desc;
    return d->y_dtype || d->dy_dtype || d->dx_dtype ? "a type is not f32" : NULL;
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_softmax_grad_desc *)desc)->y_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "softmax_grad_wide_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_INVARIANT, .refuse = sop_softmax_grad_wide_refuse, .run = sop_softmax_grad_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "softmax_grad_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_softmax_grad_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "softmax_grad_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_softmax_grad_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "softmax_grad_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_softmax_grad_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 y_stride=9 dy_stride=11 dx_stride=10 scale=0.125",
    "tokens=3 dim=8",
    "tokens=2 dim=9 dy_stride=0",
    "tokens=33 dim=65 scale=-2",
    "tokens=5 dim=4096",
    "tokens=2 dim=4097 scale=0.0883883461",
    "tokens=3 dim=640 y=bf16 dy=bf16 dx=bf16",
    "tokens=2 dim=1000 y=f16 dy=f16 dx=f16 dx_stride=1008",
    "tokens=2 dim=33 y=f32 dy=bf16 dx=f16",
    "tokens=3 dim=16 y=f64 dy=f64 dx=f64 scale=3",
    NULL,
};

const sop_op sop_op_softmax_grad = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_softmax_grad_desc),
    .name = "softmax_grad",
    .formula = "dx = scale * y * (dy - sum of y * dy)",
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
    .reference = sop_softmax_grad_reference,
    .cost = cost,
};
