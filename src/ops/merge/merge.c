/* merge's contract and its variants. */
#include "ops/merge/merge.h"

#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_merge_desc, y_dtype);

#define AT(member) offsetof(sop_merge_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "queries"},
    {"parts", AT(parts), SOP_FIELD_I64, NULL, "partial results of a query"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "query heads; 1"},
    {"v", AT(v), SOP_FIELD_I64, NULL, "channels of a head"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"x_part", AT(x_part), SOP_FIELD_I64, NULL, "between parts of x"},
    {"x_head", AT(x_head), SOP_FIELD_I64, NULL, "between heads of x"},
    {"lse_stride", AT(lse_stride), SOP_FIELD_I64, NULL, "between tokens of lse"},
    {"lse_part", AT(lse_part), SOP_FIELD_I64, NULL, "between parts of lse"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between tokens of y"},
    {"y_head", AT(y_head), SOP_FIELD_I64, NULL, "between heads of y"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_MERGE_ROLES] = {
    [SOP_MERGE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_MERGE_LSE] = {"lse", SOP_ROLE_IN, -1},
    [SOP_MERGE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_MERGE_Y] = {"y", SOP_ROLE_OUT, -1},
    [SOP_MERGE_LSE_OUT] = {"lse_out", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, -1},
};

static void complete(void *desc)
{
    sop_merge_desc *d = desc;
    if (!d->heads) d->heads = 1;
    if (!d->x_head) d->x_head = d->v;
    if (!d->x_stride) d->x_stride = d->heads * d->x_head;
    if (!d->x_part) d->x_part = d->tokens * d->x_stride;
    if (!d->lse_stride) d->lse_stride = d->heads;
    if (!d->lse_part) d->lse_part = d->tokens * d->lse_stride;
    if (!d->y_head) d->y_head = d->v;
    if (!d->y_stride) d->y_stride = d->heads * d->y_head;
}

static sop_status check(const void *desc)
{
    const sop_merge_desc *d = desc;
    if (d->tokens < 0 || d->parts < 0 || d->heads < 1 || d->v < 0)
        return sop_fail(
            SOP_E_SHAPE, "merge: tokens=%lld parts=%lld heads=%lld v=%lld, must be >= 0, 0, 1, 0",
            (long long)d->tokens, (long long)d->parts, (long long)d->heads, (long long)d->v);
    if (d->x_stride < 0 || d->x_part < 0 || d->x_head < 0 || d->lse_stride < 0 || d->lse_part < 0)
        return sop_fail(SOP_E_SHAPE,
                        "merge: x_stride=%lld x_part=%lld x_head=%lld lse_stride=%lld "
                        "lse_part=%lld, must be >= 0",
                        (long long)d->x_stride, (long long)d->x_part, (long long)d->x_head,
                        (long long)d->lse_stride, (long long)d->lse_part);
    if (d->y_head < d->v || d->y_stride < d->heads * d->v)
        return sop_fail(
            SOP_E_SHAPE,
            "merge: y_stride=%lld y_head=%lld heads=%lld v=%lld: rows of y would overlap",
            (long long)d->y_stride, (long long)d->y_head, (long long)d->heads, (long long)d->v);
    if (sop_unit(d->x_dtype) == 0 || sop_unit(d->y_dtype) == 0)
        return sop_fail(SOP_E_ARG, "merge: types %d %d, must be f32, f16 or bf16", d->x_dtype,
                        d->y_dtype);
    return SOP_OK;
}

/* [tokens, parts, heads, v] */
static void view_parts(const sop_merge_desc *d, sop_tensor *out)
{
    sop_view3(out, d->x_dtype, d->parts, d->heads, d->v, d->x_part, d->x_head);
    const size_t one = out->bytes, element = sop_dtype_bytes(d->x_dtype);
    *out = (sop_tensor){.dtype = d->x_dtype,
                        .ndim = 4,
                        .shape = {d->tokens, d->parts, d->heads, d->v},
                        .stride = {d->x_stride, d->x_part, d->x_head, 1}};
    if (d->tokens > 0 && one > 0)
        out->bytes = (size_t)((d->tokens - 1) * d->x_stride) * element + one;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_merge_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_MERGE_X: view_parts(d, out); break;
    case SOP_MERGE_LSE:
        sop_view3(out, SOP_F32, d->tokens, d->parts, d->heads, d->lse_stride, d->lse_part);
        break;
    case SOP_MERGE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_MERGE_Y:
        sop_view3(out, d->y_dtype, d->tokens, d->heads, d->v, d->y_stride, d->y_head);
        break;
    case SOP_MERGE_LSE_OUT: sop_view2(out, SOP_F32, d->tokens, d->heads, d->heads); break;
    default: break;
    }
}

/* One part of seven saw nothing, and where every part of one head of eleven did, NaN stands in x: it is
 * not read. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_merge_desc *d = desc;
    if (live >= 0) *(int32_t *)args[SOP_MERGE_LIVE].data = (int32_t)live;
    for (int64_t t = 0; t < d->tokens; t++)
        for (int64_t p = 0; p < d->parts; p++)
            for (int64_t h = 0; h < d->heads; h++) {
                uint64_t state = seed + (uint64_t)((t * d->parts + p) * d->heads + h);
                const int nothing = (t * d->heads + h) % 11 == 5 || sop_random(&state) % 7 == 0;
                if (!nothing) continue;
                sop_store(args[SOP_MERGE_LSE].data, SOP_F32,
                          t * d->lse_stride + p * d->lse_part + h, -HUGE_VAL);
                if (d->v > 0)
                    sop_store(args[SOP_MERGE_X].data, d->x_dtype,
                              t * d->x_stride + p * d->x_part + h * d->x_head, (double)NAN);
            }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_merge_desc *d = desc;
    const double rows = (double)d->tokens * (double)d->heads, n = rows * (double)d->v;
    const double parts = (double)d->parts;
    *out = (sop_cost){2 * parts * n + 3 * parts * rows,
                      parts * (n * (double)sop_dtype_bytes(d->x_dtype) + 4 * rows),
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_merge_desc *d = desc;
    return d->x_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "merge_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_merge_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "merge_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_merge_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "merge_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_merge_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "merge_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_merge_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 parts=2 v=64",
    "tokens=2 parts=3 v=0",
    "tokens=3 parts=0 v=16", /* nothing was seen */
    "tokens=1 parts=1 v=1",
    "tokens=13 parts=1 heads=2 v=8",
    "tokens=3 parts=2 heads=3 v=7",
    "tokens=3 parts=3 heads=3 v=9 x_head=10 x_stride=33 x_part=100 lse_stride=4 lse_part=13 y_head=11 y_stride=34",
    "tokens=2 parts=5 heads=2 v=64 x_part=128 x_stride=640 lse_part=2 lse_stride=10", /* by token */
    "tokens=2 parts=17 heads=7 v=31",
    "tokens=1 parts=300 heads=4 v=33",
    "tokens=4 parts=8 heads=32 v=128",
    "tokens=3 parts=4 heads=14 v=64 x=f16 y=f16",
    "tokens=2 parts=6 heads=8 v=256 x=bf16 y=bf16",
    "tokens=2 parts=9 heads=4 v=80 x=f32 y=bf16",
    NULL,
};

const sop_op sop_op_merge = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_merge_desc),
    .name = "merge",
    .formula = "y = sum of exp(lse_p - lse) x_p, lse = log(sum of exp(lse_p))",
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
    .reference = sop_merge_reference,
    .cost = cost,
};
