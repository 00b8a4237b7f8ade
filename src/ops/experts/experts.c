/* experts' contract and its variants. */
#include "ops/experts/experts.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/linear/dequant.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_experts_desc, y_dtype);

#define AT(member) offsetof(sop_experts_desc, member)
static const sop_field fields[] = {
    {"rows", AT(rows), SOP_FIELD_I64, NULL, "pairs of a token and an expert"},
    {"experts", AT(experts), SOP_FIELD_I64, NULL, "weights"},
    {"n", AT(n), SOP_FIELD_I64, NULL, "rows of a weight"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "columns of a weight and of x"},
    {"w", AT(w_dtype), SOP_FIELD_DTYPE, NULL, "format of the weights"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
    {"gather", AT(gather), SOP_FIELD_I64, NULL, "pairs to a row of x; 0: x is sorted"},
    {"scatter", AT(scatter), SOP_FIELD_I32, NULL, "1: y is in the order of the pairs"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"w_stride", AT(w_stride), SOP_FIELD_I64, NULL, "between rows of a weight, in blocks"},
    {"w_expert", AT(w_expert), SOP_FIELD_I64, NULL, "between weights, in blocks"},
};

static const sop_role roles[SOP_EXPERTS_ROLES] = {
    [SOP_EXPERTS_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_EXPERTS_W] = {"w", SOP_ROLE_IN, -1},
    [SOP_EXPERTS_COUNTS] = {"counts", SOP_ROLE_INDEX, -1},
    [SOP_EXPERTS_PERM] = {"perm", SOP_ROLE_INDEX | SOP_ROLE_OPTIONAL, -1},
    [SOP_EXPERTS_Y] = {"y", SOP_ROLE_OUT | SOP_ROLE_PARTIAL, -1},
};

int64_t sop_experts_end(const sop_call *call, int64_t e, int64_t *first)
{
    const sop_experts_desc *d = call->desc;
    const int32_t *counts = call->args[SOP_EXPERTS_COUNTS].data;
    int64_t end = 0;
    for (int64_t i = 0; i <= e; i++) {
        *first = end;
        end += counts[i] > 0 ? counts[i] : 0;
    }
    return end < d->rows ? end : d->rows;
}

static void complete(void *desc)
{
    sop_experts_desc *d = desc;
    const int64_t block = sop_dtype_block(d->w_dtype);
    if (!d->x_stride) d->x_stride = d->k;
    if (!d->y_stride) d->y_stride = d->n;
    if (!d->w_stride && block) d->w_stride = d->k / block;
    if (!d->w_expert) d->w_expert = d->n * d->w_stride;
}

static sop_status check(const void *desc)
{
    const sop_experts_desc *d = desc;
    /* With extents below 2^31 no product of two overflows. */
    const int64_t most = INT32_MAX, farthest = most << 16, block = sop_dtype_block(d->w_dtype);
    const int64_t sizes[] = {d->rows, d->n, d->k, d->x_stride, d->y_stride, d->w_stride, d->gather};
    for (int32_t i = 0; i < SOP_N(sizes); i++)
        if (sizes[i] < 0 || sizes[i] > most)
            return sop_fail(SOP_E_SHAPE,
                            "experts: rows=%lld n=%lld k=%lld x_stride=%lld y_stride=%lld "
                            "w_stride=%lld gather=%lld, each must be 0 to %lld",
                            (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                            (long long)sizes[3], (long long)sizes[4], (long long)sizes[5],
                            (long long)sizes[6], (long long)most);
    if (d->experts < 1 || d->experts > 65535 || d->w_expert < 0 || d->w_expert > farthest)
        return sop_fail(SOP_E_SHAPE,
                        "experts: experts=%lld w_expert=%lld, must be 1 to 65535, 0 to %lld",
                        (long long)d->experts, (long long)d->w_expert, (long long)farthest);
    if (sop_unit(d->x_dtype) == 0 || sop_unit(d->y_dtype) == 0)
        return sop_fail(SOP_E_ARG, "experts: types x %d y %d, must be f32, f16 or bf16", d->x_dtype,
                        d->y_dtype);
    if (!sop_dequant_takes(d->w_dtype))
        return sop_fail(SOP_E_ARG, "experts: w is %d, which is no weight format", d->w_dtype);
    if (d->k % block != 0 || d->w_stride < d->k / block)
        return sop_fail(SOP_E_SHAPE,
                        "experts: k=%lld w_stride=%lld, must be a multiple of %lld, that many "
                        "blocks at least",
                        (long long)d->k, (long long)d->w_stride, (long long)block);
    if (d->rows > 1 && d->y_stride < d->n)
        return sop_fail(SOP_E_SHAPE, "experts: rows of y are %lld apart, have n=%lld",
                        (long long)d->y_stride, (long long)d->n);
    if (d->scatter != 0 && d->scatter != 1)
        return sop_fail(SOP_E_ARG, "experts: scatter=%d, must be 0 or 1", d->scatter);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_experts_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_EXPERTS_X:
        sop_view2(out, d->x_dtype, d->gather ? (d->rows + d->gather - 1) / d->gather : d->rows,
                  d->k, d->x_stride);
        break;
    case SOP_EXPERTS_W:
        sop_view3(out, d->w_dtype, d->experts, d->n, d->k, d->w_expert, d->w_stride);
        break;
    case SOP_EXPERTS_COUNTS: sop_view1(out, SOP_I32, d->experts); break;
    case SOP_EXPERTS_PERM:
        if (d->gather || d->scatter) sop_view1(out, SOP_I32, d->rows);
        break;
    case SOP_EXPERTS_Y: sop_view2(out, d->y_dtype, d->rows, d->n, d->y_stride); break;
    default: break;
    }
}

/* About half of the rows go to the last expert, and to every seventh one none; of one seed in three some
 * rows belong to nobody. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_experts_desc *d = desc;
    int32_t *counts = args[SOP_EXPERTS_COUNTS].data, *perm = args[SOP_EXPERTS_PERM].data;
    const int64_t all = seed % 3 == 2 ? d->rows * 2 / 3 : d->rows;
    uint64_t state = seed;
    (void)live;
    for (int64_t e = 0; e < d->experts; e++) counts[e] = 0;
    for (int64_t i = 0; i < all; i++) {
        int64_t e = (int64_t)(sop_random(&state) % (uint64_t)d->experts);
        if (i % 2 || e % 7 == 3) e = d->experts - 1;
        counts[e]++;
    }
    for (int64_t i = 0; perm && i < d->rows; i++) {
        const int64_t j = (int64_t)(sop_random(&state) % (uint64_t)(i + 1));
        perm[i] = perm[j];
        perm[j] = (int32_t)i;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_experts_desc *d = desc;
    const double rows = (double)d->rows, k = (double)d->k, n = (double)d->n;
    const double used = (double)(d->rows < d->experts ? d->rows : d->experts);
    const double in = d->gather ? rows / (double)d->gather : rows;
    *out = (sop_cost){2 * rows * n * k,
                      in * k * (double)sop_dtype_bytes(d->x_dtype) +
                          used * n * (double)sop_dtype_row_bytes(d->w_dtype, d->k),
                      rows * n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_experts_desc *d = desc;
    return d->x_dtype || d->y_dtype ? "x or y is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "experts_gemm_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_INVARIANT, .refuse = sop_experts_gemm_refuse, .plan = sop_experts_gemm_plan,
     .run = sop_experts_gemm_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "experts_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_experts_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "experts_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_experts_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "experts_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_experts_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "experts_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_experts_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "rows=0 experts=4 n=8 k=16",
    "rows=3 experts=2 n=0 k=16",
    "rows=3 experts=2 n=5 k=0", /* sums of nothing are 0 */
    "rows=1 experts=1 n=1 k=1",
    "rows=7 experts=3 n=3 k=7 x_stride=9 y_stride=5 w_stride=8 w_expert=30",
    "rows=8 experts=9 n=4 k=8 gather=2",
    "rows=9 experts=5 n=7 k=9 scatter=1",
    "rows=40 experts=8 n=33 k=65 gather=4 scatter=1",
    "rows=17 experts=2 n=16 k=255",
    "rows=35 experts=1 n=9 k=257",
    "rows=5 experts=300 n=6 k=31", /* mostly nobody */
    "rows=70 experts=3 n=10 k=600 gather=7",
    "rows=8 experts=4 n=88 k=2048 gather=4 w=bf16", /* Qwen1.5 MoE A2.7B, a sixteenth of n */
    "rows=4 experts=8 n=64 k=4096 gather=2 w=f16",  /* Mixtral 8x7B, a part of n */
    "rows=20 experts=6 n=18 k=256 w=q4_k scatter=1",
    "rows=20 experts=6 n=18 k=96 w=q8_0 gather=2",
    "rows=6 experts=3 n=7 k=512 w=q6_k",
    "rows=6 experts=3 n=7 k=384 w=i8_128",
    "rows=6 experts=3 n=7 k=384 w=f8_128 x=bf16 y=bf16",
    "rows=6 experts=3 n=7 k=384 w=i4_128",
    "rows=6 experts=3 n=7 k=64 w=q4_0 w_stride=3 w_expert=22",
    "rows=24 experts=5 n=30 k=70 gather=2 x=bf16 w=bf16 y=bf16",
    "rows=24 experts=5 n=30 k=70 scatter=1 x=f16 w=f16 y=f16",
    "rows=10 experts=4 n=12 k=33 x=bf16 w=f32 y=f32",
    "rows=5 experts=1 n=8 k=8 x=bf16 w=bf16 y=bf16", /* each width of a tile: 8, 16, ... 160 */
    "rows=16 experts=1 n=136 k=64 gather=2 x=bf16 w=bf16 y=bf16",
    "rows=42 experts=1 n=64 k=72 scatter=1 x=f16 w=f16",
    "rows=64 experts=1 n=72 k=130 x_stride=136 w_stride=136 x=f16 w=f16 y=f16",
    "rows=80 experts=1 n=128 k=128 gather=4 scatter=1 x=bf16 w=bf16 y=bf16",
    "rows=96 experts=1 n=200 k=64 y_stride=208 x=bf16 w=bf16 y=bf16",
    "rows=112 experts=1 n=40 k=200 gather=1 x=f16 w=f16 y=f16",
    "rows=144 experts=1 n=40 k=72 x=bf16 w=bf16",
    "rows=160 experts=1 n=40 k=72 scatter=1 x=bf16 w=bf16 y=bf16",
    "rows=100 experts=1 n=264 k=72 gather=2 x=bf16 w=bf16", /* twice as high: 112, 120, ... 160 */
    "rows=120 experts=1 n=300 k=72 x=bf16 w=bf16 y=bf16 y_stride=304",
    "rows=128 experts=1 n=256 k=130 x_stride=136 w_stride=136 x=f16 w=f16 y=f16",
    "rows=135 experts=1 n=136 k=600 scatter=1 x=bf16 w=bf16 y=bf16",
    "rows=144 experts=1 n=200 k=72 x=bf16 w=bf16 gather=2 scatter=1",
    "rows=150 experts=1 n=392 k=24 x=f16 w=f16 y=f16",
    "rows=160 experts=1 n=144 k=328 gather=4 x=bf16 w=bf16 y=bf16",
    "rows=700 experts=3 n=136 k=64 gather=4 x=f16 w=f16 y=f16", /* three tiles of some */
    "rows=257 experts=1 n=8 k=520 scatter=1 x=bf16 w=bf16 y=bf16",
    "rows=400 experts=3 n=136 k=24 w_expert=4000 gather=2 x=f16 w=f16 y=f16",
    "rows=1500 experts=60 n=136 k=8 scatter=1 x=bf16 w=bf16 y=bf16", /* 12 tiles of one */
    "rows=180 experts=1 n=40 k=75 x_stride=80 w_stride=80 gather=2 x=bf16 w=bf16 y=bf16",
    "rows=100 experts=300 n=40 k=64 gather=4 x=bf16 w=bf16 y=bf16",
    "rows=4 experts=2 n=8 k=8 w_stride=12 w_expert=96 x=bf16 w=bf16 y=bf16", /* beyond: a stride */
    "rows=4 experts=2 n=8 k=8 x=bf16 w=f16 y=f16",                           /* beyond: two types */
    "rows=9 experts=1030 n=8 k=8 x=bf16 w=bf16 y=bf16", /* beyond: too many experts */
    NULL,
};

const sop_op sop_op_experts = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_experts_desc),
    .name = "experts",
    .formula = "y = x w[e]^T, rows sorted by their expert e",
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
    .reference = sop_experts_reference,
    .cost = cost,
};
