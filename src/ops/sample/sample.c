/* sample's contract and its variants; the random bits of a draw. */
#include "ops/sample/sample.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_sample_desc, reserved);
_Static_assert(sizeof(sop_sampling) == 32, "sop_sampling has padding");

#define AT(member) offsetof(sop_sample_desc, member)
static const sop_field fields[] = {
    {"rows", AT(rows), SOP_FIELD_I64, NULL, "sequences"},
    {"vocab", AT(vocab), SOP_FIELD_I64, NULL, "tokens to choose from"},
    {"logits_stride", AT(logits_stride), SOP_FIELD_I64, NULL, "between rows of logits"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of the logits"},
};

static const sop_role roles[SOP_SAMPLE_ROLES] = {
    [SOP_SAMPLE_LOGITS] = {"logits", SOP_ROLE_IN, -1},
    [SOP_SAMPLE_PARAMS] = {"params", SOP_ROLE_INDEX, -1},
    [SOP_SAMPLE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_SAMPLE_IDS] = {"ids", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_sample_desc *d = desc;
    if (!d->logits_stride) d->logits_stride = d->vocab;
}

static sop_status check(const void *desc)
{
    const sop_sample_desc *d = desc;
    if (d->rows < 0 || d->vocab < 1 || d->vocab > INT32_MAX)
        return sop_fail(SOP_E_SHAPE, "sample: rows=%lld vocab=%lld, must be >= 0, 1 to 2^31 - 1",
                        (long long)d->rows, (long long)d->vocab);
    if (d->logits_stride < 0)
        return sop_fail(SOP_E_SHAPE, "sample: logits_stride=%lld, must be >= 0",
                        (long long)d->logits_stride);
    if (sop_unit(d->x_dtype) == 0)
        return sop_fail(SOP_E_ARG, "sample: type %d, must be f32, f16 or bf16", d->x_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_sample_desc *d = desc;
    const int64_t bytes = (int64_t)sizeof(sop_sampling);
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_SAMPLE_LOGITS: sop_view2(out, d->x_dtype, d->rows, d->vocab, d->logits_stride); break;
    case SOP_SAMPLE_PARAMS: sop_view2(out, SOP_U8, d->rows, bytes, bytes); break;
    case SOP_SAMPLE_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_SAMPLE_IDS: sop_view1(out, SOP_I32, d->rows); break;
    default: break;
    }
}

/* Greedy, plain, and each filter alone and together. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_sample_desc *d = desc;
    static const float temperatures[] = {0, 1, 0.7f, 2, 1e-5f};
    static const float masses[] = {0, 0.9f, 0.5f, 0, 1}, floors[] = {0, 0, 0.05f, 0.5f, 1.5f};
    static const int32_t tops[] = {0, 40, 1, 0, 1000, 7};
    if (live >= 0) *(int32_t *)args[SOP_SAMPLE_LIVE].data = (int32_t)live;
    for (int64_t b = 0; b < d->rows; b++) {
        uint64_t state = seed * 1000 + (uint64_t)b;
        sop_sampling *s = (sop_sampling *)args[SOP_SAMPLE_PARAMS].data + b;
        s->temperature = temperatures[sop_random(&state) % SOP_N(temperatures)];
        s->top_p = masses[sop_random(&state) % SOP_N(masses)];
        s->min_p = floors[sop_random(&state) % SOP_N(floors)];
        s->top_k = tops[sop_random(&state) % SOP_N(tops)];
        s->seed = sop_random(&state);
        s->counter = sop_random(&state) % 1000;
    }
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_sample_desc *d = desc;
    const double n = (double)d->rows * (double)d->vocab;
    *out = (sop_cost){n, n * (double)sop_dtype_bytes(d->x_dtype) + 32 * (double)d->rows,
                      4 * (double)d->rows};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_sample_desc *d = desc;
    return d->x_dtype ? "logits are not f32" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "sample_split_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = sop_sample_split_refuse, .plan = sop_sample_split_plan, .run = sop_sample_split_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "sample_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_sample_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "sample_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .plan = sop_sample_plan, .run = sop_sample_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "sample_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .plan = sop_sample_plan, .run = sop_sample_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "sample_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .plan = sop_sample_ref_plan, .run = sop_sample_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "rows=0 vocab=7",
    "rows=1 vocab=1",
    "rows=9 vocab=7 logits_stride=11",
    "rows=33 vocab=1000",
    "rows=8 vocab=1025",
    "rows=5 vocab=2049 x=f16",
    "rows=10 vocab=8193 x=bf16",
    "rows=24 vocab=20011 logits_stride=20016",
    "rows=1 vocab=151936", /* qwen2.5 */
    "rows=4 vocab=151936",
    "rows=600 vocab=300",  /* more of them are left than there are blocks */
    "rows=1 vocab=262145", /* beyond sample_split_sm80's list of tiles */
    NULL,
};

const sop_op sop_op_sample = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_sample_desc),
    .name = "sample",
    .formula = "ids[b] = a draw from softmax(logits[b] / temperature) after top_k, top_p, min_p",
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
    .reference = sop_sample_reference,
    .cost = cost,
};

void sop_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double sop_sample_uniform(uint64_t seed, uint64_t counter)
{
    const uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t bits[4];
    sop_philox(c, key, bits);
    return (double)(((uint64_t)bits[0] << 32 | bits[1]) >> 11) * 0x1p-53;
}
