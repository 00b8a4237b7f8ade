/* rope's contract and its variants. */
#include "ops/rope/rope.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_rope_desc, y_dtype);

#define AT(member) offsetof(sop_rope_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "heads of a row; 1"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "channels of a head"},
    {"rot", AT(rot), SOP_FIELD_I64, NULL, "channels that turn, from the first; k"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between tokens of x"},
    {"x_head", AT(x_head), SOP_FIELD_I64, NULL, "between heads of x"},
    {"y_stride", AT(y_stride), SOP_FIELD_I64, NULL, "between tokens of y"},
    {"y_head", AT(y_head), SOP_FIELD_I64, NULL, "between heads of y"},
    {"mscale", AT(mscale), SOP_FIELD_F32, NULL, "factor of cosine and sine; 1"},
    {"interleaved", AT(interleaved), SOP_FIELD_I32, NULL, "pairs are neighbours, not halves"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
    {"y", AT(y_dtype), SOP_FIELD_DTYPE, NULL, "type of y"},
};

static const sop_role roles[SOP_ROPE_ROLES] = {
    [SOP_ROPE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_ROPE_POS] = {"pos", SOP_ROLE_INDEX, -1},
    [SOP_ROPE_FREQS] = {"freqs", SOP_ROLE_IN, -1},
    [SOP_ROPE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_ROPE_Y] = {"y", SOP_ROLE_OUT, SOP_ROPE_X},
};

static void complete(void *desc)
{
    sop_rope_desc *d = desc;
    if (!d->heads) d->heads = 1;
    if (!d->rot) d->rot = d->k;
    if (!d->x_head) d->x_head = d->k;
    if (!d->y_head) d->y_head = d->k;
    if (!d->x_stride) d->x_stride = d->heads * d->x_head;
    if (!d->y_stride) d->y_stride = d->heads * d->y_head;
    if (d->mscale == 0) d->mscale = 1;
    d->interleaved = d->interleaved != 0;
}

static sop_status check(const void *desc)
{
    const sop_rope_desc *d = desc;
    const int32_t types[] = {d->x_dtype, d->y_dtype};
    if (d->tokens < 0 || d->heads < 1 || d->k < 1)
        return sop_fail(SOP_E_SHAPE, "rope: tokens=%lld heads=%lld k=%lld, must be >= 0, 1, 1",
                        (long long)d->tokens, (long long)d->heads, (long long)d->k);
    if (d->rot < 0 || d->rot > d->k || d->rot % 2 != 0)
        return sop_fail(SOP_E_SHAPE, "rope: rot=%lld, must be even and at most k=%lld",
                        (long long)d->rot, (long long)d->k);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "rope: x and y must be f32, f16 or bf16, or all f64");
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_rope_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_ROPE_X:
        sop_view3(out, d->x_dtype, d->tokens, d->heads, d->k, d->x_stride, d->x_head);
        break;
    case SOP_ROPE_POS: sop_view1(out, SOP_I32, d->tokens); break;
    case SOP_ROPE_FREQS: sop_view1(out, SOP_F32, d->rot / 2); break;
    case SOP_ROPE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_ROPE_Y:
        sop_view3(out, d->y_dtype, d->tokens, d->heads, d->k, d->y_stride, d->y_head);
        break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_rope_desc *d = desc;
    int32_t *pos = args[SOP_ROPE_POS].data;
    /* near, far and, once in 16, beyond what a float can count */
    for (int64_t t = 0; t < d->tokens; t++) {
        const uint64_t r = sop_random(&seed);
        pos[t] = (int32_t)((r >> 8) % (r % 16 == 0 ? INT32_MAX : r % 2 ? 4096u : 1u << 20));
    }
    if (live >= 0) *(int32_t *)args[SOP_ROPE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_rope_desc *d = desc;
    const double rows = (double)d->tokens * (double)d->heads, n = rows * (double)d->k;
    *out = (sop_cost){3 * rows * (double)d->rot,
                      n * (double)sop_dtype_bytes(d->x_dtype) + 4 * (double)d->tokens +
                          2 * (double)d->rot,
                      n * (double)sop_dtype_bytes(d->y_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_rope_desc *d = desc;
    return d->x_dtype || d->y_dtype ? "a type is not f32" : NULL;
}

static sop_status plan(const void *desc, const int32_t *params, const sop_facts *facts,
                       size_t budget, sop_split *split)
{
    const size_t bytes = (size_t)facts->workers * (size_t)sop_rope_table_floats(desc) * 4;
    (void)params;
    if (bytes > budget)
        return sop_fail(SOP_E_LIMIT, "rope: %zu bytes of scratch, %zu allowed", bytes, budget);
    *split = (sop_split){.scratch_bytes = bytes};
    return SOP_OK;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_rope_desc *)desc)->x_dtype);
}

static const char *takes_wide(const void *desc)
{
    const char *why = takes_floats(desc);
    return why ? why : sop_rope_wide_refuse(desc);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rope_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = takes_wide, .run = sop_rope_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "rope_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_rope_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "rope_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .plan = plan, .run = sop_rope_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rope_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .plan = plan, .run = sop_rope_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "rope_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_rope_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 k=64",
    "tokens=1 k=2",
    "tokens=3 heads=2 k=18 x_stride=50 x_head=20 y_stride=40",
    "tokens=3 heads=2 k=18 interleaved=1 y_stride=47 y_head=23",
    "tokens=5 heads=3 k=16 rot=4",
    "tokens=5 heads=3 k=33 rot=32 interleaved=1 mscale=1.25",
    "tokens=90 heads=16 k=72 interleaved=1 x=bf16 y=bf16",
    "tokens=7 heads=9 k=64 x_stride=960 y_stride=960", /* smollm2, q inside a fused qkv row */
    "tokens=17 heads=14 k=64",                         /* qwen2.5 0.5B */
    "tokens=5 heads=72 k=128 x=bf16 y=bf16",           /* llama3 70B, q and k together */
    "tokens=5 heads=3 k=96 rot=64 x=f16 y=f16 x_stride=312 x_head=104 y_stride=296",
    "tokens=3 heads=2 k=40 rot=24 x=bf16 y=bf16", /* beyond: half of rot is 12 */
    "tokens=17 heads=4 k=256",                    /* gemma3 270M */
    "tokens=3 heads=2 k=80 rot=32 x=f16 y=f16",
    "tokens=3 heads=2 k=16 x=f64 y=f64",
    NULL,
};

const sop_op sop_op_rope = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_rope_desc),
    .name = "rope",
    .formula = "(a, b) -> (a cos - b sin, b cos + a sin), angle = pos * freqs[i]",
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
    .reference = sop_rope_reference,
    .cost = cost,
    .backward = "rope",
};
