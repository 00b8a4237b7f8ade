/* attention_grad's contract and its variants. */
#include "ops/attention_grad/attention_grad.h"

#include <math.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/f64.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_attention_grad_desc, reserved);

#define AT(member) offsetof(sop_attention_grad_desc, member)
static const sop_field fields[] = {
    {"tokens", AT(tokens), SOP_FIELD_I64, NULL, "queries of all sequences"},
    {"keys", AT(keys), SOP_FIELD_I64, NULL, "keys of all sequences; tokens"},
    {"seqs", AT(seqs), SOP_FIELD_I64, NULL, "sequences; 1"},
    {"max_q", AT(max_q), SOP_FIELD_I64, NULL, "most queries of a sequence; tokens"},
    {"max_kv", AT(max_kv), SOP_FIELD_I64, NULL, "most keys of a sequence; keys"},
    {"heads", AT(heads), SOP_FIELD_I64, NULL, "query heads; 1"},
    {"kv_heads", AT(kv_heads), SOP_FIELD_I64, NULL, "KV heads, a divisor of heads; heads"},
    {"k", AT(k), SOP_FIELD_I64, NULL, "channels of a key"},
    {"v", AT(v), SOP_FIELD_I64, NULL, "channels of a value; k"},
    {"q_stride", AT(q_stride), SOP_FIELD_I64, NULL, "between tokens of q"},
    {"q_head", AT(q_head), SOP_FIELD_I64, NULL, "between heads of q"},
    {"k_stride", AT(k_stride), SOP_FIELD_I64, NULL, "between tokens of k"},
    {"k_head", AT(k_head), SOP_FIELD_I64, NULL, "between heads of k"},
    {"v_stride", AT(v_stride), SOP_FIELD_I64, NULL, "between tokens of v"},
    {"v_head", AT(v_head), SOP_FIELD_I64, NULL, "between heads of v"},
    {"o_stride", AT(o_stride), SOP_FIELD_I64, NULL, "between tokens of o"},
    {"o_head", AT(o_head), SOP_FIELD_I64, NULL, "between heads of o"},
    {"do_stride", AT(do_stride), SOP_FIELD_I64, NULL, "between tokens of do"},
    {"do_head", AT(do_head), SOP_FIELD_I64, NULL, "between heads of do"},
    {"dq_stride", AT(dq_stride), SOP_FIELD_I64, NULL, "between tokens of dq"},
    {"dq_head", AT(dq_head), SOP_FIELD_I64, NULL, "between heads of dq"},
    {"dk_stride", AT(dk_stride), SOP_FIELD_I64, NULL, "between tokens of dk"},
    {"dk_head", AT(dk_head), SOP_FIELD_I64, NULL, "between heads of dk"},
    {"dv_stride", AT(dv_stride), SOP_FIELD_I64, NULL, "between tokens of dv"},
    {"dv_head", AT(dv_head), SOP_FIELD_I64, NULL, "between heads of dv"},
    {"window", AT(window), SOP_FIELD_I64, NULL, "keys seen, the query's own included; 0: all"},
    {"scale", AT(scale), SOP_FIELD_F32, NULL, "factor of q . k; 1 / sqrt(k)"},
    {"cap", AT(cap), SOP_FIELD_F32, NULL, "z = cap * tanh(z / cap); 0: none"},
    {"q", AT(q_dtype), SOP_FIELD_DTYPE, NULL, "type of q, k and v"},
    {"o", AT(o_dtype), SOP_FIELD_DTYPE, NULL, "type of o and do"},
    {"dq", AT(dq_dtype), SOP_FIELD_DTYPE, NULL, "type of dq, dk and dv"},
    {"causal", AT(causal), SOP_FIELD_I32, NULL, "1: a query sees no later key"},
    {"numerics", AT(numerics), SOP_FIELD_WORD, "fast|exact|invariant", "how exact"},
};

static const sop_role roles[SOP_ATTENTION_GRAD_ROLES] = {
    [SOP_ATTENTION_GRAD_Q] = {"q", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_K] = {"k", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_V] = {"v", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_Q_START] = {"q_start", SOP_ROLE_INDEX, -1},
    [SOP_ATTENTION_GRAD_K_START] = {"k_start", SOP_ROLE_INDEX, -1},
    [SOP_ATTENTION_GRAD_O] = {"o", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_LSE] = {"lse", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_DO] = {"do", SOP_ROLE_IN, -1},
    [SOP_ATTENTION_GRAD_DQ] = {"dq", SOP_ROLE_OUT, -1},
    [SOP_ATTENTION_GRAD_DK] = {"dk", SOP_ROLE_OUT, -1},
    [SOP_ATTENTION_GRAD_DV] = {"dv", SOP_ROLE_OUT, -1},
};

static void complete(void *desc)
{
    sop_attention_grad_desc *d = desc;
    if (!d->keys) d->keys = d->tokens;
    if (!d->seqs) d->seqs = 1;
    if (!d->max_q) d->max_q = d->tokens;
    if (!d->max_kv) d->max_kv = d->keys;
    if (!d->heads) d->heads = 1;
    if (!d->kv_heads) d->kv_heads = d->heads;
    if (!d->v) d->v = d->k;
    if (!d->q_head) d->q_head = d->k;
    if (!d->q_stride) d->q_stride = d->heads * d->q_head;
    if (!d->k_head) d->k_head = d->k;
    if (!d->k_stride) d->k_stride = d->kv_heads * d->k_head;
    if (!d->v_head) d->v_head = d->v;
    if (!d->v_stride) d->v_stride = d->kv_heads * d->v_head;
    if (!d->o_head) d->o_head = d->v;
    if (!d->o_stride) d->o_stride = d->heads * d->o_head;
    if (!d->do_head) d->do_head = d->v;
    if (!d->do_stride) d->do_stride = d->heads * d->do_head;
    if (!d->dq_head) d->dq_head = d->k;
    if (!d->dq_stride) d->dq_stride = d->heads * d->dq_head;
    if (!d->dk_head) d->dk_head = d->k;
    if (!d->dk_stride) d->dk_stride = d->kv_heads * d->dk_head;
    if (!d->dv_head) d->dv_head = d->v;
    if (!d->dv_stride) d->dv_stride = d->kv_heads * d->dv_head;
    if (d->scale == 0 && d->k > 0) d->scale = (float)(1 / sqrt((double)d->k));
    d->causal = d->causal != 0;
}

static sop_status check(const void *desc)
{
    const sop_attention_grad_desc *d = desc;
    const int32_t types[] = {d->q_dtype, d->o_dtype, d->dq_dtype};
    const int64_t strides[] = {d->q_stride, d->q_head,   d->k_stride, d->k_head,    d->v_stride,
                               d->v_head,   d->o_stride, d->o_head,   d->do_stride, d->do_head};
    if (d->tokens < 0 || d->keys < 0 || d->seqs < 0 || d->max_q < 0 || d->max_kv < 0 || d->k < 1 ||
        d->v < 1)
        return sop_fail(SOP_E_SHAPE,
                        "attention_grad: tokens=%lld keys=%lld seqs=%lld max_q=%lld max_kv=%lld "
                        "k=%lld v=%lld, must be >= 0, 0, 0, 0, 0, 1, 1",
                        (long long)d->tokens, (long long)d->keys, (long long)d->seqs,
                        (long long)d->max_q, (long long)d->max_kv, (long long)d->k,
                        (long long)d->v);
    if (d->kv_heads < 1 || d->heads < 1 || d->heads % d->kv_heads != 0)
        return sop_fail(SOP_E_SHAPE, "attention_grad: heads=%lld kv_heads=%lld, must divide",
                        (long long)d->heads, (long long)d->kv_heads);
    if (d->seqs * d->max_q < d->tokens || d->seqs * d->max_kv < d->keys)
        return sop_fail(SOP_E_SHAPE,
                        "attention_grad: tokens=%lld keys=%lld, more than seqs=%lld of max_q=%lld "
                        "and max_kv=%lld",
                        (long long)d->tokens, (long long)d->keys, (long long)d->seqs,
                        (long long)d->max_q, (long long)d->max_kv);
    for (int32_t i = 0; i < SOP_N(strides); i++)
        if (strides[i] < 0)
            return sop_fail(SOP_E_SHAPE, "attention_grad: a stride is %lld, must be >= 0",
                            (long long)strides[i]);
    if (d->dq_head < d->k || d->dk_head < d->k || d->dv_head < d->v ||
        d->dq_stride < d->heads * d->k || d->dk_stride < d->kv_heads * d->k ||
        d->dv_stride < d->kv_heads * d->v)
        return sop_fail(SOP_E_SHAPE,
                        "attention_grad: dq_stride=%lld dq_head=%lld dk_stride=%lld dk_head=%lld "
                        "dv_stride=%lld dv_head=%lld: rows would overlap",
                        (long long)d->dq_stride, (long long)d->dq_head, (long long)d->dk_stride,
                        (long long)d->dk_head, (long long)d->dv_stride, (long long)d->dv_head);
    if (d->window < 0 || !(d->cap >= 0) || !isfinite(d->scale) || !isfinite(d->cap))
        return sop_fail(SOP_E_ARG,
                        "attention_grad: window=%lld cap=%g scale=%g, must be >= 0, >= 0, finite",
                        (long long)d->window, (double)d->cap, (double)d->scale);
    if (!sop_types_fit(types, SOP_N(types)))
        return sop_fail(SOP_E_ARG,
                        "attention_grad: types %d %d %d, must be f32, f16 or bf16, or all f64",
                        d->q_dtype, d->o_dtype, d->dq_dtype);
    return SOP_OK;
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_attention_grad_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_ATTENTION_GRAD_Q:
        sop_view3(out, d->q_dtype, d->tokens, d->heads, d->k, d->q_stride, d->q_head);
        break;
    case SOP_ATTENTION_GRAD_K:
        sop_view3(out, d->q_dtype, d->keys, d->kv_heads, d->k, d->k_stride, d->k_head);
        break;
    case SOP_ATTENTION_GRAD_V:
        sop_view3(out, d->q_dtype, d->keys, d->kv_heads, d->v, d->v_stride, d->v_head);
        break;
    case SOP_ATTENTION_GRAD_O:
        sop_view3(out, d->o_dtype, d->tokens, d->heads, d->v, d->o_stride, d->o_head);
        break;
    case SOP_ATTENTION_GRAD_DO:
        sop_view3(out, d->o_dtype, d->tokens, d->heads, d->v, d->do_stride, d->do_head);
        break;
    case SOP_ATTENTION_GRAD_DQ:
        sop_view3(out, d->dq_dtype, d->tokens, d->heads, d->k, d->dq_stride, d->dq_head);
        break;
    case SOP_ATTENTION_GRAD_DK:
        sop_view3(out, d->dq_dtype, d->keys, d->kv_heads, d->k, d->dk_stride, d->dk_head);
        break;
    case SOP_ATTENTION_GRAD_DV:
        sop_view3(out, d->dq_dtype, d->keys, d->kv_heads, d->v, d->dv_stride, d->dv_head);
        break;
    case SOP_ATTENTION_GRAD_Q_START:
    case SOP_ATTENTION_GRAD_K_START: sop_view1(out, SOP_I32, d->seqs + 1); break;
    case SOP_ATTENTION_GRAD_LSE:
        sop_view2(out, sop_param_dtype(d->q_dtype), d->tokens, d->heads, d->heads);
        break;
    default: break;
    }
}

/* All are shared evenly when seed is 0, at random otherwise; none has more than its maximum. */
static void share(int32_t *start, int64_t n, int64_t seqs, int64_t most, uint64_t *seed)
{
    start[0] = 0;
    for (int64_t s = 0; s < seqs; s++) {
        const int64_t left = n - start[s], others = seqs - s - 1, even = left / (others + 1);
        const int64_t least = left - others * most > 0 ? left - others * most : 0;
        int64_t one = *seed ? (int64_t)(sop_random(seed) % (uint64_t)(2 * even + 1)) : even;
        if (one < least) one = least;
        if (one > most) one = most;
        start[s + 1] = start[s] + (int32_t)(s == seqs - 1 ? left : one);
    }
}

/* lse as attention leaves it; seed 0 is for timing, where a guess of it does. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_attention_grad_desc *d = desc;
    const int32_t dtype = sop_param_dtype(d->q_dtype);
    const int32_t *q_start = args[SOP_ATTENTION_GRAD_Q_START].data;
    const int32_t *k_start = args[SOP_ATTENTION_GRAD_K_START].data;
    void *lse = args[SOP_ATTENTION_GRAD_LSE].data;
    const int guess = seed == 0;
    (void)live;
    share(args[SOP_ATTENTION_GRAD_Q_START].data, d->tokens, d->seqs, d->max_q, &seed);
    share(args[SOP_ATTENTION_GRAD_K_START].data, d->keys, d->seqs, d->max_kv, &seed);
    for (int64_t s = 0; s < d->seqs; s++)
        for (int64_t t = q_start[s]; t < q_start[s + 1]; t++)
            for (int64_t h = 0; h < d->heads; h++) {
                const int64_t keys = k_start[s + 1] - k_start[s];
                const double all = guess ? log((double)keys + 1) + 1
                                         : sop_attention_grad_lse(d, args, t, h, k_start[s], keys,
                                                                  t + keys - q_start[s + 1]);
                sop_store(lse, dtype, t * d->heads + h, all);
            }
}

/* Pairs of a query and a key that it sees, shared evenly. */
static double pairs_seen(const sop_attention_grad_desc *d)
{
    if (d->seqs == 0) return 0;
    const double n = (double)d->keys / (double)d->seqs, l = (double)d->tokens / (double)d->seqs;
    double seen = d->causal ? n - (l - 1) / 2 : n;
    if (d->causal && l > n) seen = n * (n + 1) / 2 / l;
    if (d->window > 0) seen = fmin(seen, (double)d->window);
    return (double)d->tokens * fmax(seen, 0);
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_attention_grad_desc *d = desc;
    const double q = (double)d->tokens * (double)d->heads,
                 kv = (double)d->keys * (double)d->kv_heads;
    const double k = (double)d->k, v = (double)d->v;
    /* five products: scores, do . v, and the three gradients */
    *out = (sop_cost){2 * pairs_seen(d) * (double)d->heads * (3 * k + 2 * v),
                      (q * k + kv * (k + v)) * (double)sop_dtype_bytes(d->q_dtype) +
                          2 * q * v * (double)sop_dtype_bytes(d->o_dtype) + 4 * q,
                      (q * k + kv * (k + v)) * (double)sop_dtype_bytes(d->dq_dtype)};
}

static const char *takes_f32(const void *desc)
{
    const sop_attention_grad_desc *d = desc;
    return d->q_dtype || d->o_dtype || d->dq_dtype ? "a type is not f32" : NULL;
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

#ifdef SOP_CUDA
static const char *takes_floats(const void *desc)
{
    return sop_refuse_f64(((const sop_attention_grad_desc *)desc)->q_dtype);
}
#endif

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_grad_sm90", "cuda", SOP_CUDA_SM90A, SOP_ROW_ROUNDS,
     .refuse = sop_attention_grad_sm80_refuse, .plan = sop_attention_grad_sm80_plan,
     .run = sop_attention_grad_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_grad_sm80", "cuda", SOP_CUDA_SM80, SOP_ROW_ROUNDS,
     .refuse = sop_attention_grad_sm80_refuse, .plan = sop_attention_grad_sm80_plan,
     .run = sop_attention_grad_sm80},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "attention_grad_cuda", "cuda", 0, 0, .refuse = takes_floats,
     .plan = sop_attention_grad_cuda_plan, .run = sop_attention_grad_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "attention_grad_f32_c", "c", 0, 0, .refuse = takes_f32,
     .plan = sop_attention_grad_f32_plan, .run = sop_attention_grad_f32_c},
    {sizeof(sop_row), SOP_DEVICE_CPU, "attention_grad_ref", "c", 0, SOP_ROW_REFERENCE,
     .refuse = takes_all, .plan = sop_attention_grad_plan_ref, .run = sop_attention_grad_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "tokens=0 k=8",
    "tokens=1 k=1",
    "tokens=3 k=8 causal=1",
    "tokens=7 keys=11 heads=2 k=5 v=3 causal=1",
    "tokens=9 keys=4 k=16 causal=1", /* the first queries see nothing */
    "tokens=13 keys=17 k=16 window=4",
    "tokens=33 heads=4 kv_heads=2 k=32 causal=1 window=9",
    "tokens=40 seqs=3 heads=2 k=16 causal=1 cap=5",
    "tokens=30 keys=50 seqs=4 heads=6 kv_heads=2 k=24 v=40 causal=1",
    "tokens=12 keys=20 seqs=3 heads=2 k=16 v=8 q_stride=50 q_head=20 k_stride=40 k_head=17 "
    "v_stride=30 v_head=12 o_stride=20 o_head=9 do_stride=24 do_head=11 dq_stride=45 dq_head=20 "
    "dk_stride=44 dk_head=18 dv_stride=28 dv_head=9 causal=1 scale=0.5",
    "tokens=65 keys=129 k=64",
    "tokens=64 k=64 causal=1",
    "tokens=100 seqs=2 heads=2 kv_heads=1 k=64 causal=1 q=bf16 o=bf16 dq=bf16",
    "tokens=130 heads=2 k=128 causal=1 q=bf16 o=bf16 dq=bf16",
    "tokens=70 keys=150 seqs=3 heads=4 kv_heads=1 k=64 causal=1 window=40 q=bf16 o=bf16 dq=bf16",
    "tokens=129 keys=65 seqs=2 heads=2 k=64 q=bf16 o=bf16 dq=bf16",
    "tokens=66 heads=2 kv_heads=1 k=128 causal=1 cap=30 q=bf16 o=bf16 dq=f32",
    "tokens=35 heads=4 kv_heads=2 k=64 causal=1 q=f16 o=f16 dq=f16",
    "tokens=70 heads=2 kv_heads=1 k=80 v=96 causal=1 q=bf16 o=bf16 dq=bf16",
    "tokens=65 seqs=2 heads=2 k=40 v=8 q=bf16 o=bf16 dq=f32",
    "tokens=9 heads=2 k=136 causal=1 q=bf16 o=bf16 dq=bf16", /* beyond: more than 128 channels */
    "tokens=20 heads=2 k=300 v=270 causal=1",
    "tokens=64 k=64 causal=1 q=bf16 o=bf16 dq=bf16 numerics=exact",
    "tokens=7 keys=9 seqs=2 heads=4 kv_heads=2 k=8 v=6 causal=1 cap=3 q=f64 o=f64 dq=f64",
    NULL,
};

const sop_op sop_op_attention_grad = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_attention_grad_desc),
    .name = "attention_grad",
    .formula = "p = exp(z - lse); e = p (do v - do o); dq = e k, dk = e q, dv = p do",
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
    .reference = sop_attention_grad_reference,
    .cost = cost,
};
