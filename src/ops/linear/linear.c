/* linear's contract and its variants. */
#include "ops/linear/linear.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/linear/dequant.h"
#include "ops/linear/pack.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_linear_desc, bias);

#define AT(member) offsetof(sop_linear_desc, member)
#define LAYOUTS "unset|plain|panel16|both" /* the position is the SOP_LAYOUT_ bits */
static const sop_field fields[] = {
    {"m", AT(tokens), SOP_FIELD_I64, NULL, "tokens: rows of x and y"},
    {"n", AT(n[0]), SOP_FIELD_I64, NULL, "rows of the weight"},
    {"n1", AT(n[1]), SOP_FIELD_I64, NULL, "rows of a second weight that shares x"},
    {"n2", AT(n[2]), SOP_FIELD_I64, NULL, "rows of a third one"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "columns of the weights and of x"},
    {"w", AT(w_dtype[0]), SOP_FIELD_DTYPE, NULL, "format of the weight"},
    {"w1", AT(w_dtype[1]), SOP_FIELD_DTYPE, NULL, "format of the second weight"},
    {"w2", AT(w_dtype[2]), SOP_FIELD_DTYPE, NULL, "format of the third weight"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x; f8: codes, with a scale a token"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
    {"bias", AT(bias), SOP_FIELD_I32, NULL, "bit j: the weight j has a bias"},
    {"numerics", AT(numerics), SOP_FIELD_WORD, "fast|exact|invariant", "how exact y must be"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between tokens of y"},
    {"w_stride", AT(w_stride[0]), SOP_FIELD_I64, NULL, "between rows of the weight, in blocks"},
    {"w1_stride", AT(w_stride[1]), SOP_FIELD_I64, NULL, "of the second weight"},
    {"w2_stride", AT(w_stride[2]), SOP_FIELD_I64, NULL, "of the third weight"},
    {"layouts", AT(layouts[0]), SOP_FIELD_WORD, LAYOUTS, "how the weight can be read; plain"},
    {"layouts1", AT(layouts[1]), SOP_FIELD_WORD, LAYOUTS, "of the second weight"},
    {"layouts2", AT(layouts[2]), SOP_FIELD_WORD, LAYOUTS, "of the third weight"},
};

static const sop_role roles[SOP_LINEAR_ROLES] = {
    [SOP_LINEAR_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_LINEAR_W0] = {"w", SOP_ROLE_WEIGHT, -1},
    [SOP_LINEAR_W1] = {"w1", SOP_ROLE_WEIGHT | SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_W2] = {"w2", SOP_ROLE_WEIGHT | SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_B0] = {"bias", SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_B1] = {"bias1", SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_B2] = {"bias2", SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_LINEAR_Y] = {"y", SOP_ROLE_OUT, -1},
    [SOP_LINEAR_X_SCALE] = {"x_scale", SOP_ROLE_OPTIONAL, -1},
};

static int64_t width(const sop_linear_desc *d)
{
    return d->n[0] + d->n[1] + d->n[2];
}

static void complete(void *desc)
{
    sop_linear_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->k;
    if (!d->y_stride) d->y_stride = width(d);
    for (int32_t j = 0; j < 3; j++) {
        const int64_t block = sop_dtype_block(d->w_dtype[j]);
        if (!d->n[j]) continue;
        if (!d->w_stride[j] && block) d->w_stride[j] = d->k / block;
        if (!d->layouts[j]) d->layouts[j] = SOP_LAYOUT_PLAIN;
    }
}

static const char *text_of(int32_t dtype)
{
    const char *text = sop_dtype_text(dtype);
    return text ? text : "no type";
}

static sop_status check_weight(const sop_linear_desc *d, int32_t j)
{
    const int32_t dtype = d->w_dtype[j];
    if (d->x_dtype == SOP_F64 && (dtype != SOP_F64 || d->layouts[j] != SOP_LAYOUT_PLAIN))
        return sop_fail(SOP_E_ARG,
                        "linear: x is f64 and weight %d is %s with layouts=%u, must be "
                        "f64 in plain rows",
                        j, text_of(dtype), d->layouts[j]);
    if (!sop_dequant_takes(dtype) && d->x_dtype != SOP_F64)
        return sop_fail(SOP_E_ARG, "linear: weight %d is %s, which is no weight format", j,
                        text_of(dtype));
    if (d->k % sop_dtype_block(dtype) != 0)
        return sop_fail(SOP_E_SHAPE, "linear: k=%lld is not a multiple of %s's block of %lld",
                        (long long)d->k, text_of(dtype), (long long)sop_dtype_block(dtype));
    if (d->w_stride[j] < d->k / sop_dtype_block(dtype))
        return sop_fail(SOP_E_SHAPE,
                        "linear: rows of weight %d are %lld blocks apart, k needs %lld", j,
                        (long long)d->w_stride[j], (long long)(d->k / sop_dtype_block(dtype)));
    if (d->layouts[j] & ~(uint32_t)(SOP_LAYOUT_PLAIN | SOP_LAYOUT_PANEL16))
        return sop_fail(SOP_E_ARG, "linear: weight %d has layouts=%u, known are the bits 1 and 2",
                        j, d->layouts[j]);
    return SOP_OK;
}

static sop_status check(const void *desc)
{
    const sop_linear_desc *d = desc;
    /* With extents below 2^31 no product of two overflows. */
    const int64_t most = INT32_MAX;
    const int64_t sizes[] = {d->tokens,      d->k,          d->n[0],     d->n[1],
                             d->n[2],        d->x_stride,   d->y_stride, d->w_stride[0],
                             d->w_stride[1], d->w_stride[2]};
    for (int32_t i = 0; i < SOP_N(sizes); i++)
        if (sizes[i] < 0 || sizes[i] > most)
            return sop_fail(SOP_E_SHAPE,
                            "linear: m=%lld k=%lld n=%lld,%lld,%lld, strides x=%lld y=%lld "
                            "w=%lld,%lld,%lld, each must be 0 to %lld",
                            (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                            (long long)sizes[3], (long long)sizes[4], (long long)sizes[5],
                            (long long)sizes[6], (long long)sizes[7], (long long)sizes[8],
                            (long long)sizes[9], (long long)most);
    const int32_t types[] = {d->x_dtype == SOP_F8 ? SOP_F32 : d->x_dtype, d->y_dtype};
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "linear: x is %s and y is %s, must be f32, f16 or bf16, x also f8, or both "
                        "f64",
                        text_of(d->x_dtype), text_of(d->y_dtype));
    if (d->tokens > 1 && d->y_stride < width(d))
        return sop_fail(SOP_E_SHAPE, "linear: tokens of y are %lld apart, its rows have %lld",
                        (long long)d->y_stride, (long long)width(d));
    if (d->bias & ~7) return sop_fail(SOP_E_ARG, "linear: bias=%d, must be 0 to 7", d->bias);
    if (d->numerics < SOP_NUMERICS_FAST || d->numerics > SOP_NUMERICS_INVARIANT)
        return sop_fail(SOP_E_ARG, "linear: numerics=%d, must be 0 to 2", d->numerics);
    for (int32_t j = 0; j < 3; j++)
        if (d->n[j]) SOP_TRY(check_weight(d, j));
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_linear_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_LINEAR_X: sop_view2(out, d->x_dtype, d->tokens, d->k, d->x_stride); break;
    case SOP_LINEAR_W0:
    case SOP_LINEAR_W1:
    case SOP_LINEAR_W2: {
        const int32_t j = role - SOP_LINEAR_W0;
        if (d->n[j]) sop_view2(out, d->w_dtype[j], d->n[j], d->k, d->w_stride[j]);
        break;
    }
    case SOP_LINEAR_B0:
    case SOP_LINEAR_B1:
    case SOP_LINEAR_B2: {
        const int32_t j = role - SOP_LINEAR_B0;
        if (d->n[j] && d->bias >> j & 1) sop_view1(out, sop_param_dtype(d->x_dtype), d->n[j]);
        break;
    }
    case SOP_LINEAR_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_LINEAR_Y: sop_view2(out, d->y_dtype, d->tokens, width(d), d->y_stride); break;
    /* also of no tokens of any type: it may be left out of any call (sop_droppable) */
    case SOP_LINEAR_X_SCALE:
        if (d->x_dtype == SOP_F8 || !d->tokens) sop_view1(out, SOP_F32, d->tokens);
        break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_linear_desc *d = desc;
    float *scale = args[SOP_LINEAR_X_SCALE].data;
    (void)seed;
    for (int64_t t = 0; scale && t < d->tokens; t++) scale[t] = 0.013f * (float)(1 + t % 7);
    if (live >= 0) *(int32_t *)args[SOP_LINEAR_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_linear_desc *d = desc;
    const double m = (double)d->tokens, k = (double)d->k, n = (double)width(d);
    *out =
        (sop_cost){2 * m * n * k,
                   m * k * (double)sop_dtype_bytes(d->x_dtype) + (d->x_dtype == SOP_F8 ? 4 * m : 0),
                   m * n * (double)sop_dtype_bytes(d->y_dtype)};
    for (int32_t j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        out->read_bytes += (double)d->n[j] * (double)sop_dtype_row_bytes(d->w_dtype[j], d->k);
        if (d->bias >> j & 1) out->read_bytes += 4 * (double)d->n[j];
    }
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_linear_desc *)desc)->x_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_few_sm90", "cuda", SOP_CUDA_SM90A, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_few_sm90_refuse,
     .plan = sop_linear_few_sm90_plan, .run = sop_linear_few_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_stream_sm90", "cuda", SOP_CUDA_SM90A, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_stream_sm90_refuse,
     .plan = sop_linear_stream_sm90_plan, .run = sop_linear_stream_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_planes_sm90", "cuda", SOP_CUDA_SM90A, SOP_ROW_QUANT_X,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_planes_sm90_refuse,
     .plan = sop_linear_planes_sm90_plan, .run = sop_linear_planes_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_stream_quant_sm90", "cuda", SOP_CUDA_SM90A, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_stream_quant_sm90_refuse,
     .plan = sop_linear_stream_quant_sm90_plan, .run = sop_linear_stream_quant_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_stream_f8_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_QUANT_X, .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_stream_f8_refuse,
     .plan = sop_linear_stream_f8_plan, .run = sop_linear_stream_f8_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_f8_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_QUANT_X | SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PLAIN,
     .refuse = sop_linear_f8_refuse, .plan = sop_linear_f8_sm90_plan, .run = sop_linear_f8_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_skinny_sm90", "cuda", SOP_CUDA_SM90A, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_skinny_refuse,
     .plan = sop_linear_skinny_plan, .run = sop_linear_skinny_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_skinny_quant_sm80", "cuda", SOP_CUDA_SM80, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_skinny_quant_refuse,
     .plan = sop_linear_skinny_quant_plan, .run = sop_linear_skinny_quant_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_gemm_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_gemm_refuse,
     .plan = sop_linear_gemm_plan, .run = sop_linear_gemm_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_gemm_rounded_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_QUANT_X | SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PLAIN,
     .refuse = sop_linear_gemm_rounded_refuse, .plan = sop_linear_gemm_plan,
     .run = sop_linear_gemm_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_gemm_widened_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_QUANT_X, .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_gemm_widened_refuse,
     .plan = sop_linear_gemm_widened_plan, .run = sop_linear_gemm_widened_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_gemm_sm80", "cuda", SOP_CUDA_SM80, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_gemm_refuse,
     .plan = sop_linear_gemm_sm80_plan, .run = sop_linear_gemm_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_cublaslt", "vendor", SOP_CUDA_SM80, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_cublaslt_refuse,
     .plan = sop_linear_cublaslt_plan, .prepare = sop_linear_cublaslt_prepare,
     .release = sop_linear_cublaslt_release, .run = sop_linear_cublaslt},
#ifdef SOP_CUTLASS
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_cutlass", "cutlass", SOP_CUDA_SM80, 0,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_cutlass_refuse, .run = sop_linear_cutlass},
#endif
    {sizeof(sop_row), SOP_DEVICE_CUDA, "linear_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .layout = SOP_LAYOUT_PLAIN, .refuse = takes_floats, .run = sop_linear_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_bf16x2_amx", "c", SOP_CPU_AMX,
     SOP_ROW_QUANT_X | SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PANEL16,
     .refuse = sop_linear_bf16x2_refuse, .plan = sop_linear_bf16x2_plan,
     .run = sop_linear_bf16x2_amx},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_q8x_vnni", "c", SOP_CPU_VNNI,
     SOP_ROW_QUANT_X | SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PANEL16,
     .refuse = sop_linear_q8x_refuse, .plan = sop_linear_q8x_vnni_plan, .run = sop_linear_q8x_vnni},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_q8x_avx2", "c", SOP_CPU_AVX2,
     SOP_ROW_QUANT_X | SOP_ROW_INVARIANT, .layout = SOP_LAYOUT_PANEL16,
     .refuse = sop_linear_q8x_refuse, .plan = sop_linear_q8x_avx2_plan, .run = sop_linear_q8x_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_f32x_avx512", "c", SOP_CPU_AVX512, SOP_ROW_INVARIANT,
     .layout = SOP_LAYOUT_PANEL16, .refuse = sop_linear_f32x_refuse, .plan = sop_linear_f32x_plan,
     .run = sop_linear_f32x_avx512},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_f32x_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .layout = SOP_LAYOUT_PANEL16, .refuse = sop_linear_f32x_refuse, .plan = sop_linear_f32x_plan,
     .run = sop_linear_f32x_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_c", "c", 0, SOP_ROW_INVARIANT,
     .layout = SOP_LAYOUT_PLAIN, .refuse = sop_linear_c_refuse, .run = sop_linear_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "linear_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .layout = SOP_LAYOUT_PLAIN, .refuse = takes_all, .run = sop_linear_ref},
};
/* clang-format on */

const sop_op sop_op_linear = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_linear_desc),
    .name = "linear",
    .formula = "y = x_scale * (x w^T) + bias, for up to three weights side by side",
    .fields = fields,
    .n_fields = SOP_N(fields),
    .roles = roles,
    .n_roles = SOP_N(roles),
    .rows = rows,
    .n_rows = SOP_N(rows),
    .cases = sop_linear_cases,
    .complete = complete,
    .check = check,
    .view = view,
    .fill = fill,
    .reference = sop_linear_reference,
    .cost = cost,
    .backward = "matmul",
    .packed_bytes = sop_linear_packed_bytes,
    .pack = sop_linear_pack,
};
