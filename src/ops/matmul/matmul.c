/* matmul's contract and its variants. */
#include "ops/matmul/matmul.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_matmul_desc, y_dtype);

#define AT(member) offsetof(sop_matmul_desc, member)
static const sop_field fields[] = {
    {"rows", AT(rows), SOP_FIELD_I64, NULL, "rows of y"},
    {"cols", AT(cols), SOP_FIELD_I64, NULL, "columns of y"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "products of a sum"},
    {"a_stride", AT(a_stride), SOP_FIELD_I64, NULL, "between rows of a"},
    {"b_stride", AT(b_stride), SOP_FIELD_I64, NULL, "between rows of b"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"transposed", AT(transposed), SOP_FIELD_I32, NULL, "1: a has k rows"},
    {"a", AT(a_dtype), SOP_FIELD_DTYPE, NULL, "type of a"},
    {"b", AT(b_dtype), SOP_FIELD_DTYPE, NULL, "type of b"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_MATMUL_ROLES] = {
    [SOP_MATMUL_A] = {"a", SOP_ROLE_IN, -1},
    [SOP_MATMUL_B] = {"b", SOP_ROLE_IN, -1},
    [SOP_MATMUL_Y] = {"y", SOP_ROLE_OUT, -1},
    [SOP_MATMUL_SUMS] = {"sums", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, -1},
};

static void complete(void *desc)
{
    sop_matmul_desc *d = desc;
    d->transposed = d->transposed != 0;
    if (!d->a_stride) d->a_stride = d->transposed ? d->rows : d->k;
    if (!d->b_stride) d->b_stride = d->cols;
    if (!d->y_stride) d->y_stride = d->cols;
}

static sop_status check(const void *desc)
{
    const sop_matmul_desc *d = desc;
    const int32_t types[] = {d->a_dtype, d->b_dtype, d->y_dtype};
    if (d->rows < 0 || d->cols < 0 || d->k < 0)
        return sop_fail(SOP_E_SHAPE, "matmul: rows=%lld cols=%lld k=%lld, must be >= 0",
                        (long long)d->rows, (long long)d->cols, (long long)d->k);
    if (d->a_stride < 0 || d->b_stride < 0 || d->y_stride < d->cols)
        return sop_fail(SOP_E_SHAPE,
                        "matmul: a_stride=%lld b_stride=%lld y_stride=%lld cols=%lld, must be >= "
                        "0, 0, cols",
                        (long long)d->a_stride, (long long)d->b_stride, (long long)d->y_stride,
                        (long long)d->cols);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "matmul: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->a_dtype, d->b_dtype, d->y_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_matmul_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_MATMUL_A:
        if (d->transposed)
            sop_view2(out, d->a_dtype, d->k, d->rows, d->a_stride);
        else
            sop_view2(out, d->a_dtype, d->rows, d->k, d->a_stride);
        break;
    case SOP_MATMUL_B: sop_view2(out, d->b_dtype, d->k, d->cols, d->b_stride); break;
    case SOP_MATMUL_Y: sop_view2(out, d->y_dtype, d->rows, d->cols, d->y_stride); break;
    case SOP_MATMUL_SUMS: sop_view1(out, sop_param_dtype(d->a_dtype), d->rows); break;
    default: break;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_matmul_desc *d = desc;
    const double rows = (double)d->rows, cols = (double)d->cols, k = (double)d->k;
    *out = (sop_cost){2 * rows * cols * k,
                      k * (rows * (double)sop_dtype_bytes(d->a_dtype) +
                           cols * (double)sop_dtype_bytes(d->b_dtype)),
                      rows * cols * (double)sop_dtype_bytes(d->y_dtype) + 4 * rows};
}

static const char *takes_f32(const void *desc)
{
    const sop_matmul_desc *d = desc;
    return d->a_dtype || d->b_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_matmul_desc *)desc)->a_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "matmul_cublaslt", "vendor", SOP_CUDA_SM80, 0,
     .refuse = sop_matmul_cublaslt_refuse, .plan = sop_matmul_cublaslt_plan,
     .prepare = sop_matmul_cublaslt_prepare, .release = sop_matmul_cublaslt_release,
     .run = sop_matmul_cublaslt},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "matmul_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_matmul_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "matmul_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_matmul_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "matmul_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_matmul_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "matmul_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_matmul_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "rows=0 cols=64 k=3",
    "rows=3 cols=5 k=0",
    "rows=3 cols=0 k=7",
    "rows=1 cols=1 k=1",
    "rows=5 cols=7 k=3 a_stride=4 b_stride=9 y_stride=8",
    "rows=5 cols=17 k=33 transposed=1 a_stride=6 b_stride=20",
    "rows=4 cols=16 k=8",
    "rows=3 cols=15 k=1000 transposed=1",
    "rows=65 cols=66 k=67",
    "rows=64 cols=64 k=16 transposed=1",
    "rows=130 cols=100 k=129 transposed=1",
    "rows=16 cols=896 k=128",             /* dx of qwen2.5 0.5B's keys */
    "rows=24 cols=896 k=48 transposed=1", /* dw of some of them */
    "rows=64 cols=128 k=72 a=bf16 b=bf16 y=bf16",
    "rows=72 cols=264 k=200 transposed=1 a=bf16 b=bf16 y=bf16 a_stride=80",
    "rows=136 cols=64 k=128 transposed=1 a=f16 b=f16 y=f32",
    "rows=8 cols=8 k=8 transposed=1 a=f16 b=f16 y=f16",
    "rows=9 cols=16 k=24 transposed=1 a=bf16 b=bf16 y=f32 a_stride=16", /* beyond: rows of y's own */
    "rows=8 cols=24 k=16 a=bf16 b=bf16 y=bf16 b_stride=28",             /* beyond: a stride */
    "rows=33 cols=31 k=65 a=bf16 b=f32 y=f16",
    "rows=3 cols=5 k=7 transposed=1 a=f64 b=f64 y=f64",
    NULL,
};

const sop_op sop_op_matmul = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_matmul_desc),
    .name = "matmul",
    .formula = "y = a b, or a transposed b; sums = sums of rows of a, or of columns",
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
    .reference = sop_matmul_reference,
    .cost = cost,
};
