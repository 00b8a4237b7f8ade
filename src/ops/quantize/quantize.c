/* quantize's contract and its variants. */
#include "ops/quantize/quantize.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_quantize_desc, reserved);

#define AT(member) offsetof(sop_quantize_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "channels of a row"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"codes_stride", AT(codes_stride), SOP_FIELD_I64, NULL, "between tokens of the codes"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
};

static const sop_role roles[SOP_QUANTIZE_ROLES] = {
    [SOP_QUANTIZE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_QUANTIZE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_QUANTIZE_CODES] = {"codes", SOP_ROLE_OUT, -1},
    [SOP_QUANTIZE_SCALE] = {"scale", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_quantize_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->dim;
    if (!d->codes_stride) d->codes_stride = d->dim;
}

static sop_status check(const void *desc)
{
    const sop_quantize_desc *d = desc;
    const int64_t most = INT32_MAX; /* no product of two overflows */
    if (d->tokens < 0 || d->dim < 0 || d->x_stride < 0 || d->codes_stride < 0 || d->tokens > most ||
        d->dim > most || d->x_stride > most || d->codes_stride > most)
        return sop_fail(SOP_E_SHAPE,
                        "quantize: tokens=%lld dim=%lld x_stride=%lld codes_stride=%lld, each must "
                        "be 0 to %lld",
                        (long long)d->tokens, (long long)d->dim, (long long)d->x_stride,
                        (long long)d->codes_stride, (long long)most);
    if (d->tokens > 1 && d->codes_stride < d->dim)
        return sop_fail(SOP_E_SHAPE, "quantize: tokens of the codes are %lld apart, rows have %lld",
                        (long long)d->codes_stride, (long long)d->dim);
    if (!(sop_unit(d->x_dtype) > 0))
        return sop_fail(SOP_E_ARG, "quantize: x is %s, must be f32, f16 or bf16",
                        sop_dtype_text(d->x_dtype) ? sop_dtype_text(d->x_dtype) : "no type");
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_quantize_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_QUANTIZE_X: sop_view2(out, d->x_dtype, d->tokens, d->dim, d->x_stride); break;
    case SOP_QUANTIZE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_QUANTIZE_CODES: sop_view2(out, SOP_F8, d->tokens, d->dim, d->codes_stride); break;
    case SOP_QUANTIZE_SCALE: sop_view1(out, SOP_F32, d->tokens); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_QUANTIZE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_quantize_desc *d = desc;
    const double t = (double)d->tokens, n = t * (double)d->dim;
    *out = (sop_cost){2 * n, n * (double)sop_dtype_bytes(d->x_dtype), n + 4 * t};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    return ((const sop_quantize_desc *)desc)->x_dtype != SOP_F32 ? "x is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "quantize_wide_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_INVARIANT, .refuse = sop_quantize_wide_refuse, .run = sop_quantize_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "quantize_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_quantize_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "quantize_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_quantize_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "quantize_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_quantize_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 dim=64",
    "tokens=2 dim=0",
    "tokens=1 dim=1",
    "tokens=3 dim=7 x_stride=20 codes_stride=17",
    "tokens=3 dim=8 x=bf16",
    "tokens=3 dim=9 x=f16",
    "tokens=2 dim=15 x=bf16",
    "tokens=5 dim=16 x=f16 x_stride=24 codes_stride=24",
    "tokens=2 dim=17",
    "tokens=4 dim=24",
    "tokens=3 dim=264 x=bf16 codes_stride=268", /* codes at multiples of 4 bytes */
    "tokens=3 dim=264 x=bf16 x_stride=268",
    "tokens=65 dim=896 x=bf16",
    "tokens=17 dim=3584 x=bf16",
    "tokens=2 dim=4096 x=f16",
    "tokens=2 dim=4104 x=bf16", /* several pieces a thread */
    "tokens=3 dim=8192",
    "tokens=2 dim=18944 x=bf16",
    "tokens=2 dim=28672 x=bf16",
    "tokens=2 dim=32768 x=f32",
    "tokens=2 dim=32776 x=bf16", /* beyond what a block holds */
    NULL,
};

const sop_op sop_op_quantize = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_quantize_desc),
    .name = "quantize",
    .formula = "scale = max |x| / 448; codes = e4m3(x / scale)",
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
    .reference = sop_quantize_reference,
    .cost = cost,
};
