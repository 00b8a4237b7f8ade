#include <string.h>

extern "C" {
#include "base/status.h"
#include "ops/attention/attention.h"
#include "ops/spans/layer_modules.h"
#include "ops/spans/spans.h"
}
#include "ops/attention/decode_cuda.cuh"
#include "ops/spans/layer_decode.cuh"

static const char *refuse_linear(const sop_linear_desc *d, int32_t type)
{
    if (d->x_dtype != type || d->y_dtype != type) return "x or y of a product has another type";
    for (int j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (d->w_dtype[j] != type) return "a weight has another type";
        if (!(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight does not lie plain";
        if (d->w_stride[j] != d->k) return "a weight has gaps between its rows";
        if (d->n[j] % 16) return "rows of a weight are no multiple of 16";
    }
    return d->k % 32 ? "k is no multiple of 32" : NULL;
}

extern "C" const char *sop_layer_refuse(const void *desc)
{
    const void *const *of = (const void *const *)desc;
    const sop_rmsnorm_desc *norm[2] = {(const sop_rmsnorm_desc *)of[NORM1],
                                       (const sop_rmsnorm_desc *)of[NORM2]};
    const sop_linear_desc *qkv = (const sop_linear_desc *)of[QKV];
    const sop_linear_desc *output = (const sop_linear_desc *)of[OUTPUT];
    const sop_linear_desc *gate_up = (const sop_linear_desc *)of[GATE_UP];
    const sop_linear_desc *down = (const sop_linear_desc *)of[DOWN];
    const sop_rope_desc *rope = (const sop_rope_desc *)of[ROPE];
    const sop_kv_append_desc *kv = (const sop_kv_append_desc *)of[APPEND];
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const sop_gated_desc *gated = (const sop_gated_desc *)of[GATED];
    const int32_t type = qkv->x_dtype;
    const int64_t tokens = qkv->tokens, d = norm[0]->dim, k = core->k;
    if (tokens > LAYER_TOKENS) return "over 8 tokens";
    if (type != SOP_BF16 && type != SOP_F16) return "activations are neither bf16 nor f16";
    for (int i = 0; i < 2; i++) {
        if (norm[i]->heads != 1 || norm[i]->dim != d || d % 4) return "a norm has another shape";
        if (norm[i]->y_dtype != type || norm[i]->r_dtype != SOP_F32)
            return "the residual is not f32 beside 16-bit rows";
    }
    if (norm[0]->x_dtype != type && norm[0]->x_dtype != SOP_F32) return "a norm has another type";
    if (norm[1]->x_dtype != type) return "a norm has another type";
    const sop_linear_desc *const products[] = {qkv, output, gate_up, down};
    for (int i = 0; i < 4; i++) {
        const char *why = refuse_linear(products[i], type);
        if (why) return why;
    }
    const char *why = sop_attention_decode_refuse(core);
    if (why) return why;
    if (core->alibi) return "alibi is not taken by the layer's kernel";
    if (core->page % DECODE_UNIT) return "pages are no multiple of 16 tokens";
    if (k != 64 && k != 128) return "heads are neither of 64 nor of 128";
    if (core->q_dtype != type || core->kv_dtype != type) return "the cache has another type";
    if (core->heads > DECODE_GROUP * core->kv_heads) return "over 8 query heads a KV head";
    if (rope->interleaved || rope->rot != k || rope->k != k || rope->x_dtype != type ||
        rope->y_dtype != type || rope->heads != core->heads + core->kv_heads || rope->x_head != k ||
        rope->y_head != k)
        return "rope is not by halves over all of q and k";
    if (kv->k != k || kv->v != k || kv->heads != core->kv_heads || kv->x_dtype != type ||
        kv->kv_dtype != type || kv->k_head != k || kv->v_head != k || core->q_head != k ||
        core->o_head != k)
        return "keys and values have another shape than the queries";
    if (qkv->n[0] != core->heads * k || qkv->n[1] != core->kv_heads * k || qkv->n[2] != qkv->n[1] ||
        qkv->k != d || output->n[0] != d || output->n[1] || output->k != core->heads * k ||
        gate_up->n[0] != gated->dim || gate_up->n[1] != gated->dim || gate_up->n[2] ||
        gate_up->k != d || down->n[0] != d || down->n[1] || down->k != gated->dim)
        return "the products do not fit each other";
    if (gated->x_dtype != type || gated->y_dtype != type || gated->up != gated->dim)
        return "gate and up do not lie side by side";
    const int64_t strides[] = {norm[0]->x_stride, norm[1]->r_stride, qkv->y_stride,
                               core->o_stride,    gated->y_stride,   down->y_stride};
    for (int i = 0; i < 6; i++)
        if (strides[i] % 8) return "a stride is no multiple of 16 bytes";
    if (rope->x_stride != qkv->y_stride || rope->y_stride != qkv->y_stride ||
        core->q_stride != qkv->y_stride || kv->k_stride != qkv->y_stride ||
        kv->v_stride != qkv->y_stride)
        return "q, k and v do not lie side by side";
    return NULL;
}

extern "C" const char *sop_layer_decode_refuse(const void *desc)
{
    const void *const *of = (const void *const *)desc;
    const sop_linear_desc *output = (const sop_linear_desc *)of[OUTPUT];
    const char *why = sop_layer_refuse(desc);
    if (why) return why;
    const int64_t gated = ((const sop_gated_desc *)of[GATED])->dim;
    const int64_t widest = output->n[0] > gated ? output->n[0] : gated;
    const int64_t most = widest > output->k ? widest : output->k;
    if (LAYER_ROWS_AT + output->tokens * layer_pitch((int)most) > LAYER_SHARED)
        return "too wide for so many tokens";
    return NULL;
}

extern "C" sop_status sop_layer_decode_plan(const void *desc, const int32_t *params,
                                            const sop_facts *facts, size_t budget, sop_split *split)
{
    return sop_attention_decode_plan(((const void *const *)desc)[CORE], params, facts, budget,
                                     split);
}

static layer_weight weight_of(const sop_call *call, int module, int at)
{
    const sop_linear_desc *d = (const sop_linear_desc *)((const void *const *)call->desc)[module];
    layer_weight w = {};
    w.k = (int)d->k;
    for (int j = 0; j < 3; j++) {
        w.n[j] = (int)d->n[j];
        w.w[j] = call->args[at + SOP_LINEAR_W0 + j].data;
        if (d->bias >> j & 1) w.bias[j] = (const float *)call->args[at + SOP_LINEAR_B0 + j].data;
    }
    return w;
}

extern "C" bool sop_layer_is_chained(const void *const *of, const sop_operand *a)
{
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    const char *qkv = (const char *)a[AT_QKV + SOP_LINEAR_Y].data;
    const char *k = qkv + 2 * core->heads * core->k, *v = k + 2 * core->kv_heads * core->k;
    const void *x = a[AT_NORM2 + SOP_RMSNORM_R].data;
    const void *in = a[AT_NORM1 + SOP_RMSNORM_R].data ? a[AT_NORM1 + SOP_RMSNORM_R].data
                                                      : a[AT_NORM1 + SOP_RMSNORM_X].data;
    return a[AT_NORM1 + SOP_RMSNORM_Y].data == a[AT_QKV + SOP_LINEAR_X].data &&
           a[AT_ROPE + SOP_ROPE_X].data == qkv && a[AT_ROPE + SOP_ROPE_Y].data == qkv &&
           a[AT_APPEND + SOP_KV_APPEND_K].data == k && a[AT_APPEND + SOP_KV_APPEND_V].data == v &&
           a[AT_APPEND + SOP_KV_APPEND_K_POOL].data == a[AT_CORE + SOP_ATTENTION_K_POOL].data &&
           a[AT_APPEND + SOP_KV_APPEND_V_POOL].data == a[AT_CORE + SOP_ATTENTION_V_POOL].data &&
           a[AT_CORE + SOP_ATTENTION_Q].data == qkv && !a[AT_CORE + SOP_ATTENTION_LSE].data &&
           a[AT_CORE + SOP_ATTENTION_O].data == a[AT_OUTPUT + SOP_LINEAR_X].data &&
           a[AT_OUTPUT + SOP_LINEAR_Y].data == a[AT_NORM2 + SOP_RMSNORM_X].data && x == in &&
           x == a[AT_NORM2 + SOP_RMSNORM_R_OUT].data &&
           a[AT_NORM2 + SOP_RMSNORM_Y].data == a[AT_GATE_UP + SOP_LINEAR_X].data &&
           a[AT_GATE_UP + SOP_LINEAR_Y].data == a[AT_GATED + SOP_GATED_X].data &&
           a[AT_GATED + SOP_GATED_Y].data == a[AT_DOWN + SOP_LINEAR_X].data;
}

extern "C" bool sop_layer_follows(const void *const *of, const sop_operand *a)
{
    static const size_t bytes[MODULES] = {0,
                                          sizeof(sop_linear_desc),
                                          sizeof(sop_rope_desc),
                                          sizeof(sop_kv_append_desc),
                                          sizeof(sop_attention_desc),
                                          sizeof(sop_linear_desc),
                                          sizeof(sop_rmsnorm_desc),
                                          sizeof(sop_linear_desc),
                                          sizeof(sop_gated_desc),
                                          sizeof(sop_linear_desc)};
    static const int same[] = {AT_QKV + SOP_LINEAR_LIVE,       AT_ROPE + SOP_ROPE_POS,
                               AT_ROPE + SOP_ROPE_FREQS,       AT_APPEND + SOP_KV_APPEND_SLOTS,
                               AT_CORE + SOP_ATTENTION_TABLE,  AT_CORE + SOP_ATTENTION_Q_START,
                               AT_CORE + SOP_ATTENTION_KV_LEN, AT_CORE + SOP_ATTENTION_LIVE,
                               AT_NORM2 + SOP_RMSNORM_R,       AT_DOWN + SOP_LINEAR_Y};
    const void *const *before = of - MODULES;
    const sop_operand *b = a - LAYER_ARGS;
    const sop_rmsnorm_desc *norm = (const sop_rmsnorm_desc *)of[NORM1];
    const sop_rmsnorm_desc *last = (const sop_rmsnorm_desc *)before[NORM1];
    for (int i = 1; i < MODULES; i++)
        if (memcmp(of[i], before[i], bytes[i]) != 0) return false;
    for (int i : same)
        if (a[i].data != b[i].data) return false;
    return norm->dim == last->dim && norm->eps == last->eps && norm->offset == last->offset &&
           a[AT_NORM1 + SOP_RMSNORM_X].data == b[AT_DOWN + SOP_LINEAR_Y].data &&
           a[AT_NORM1 + SOP_RMSNORM_R].data == b[AT_NORM2 + SOP_RMSNORM_R_OUT].data;
}

extern "C" sop_status sop_layer_decode_sm90(const sop_call *call)
{
    const void *const *of = (const void *const *)call->desc;
    const sop_operand *a = call->args;
    const sop_rmsnorm_desc *norm[2] = {(const sop_rmsnorm_desc *)of[NORM1],
                                       (const sop_rmsnorm_desc *)of[NORM2]};
    const sop_linear_desc *qkv = (const sop_linear_desc *)of[QKV];
    const sop_rope_desc *rope = (const sop_rope_desc *)of[ROPE];
    const sop_gated_desc *gated = (const sop_gated_desc *)of[GATED];
    const sop_attention_desc *core = (const sop_attention_desc *)of[CORE];
    if (qkv->tokens == 0) return SOP_OK;
    if (!sop_layer_is_chained(of, a))
        return sop_fail(SOP_E_UNSUPPORTED, "layer_decode_sm90: the modules do not read each other");
    static const int wide[] = {
        AT_NORM1 + SOP_RMSNORM_X,       AT_NORM1 + SOP_RMSNORM_W,       AT_QKV + SOP_LINEAR_W0,
        AT_QKV + SOP_LINEAR_W1,         AT_QKV + SOP_LINEAR_W2,         AT_QKV + SOP_LINEAR_Y,
        AT_CORE + SOP_ATTENTION_K_POOL, AT_CORE + SOP_ATTENTION_V_POOL, AT_CORE + SOP_ATTENTION_O,
        AT_OUTPUT + SOP_LINEAR_W0,      AT_NORM2 + SOP_RMSNORM_R,       AT_NORM2 + SOP_RMSNORM_W,
        AT_GATE_UP + SOP_LINEAR_W0,     AT_GATE_UP + SOP_LINEAR_W1,     AT_GATED + SOP_GATED_Y,
        AT_DOWN + SOP_LINEAR_W0};
    for (int i : wide)
        if (!sop_aligned16(a[i].data))
            return sop_fail(SOP_E_UNSUPPORTED,
                            "layer_decode_sm90: operand %d lies at no multiple of 16 bytes", i);
    sop_call inner = *call; /* the attention core's part of it */
    inner.desc = core;
    inner.args = a + AT_CORE;
    layer_args p = {};
    p.attention = sop_decode_args_of(&inner);
    p.live_tokens = (const int32_t *)a[AT_QKV + SOP_LINEAR_LIVE].data;
    p.pos = (const int32_t *)a[AT_ROPE + SOP_ROPE_POS].data;
    p.slots = (const int32_t *)a[AT_APPEND + SOP_KV_APPEND_SLOTS].data;
    p.freqs = (const float *)a[AT_ROPE + SOP_ROPE_FREQS].data;
    p.mscale = rope->mscale;
    p.x = (float *)a[AT_NORM2 + SOP_RMSNORM_R].data;
    p.x_stride = norm[1]->r_stride;
    if (a[AT_NORM1 + SOP_RMSNORM_R].data) {
        p.first = a[AT_NORM1 + SOP_RMSNORM_X].data;
        p.first_stride = norm[0]->x_stride;
    }
    const int norm_at[2] = {AT_NORM1, AT_NORM2};
    for (int i = 0; i < 2; i++)
        p.norm[i] = {(const float *)a[norm_at[i] + SOP_RMSNORM_W].data, norm[i]->eps,
                     norm[i]->offset};
    p.weight[0] = weight_of(call, QKV, AT_QKV);
    p.weight[1] = weight_of(call, OUTPUT, AT_OUTPUT);
    p.weight[2] = weight_of(call, GATE_UP, AT_GATE_UP);
    p.weight[3] = weight_of(call, DOWN, AT_DOWN);
    p.q_out = a[AT_QKV + SOP_LINEAR_Y].data;
    p.act_out = a[AT_GATED + SOP_GATED_Y].data;
    p.y = a[AT_DOWN + SOP_LINEAR_Y].data;
    p.q_stride = qkv->y_stride;
    p.act_stride = gated->y_stride;
    p.y_stride = ((const sop_linear_desc *)of[DOWN])->y_stride;
    p.att_stride = core->o_stride;
    p.pages = core->pages;
    p.tokens = (int)qkv->tokens;
    p.d = (int)norm[0]->dim;
    p.heads = (int)core->heads;
    p.kv_heads = (int)core->kv_heads;
    p.act = gated->act;
    p.met = sop_cuda_counters(call) + SOP_CUDA_COUNTERS - 2;
    int widest = p.d;
    for (int i = 0; i < 4; i++) widest = p.weight[i].k > widest ? p.weight[i].k : widest;
    const size_t shared = LAYER_ROWS_AT + (size_t)p.tokens * layer_pitch(widest);
    const unsigned grid = (unsigned)call->split->word[DECODE_GRID];
    if (core->kv_dtype == SOP_F16)
        return sop_launch_cluster(core->k == 64 ? sop_layer_decode_sm90<__half, 64>
                                                : sop_layer_decode_sm90<__half, 128>,
                                  grid, LAYER_THREADS, shared, 1, call, p);
    return sop_launch_cluster(core->k == 64 ? sop_layer_decode_sm90<__nv_bfloat16, 64>
                                            : sop_layer_decode_sm90<__nv_bfloat16, 128>,
                              grid, LAYER_THREADS, shared, 1, call, p);
}
