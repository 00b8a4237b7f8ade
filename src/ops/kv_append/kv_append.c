/* kv_append's contract and its variants. Two tokens of a call never have the same slot. A slot beyond
 * the pool is left out like a negative one: a stray write would corrupt another sequence. */
#include "ops/kv_append/kv_append.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_kv_append_desc, kv_dtype);

#define AT(member) offsetof(sop_kv_append_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "new rows"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "KV heads; 1"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "channels of a key"},
    {"v", AT(v), SOP_FIELD_I64, NULL, "channels of a value; k"},
    {"pages", AT(pages), SOP_FIELD_I64, NULL, "pages of the pools; enough for two calls"},
    {"page", AT(page), SOP_FIELD_I64, NULL, "tokens of a page; 64"},
    {"k_stride", AT(k_stride), SOP_FIELD_I64, NULL, "between tokens of k"},
    {"k_head", AT(k_head), SOP_FIELD_I64, NULL, "between heads of k"},
    {"v_stride", AT(v_stride), SOP_FIELD_I64, NULL, "between tokens of v"},
    {"v_head", AT(v_head), SOP_FIELD_I64, NULL, "between heads of v"},
    {"kp_page", AT(kp_page), SOP_FIELD_I64, NULL, "between pages of the pool of keys"},
    {"kp_token", AT(kp_token), SOP_FIELD_I64, NULL, "between tokens of a page of keys"},
    {"kp_head", AT(kp_head), SOP_FIELD_I64, NULL, "between heads of a page of keys"},
    {"vp_page", AT(vp_page), SOP_FIELD_I64, NULL, "between pages of the pool of values"},
    {"vp_token", AT(vp_token), SOP_FIELD_I64, NULL, "between tokens of a page of values"},
    {"vp_head", AT(vp_head), SOP_FIELD_I64, NULL, "between heads of a page of values"},
    {"x", AT(x_dtype), SOP_FIELD_DTYPE, NULL, "type of the new rows"},
    {"kv", AT(kv_dtype), SOP_FIELD_DTYPE, NULL, "type of the pools"},
};

static const sop_role roles[SOP_KV_APPEND_ROLES] = {
    [SOP_KV_APPEND_K] = {"k", SOP_ROLE_IN, -1},
    [SOP_KV_APPEND_V] = {"v", SOP_ROLE_IN, -1},
    [SOP_KV_APPEND_SLOTS] = {"slots", SOP_ROLE_INDEX, -1},
    [SOP_KV_APPEND_K_SCALES] = {"k_scales", SOP_ROLE_OPTIONAL, -1},
    [SOP_KV_APPEND_V_SCALES] = {"v_scales", SOP_ROLE_OPTIONAL, -1},
    [SOP_KV_APPEND_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_KV_APPEND_K_POOL] = {"k_pool", SOP_ROLE_OUT | SOP_ROLE_PARTIAL, -1},
    [SOP_KV_APPEND_V_POOL] = {"v_pool", SOP_ROLE_OUT | SOP_ROLE_PARTIAL, -1},
};

static void complete(void *desc)
{
    sop_kv_append_desc *d = desc;
    if (!d->heads) d->heads = 1;
    if (!d->v) d->v = d->k;
    if (!d->page) d->page = 64;
    if (!d->pages && d->page > 0) d->pages = (2 * d->tokens + d->page - 1) / d->page;
    if (!d->k_head) d->k_head = d->k;
    if (!d->v_head) d->v_head = d->v;
    if (!d->k_stride) d->k_stride = d->heads * d->k_head;
    if (!d->v_stride) d->v_stride = d->heads * d->v_head;
    if (!d->kp_token && !d->kp_head) d->kp_head = d->k, d->kp_token = d->heads * d->k;
    if (!d->vp_token && !d->vp_head) d->vp_head = d->v, d->vp_token = d->heads * d->v;
    if (!d->kp_page) d->kp_page = d->page * d->heads * d->k;
    if (!d->vp_page) d->vp_page = d->page * d->heads * d->v;
}

static sop_status check(const void *desc)
{
    const sop_kv_append_desc *d = desc;
    if (d->tokens < 0 || d->heads < 1 || d->k < 1 || d->v < 1)
        return sop_fail(
            SOP_E_SHAPE, "kv_append: tokens=%lld heads=%lld k=%lld v=%lld, must be >= 0, 1, 1, 1",
            (long long)d->tokens, (long long)d->heads, (long long)d->k, (long long)d->v);
    if (d->pages < 0 || d->page < 1 || d->pages > INT32_MAX / d->page)
        return sop_fail(SOP_E_SHAPE,
                        "kv_append: pages=%lld page=%lld, must be >= 0, 1, their product < 2^31",
                        (long long)d->pages, (long long)d->page);
    if (sop_unit(d->x_dtype) == 0 || (sop_unit(d->kv_dtype) == 0 && !sop_is_code(d->kv_dtype)))
        return sop_fail(SOP_E_ARG,
                        "kv_append: x must be f32, f16 or bf16, kv one of them, i8 or f8");
    return SOP_OK;
}

void sop_view_pool(sop_tensor *out, int32_t dtype, const int64_t shape[4], int64_t page_stride,
                   int64_t token_stride, int64_t head_stride)
{
    /* bytes as far as the last element */
    sop_view3(out, dtype, shape[1], shape[2], shape[3], token_stride, head_stride);
    const size_t one = out->bytes;
    *out = (sop_tensor){.dtype = dtype,
                        .ndim = 4,
                        .shape = {shape[0], shape[1], shape[2], shape[3]},
                        .stride = {page_stride, token_stride, head_stride, 1}};
    if (shape[0] > 0 && one > 0)
        out->bytes = (size_t)((shape[0] - 1) * page_stride) * sop_dtype_bytes(dtype) + one;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_kv_append_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_KV_APPEND_K:
        sop_view3(out, d->x_dtype, d->tokens, d->heads, d->k, d->k_stride, d->k_head);
        break;
    case SOP_KV_APPEND_V:
        sop_view3(out, d->x_dtype, d->tokens, d->heads, d->v, d->v_stride, d->v_head);
        break;
    case SOP_KV_APPEND_SLOTS: sop_view1(out, SOP_I32, d->tokens); break;
    case SOP_KV_APPEND_K_SCALES:
    case SOP_KV_APPEND_V_SCALES:
        if (sop_is_code(d->kv_dtype)) sop_view1(out, SOP_F32, d->heads);
        break;
    case SOP_KV_APPEND_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_KV_APPEND_K_POOL:
        sop_view_pool(out, d->kv_dtype, (const int64_t[]){d->pages, d->page, d->heads, d->k},
                      d->kp_page, d->kp_token, d->kp_head);
        break;
    case SOP_KV_APPEND_V_POOL:
        sop_view_pool(out, d->kv_dtype, (const int64_t[]){d->pages, d->page, d->heads, d->v},
                      d->vp_page, d->vp_token, d->vp_head);
        break;
    default: break;
    }
}

/* Distinct slots in an order that jumps; one token in 8 has none, half of these a slot beyond the
 * pool. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_kv_append_desc *d = desc;
    int32_t *slots = args[SOP_KV_APPEND_SLOTS].data;
    const int64_t n = d->pages * d->page;
    int64_t step = 1; /* coprime to n: at, at + step, ... meets each slot once */
    for (int64_t s = n / 3 | 1; s < n && step == 1; s++) {
        int64_t a = n, b = s;
        while (b) {
            const int64_t rest = a % b;
            a = b, b = rest;
        }
        if (a == 1) step = s;
    }
    int64_t at = n ? (int64_t)(sop_random(&seed) >> 33) % n : 0;
    for (int64_t t = 0; t < d->tokens; t++) {
        const uint64_t r = sop_random(&seed) % 16;
        slots[t] = (int32_t)(r == 0 || t >= n ? -1 : r == 1 ? n + t : at);
        if (n) at = (at + step) % n;
    }
    for (int64_t h = 0; sop_is_code(d->kv_dtype) && h < d->heads; h++) {
        ((float *)args[SOP_KV_APPEND_K_SCALES].data)[h] = 0.013f * (float)(1 + h % 3);
        ((float *)args[SOP_KV_APPEND_V_SCALES].data)[h] = 0.017f * (float)(1 + h % 5);
    }
    if (live >= 0) *(int32_t *)args[SOP_KV_APPEND_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_kv_append_desc *d = desc;
    const double n = (double)d->tokens * (double)d->heads * (double)(d->k + d->v);
    *out = (sop_cost){0, n * (double)sop_dtype_bytes(d->x_dtype) + 4 * (double)d->tokens,
                      n * (double)sop_dtype_bytes(d->kv_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_kv_append_desc *d = desc;
    return d->x_dtype ? "x is not f32" : sop_is_code(d->kv_dtype) ? "the pools hold codes" : NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "kv_append_wide_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_INVARIANT,
     .refuse = sop_kv_append_wide_refuse, .run = sop_kv_append_wide_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "kv_append_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_kv_append_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "kv_append_f32_avx2", "c", SOP_CPU_AVX2, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .run = sop_kv_append_f32_avx2},
    {sizeof(sop_row), SOP_DEVICE_CPU, "kv_append_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_kv_append_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "kv_append_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_kv_append_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 k=64",
    "tokens=1 k=1 page=1",
    "tokens=17 k=46 kv=f16 page=16", /* rows of 92 bytes */
    "tokens=17 k=46 x=bf16 kv=bf16 page=16",
    "tokens=30 heads=2 k=7 v=9 page=3 kv=bf16 k_stride=40 k_head=11 v_stride=21",
    "tokens=30 heads=2 k=24 v=40 page=5 kp_page=300 kp_token=25 kp_head=140 vp_page=410",
    "tokens=40 heads=3 k=64 kv=f16 k_stride=960 v_stride=960", /* smollm2, in a fused qkv row */
    "tokens=9 heads=2 k=64 kv=f16 kp_token=64 kp_head=4096 vp_token=64 vp_head=4096",
    "tokens=19 heads=8 k=128 x=bf16 kv=bf16 page=16", /* llama3 8B */
    "tokens=9 heads=3 k=24 v=40 x=bf16 kv=f32 k_stride=80 v_stride=128 page=5",
    "tokens=5 heads=1 k=256 kv=f16", /* gemma3 270M */
    "tokens=5 heads=2 k=16 x=f16 kv=f32",
    "tokens=17 heads=2 k=23 kv=i8 page=16",
    "tokens=17 heads=3 k=64 v=40 kv=f8 page=16 x=bf16 vp_page=2000 k_stride=200",
    "tokens=5 k=8 kv=i8 x=f16",
    "tokens=30 heads=2 k=24 v=40 x=f16 kv=f8 page=5 kp_page=400 kp_token=32 kp_head=200 vp_page=480",
    "tokens=19 heads=8 k=128 x=bf16 kv=i8 page=16",
    "tokens=530 heads=2 k=64 x=bf16 kv=bf16 page=256",
    "tokens=9 heads=2 k=16 pages=1 page=4", /* a pool that is too small */
    NULL,
};

const sop_op sop_op_kv_append = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_kv_append_desc),
    .name = "kv_append",
    .formula = "k_pool[slots] = k; v_pool[slots] = v",
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
    .reference = sop_kv_append_reference,
    .cost = cost,
};
