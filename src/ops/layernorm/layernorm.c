/* layernorm's contract and its variants. */
#include "ops/layernorm/layernorm.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_layernorm_desc, y_dtype);

#define AT(member) offsetof(sop_layernorm_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "channels of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"r_stride", AT(r_stride), SOP_FIELD_I64, NULL, "between rows of r"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"eps", AT(eps), SOP_FIELD_F32, NULL, "added to the variance; 1e-5"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"r", AT(r_dtype), SOP_FIELD_DTYPE, NULL, "type of r"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_LAYERNORM_ROLES] = {
    [SOP_LAYERNORM_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_LAYERNORM_R] = {"r", SOP_ROLE_OPTIONAL, -1},
    [SOP_LAYERNORM_W] = {"w", SOP_ROLE_OPTIONAL, -1},
    [SOP_LAYERNORM_B] = {"b", SOP_ROLE_OPTIONAL, -1},
    [SOP_LAYERNORM_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_LAYERNORM_R_OUT] = {"r_out", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, SOP_LAYERNORM_R},
    [SOP_LAYERNORM_Y] = {"y", SOP_ROLE_OUT, SOP_LAYERNORM_X},
};

static void complete(void *desc)
{
    sop_layernorm_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->r_stride) d->r_stride = d->dim;
    if (!d->y_stride) d->y_stride = d->dim;
    if (d->eps == 0) d->eps = 1e-5f;
}

static sop_status check(const void *desc)
{
    const sop_layernorm_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->r_dtype, d->y_dtype};
    if (d->tokens < 0 || d->dim < 1)
        return sop_fail(SOP_E_SHAPE, "layernorm: tokens=%lld dim=%lld, must be >= 0, 1",
                        (long long)d->tokens, (long long)d->dim);
    if (d->x_stride < 0 || d->r_stride < d->dim || d->y_stride < d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "layernorm: x_stride=%lld r_stride=%lld y_stride=%lld dim=%lld, "
                        "must be >= 0, dim, dim",
                        (long long)d->x_stride, (long long)d->r_stride, (long long)d->y_stride,
                        (long long)d->dim);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "layernorm: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->r_dtype, d->y_dtype);
    if (!(d->eps > 0)) return sop_fail(SOP_E_ARG, "layernorm: eps=%g, must be > 0", (double)d->eps);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_layernorm_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_LAYERNORM_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_LAYERNORM_R:
    case SOP_LAYERNORM_R_OUT: sop_view2(out, d->r_dtype, d->tokens, d->dim, d->r_stride); break;
    case SOP_LAYERNORM_W:
    case SOP_LAYERNORM_B: sop_view1(out, sop_param_dtype(d->x_dtype), d->dim); break;
    case SOP_LAYERNORM_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_LAYERNORM_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_LAYERNORM_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_layernorm_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    *out = (sop_cost){7 * n, n * (double)sop_dtype_bytes(d->x_dtype) + 8 * (double)d->dim,
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_layernorm_desc *d = desc;
    return d->x_dtype || d->r_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_layernorm_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_layernorm_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "layernorm_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_layernorm_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "layernorm_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_layernorm_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "layernorm_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_layernorm_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "layernorm_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_layernorm_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "layernorm_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_layernorm_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=20 r_stride=9 y_stride=17",
    "tokens=3 dim=8",
    "tokens=3 dim=9 eps=1e-12",
    "tokens=2 dim=15",
    "tokens=2 dim=17 eps=1",
    "tokens=33 dim=64",
    "tokens=5 dim=768",                 /* GPT-2 */
    "tokens=17 dim=1280 r_stride=1284", /* Whisper large */
    "tokens=2 dim=2561",
    "tokens=2 dim=4096 x=bf16 r=bf16 y=bf16",
    "tokens=3 dim=1000 x=f16 r=f16 y=f16",
    "tokens=2 dim=33 x=f16 r=f32 y=bf16",
    "tokens=3 dim=8 x=bf16 r=bf16 y=bf16 x_stride=16 r_stride=24 y_stride=32",
    "tokens=3 dim=768 x=bf16 y=bf16", /* beside a residual in float32 */
    "tokens=2 dim=1280 y=f16",
    "tokens=2 dim=8192 x=bf16 r=bf16 y=bf16",
    "tokens=2 dim=4104 x=f16 r=f16 y=f16", /* one piece over what goes once a thread */
    "tokens=1 dim=16384",
    "tokens=1 dim=16392 x=bf16 r=bf16 y=bf16", /* beyond: longer than a block holds */
    "tokens=2 dim=64 x=f16 r=bf16 y=f16",      /* beyond: r is of a third type */
    "tokens=3 dim=16 x=f64 r=f64 y=f64",
    NULL,
};

const sop_op sop_op_layernorm = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_layernorm_desc),
    .name = "layernorm",
    .formula = "s = x + r; y = w * (s - mean s) / sqrt(mean((s - mean s)^2) + eps) + b",
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
    .reference = sop_layernorm_reference,
    .cost = cost,
    .backward = "layernorm_grad",
};
