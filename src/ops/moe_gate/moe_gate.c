/* moe_gate's contract and its variants. */
#include "ops/moe_gate/moe_gate.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_moe_gate_desc, over);

#define AT(member) offsetof(sop_moe_gate_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "rows"},
    {"experts", AT(experts), SOP_FIELD_I64, NULL, "logits of a row"},
    {"top", AT(top), SOP_FIELD_I64, NULL, "experts of a token"},
    {"x_stride", AT(x_stride), SOP_FIELD_I64, NULL, "between rows of x"},
    {"over", AT(over), SOP_FIELD_WORD, "all|chosen", "the experts whose weights sum to 1"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of x"},
};

static const sop_role roles[SOP_MOE_GATE_ROLES] = {
    [SOP_MOE_GATE_X] = {"x", SOP_ROLE_IN, -1},
    [SOP_MOE_GATE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_MOE_GATE_IDS] = {"ids", SOP_ROLE_OUT, -1},
    [SOP_MOE_GATE_WEIGHTS] = {"weights", SOP_ROLE_OUT, -1},
    [SOP_MOE_GATE_COUNTS] = {"counts", SOP_ROLE_OUT | SOP_ROLE_TALLY, -1},
    [SOP_MOE_GATE_PERM] = {"perm", SOP_ROLE_OUT | SOP_ROLE_TALLY, -1},
};

static void complete(void *desc)
{
    sop_moe_gate_desc *d = desc;
    if (!d->x_stride) d->x_stride = d->experts;
}

static sop_status check(const void *desc)
{
    const sop_moe_gate_desc *d = desc;
    const int64_t most = INT32_MAX;
    if (d->tokens < 0 || d->experts < 1 || d->experts > most)
        return sop_fail(SOP_E_SHAPE, "moe_gate: tokens=%lld experts=%lld, must be >= 0, 1 to %lld",
                        (long long)d->tokens, (long long)d->experts, (long long)most);
    if (d->top < 1 || d->top > d->experts)
        return sop_fail(SOP_E_SHAPE, "moe_gate: top=%lld, must be 1 to experts=%lld",
                        (long long)d->top, (long long)d->experts);
    if (d->tokens > most / d->top)
        return sop_fail(SOP_E_SHAPE,
                        "moe_gate: tokens=%lld top=%lld, their product must be <= %lld",
                        (long long)d->tokens, (long long)d->top, (long long)most);
    if (d->x_stride < 0)
        return sop_fail(SOP_E_SHAPE, "moe_gate: x_stride=%lld, must be >= 0",
                        (long long)d->x_stride);
    if (d->over < SOP_MOE_ALL || d->over > SOP_MOE_CHOSEN)
        return sop_fail(SOP_E_ARG, "moe_gate: over=%d, must be 0 or 1", d->over);
    if (sop_unit(d->x_dtype) == 0)
        return sop_fail(SOP_E_ARG, "moe_gate: type %d, must be f32, f16 or bf16", d->x_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_moe_gate_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_MOE_GATE_X: sop_view2(out, d->x_dtype, d->tokens, d->experts, d->x_stride); break;
    case SOP_MOE_GATE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_MOE_GATE_IDS: sop_view2(out, SOP_I32, d->tokens, d->top, d->top); break;
    case SOP_MOE_GATE_WEIGHTS: sop_view2(out, SOP_F32, d->tokens, d->top, d->top); break;
    case SOP_MOE_GATE_COUNTS: sop_view1(out, SOP_I32, d->experts); break;
    case SOP_MOE_GATE_PERM: sop_view1(out, SOP_I32, d->tokens * d->top); break;
    default: break;
    }
}

static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    (void)desc, (void)seed;
    if (live >= 0) *(int32_t *)args[SOP_MOE_GATE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_moe_gate_desc *d = desc;
    const double n = (double)d->tokens * (double)d->experts;
    const double pairs = (double)d->tokens * (double)d->top;
    *out = (sop_cost){4 * n, n * (double)sop_dtype_bytes(d->x_dtype),
                      12 * pairs + 4 * (double)d->experts};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_moe_gate_desc *d = desc;
    return d->x_dtype ? "x is not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "moe_gate_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_moe_gate_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "moe_gate_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_moe_gate_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "moe_gate_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_moe_gate_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "moe_gate_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .plan = sop_moe_gate_ref_plan, .run = sop_moe_gate_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 experts=8 top=2",
    "tokens=3 experts=1 top=1",
    "tokens=5 experts=4 top=4 over=chosen",
    "tokens=7 experts=7 top=3 x_stride=9",
    "tokens=3 experts=9 top=1 over=chosen",
    "tokens=64 experts=8 top=2 over=chosen",   /* Mixtral 8x7B */
    "tokens=33 experts=60 top=4",              /* Qwen1.5 MoE A2.7B */
    "tokens=31 experts=64 top=8",              /* OLMoE */
    "tokens=17 experts=128 top=8 over=chosen", /* Qwen3 30B A3B */
    "tokens=9 experts=257 top=33",
    "tokens=600 experts=16 top=1",
    "tokens=40 experts=32 top=4 over=chosen x=f16",
    "tokens=40 experts=256 top=8 x=bf16", /* eight bits: many ties */
    NULL,
};

const sop_op sop_op_moe_gate = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_moe_gate_desc),
    .name = "moe_gate",
    .formula = "the top experts of each token, their softmax weights, the pairs sorted by expert",
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
    .reference = sop_moe_gate_reference,
    .cost = cost,
};
