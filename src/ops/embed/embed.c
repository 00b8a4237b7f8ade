/* embed's contract and its variants. */
#include "ops/embed/embed.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/linear/dequant.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_embed_desc, reserved);

#define AT(member) offsetof(sop_embed_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows of y"},
    {"rows", AT(rows), SOP_FIELD_I64, NULL, "rows of the table"},
    {"dim", AT(dim), SOP_FIELD_I64, NULL, "channels of a row"},
    {"table_stride", AT(table_stride), SOP_FIELD_I64, NULL, "between rows of the table, in blocks"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between rows of y"},
    {"scale", AT(scale), SOP_FIELD_F32, NULL, "factor; 1"},
    {"w", AT(w_dtype), SOP_FIELD_DTYPE, NULL, "type of the table"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_EMBED_ROLES] = {
    [SOP_EMBED_IDS] = {"ids", SOP_ROLE_INDEX, -1},
    [SOP_EMBED_TABLE] = {"table", SOP_ROLE_IN, -1},
    [SOP_EMBED_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_EMBED_Y] = {"y", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_embed_desc *d = desc;
    const int64_t block = sop_dtype_block(d->w_dtype);
    if (!d->table_stride && block) d->table_stride = d->dim / block;
    if (!d->y_stride) d->y_stride = d->dim;
    if (d->scale == 0) d->scale = 1;
}

static sop_status check(const void *desc)
{
    const sop_embed_desc *d = desc;
    if (d->tokens < 0 || d->rows < 0 || d->dim < 1)
        return sop_fail(SOP_E_SHAPE, "embed: tokens=%lld rows=%lld dim=%lld, must be >= 0, 0, 1",
                        (long long)d->tokens, (long long)d->rows, (long long)d->dim);
    if (!sop_dequant_takes(d->w_dtype))
        return sop_fail(SOP_E_ARG, "embed: w=%s cannot be decoded",
                        sop_dtype_text(d->w_dtype) ? sop_dtype_text(d->w_dtype) : "?");
    if (d->dim % sop_dtype_block(d->w_dtype) != 0)
        return sop_fail(SOP_E_SHAPE, "embed: dim=%lld, must be a multiple of %lld for w=%s",
                        (long long)d->dim, (long long)sop_dtype_block(d->w_dtype),
                        sop_dtype_text(d->w_dtype));
    if (sop_unit(d->y_dtype) == 0) return sop_fail(SOP_E_ARG, "embed: y must be f32, f16 or bf16");
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_embed_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_EMBED_IDS: sop_view1(out, SOP_I32, d->tokens); break;
    case SOP_EMBED_TABLE: sop_view2(out, d->w_dtype, d->rows, d->dim, d->table_stride); break;
    case SOP_EMBED_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_EMBED_Y: sop_view2(out, d->y_dtype, d->tokens, d->dim, d->y_stride); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_embed_desc *d = desc;
    int32_t *ids = args[SOP_EMBED_IDS].data;
    /* one in 16 is out of range, on either side */
    for (int64_t t = 0; t < d->tokens; t++) {
        const uint64_t r = sop_random(&seed), which = r % 32;
        ids[t] = which == 0 || d->rows == 0 ? -1 - (int32_t)(r >> 40)
                 : which == 1               ? (int32_t)(d->rows + (int64_t)(r >> 40))
                                            : (int32_t)((r >> 8) % (uint64_t)d->rows);
    }
    if (live >= 0) *(int32_t *)args[SOP_EMBED_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_embed_desc *d = desc;
    const double n = (double)d->tokens * (double)d->dim;
    *out =
        (sop_cost){n,
                   n / (double)sop_dtype_block(d->w_dtype) * (double)sop_dtype_bytes(d->w_dtype) +
                       4 * (double)d->tokens,
                   n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_8(const void *desc)
{
    const sop_embed_desc *d = desc;
    return d->dim < 8 ? "dim < 8" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "embed_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = sop_embed_wide_refuse, .run = sop_embed_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "embed_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_embed_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "embed_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_8, .run = sop_embed_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "embed_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_embed_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "embed_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_embed_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 rows=4 dim=32",
    "tokens=3 rows=0 dim=8",
    "tokens=1 rows=1 dim=1",
    "tokens=40 rows=5 dim=7 table_stride=9 y_stride=11",
    "tokens=3 rows=9 dim=896 y_stride=900", /* rows of an activation */
    "tokens=5 rows=7 dim=300 w=f16 y=f16 scale=0.5",
    "tokens=5 rows=7 dim=300 w=bf16 y=bf16",
    "tokens=3 rows=7 dim=7 w=bf16 y_stride=9 scale=3",
    "tokens=3 rows=7 dim=8 w=f16",
    "tokens=3 rows=7 dim=9 y=f16 table_stride=11",
    "tokens=3 rows=7 dim=17 w=bf16 y=f16",
    "tokens=70 rows=9 dim=8 w=f16 y=bf16", /* many rows a block */
    "tokens=9 rows=50 dim=896 w=bf16",     /* qwen2.5 0.5B */
    "tokens=5 rows=9 dim=2056 w=bf16 y=f16 table_stride=2064 y_stride=2072",
    "tokens=5 rows=9 dim=4100 scale=3",
    "tokens=3 rows=9 dim=64 y=f16",
    "tokens=9 rows=50 dim=576 w=q8_0",               /* smollm2 */
    "tokens=9 rows=50 dim=640 w=q8_0 scale=25.2982", /* gemma3 270M: sqrt(dim) */
    "tokens=9 rows=20 dim=96 w=q4_0 y=bf16",
    "tokens=9 rows=20 dim=96 w=q4_1 table_stride=5",
    "tokens=9 rows=20 dim=288 w=q5_0",
    "tokens=9 rows=20 dim=288 w=q5_1 y=f16",
    "tokens=9 rows=20 dim=512 w=q4_k scale=2",
    "tokens=9 rows=20 dim=512 w=q5_k",
    "tokens=9 rows=20 dim=768 w=q6_k y_stride=800",
    "tokens=9 rows=20 dim=384 w=i8_128",
    "tokens=9 rows=20 dim=384 w=f8_128 y=bf16",
    "tokens=9 rows=20 dim=384 w=i4_128 table_stride=4",
    NULL,
};

const sop_op sop_op_embed = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_embed_desc),
    .name = "embed",
    .formula = "y = scale * table[ids]",
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
    .reference = sop_embed_reference,
    .cost = cost,
};
