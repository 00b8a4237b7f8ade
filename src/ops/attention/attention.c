/* attention's contract and its variants. */
#include "ops/attention/attention.h"

#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/kv_append/kv_append.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_attention_desc, reserved);

#define AT(member) offsetof(sop_attention_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "queries of all sequences"},
    {"seqs", AT(seqs), SOP_FIELD_I64, NULL, "sequences; 1"},
    {"max_kv", AT(max_kv), SOP_FIELD_I64, NULL, "most keys of a sequence; tokens"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "query heads; 1"},
    {"kv_heads", AT(kv_heads), SOP_FIELD_I64, NULL, "KV heads, a divisor of heads; heads"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "channels of a key"},
    {"v", AT(v), SOP_FIELD_I64, NULL, "channels of a value; k"},
    {"pages", AT(pages), SOP_FIELD_I64, NULL, "pages of the pools; seqs * table_stride"},
    {"page", AT(page), SOP_FIELD_I64, NULL, "tokens of a page; 64"},
    {"table_stride", AT(table_stride), SOP_FIELD_I64, NULL, "pages that a sequence can list"},
    {"q_stride", AT(q_stride), SOP_FIELD_I64, NULL, "between tokens of q"},
    {"q_head", AT(q_head), SOP_FIELD_I64, NULL, "between heads of q"},
    {"o_stride", AT(o_stride), SOP_FIELD_I64, NULL, "between tokens of o"},
    {"o_head", AT(o_head), SOP_FIELD_I64, NULL, "between heads of o"},
    {"kp_page", AT(kp_page), SOP_FIELD_I64, NULL, "between pages of keys"},
    {"kp_token", AT(kp_token), SOP_FIELD_I64, NULL, "between tokens of a page of keys"},
    {"kp_head", AT(kp_head), SOP_FIELD_I64, NULL, "between heads of a page of keys"},
    {"vp_page", AT(vp_page), SOP_FIELD_I64, NULL, "between pages of values"},
    {"vp_token", AT(vp_token), SOP_FIELD_I64, NULL, "between tokens of a page of values"},
    {"vp_head", AT(vp_head), SOP_FIELD_I64, NULL, "between heads of a page of values"},
    {"window", AT(window), SOP_FIELD_I64, NULL, "keys seen, the query's own included; 0: all"},
    {"mask_heads", AT(mask_heads), SOP_FIELD_I64, NULL,
     "heads of a mask, a divisor of heads; none"},
    {"mask_stride", AT(mask_stride), SOP_FIELD_I64, NULL, "between tokens of the mask"},
    {"mask_head", AT(mask_head), SOP_FIELD_I64, NULL, "between heads of the mask"},
    {"scale", AT(scale), SOP_FIELD_F32, NULL, "factor of q . k; 1 / sqrt(k)"},
    {"cap", AT(cap), SOP_FIELD_F32, NULL, "z = cap * tanh(z / cap); 0: none"},
    {"q", AT(q_dtype), SOP_FIELD_DTYPE, NULL, "type of q"},
    {"kv", AT(kv_dtype), SOP_FIELD_DTYPE, NULL, "type of the pools"},
    {"o", AT(o_dtype), SOP_FIELD_DTYPE, NULL, "type of o"},
    {"mask", AT(mask_dtype), SOP_FIELD_DTYPE, NULL, "type of the mask: u8, or one to be added"},
    {"causal", AT(causal), SOP_FIELD_I32, NULL, "1: a query sees no later key"},
    {"alibi", AT(alibi), SOP_FIELD_I32, NULL, "1: scores fall with the distance, by slopes"},
    {"sinks", AT(sinks), SOP_FIELD_I32, NULL, "1: heads have a sink in their softmax"},
    {"paths", AT(paths), SOP_FIELD_I32, NULL, "sum of 8 flash, 16 tiled, 32 ring; all"},
    {"numerics", AT(numerics), SOP_FIELD_WORD, "fast|exact|invariant", "how exact"},
};

static const sop_role roles[SOP_ATTENTION_ROLES] = {
    [SOP_ATTENTION_Q] = {"q", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_K_POOL] = {"k_pool", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_V_POOL] = {"v_pool", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_TABLE] = {"table", SOP_ROLE_INDEX, -1},
    [SOP_ATTENTION_Q_START] = {"q_start", SOP_ROLE_INDEX, -1},
    [SOP_ATTENTION_KV_LEN] = {"kv_len", SOP_ROLE_INDEX, -1},
    [SOP_ATTENTION_K_SCALES] = {"k_scales", SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_V_SCALES] = {"v_scales", SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_SLOPES] = {"slopes", SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_SINKS] = {"sinks", SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_MASK] = {"mask", SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_ATTENTION_O] = {"o", SOP_ROLE_OUT, -1},
    [SOP_ATTENTION_LSE] = {"lse", SOP_ROLE_OUT | SOP_ROLE_OPTIONAL, -1},
};

static void complete(void *desc)
{
    sop_attention_desc *d = desc;
    if (!d->seqs) d->seqs = 1;
    if (!d->max_kv) d->max_kv = d->tokens;
    if (!d->heads) d->heads = 1;
    if (!d->kv_heads) d->kv_heads = d->heads;
    if (!d->v) d->v = d->k;
    if (!d->page) d->page = 64;
    if (!d->table_stride && d->page > 0) d->table_stride = (d->max_kv + d->page - 1) / d->page;
    if (!d->pages) d->pages = d->seqs * d->table_stride;
    if (!d->q_head) d->q_head = d->k;
    if (!d->o_head) d->o_head = d->v;
    if (!d->q_stride) d->q_stride = d->heads * d->q_head;
    if (!d->o_stride) d->o_stride = d->heads * d->o_head;
    /* dense pools are [pages, g, page, k]: a head's keys follow each other */
    if (!d->kp_token && !d->kp_head) d->kp_token = d->k, d->kp_head = d->page * d->k;
    if (!d->vp_token && !d->vp_head) d->vp_token = d->v, d->vp_head = d->page * d->v;
    if (!d->kp_page) d->kp_page = d->page * d->kv_heads * d->k;
    if (!d->vp_page) d->vp_page = d->page * d->kv_heads * d->v;
    if (d->scale == 0 && d->k > 0) d->scale = (float)(1 / sqrt((double)d->k));
    if (d->mask_heads && !d->mask_head) d->mask_head = d->max_kv;
    if (d->mask_heads && !d->mask_stride) d->mask_stride = d->mask_heads * d->mask_head;
    d->causal = d->causal != 0;
    d->alibi = d->alibi != 0;
    d->sinks = d->sinks != 0;
    if (!d->paths) d->paths = SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_RING;
}

static sop_status check(const void *desc)
{
    const sop_attention_desc *d = desc;
    if (d->tokens < 0 || d->seqs < 0 || d->max_kv < 0 || d->k < 1 || d->v < 1)
        return sop_fail(SOP_E_SHAPE,
                        "attention: tokens=%lld seqs=%lld max_kv=%lld k=%lld v=%lld, must be >= 0, "
                        "0, 0, 1, 1",
                        (long long)d->tokens, (long long)d->seqs, (long long)d->max_kv,
                        (long long)d->k, (long long)d->v);
    if (d->kv_heads < 1 || d->heads < 1 || d->heads % d->kv_heads != 0)
        return sop_fail(SOP_E_SHAPE, "attention: heads=%lld kv_heads=%lld, must divide",
                        (long long)d->heads, (long long)d->kv_heads);
    if (d->page < 1 || d->pages < 0 || d->table_stride < 0 ||
        d->table_stride < (d->max_kv + d->page - 1) / d->page)
        return sop_fail(SOP_E_SHAPE,
                        "attention: page=%lld pages=%lld table_stride=%lld, too small for "
                        "max_kv=%lld",
                        (long long)d->page, (long long)d->pages, (long long)d->table_stride,
                        (long long)d->max_kv);
    if (d->window < 0 || !(d->cap >= 0))
        return sop_fail(SOP_E_ARG, "attention: window=%lld cap=%g, must be >= 0",
                        (long long)d->window, (double)d->cap);
    if (!isfinite(d->scale) || !isfinite(d->cap))
        return sop_fail(SOP_E_ARG, "attention: scale=%g cap=%g, must be finite", (double)d->scale,
                        (double)d->cap);
    if (d->mask_heads < 0 || (d->mask_heads > 0 && d->heads % d->mask_heads != 0))
        return sop_fail(SOP_E_SHAPE, "attention: heads=%lld mask_heads=%lld, must divide",
                        (long long)d->heads, (long long)d->mask_heads);
    if (d->mask_dtype != SOP_U8 && sop_unit(d->mask_dtype) == 0)
        return sop_fail(SOP_E_ARG, "attention: mask must be u8, f32, f16 or bf16");
    const int32_t types[] = {d->q_dtype, d->o_dtype,
                             sop_is_code(d->kv_dtype) ? (int32_t)SOP_F32 : d->kv_dtype};
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG, "attention: q, kv and o must be f32, f16 or bf16, or kv i8 or "
                                   "f8, or all f64");
    if (d->paths & ~(uint32_t)(SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_RING))
        return sop_fail(SOP_E_ARG, "attention: paths=%u, must be a sum of 8, 16 and 32", d->paths);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_attention_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_ATTENTION_Q:
        sop_view3(out, d->q_dtype, d->tokens, d->heads, d->k, d->q_stride, d->q_head);
        break;
    case SOP_ATTENTION_K_POOL:
        sop_view_pool(out, d->kv_dtype, (const int64_t[]){d->pages, d->page, d->kv_heads, d->k},
                      d->kp_page, d->kp_token, d->kp_head);
        break;
    case SOP_ATTENTION_V_POOL:
        sop_view_pool(out, d->kv_dtype, (const int64_t[]){d->pages, d->page, d->kv_heads, d->v},
                      d->vp_page, d->vp_token, d->vp_head);
        break;
    case SOP_ATTENTION_TABLE:
        sop_view2(out, SOP_I32, d->seqs, d->table_stride, d->table_stride);
        break;
    case SOP_ATTENTION_Q_START: sop_view1(out, SOP_I32, d->seqs + 1); break;
    case SOP_ATTENTION_KV_LEN: sop_view1(out, SOP_I32, d->seqs); break;
    case SOP_ATTENTION_K_SCALES:
    case SOP_ATTENTION_V_SCALES:
        if (sop_is_code(d->kv_dtype)) sop_view1(out, SOP_F32, d->kv_heads);
        break;
    case SOP_ATTENTION_SLOPES:
        if (d->alibi) sop_view1(out, SOP_F32, d->heads);
        break;
    case SOP_ATTENTION_SINKS:
        if (d->sinks) sop_view1(out, SOP_F32, d->heads);
        break;
    case SOP_ATTENTION_MASK:
        if (d->mask_heads)
            sop_view3(out, d->mask_dtype, d->tokens, d->mask_heads, d->max_kv, d->mask_stride,
                      d->mask_head);
        break;
    case SOP_ATTENTION_LIVE: sop_view1(out, SOP_I32, 1); break;
    case SOP_ATTENTION_O:
        sop_view3(out, d->o_dtype, d->tokens, d->heads, d->v, d->o_stride, d->o_head);
        break;
    case SOP_ATTENTION_LSE:
        sop_view2(out, sop_param_dtype(d->q_dtype), d->tokens, d->heads, d->heads);
        break;
    default: break;
    }
}

/* Any codes but NaN, with scales that make numbers of usual size of them. */
static void fill_codes(const sop_attention_desc *d, const sop_operand *args, int32_t pool)
{
    sop_tensor v;
    uint64_t state = 5 + (uint64_t)pool;
    const int32_t scales =
        pool == SOP_ATTENTION_K_POOL ? SOP_ATTENTION_K_SCALES : SOP_ATTENTION_V_SCALES;
    sop_op_attention.view(d, pool, &v);
    for (int64_t i = 0; i < v.shape[0] * v.shape[1] * v.shape[2]; i++) {
        const int64_t h = i % v.shape[2], row = i / v.shape[2];
        uint8_t *at = (uint8_t *)args[pool].data + row / v.shape[1] * v.stride[0] +
                      row % v.shape[1] * v.stride[1] + h * v.stride[2];
        for (int64_t c = 0; c < v.shape[3]; c++) {
            at[c] = (uint8_t)(sop_random(&state) >> 56);
            if (d->kv_dtype == SOP_F8 && (at[c] & 0x7f) == 0x7f) at[c] = 0x38;
        }
    }
    for (int64_t g = 0; g < d->kv_heads; g++)
        ((float *)args[scales].data)[g] = 0.011f * (float)(1 + g % 3);
}

/* Slopes as in their paper. Of the mask, in turns of 384 tokens and of 256 keys: a third hides its key, and
 * every seventh query sees none; all is hidden; nothing is. What was there of a mask of numbers stays
 * elsewhere. */
static void fill_terms(const sop_attention_desc *d, const sop_operand *args)
{
    uint64_t state = 11;
    float *slopes = args[SOP_ATTENTION_SLOPES].data;
    void *mask = args[SOP_ATTENTION_MASK].data;
    for (int64_t h = 0; d->alibi && slopes && h < d->heads; h++)
        slopes[h] = (float)exp2(-8 * (double)(h + 1) / (double)d->heads);
    for (int64_t row = 0; mask && row < d->tokens * d->mask_heads; row++)
        for (int64_t j = 0; j < d->max_kv; j++) {
            const int64_t at =
                row / d->mask_heads * d->mask_stride + row % d->mask_heads * d->mask_head + j;
            const int64_t turn = (row / d->mask_heads / 384 + j / 256) % 3;
            const int hides = turn ? turn == 1 : sop_random(&state) % 3 == 0 || row % 7 == 6;
            if (d->mask_dtype == SOP_U8)
                ((uint8_t *)mask)[at] = (uint8_t)(hides ? 0 : 1 + j % 255);
            else if (hides || turn == 2)
                sop_store(mask, d->mask_dtype, at, hides ? -INFINITY : 0);
        }
}

/* Seed 0: the work that cost() counts, tokens shared evenly and max_kv keys each. Others: some
 * sequences have more queries than others, some fewer keys than queries or none; a page stands in
 * the table once. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_attention_desc *d = desc;
    int32_t *table = args[SOP_ATTENTION_TABLE].data, *q_start = args[SOP_ATTENTION_Q_START].data;
    int32_t *kv_len = args[SOP_ATTENTION_KV_LEN].data;
    const int even = seed == 0;
    q_start[0] = 0;
    for (int64_t s = 0; s < d->seqs; s++) {
        const int64_t left = d->tokens - q_start[s], one = left / (d->seqs - s);
        const uint64_t r = sop_random(&seed), kind = r % 8;
        const int64_t most = 2 * one < left ? 2 * one : left;
        const int64_t n = s == d->seqs - 1 ? left
                          : even           ? one
                                           : (int64_t)((r >> 8) % (uint64_t)(most + 1));
        q_start[s + 1] = (int32_t)(q_start[s] + n);
        kv_len[s] = (int32_t)d->max_kv;
        if (even || (s == 0 && kind > 1)) continue;
        const uint64_t pick = (r >> 32) % (uint64_t)(d->max_kv + 1);
        if (kind == 0)
            kv_len[s] = n > 0 && n - 1 < d->max_kv ? (int32_t)(n - 1) : 0;
        else if (kind > 3)
            kv_len[s] = (int32_t)((int64_t)pick > n ? (int64_t)pick
                                  : n < d->max_kv   ? n
                                                    : d->max_kv);
    }
    const int64_t entries = d->seqs * d->table_stride;
    for (int64_t i = 0; i < entries; i++) table[i] = (int32_t)(d->pages ? i % d->pages : 0);
    for (int64_t i = entries - 1; i > 0 && !even; i--) {
        const int64_t j = (int64_t)(sop_random(&seed) % (uint64_t)(i + 1));
        const int32_t other = table[j];
        table[j] = table[i];
        table[i] = other;
    }
    fill_terms(d, args);
    if (sop_is_code(d->kv_dtype)) {
        fill_codes(d, args, SOP_ATTENTION_K_POOL);
        fill_codes(d, args, SOP_ATTENTION_V_POOL);
    }
    if (live >= 0) *(int32_t *)args[SOP_ATTENTION_LIVE].data = (int32_t)live;
}

/* Pairs of a query and a key that it sees, tokens shared evenly and max_kv keys each. */
static double pairs_seen(const sop_attention_desc *d)
{
    if (d->seqs == 0) return 0;
    const double n = (double)d->max_kv, l = (double)d->tokens / (double)d->seqs;
    /* the first query sees n - l + 1 keys, the last n; with a window at most that many */
    double seen = d->causal ? n - (l - 1) / 2 : n;
    if (d->causal && l > n) seen = n * (n + 1) / 2 / l;
    if (d->window > 0) seen = fmin(seen, (double)d->window);
    return (double)d->tokens * fmax(seen, 0);
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_attention_desc *d = desc;
    const double kv = (double)(d->k + d->v), l = d->seqs ? (double)(d->tokens / d->seqs) : 0;
    double keys = (double)d->max_kv;
    if (d->window > 0) keys = fmin(keys, (double)d->window + fmax(l - 1, 0));
    *out = (sop_cost){
        2 * pairs_seen(d) * (double)d->heads * kv,
        (double)d->tokens * (double)(d->heads * d->k) * (double)sop_dtype_bytes(d->q_dtype) +
            (double)d->seqs * keys * (double)d->kv_heads * kv *
                (double)sop_dtype_bytes(d->kv_dtype) +
            (double)d->mask_heads * pairs_seen(d) * (double)sop_dtype_bytes(d->mask_dtype),
        (double)d->tokens * (double)(d->heads * d->v) * (double)sop_dtype_bytes(d->o_dtype)};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

static const char *takes_f32(const void *desc)
{
    const sop_attention_desc *d = desc;
    return d->q_dtype || d->o_dtype ? "q or o is not f32" : NULL;
}

/* What all paths share. In the invariant mode flash serves whatever path was asked for: each path has
 * bits of its own, and which one is a candidate depends on the batch. */
static const char *takes(const sop_attention_desc *d, uint32_t path, const char *no_candidate)
{
    const char *why = takes_f32(d);
    if (why) return why;
    if (sop_is_code(d->kv_dtype)) return "the pools hold codes";
    if (d->numerics == SOP_NUMERICS_INVARIANT)
        return path == SOP_ROW_FLASH ? NULL : "the invariant mode keeps to the flash path";
    return d->paths & path ? NULL : no_candidate;
}

static const char *takes_flash(const void *desc)
{
    return takes(desc, SOP_ROW_FLASH, "the flash path is not a candidate");
}

static const char *takes_tiled(const void *desc)
{
    const sop_attention_desc *d = desc;
    if (d->tokens > 16 * d->seqs) return "over 16 queries a sequence";
    return takes(desc, SOP_ROW_TILED, "the tiled path is not a candidate");
}

static const char *takes_ring(const void *desc)
{
    return takes(desc, SOP_ROW_RING, "the ring path is not a candidate");
}

static const sop_param flash_params[] = {{"rows", 48, 384, 2, 192}};
static const sop_param tiled_params[] = {{"keys", 128, 1024, 2, 256}};
#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_attention_desc *)desc)->q_dtype);
}

static const sop_param decode_params[] = {{"seg_cost", 8, 64, 2, 8}};
#endif
static const sop_param ring_params[] = {{"keys", 1024, 16384, 2, 4096}};

/* clang-format off */
#define PATH(target, needs, path, TRAIT) \
    {sizeof(sop_row), SOP_DEVICE_CPU, "attention_" #path "_" #target, "c", needs, \
     SOP_ROW_INVARIANT | (TRAIT), .params = path##_params, .n_params = 1, \
     .refuse = takes_##path, .plan = sop_attention_plan_##path, \
     .run = sop_attention_##path##_##target}
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_decode_few_sm90", "cuda", SOP_CUDA_SM90,
     SOP_ROW_ROUNDS | SOP_ROW_TILED, .refuse = sop_attention_decode_few_refuse,
     .plan = sop_attention_decode_few_plan, .run = sop_attention_decode_few_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_decode_ring_sm90", "cuda", SOP_CUDA_SM90,
     SOP_ROW_ROUNDS | SOP_ROW_TILED, .params = decode_params, .n_params = 1,
     .refuse = sop_attention_decode_ring_refuse, .plan = sop_attention_decode_ring_plan,
     .run = sop_attention_decode_ring_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_decode_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_ROUNDS | SOP_ROW_TILED, .params = decode_params, .n_params = 1,
     .refuse = sop_attention_decode_refuse, .plan = sop_attention_decode_plan,
     .run = sop_attention_decode_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_prefill_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_ROUNDS | SOP_ROW_FLASH | SOP_ROW_INVARIANT, .refuse = sop_attention_prefill_refuse,
     .plan = sop_attention_prefill_plan, .run = sop_attention_prefill_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_prefill_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_ROUNDS | SOP_ROW_FLASH, .refuse = sop_attention_prefill_sm80_refuse,
     .run = sop_attention_prefill_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_decode_bytes_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_ROUNDS | SOP_ROW_TILED, .params = decode_params, .n_params = 1,
     .refuse = sop_attention_decode_bytes_refuse, .plan = sop_attention_decode_plan,
     .run = sop_attention_decode_bytes_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_decode_codes_sm80", "cuda", SOP_CUDA_SM80,
     SOP_ROW_ROUNDS | SOP_ROW_TILED, .refuse = sop_attention_decode_codes_refuse,
     .plan = sop_attention_decode_codes_plan, .run = sop_attention_decode_codes_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_prefill_codes_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_ROUNDS | SOP_ROW_FLASH, .refuse = sop_attention_prefill_codes_refuse,
     .plan = sop_attention_prefill_codes_plan, .run = sop_attention_prefill_codes_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_cudnn", "vendor", SOP_CUDA_SM80,
     SOP_ROW_ROUNDS | SOP_ROW_FLASH, .refuse = sop_attention_cudnn_refuse,
     .plan = sop_attention_cudnn_plan, .prepare = sop_attention_cudnn_prepare,
     .release = sop_attention_cudnn_release, .run = sop_attention_cudnn},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_floats, .run = sop_attention_cuda},
#endif
    PATH(avx512, SOP_CPU_AVX2 | SOP_CPU_AVX512, ring, SOP_ROW_RING),
    PATH(avx2, SOP_CPU_AVX2, ring, SOP_ROW_RING),
    PATH(avx512, SOP_CPU_AVX2 | SOP_CPU_AVX512, tiled, SOP_ROW_TILED),
    PATH(avx2, SOP_CPU_AVX2, tiled, SOP_ROW_TILED),
    PATH(avx512, SOP_CPU_AVX2 | SOP_CPU_AVX512, flash, SOP_ROW_FLASH),
    PATH(avx2, SOP_CPU_AVX2, flash, SOP_ROW_FLASH),
    {sizeof(sop_row), SOP_DEVICE_CPU, "attention_f32_c", "c", 0, SOP_ROW_INVARIANT,
     .refuse = takes_f32, .plan = sop_attention_plan_flash, .run = sop_attention_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "attention_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .plan = sop_attention_plan_ref, .run = sop_attention_ref},
};
#undef PATH
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 k=64 max_kv=10",
    "tokens=4 seqs=2 k=8 page=4",
    "tokens=1 k=1 causal=1",
    "tokens=1 seqs=1 max_kv=300 heads=14 kv_heads=2 k=64 kv=f16 causal=1", /* qwen2.5 0.5B decode */
    "tokens=5 seqs=5 max_kv=150 heads=9 kv_heads=3 k=64 kv=f16 causal=1 page=16", /* smollm2 */
    "tokens=2 seqs=2 max_kv=130 heads=4 kv_heads=1 k=256 causal=1 window=70",     /* gemma3 */
    "tokens=40 heads=6 kv_heads=2 k=64 causal=1 q_stride=512 o_stride=400",
    "tokens=90 max_kv=200 heads=2 kv_heads=1 k=32 kv=f16 causal=1 window=48",
    "tokens=60 seqs=7 max_kv=100 heads=4 kv_heads=2 k=16 kv=f16 causal=1 page=3",
    "tokens=33 seqs=3 max_kv=80 heads=3 kv_heads=3 k=40 v=24 causal=1 page=1 cap=5",
    "tokens=70 max_kv=65 heads=2 k=72 kv=bf16", /* not causal, head 72 */
    "tokens=20 max_kv=129 heads=5 kv_heads=1 k=23 v=37 kv=f16 causal=1 scale=0.3 page=16",
    "tokens=3 seqs=3 max_kv=900 heads=8 kv_heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=256",
    "tokens=1 max_kv=700 heads=14 kv_heads=2 k=64 q=bf16 kv=bf16 o=bf16 causal=1 page=128",
    "tokens=300 seqs=2 max_kv=700 heads=2 kv_heads=1 k=128 q=f16 kv=f16 o=f16 causal=1 page=256",
    "tokens=130 max_kv=300 heads=2 k=64 q=bf16 kv=bf16 o=bf16 causal=1 page=128",
    "tokens=5 seqs=5 max_kv=600 heads=8 kv_heads=2 k=128 q=bf16 kv=i8 o=bf16 causal=1 page=256",
    "tokens=9 max_kv=64 heads=71 kv_heads=1 k=8 v=80 causal=1",
    "tokens=20 seqs=4 max_kv=40 heads=2 k=16 q=bf16 kv=bf16 o=bf16 causal=1",
    "tokens=6 seqs=2 max_kv=520 heads=4 kv_heads=2 k=128 kv=f16 causal=1",
    "tokens=24 max_kv=600 heads=2 k=16 causal=1 cap=30 paths=32",
    "tokens=24 seqs=2 max_kv=600 heads=2 k=16 causal=1 paths=16 kp_token=40 kp_head=16 "
    "vp_token=40 vp_head=16 kp_page=2600 vp_page=2570",
    "tokens=150 seqs=2 max_kv=290 heads=2 kv_heads=1 k=128 q=bf16 kv=bf16 o=bf16 causal=1", /* what */
    "tokens=140 seqs=3 max_kv=200 heads=3 kv_heads=1 k=64 q=f16 kv=f16 o=f16 causal=1 page=16 cap=20",
    "tokens=130 max_kv=300 heads=2 k=64 kv=f16 causal=1 window=90", /* tensor cores take */
    "tokens=129 max_kv=131 heads=2 k=128 q=bf16 kv=bf16 o=bf16 page=8",
    "tokens=5 seqs=5 max_kv=700 heads=14 kv_heads=2 k=64 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=6 seqs=2 max_kv=520 heads=8 kv_heads=1 k=128 q=f16 kv=f16 o=f16 causal=1 page=32 "
    "window=100 cap=30",
    "tokens=3 seqs=3 max_kv=300 heads=20 kv_heads=2 k=128 kv=f16 causal=1",
    "tokens=50 seqs=3 max_kv=200 heads=4 kv_heads=2 k=32 causal=1 numerics=invariant kv=f16",
    "tokens=1 k=8 causal=1 alibi=1 sinks=1 mask_heads=1",
    "tokens=7 seqs=2 max_kv=0 heads=3 k=8 sinks=1 alibi=1 mask_heads=3 mask=u8",
    "tokens=33 seqs=2 max_kv=140 heads=6 kv_heads=2 k=64 causal=1 alibi=1 page=16",
    "tokens=20 max_kv=65 heads=4 k=24 v=40 alibi=1 cap=9 kv=f16", /* not causal: keys on both sides */
    "tokens=37 seqs=3 max_kv=130 heads=8 kv_heads=2 k=64 causal=1 sinks=1 window=16 kv=f16",
    "tokens=5 seqs=5 max_kv=700 heads=8 kv_heads=1 k=64 q=bf16 kv=bf16 o=bf16 causal=1 sinks=1 "
    "window=128 page=16", /* gpt-oss decode */
    "tokens=140 seqs=3 max_kv=300 heads=8 kv_heads=1 k=64 q=bf16 kv=bf16 o=bf16 causal=1 sinks=1",
    "tokens=3 seqs=3 max_kv=900 heads=4 kv_heads=2 k=128 q=f16 kv=f16 o=f16 causal=1 sinks=1 cap=30",
    "tokens=3 max_kv=63 heads=2 k=16 mask_heads=1 mask=u8",
    "tokens=19 seqs=2 max_kv=65 heads=6 kv_heads=3 k=20 causal=1 mask_heads=2 mask=u8 mask_head=70 "
    "mask_stride=150",
    "tokens=19 seqs=2 max_kv=129 heads=4 k=32 mask_heads=4 kv=bf16 cap=5",
    "tokens=24 seqs=2 max_kv=600 heads=2 k=16 causal=1 paths=16 mask_heads=2 mask=f16 sinks=1 alibi=1",
    "tokens=24 max_kv=600 heads=2 k=16 causal=1 paths=32 mask_heads=1 mask=bf16 sinks=1 window=200",
    "tokens=150 seqs=2 max_kv=290 heads=4 kv_heads=1 k=128 kv=f16 causal=1 sinks=1 cap=30 window=60",
    "tokens=12 seqs=2 max_kv=100 heads=2 k=64 q=bf16 kv=bf16 o=bf16 mask_heads=1", /* beyond */
    "tokens=4 seqs=2 max_kv=450 heads=6 kv_heads=2 k=64 q=bf16 kv=bf16 o=bf16 causal=1 alibi=1 page=16",
    "tokens=3 seqs=3 max_kv=300 heads=9 kv_heads=1 k=128 kv=f16 causal=1 alibi=1 cap=20 sinks=1",
    "tokens=2 seqs=2 max_kv=300 heads=4 k=112 q=f16 kv=f16 o=f16 causal=1 alibi=1 window=150", /* bloom */
    "tokens=2 seqs=2 max_kv=30 heads=2 k=128 q=f16 kv=f16 o=f16 alibi=1", /* beyond: both sides */
    "tokens=2 seqs=2 max_kv=30 heads=2 k=96 q=f16 kv=f16 o=f16 causal=1 alibi=1",
    "tokens=150 seqs=2 max_kv=400 heads=4 kv_heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 alibi=1",
    "tokens=70 max_kv=300 heads=3 k=64 kv=f16 alibi=1 cap=15",
    "tokens=7 seqs=3 max_kv=150 heads=6 kv_heads=3 k=64 kv=i8 causal=1 page=16",
    "tokens=20 seqs=2 max_kv=90 heads=4 k=23 v=40 kv=f8 causal=1 vp_page=11000 sinks=1 window=40",
    "tokens=5 seqs=5 max_kv=200 heads=8 kv_heads=2 k=128 q=bf16 kv=f8 o=bf16 causal=1 page=16",
    "tokens=6 seqs=3 max_kv=520 heads=14 kv_heads=2 k=64 q=f16 kv=i8 o=f16 causal=1 window=300 "
    "kp_token=80 kp_head=5120 kp_page=11000", /* no dense pages */
    "tokens=140 seqs=2 max_kv=290 heads=4 kv_heads=2 k=128 q=bf16 kv=i8 o=bf16 causal=1 page=16",
    "tokens=129 max_kv=200 heads=2 k=64 q=f16 kv=f8 o=f16 causal=1 window=90 page=32",
    "tokens=3 seqs=3 max_kv=333 heads=6 kv_heads=2 k=80 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=3 seqs=3 max_kv=333 heads=32 kv_heads=2 k=96 q=f16 kv=f16 o=f16 causal=1 page=32",
    "tokens=5 seqs=2 max_kv=150 heads=4 kv_heads=4 k=112 kv=bf16 causal=1 sinks=1",
    "tokens=2 seqs=2 max_kv=400 heads=10 kv_heads=1 k=160 q=bf16 kv=bf16 o=bf16 page=16 sinks=1",
    "tokens=4 seqs=4 max_kv=260 heads=9 kv_heads=3 k=192 kv=f16 causal=1 page=16 window=100",
    "tokens=16 seqs=4 max_kv=530 heads=8 kv_heads=4 k=256 q=bf16 kv=bf16 o=bf16 causal=1 page=16 "
    "cap=50", /* gemma2 decode */
    "tokens=1 max_kv=3000 heads=8 kv_heads=4 k=256 kv=f16 causal=1 window=1024 q_head=264 o_head=264 "
    "kp_token=272 kp_head=17408 vp_token=264 vp_head=16896 kp_page=69632 vp_page=67584",
    "tokens=3 seqs=3 max_kv=50 heads=2 k=144 q=bf16 kv=bf16 o=bf16 causal=1 page=16", /* beyond */
    "tokens=5 max_kv=9 heads=2 k=8 causal=1 cap=3 q=f64 kv=f64 o=f64",
    /* one query: all CTAs share its keys */
    "tokens=1 max_kv=0 heads=8 kv_heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=1 max_kv=1 heads=8 kv_heads=8 k=64 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=1 max_kv=17 heads=28 kv_heads=4 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=8 sinks=1",
    "tokens=1 max_kv=1027 heads=64 kv_heads=8 k=128 q=f16 kv=f16 o=f16 causal=1 page=64",
    "tokens=1 max_kv=2050 heads=20 kv_heads=2 k=80 kv=bf16 page=48 cap=30",
    "tokens=1 max_kv=700 heads=5 kv_heads=1 k=112 q=bf16 kv=bf16 o=bf16 causal=1 page=8 window=333",
    "tokens=1 max_kv=5000 heads=3 kv_heads=3 k=96 kv=f16 causal=1 page=24 q_head=104 o_head=112",
    "tokens=1 max_kv=1500 heads=14 kv_heads=2 k=64 kv=f16 causal=1 page=16 window=40 sinks=1",
    "tokens=1 max_kv=513 heads=28 kv_heads=4 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=16 sinks=1",
    "tokens=1 max_kv=9000 heads=32 kv_heads=32 k=64 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=1 max_kv=1000 heads=16 kv_heads=2 k=128 q=bf16 kv=i8 o=bf16 causal=1 page=16",
    /* pages of 8 in units of 16 keys; codes of every head */
    "tokens=4 seqs=4 max_kv=333 heads=8 kv_heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=8",
    "tokens=6 seqs=3 max_kv=200 heads=4 kv_heads=2 k=256 q=f16 kv=f16 o=f16 causal=1 page=24 window=70",
    "tokens=9 seqs=5 max_kv=450 heads=12 kv_heads=1 k=128 q=f16 kv=f8 o=f16 causal=1 page=8 cap=20",
    "tokens=5 seqs=5 max_kv=300 heads=6 kv_heads=2 k=96 q=bf16 kv=i8 o=bf16 causal=1 page=24 sinks=1",
    "tokens=7 seqs=4 max_kv=210 heads=3 kv_heads=1 k=64 q=bf16 kv=f8 o=bf16 page=40",
    /* many queries of every head, around the tiles' and boxes' ends */
    "tokens=64 max_kv=64 heads=2 k=64 q=bf16 kv=bf16 o=bf16 causal=1",
    "tokens=128 max_kv=128 heads=2 k=128 q=f16 kv=f16 o=f16 causal=1 page=24",
    "tokens=127 max_kv=513 heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=520", /* one page */
    "tokens=64 max_kv=64 heads=2 k=80 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=65 max_kv=129 heads=3 kv_heads=1 k=80 q=f16 kv=f16 o=f16 causal=1 page=8 window=50",
    "tokens=513 max_kv=513 heads=1 k=80 q=bf16 kv=bf16 o=bf16",
    "tokens=63 max_kv=63 heads=3 kv_heads=1 k=96 q=bf16 kv=bf16 o=bf16 causal=1",
    "tokens=127 max_kv=513 heads=2 k=96 kv=f16 causal=1 window=200 page=24", /* phi3 */
    "tokens=129 seqs=2 max_kv=300 heads=2 k=112 kv=bf16 causal=1 cap=30 page=8",
    "tokens=128 max_kv=127 heads=2 k=112 q=f16 kv=f16 o=f16 causal=1 alibi=1",
    "tokens=128 max_kv=513 heads=2 k=160 q=bf16 kv=bf16 o=bf16 causal=1 page=112",
    "tokens=150 seqs=3 max_kv=257 heads=4 kv_heads=2 k=160 q=f16 kv=f16 o=f16 causal=1 sinks=1 page=16",
    "tokens=65 max_kv=65 heads=2 k=192 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=260 seqs=2 max_kv=400 heads=2 kv_heads=1 k=192 kv=f16 causal=1 window=111 page=48",
    "tokens=129 max_kv=513 heads=2 k=192 v=128 q=bf16 kv=bf16 o=bf16 causal=1", /* deepseek */
    "tokens=1 max_kv=127 heads=2 k=192 v=128 q=f16 kv=f16 o=f16 causal=1 page=16",
    "tokens=63 max_kv=63 heads=2 k=256 q=bf16 kv=bf16 o=bf16 causal=1 page=16",
    "tokens=140 seqs=2 max_kv=300 heads=4 kv_heads=2 k=256 q=bf16 kv=bf16 o=bf16 causal=1 cap=50 "
    "window=64 page=16", /* gemma2 */
    "tokens=193 max_kv=193 heads=2 kv_heads=1 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=8",
    "tokens=577 seqs=3 max_kv=450 heads=2 k=96 q=bf16 kv=bf16 o=bf16 causal=1 window=130 page=24",
    /* pages that cut a tile into parts of several sizes; maxima that keep rising */
    "tokens=300 seqs=2 max_kv=700 heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 page=56 scale=1",
    "tokens=150 max_kv=900 heads=2 k=64 q=f16 kv=f16 o=f16 causal=1 page=40 scale=1 window=500",
    "tokens=200 seqs=2 max_kv=500 heads=2 kv_heads=1 k=256 q=bf16 kv=bf16 o=bf16 causal=1 scale=1",
    "tokens=190 max_kv=700 heads=1 k=192 q=bf16 kv=bf16 o=bf16 causal=1 page=120",
    "tokens=290 max_kv=650 heads=2 k=160 q=f16 kv=f16 o=f16 page=128 scale=1",
    "tokens=513 max_kv=513 heads=1 k=256 q=f16 kv=f16 o=f16 causal=1 page=520 q_head=264 o_head=264",
    "tokens=150 seqs=2 max_kv=290 heads=4 kv_heads=2 k=128 q=bf16 kv=bf16 o=bf16 causal=1 mask_heads=2 "
    "mask=u8",
    "tokens=70 max_kv=300 heads=2 k=64 q=f16 kv=f16 o=f16 mask_heads=1 mask=bf16 mask_head=301 cap=20",
    "tokens=130 seqs=2 max_kv=200 heads=2 k=256 kv=bf16 causal=1 alibi=1 mask_heads=1 mask=f16",
    "tokens=400 max_kv=800 heads=2 k=64 q=bf16 kv=bf16 o=bf16 mask_heads=2 mask=u8 page=16",
    "tokens=390 max_kv=790 heads=2 k=128 q=f16 kv=f16 o=f16 causal=1 mask_heads=1 mask=f32 window=600",
    "tokens=200 max_kv=800 heads=1 k=256 q=bf16 kv=bf16 o=bf16 causal=1 mask_heads=1 mask=bf16",
    NULL,
};

const sop_op sop_op_attention = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_attention_desc),
    .name = "attention",
    .formula = "o = sum of softmax(cap tanh(scale q.k / cap) + bias; sink) * v over the keys seen",
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
    .reference = sop_attention_reference,
    .cost = cost,
    .backward = "attention_grad",
};
