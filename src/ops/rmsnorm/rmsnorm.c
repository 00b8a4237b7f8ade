/* rmsnorm's contract and its variants. */
#include "ops/rmsnorm/rmsnorm.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_rmsnorm_desc, reserved);

#define AT(member) offsetof(sop_rmsnorm_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "groups in a row that are normalised apart; 1"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "channels of a group"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"x_head", AT(x_head), SOP_FIELD_I64, NULL, "between groups of x"},
    {"r_stride", AT(r_stride), SOP_FIELD_I64, NULL, "between tokens of r"},
    {"r_head", AT(r_head), SOP_FIELD_I64, NULL, "between groups of r"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between tokens of y"},
    {"y_head", AT(y_head), SOP_FIELD_I64, NULL, "between groups of y"},
    {"eps", AT(eps), SOP_FIELD_F32, NULL, "added to the mean square"},
    {"offset", AT(offset), SOP_FIELD_F32, NULL, "added to w: 1 for Gemma's 1 + w"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"r", AT(r_dtype), SOP_FIELD_DTYPE, NULL, "type of r"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_RMSNORM_ROLES] = {
    [SOP_RMSNORM_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_RMSNORM_R] = {"r", SOP_ROLE_OPTIONAL, -1},
    [SOP_RMSNORM_W] = {"w", SOP_ROLE_IN, -1},
    [SOP_RMSNORM_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_RMSNORM_R_OUT] = {"r_out", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, SOP_RMSNORM_R},
    [SOP_RMSNORM_Y] = {"y", SOP_ROLE_OUT, SOP_RMSNORM_X},
};

static void complete(void *desc)
{
    sop_rmsnorm_desc *d = desc;
    if (!d->heads) d->heads = 1;
    if (!d->x_head) d->x_head = d->dim;
    if (!d->r_head) d->r_head = d->dim;
    if (!d->y_head) d->y_head = d->dim;
    if (!d->x_stride) d->x_stride = d->heads * d->x_head;
    if (!d->r_stride) d->r_stride = d->heads * d->r_head;
    if (!d->y_stride) d->y_stride = d->heads * d->y_head;
    if (d->eps == 0) d->eps = 1e-6f;
}

static sop_status check(const void *desc)
{
    const sop_rmsnorm_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->r_dtype, d->y_dtype};
    if (d->tokens < 0 || d->heads < 1 || d->dim < 1)
        return sop_fail(SOP_E_SHAPE, "rmsnorm: tokens=%lld heads=%lld dim=%lld, must be >= 0, 1, 1",
                        (long long)d->tokens, (long long)d->heads, (long long)d->dim);
    if (d->x_stride < 0 || d->x_head < 0 || d->r_head < d->dim || d->y_head < d->dim ||
        d->r_stride < d->heads * d->dim || d->y_stride < d->heads * d->dim)
        return sop_fail(SOP_E_SHAPE,
                        "rmsnorm: x_stride=%lld x_head=%lld r_stride=%lld r_head=%lld "
                        "y_stride=%lld y_head=%lld: rows of r or y would overlap",
                        (long long)d->x_stride, (long long)d->x_head, (long long)d->r_stride,
                        (long long)d->r_head, (long long)d->y_stride, (long long)d->y_head);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "rmsnorm: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->x_dtype, d->r_dtype, d->y_dtype);
    if (!(d->eps > 0)) return sop_fail(SOP_E_ARG, "rmsnorm: eps=%g, must be > 0", (double)d->eps);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_rmsnorm_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_RMSNORM_X:
        sop_view3(out, d->x_dtype, d->tokens, d->heads, d->dim, d->x_stride, d->x_head);
        break;
    case SOP_RMSNORM_R:
    case SOP_RMSNORM_R_OUT:
        sop_view3(out, d->r_dtype, d->tokens, d->heads, d->dim, d->r_stride, d->r_head);
        break;
    case SOP_RMSNORM_W: sop_view1(out, sop_param_dtype(d->x_dtype), d->dim); break;
    case SOP_RMSNORM_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_RMSNORM_Y:
        sop_view3(out, d->y_dtype, d->tokens, d->heads, d->dim, d->y_stride, d->y_head);
        break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_RMSNORM_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_rmsnorm_desc *d = desc;
    const double n = (double)d->tokens * (double)d->heads * (double)d->dim;
    *out = (sop_cost){4 * n, n * (double)sop_dtype_bytes(d->x_dtype) + 4 * (double)d->dim,
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_rmsnorm_desc *d = desc;
    return d->x_dtype || d->r_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_rmsnorm_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_rmsnorm_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rmsnorm_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_rmsnorm_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rmsnorm_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_rmsnorm_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_rmsnorm_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_rmsnorm_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rmsnorm_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_rmsnorm_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=20 y_stride=17",
    "tokens=3 dim=8",
    "tokens=3 dim=9",
    "tokens=2 dim=15",
    "tokens=2 dim=17 offset=1",
    "tokens=5 heads=3 dim=64 x_stride=960 x_head=64", /* q and k norm inside a fused qkv row */
    "tokens=1 dim=576 eps=1e-5",                      /* smollm2 */
    "tokens=17 dim=896 r_stride=900",                 /* qwen2.5 0.5B */
    "tokens=2 dim=3584 x=bf16 r=bf16 y=bf16",
    "tokens=2 dim=4096 x=f16 r=f16 y=f16",
    "tokens=3 dim=896 x=bf16 y=bf16", /* beside a residual in float32 */
    "tokens=3 dim=8192 x=f16 y=f16",
    "tokens=3 dim=896 y=bf16",
    "tokens=3 heads=2 dim=16 x=f64 r=f64 y=f64",
    NULL,
};

const sop_op sop_op_rmsnorm = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_rmsnorm_desc),
    .name = "rmsnorm",
    .formula = "s = x + r; y = (offset + w) * s / sqrt(mean(s^2) + eps)",
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
    .reference = sop_rmsnorm_reference,
    .cost = cost,
    .backward = "rmsnorm_grad",
};
