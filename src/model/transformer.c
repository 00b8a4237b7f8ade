/* The common builder: the modules of a decoder, in order, from its parameters and its file.
 *
 *   X residual [t, d]   H normed [t, d]   QKV [t, (h + 2g) k]   ATT [t, h v]   O [t, d]
 *   GU gate | up [t, 2f]   ACT [t, f]
 *
 * The residual and the logits are float32; what goes between them is of the type that the model is
 * computed in (sop_act_dtype).
 * A block's result O is added to X inside the next norm; a weight the file lacks is named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/quant.h"
#include "ops/kv_append/kv_append.h"
#include "ops/linear/dequant.h"

/* Before the names of a Hugging Face file. */
static const char *const prefixes[] = {"model.", "language_model.model.", "model.language_model.",
                                       ""};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes }; /* NOLINT(bugprone-sizeof-expression) */

enum { X, H, QKV, ATT, O, GU, ACT, OUT_X, OUT_O, OUT_H, LOGITS, N_BUFFERS };

struct builder {
    const sop_file *file;
    const sop_params *p;
    sop_program *program;
    int32_t freqs[2];
    float mscale[2];
    int32_t embedding;
    int32_t act; /* type of activations */
    int64_t parameters;
    const char *prefix; /* of names in a Hugging Face file */
    sop_quant quant;
    char last[160]; /* the quantised matrix that parts were taken from, and its blocks */
    void *last_blocks;
};

/* GGUF's word for a weight and Hugging Face's. */
struct name {
    const char *gguf, *hf;
};
static const struct name EMBED = {"token_embd.weight", "embed_tokens.weight"},
                         FINAL_NORM = {"output_norm.weight", "norm.weight"},
                         HEAD = {"output.weight", "lm_head.weight"},
                         ATTN_NORM = {"attn_norm.weight", "input_layernorm.weight"},
                         Q = {"attn_q.weight", "self_attn.q_proj.weight"},
                         K = {"attn_k.weight", "self_attn.k_proj.weight"},
                         V = {"attn_v.weight", "self_attn.v_proj.weight"},
                         BQ = {"attn_q.bias", "self_attn.q_proj.bias"},
                         BK = {"attn_k.bias", "self_attn.k_proj.bias"},
                         BV = {"attn_v.bias", "self_attn.v_proj.bias"},
                         QKV_ALL = {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
                         B_QKV_ALL = {"attn_qkv.bias", "self_attn.qkv_proj.bias"},
                         Q_NORM = {"attn_q_norm.weight", "self_attn.q_norm.weight"},
                         K_NORM = {"attn_k_norm.weight", "self_attn.k_norm.weight"},
                         WO = {"attn_output.weight", "self_attn.o_proj.weight"},
                         BO = {"attn_output.bias", "self_attn.o_proj.bias"},
                         POST_ATTN = {"post_attention_norm.weight",
                                      "post_attention_layernorm.weight"},
                         FFN_NORM = {"ffn_norm.weight", "post_attention_layernorm.weight"},
                         GEMMA_FFN_NORM = {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
                         GATE = {"ffn_gate.weight", "mlp.gate_proj.weight"},
                         UP = {"ffn_up.weight", "mlp.up_proj.weight"},
                         GATE_UP = {"ffn_up.weight", "mlp.gate_up_proj.weight"},
                         DOWN = {"ffn_down.weight", "mlp.down_proj.weight"},
                         B_GATE = {"ffn_gate.bias", "mlp.gate_proj.bias"},
                         B_UP = {"ffn_up.bias", "mlp.up_proj.bias"},
                         B_DOWN = {"ffn_down.bias", "mlp.down_proj.bias"},
                         POST_FFN = {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
                         FREQS = {"", "rotary_emb.inv_freq"};

static const char *full_name(const struct builder *b, const struct name *n, int64_t layer,
                             char *out, size_t cap)
{
    const bool gguf = sop_file_kind(b->file) == SOP_FILE_GGUF;
    if (layer >= 0)
        (void)snprintf(out, cap, gguf ? "blk.%lld.%s%s" : "layers.%lld.%s%s", (long long)layer,
                       gguf ? n->gguf : "", gguf ? "" : n->hf);
    else
        (void)snprintf(out, cap, "%s", gguf ? n->gguf : n->hf);
    if (!gguf && n != &HEAD) {
        char bare[128];
        (void)snprintf(bare, sizeof bare, "%s", out);
        (void)snprintf(out, cap, "%s%s", b->prefix, bare);
    }
    return out;
}

static bool has(const struct builder *b, const struct name *n, int64_t layer)
{
    char name[160];
    sop_tensor t;
    full_name(b, n, layer, name, sizeof name);
    return sop_file_tensor(b->file, name, &t) || sop_quant_find(b->file, &b->quant, name, &t);
}

/* A tensor of the file, or rows [at, at + n) of one that has `of`. */
struct part {
    const struct name *w;
    int64_t at, n, of;
};

static struct part whole(const struct name *w, int64_t n)
{
    return (struct part){w, 0, n, n};
}

/* quantised: t has no data yet. */
static sop_status find(const struct builder *b, const struct part *s, int64_t layer, int64_t cols,
                       char *name, size_t cap, sop_tensor *t, bool *quantised)
{
    full_name(b, s->w, layer, name, cap);
    *quantised = sop_quant_find(b->file, &b->quant, name, t);
    if (!*quantised && !sop_file_tensor(b->file, name, t))
        return sop_fail(SOP_E_FORMAT, "the tensor %s is missing", name);
    const int64_t r = t->ndim == 2 ? t->shape[0] : 1, c = t->ndim ? t->shape[t->ndim - 1] : 0;
    /* of a vector, parts are columns */
    const int64_t rows = cols ? s->of : 1, across = cols ? cols : s->of;
    if (t->ndim < 1 || t->ndim > 2 || r != rows || c != across)
        return sop_fail(SOP_E_FORMAT, "the tensor %s is [%lld, %lld], must be [%lld, %lld]", name,
                        (long long)r, (long long)c, (long long)rows, (long long)across);
    if (!sop_dequant_takes(t->dtype))
        return sop_fail(SOP_E_UNSUPPORTED, "the tensor %s has a type that is not for weights%s%s",
                        name, t->dtype >= 0 ? ": " : "",
                        t->dtype >= 0 ? sop_dtype_text(t->dtype) : "");
    return SOP_OK;
}

/* Rows of a quantised matrix as blocks. Those of which parts are taken are kept until the next one. */
static sop_status blocks_of(struct builder *b, const struct part *s, const char *name,
                            size_t row_bytes, void **own)
{
    if (s->n == s->of) return sop_quant_read(b->file, &b->quant, name, own);
    if (strcmp(b->last, name) != 0) {
        free(b->last_blocks);
        b->last_blocks = NULL;
        b->last[0] = 0;
        SOP_TRY(sop_quant_read(b->file, &b->quant, name, &b->last_blocks));
        (void)snprintf(b->last, sizeof b->last, "%s", name);
    }
    *own = malloc((size_t)s->n * row_bytes);
    if (!*own) return sop_fail(SOP_E_NOMEM, "%s: %lld rows of it", name, (long long)s->n);
    memcpy(*own, (char *)b->last_blocks + (size_t)s->at * row_bytes, (size_t)s->n * row_bytes);
    return SOP_OK;
}

/* A matrix of the file, in place; copied only when its numbers lie unaligned, made anew when they are
 * quantised in another layout. */
static sop_status matrix(struct builder *b, const struct part *s, int64_t layer, int64_t cols,
                         int32_t *out, int32_t *dtype)
{
    char name[160];
    sop_tensor t;
    bool quantised;
    SOP_TRY(find(b, s, layer, cols, name, sizeof name, &t, &quantised));
    const size_t row_bytes = sop_dtype_row_bytes(t.dtype, cols), bytes = (size_t)s->n * row_bytes;
    const size_t unit = t.dtype == SOP_F32 ? 4 : t.dtype == SOP_F16 || t.dtype == SOP_BF16 ? 2 : 1;
    const char *data = quantised ? NULL : (const char *)t.data + (size_t)s->at * row_bytes;
    void *own = NULL;
    if (quantised) {
        SOP_TRY(blocks_of(b, s, name, row_bytes, &own));
    } else if ((uintptr_t)data % unit) {
        if (sop_file_lent(b->file))
            return sop_fail(SOP_E_FORMAT, "%s: its numbers are not aligned to %zu bytes", name,
                            unit);
        own = malloc(bytes);
        if (!own) return sop_fail(SOP_E_NOMEM, "%s: an aligned copy of %zu bytes", name, bytes);
        memcpy(own, data, bytes);
    }
    *out = sop_program_weight(b->program, name, t.dtype, s->n, cols, own ? own : data, bytes);
    if (*out < 0) {
        free(own);
        return SOP_E_NOMEM;
    }
    b->program->weights[*out].own = own;
    b->program->weights[*out].period = sop_file_period(b->file);
    b->parameters += s->n * cols;
    *dtype = t.dtype;
    return SOP_OK;
}

/* A vector as floats. */
static sop_status vector(struct builder *b, const struct part *s, int64_t layer, int32_t *out)
{
    char name[160];
    sop_tensor t;
    bool quantised;
    SOP_TRY(find(b, s, layer, 0, name, sizeof name, &t, &quantised));
    b->parameters += s->n;
    if (sop_file_lent(b->file)) {
        if (t.dtype != SOP_F32)
            return sop_fail(SOP_E_FORMAT, "%s: a vector on the device is %s, must be f32", name,
                            sop_dtype_text(t.dtype));
        *out = sop_program_weight(b->program, name, SOP_F32, 1, s->n, (float *)t.data + s->at,
                                  (size_t)s->n * sizeof(float));
        return *out < 0 ? SOP_E_NOMEM : SOP_OK;
    }
    float *floats = malloc((size_t)s->of * sizeof *floats);
    if (!floats) return sop_fail(SOP_E_NOMEM, "%s: %lld floats", name, (long long)s->of);
    sop_dequant_row(t.dtype, t.data, s->of, floats);
    *out = sop_program_floats(b->program, name, floats + s->at, s->n);
    free(floats);
    return *out < 0 ? SOP_E_NOMEM : SOP_OK;
}

static int32_t dtype_of(const struct builder *b, int32_t buffer)
{
    return buffer == X || buffer == OUT_X || buffer == LOGITS ? SOP_F32 : b->act;
}

static sop_arg buffer(const struct builder *b, int32_t index, int64_t at)
{
    return (sop_arg){SOP_ARG_BUFFER, index, at * (int64_t)sop_dtype_bytes(dtype_of(b, index))};
}

static sop_arg weight(int32_t index)
{
    return (sop_arg){SOP_ARG_WEIGHT, index, 0};
}

static sop_arg input(int32_t kind, int64_t group)
{
    return (sop_arg){SOP_ARG_INPUT, kind, group};
}

static const sop_arg live = {SOP_ARG_LIVE, 0, 0};

static sop_status add(struct builder *b, const sop_module *m)
{
    return sop_program_add(b->program, m) < 0 ? SOP_E_NOMEM : SOP_OK;
}

/* y = norm(x), or x += o first. */
static sop_status norm(struct builder *b, const char *kind, const struct name *n, int64_t layer,
                       int32_t extent, int32_t o, int32_t x, int32_t y)
{
    int32_t w;
    const struct part all = whole(n, b->p->dim);
    SOP_TRY(vector(b, &all, layer, &w));
    sop_module m = {.kind = kind, .op = &sop_op_rmsnorm, .layer = (int32_t)layer, .extent = extent};
    m.guard = SOP_RMSNORM_Y;
    m.desc.rmsnorm = (sop_rmsnorm_desc){.heads = 1,
                                        .dim = b->p->dim,
                                        .eps = (float)b->p->eps,
                                        .offset = b->p->norm_offset,
                                        .x_dtype = dtype_of(b, o >= 0 ? o : x),
                                        .r_dtype = dtype_of(b, x),
                                        .y_dtype = dtype_of(b, y)};
    m.args[SOP_RMSNORM_X] = buffer(b, o >= 0 ? o : x, 0);
    if (o >= 0) {
        m.folded = "residual";
        m.note = "folded into the norm: r += x in the pass that reads it";
        m.args[SOP_RMSNORM_R] = m.args[SOP_RMSNORM_R_OUT] = buffer(b, x, 0);
    }
    m.args[SOP_RMSNORM_W] = weight(w);
    m.args[SOP_RMSNORM_LIVE] = live;
    m.args[SOP_RMSNORM_Y] = buffer(b, y, 0);
    return add(b, &m);
}

/* The weights of a linear and their biases; all is what a file may hold in place of the others, one
 * below another. */
struct weights {
    const struct name *w[3], *bias[3], *all, *all_bias;
    int64_t n[3];
};

static sop_status linear(struct builder *b, const char *kind, int64_t layer, int32_t extent,
                         const struct weights *from, int64_t k, int32_t x, int32_t y)
{
    sop_module m = {.kind = kind, .op = &sop_op_linear, .layer = (int32_t)layer, .extent = extent};
    sop_linear_desc *d = &m.desc.linear;
    const bool one = from->all && !has(b, from->w[0], layer) && has(b, from->all, layer);
    const int64_t of = from->n[0] + from->n[1] + from->n[2];
    int64_t at = 0;
    m.guard = SOP_LINEAR_Y;
    d->k = k;
    d->x_dtype = dtype_of(b, x);
    d->y_dtype = dtype_of(b, y);
    for (int32_t j = 0; j < 3 && from->n[j]; at += from->n[j], j++) {
        const int64_t n = from->n[j];
        struct part s = one ? (struct part){from->all, at, n, of} : whole(from->w[j], n);
        int32_t w;
        SOP_TRY(matrix(b, &s, layer, k, &w, &d->w_dtype[j]));
        d->n[j] = n;
        d->layouts[j] = SOP_LAYOUT_PLAIN;
        m.args[SOP_LINEAR_W0 + j] = weight(w);
        s.w = one ? from->all_bias : from->bias[j];
        if (s.w && has(b, s.w, layer)) {
            SOP_TRY(vector(b, &s, layer, &w));
            m.args[SOP_LINEAR_B0 + j] = weight(w);
            d->bias |= 1 << j;
        }
    }
    m.args[SOP_LINEAR_X] = buffer(b, x, 0);
    m.args[SOP_LINEAR_LIVE] = live;
    m.args[SOP_LINEAR_Y] = buffer(b, y, 0);
    return add(b, &m);
}

static int64_t qkv_row(const sop_params *p)
{
    return p->heads * p->k + p->kv_heads * (p->k + p->v);
}

/* Norm each head of the q or k columns of QKV. */
static sop_status head_norm(struct builder *b, const struct name *n, int64_t layer, int64_t heads,
                            int64_t at)
{
    const sop_params *p = b->p;
    int32_t w;
    const struct part all = whole(n, p->k);
    SOP_TRY(vector(b, &all, layer, &w));
    sop_module m = {.kind = n == &Q_NORM ? "q norm" : "k norm",
                    .op = &sop_op_rmsnorm,
                    .layer = (int32_t)layer,
                    .extent = SOP_EXTENT_TOKENS,
                    .guard = SOP_RMSNORM_Y};
    m.desc.rmsnorm = (sop_rmsnorm_desc){.heads = heads,
                                        .dim = p->k,
                                        .x_stride = qkv_row(p),
                                        .y_stride = qkv_row(p),
                                        .eps = (float)p->eps,
                                        .offset = p->norm_offset,
                                        .x_dtype = b->act,
                                        .r_dtype = b->act,
                                        .y_dtype = b->act};
    m.args[SOP_RMSNORM_X] = m.args[SOP_RMSNORM_Y] = buffer(b, QKV, at);
    m.args[SOP_RMSNORM_W] = weight(w);
    m.args[SOP_RMSNORM_LIVE] = live;
    return add(b, &m);
}

static sop_status rope(struct builder *b, int64_t layer)
{
    const sop_params *p = b->p;
    const int32_t set = p->rope_of[layer];
    sop_module m = {.kind = "rope",
                    .op = &sop_op_rope,
                    .layer = (int32_t)layer,
                    .extent = SOP_EXTENT_TOKENS,
                    .guard = SOP_ROPE_Y,
                    .switches = SOP_MODULE_ROPE};
    m.desc.rope = (sop_rope_desc){.heads = p->heads + p->kv_heads, /* q and k stand side by side */
                                  .k = p->k,
                                  .rot = p->rot,
                                  .x_stride = qkv_row(p),
                                  .y_stride = qkv_row(p),
                                  .mscale = b->mscale[set],
                                  .interleaved = p->interleaved,
                                  .x_dtype = b->act,
                                  .y_dtype = b->act};
    m.args[SOP_ROPE_X] = m.args[SOP_ROPE_Y] = buffer(b, QKV, 0);
    m.args[SOP_ROPE_POS] = input(SOP_INPUT_POS, 0);
    m.args[SOP_ROPE_FREQS] = weight(b->freqs[set]);
    m.args[SOP_ROPE_LIVE] = live;
    return add(b, &m);
}

/* The new keys and values into the pages, then the core. */
static sop_status attention(struct builder *b, int64_t layer)
{
    const sop_params *p = b->p;
    const int64_t page = SOP_KV_PAGE, g = p->kv_heads;
    const bool codes = sop_is_code(b->program->kv_dtype);
    const int32_t at = sop_program_layer(
        b->program, (sop_kv_layer){.heads = g, .k = p->k, .v = p->v, .window = p->window[layer]});
    if (at < 0) return SOP_E_NOMEM;
    sop_module m = {.kind = "kv append",
                    .op = &sop_op_kv_append,
                    .layer = at,
                    .extent = SOP_EXTENT_TOKENS,
                    .guard = -1,
                    .switches = SOP_MODULE_KV};
    const int64_t k_at = p->heads * p->k, v_at = k_at + g * p->k;
    /* pools: [pages, g, page, k], so that a head's keys of a page are one run */
    m.desc.kv_append = (sop_kv_append_desc){.heads = g,
                                            .k = p->k,
                                            .v = p->v,
                                            .page = page,
                                            .k_stride = qkv_row(p),
                                            .k_head = p->k,
                                            .v_stride = qkv_row(p),
                                            .v_head = p->v,
                                            .kp_page = g * page * p->k,
                                            .kp_token = p->k,
                                            .kp_head = page * p->k,
                                            .vp_page = g * page * p->v,
                                            .vp_token = p->v,
                                            .vp_head = page * p->v,
                                            .x_dtype = b->act,
                                            .kv_dtype = b->program->kv_dtype};
    m.args[SOP_KV_APPEND_K] = buffer(b, QKV, k_at);
    m.args[SOP_KV_APPEND_V] = buffer(b, QKV, v_at);
    m.args[SOP_KV_APPEND_SLOTS] = input(SOP_INPUT_SLOTS, at);
    m.args[SOP_KV_APPEND_LIVE] = live;
    if (codes) {
        m.args[SOP_KV_APPEND_K_SCALES] = (sop_arg){SOP_ARG_SCALES, at, 0};
        m.args[SOP_KV_APPEND_V_SCALES] = (sop_arg){SOP_ARG_SCALES, at, 1};
    }
    m.args[SOP_KV_APPEND_K_POOL] = (sop_arg){SOP_ARG_POOL, at, 0};
    m.args[SOP_KV_APPEND_V_POOL] = (sop_arg){SOP_ARG_POOL, at, 1};
    SOP_TRY(add(b, &m));

    const sop_kv_append_desc pools = m.desc.kv_append;
    m = (sop_module){.kind = "attention core",
                     .op = &sop_op_attention,
                     .folded = "mask fusion",
                     .note =
                         p->window[layer]
                             ? "folded into the core: causal, window, each sequence's own length"
                             : "folded into the core: causal, each sequence's own length",
                     .layer = at,
                     .extent = SOP_EXTENT_TOKENS,
                     .guard = SOP_ATTENTION_O};
    m.desc.attention = (sop_attention_desc){.heads = p->heads,
                                            .kv_heads = g,
                                            .k = p->k,
                                            .v = p->v,
                                            .page = page,
                                            .q_stride = qkv_row(p),
                                            .q_head = p->k,
                                            .o_stride = p->heads * p->v,
                                            .o_head = p->v,
                                            .kp_page = pools.kp_page,
                                            .kp_token = pools.kp_token,
                                            .kp_head = pools.kp_head,
                                            .vp_page = pools.vp_page,
                                            .vp_token = pools.vp_token,
                                            .vp_head = pools.vp_head,
                                            .window = p->window[layer],
                                            .scale = p->scale,
                                            .cap = p->cap,
                                            .q_dtype = b->act,
                                            .o_dtype = b->act,
                                            .kv_dtype = b->program->kv_dtype,
                                            .causal = 1};
    m.args[SOP_ATTENTION_Q] = buffer(b, QKV, 0);
    m.args[SOP_ATTENTION_K_POOL] = (sop_arg){SOP_ARG_POOL, at, 0};
    m.args[SOP_ATTENTION_V_POOL] = (sop_arg){SOP_ARG_POOL, at, 1};
    if (codes) {
        m.args[SOP_ATTENTION_K_SCALES] = (sop_arg){SOP_ARG_SCALES, at, 0};
        m.args[SOP_ATTENTION_V_SCALES] = (sop_arg){SOP_ARG_SCALES, at, 1};
    }
    m.args[SOP_ATTENTION_TABLE] = input(SOP_INPUT_TABLE, at);
    m.args[SOP_ATTENTION_Q_START] = input(SOP_INPUT_Q_START, 0);
    m.args[SOP_ATTENTION_KV_LEN] = input(SOP_INPUT_KV_LEN, 0);
    m.args[SOP_ATTENTION_LIVE] = (sop_arg){SOP_ARG_LIVE, SOP_EXTENT_SEQS + 1, 0};
    m.args[SOP_ATTENTION_O] = buffer(b, ATT, 0);
    return add(b, &m);
}

static sop_status gated(struct builder *b, int64_t layer)
{
    sop_module m = {.kind = "mlp activation",
                    .op = &sop_op_gated,
                    .layer = (int32_t)layer,
                    .extent = SOP_EXTENT_TOKENS,
                    .guard = SOP_GATED_Y};
    m.desc.gated =
        (sop_gated_desc){.dim = b->p->ffn, .act = b->p->act, .x_dtype = b->act, .y_dtype = b->act};
    m.args[SOP_GATED_X] = buffer(b, GU, 0);
    m.args[SOP_GATED_LIVE] = live;
    m.args[SOP_GATED_Y] = buffer(b, ACT, 0);
    return add(b, &m);
}

static sop_status layer(struct builder *b, int64_t l)
{
    const sop_params *p = b->p;
    const int32_t t = SOP_EXTENT_TOKENS;
    SOP_TRY(norm(b, "norm", &ATTN_NORM, l, t, l ? O : -1, X, H));
    SOP_TRY(linear(b, "qkv projection", l, t,
                   &(struct weights){{&Q, &K, &V},
                                     {&BQ, &BK, &BV},
                                     &QKV_ALL,
                                     &B_QKV_ALL,
                                     {p->heads * p->k, p->kv_heads * p->k, p->kv_heads * p->v}},
                   p->dim, H, QKV));
    if (p->qk_norm) {
        SOP_TRY(head_norm(b, &Q_NORM, l, p->heads, 0));
        SOP_TRY(head_norm(b, &K_NORM, l, p->kv_heads, p->heads * p->k));
    }
    SOP_TRY(rope(b, l));
    SOP_TRY(attention(b, l));
    SOP_TRY(linear(b, "output projection", l, t,
                   &(struct weights){{&WO}, {&BO}, NULL, NULL, {p->dim}}, p->heads * p->v, ATT, O));
    if (p->post_norm) SOP_TRY(norm(b, "post norm", &POST_ATTN, l, t, -1, O, O));
    SOP_TRY(norm(b, "norm", p->post_norm ? &GEMMA_FFN_NORM : &FFN_NORM, l, t, O, X, H));
    SOP_TRY(
        linear(b, "mlp gate and up", l, t,
               &(struct weights){{&GATE, &UP}, {&B_GATE, &B_UP}, &GATE_UP, NULL, {p->ffn, p->ffn}},
               p->dim, H, GU));
    SOP_TRY(gated(b, l));
    SOP_TRY(linear(b, "mlp down", l, t, &(struct weights){{&DOWN}, {&B_DOWN}, NULL, NULL, {p->dim}},
                   p->ffn, ACT, O));
    return p->post_norm ? norm(b, "post norm", &POST_FFN, l, t, -1, O, O) : SOP_OK;
}

/* Rows of a table or a buffer by index. */
static sop_status gather(struct builder *b, const char *kind, int32_t extent, int32_t ids,
                         sop_arg table, int32_t dtype, int64_t rows, float scale, int32_t y)
{
    sop_module m = {
        .kind = kind, .op = &sop_op_embed, .layer = -1, .extent = extent, .guard = SOP_EMBED_Y};
    m.desc.embed = (sop_embed_desc){.rows = rows,
                                    .dim = b->p->dim,
                                    .scale = scale,
                                    .w_dtype = dtype,
                                    .y_dtype = dtype_of(b, y)};
    m.args[SOP_EMBED_IDS] = input(ids, 0);
    m.args[SOP_EMBED_TABLE] = table;
    m.args[SOP_EMBED_LIVE] = live;
    m.args[SOP_EMBED_Y] = buffer(b, y, 0);
    return add(b, &m);
}

static sop_status head(struct builder *b, int32_t embed_dtype)
{
    const sop_params *p = b->p;
    const int32_t o = SOP_EXTENT_OUTS;
    SOP_TRY(gather(b, "wanted rows", o, SOP_INPUT_OUT_ROWS, buffer(b, X, 0), SOP_F32, 0, 0, OUT_X));
    SOP_TRY(gather(b, "wanted rows", o, SOP_INPUT_OUT_ROWS, buffer(b, O, 0), b->act, 0, 0, OUT_O));
    SOP_TRY(norm(b, "norm", &FINAL_NORM, -1, o, OUT_O, OUT_X, OUT_H));
    if (has(b, &HEAD, -1)) {
        SOP_TRY(linear(b, "head", -1, o, &(struct weights){.w = {&HEAD}, .n = {p->vocab}}, p->dim,
                       OUT_H, LOGITS));
    } else { /* tied: the embedding table is the head; a head of its own would have won */
        bool tied = true;
        if (sop_file_bool(b->file, "tie_word_embeddings", &tied) && !tied)
            return sop_fail(SOP_E_FORMAT,
                            "the tensor %s is missing and tie_word_embeddings is false", HEAD.hf);
        sop_module m = {
            .kind = "head", .op = &sop_op_linear, .layer = -1, .extent = o, .guard = SOP_LINEAR_Y};
        m.desc.linear = (sop_linear_desc){.k = p->dim,
                                          .n = {p->vocab},
                                          .w_dtype = {embed_dtype},
                                          .layouts = {SOP_LAYOUT_PLAIN},
                                          .x_dtype = dtype_of(b, OUT_H),
                                          .y_dtype = dtype_of(b, LOGITS)};
        m.args[SOP_LINEAR_X] = buffer(b, OUT_H, 0);
        m.args[SOP_LINEAR_W0] = weight(b->embedding);
        m.args[SOP_LINEAR_LIVE] = live;
        m.args[SOP_LINEAR_Y] = buffer(b, LOGITS, 0);
        SOP_TRY(add(b, &m));
    }
    sop_module m = {.kind = "sample", .op = &sop_op_sample, .layer = -1, .extent = o, .guard = -1};
    m.desc.sample = (sop_sample_desc){.vocab = p->vocab};
    m.args[SOP_SAMPLE_LOGITS] = buffer(b, LOGITS, 0);
    m.args[SOP_SAMPLE_PARAMS] = input(SOP_INPUT_SAMPLING, 0);
    m.args[SOP_SAMPLE_LIVE] = live;
    m.args[SOP_SAMPLE_IDS] = input(SOP_INPUT_NEXT, 0);
    return add(b, &m);
}

/* Of tensors that are lent: a framework's own frequencies, which it may have rounded. */
static sop_status lent_frequencies(struct builder *b)
{
    const struct part all = whole(&FREQS, b->p->rot / 2);
    if (!sop_file_lent(b->file) || !has(b, &FREQS, -1)) return SOP_OK;
    const int64_t parameters = b->parameters;
    SOP_TRY(vector(b, &all, -1, &b->freqs[0]));
    b->parameters = parameters;
    return SOP_OK;
}

static sop_status frequencies(struct builder *b)
{
    const sop_params *p = b->p;
    float *freqs = malloc((size_t)p->rot * sizeof *freqs);
    if (!freqs) return sop_fail(SOP_E_NOMEM, "rope: %lld frequencies", (long long)p->rot / 2);
    sop_status status = SOP_OK;
    for (int32_t set = 0; set < 2 && status == SOP_OK; set++) {
        sop_tensor t;
        status = sop_rope_freqs(&p->rope[set], p->rot, freqs, &b->mscale[set]);
        /* Llama 3's factors as a GGUF holds them */
        if (status == SOP_OK && sop_file_tensor(b->file, "rope_freqs.weight", &t)) {
            if (t.dtype != SOP_F32 || t.ndim != 1 || t.shape[0] != p->rot / 2)
                status = sop_fail(SOP_E_FORMAT, "rope_freqs.weight is not [%lld] f32",
                                  (long long)p->rot / 2);
            for (int64_t i = 0; status == SOP_OK && i < p->rot / 2; i++) {
                float by;
                memcpy(&by, (const char *)t.data + 4 * i, 4);
                if (!(by > 0))
                    status = sop_fail(SOP_E_FORMAT, "rope_freqs.weight[%lld] is %g, must be > 0",
                                      (long long)i, (double)by);
                freqs[i] /= by;
            }
        }
        if (status == SOP_OK) {
            b->freqs[set] = sop_program_floats(
                b->program, set ? "rope freqs, windowed" : "rope freqs", freqs, p->rot / 2);
            if (b->freqs[set] < 0) status = SOP_E_NOMEM;
        }
    }
    free(freqs);
    return status == SOP_OK ? lent_frequencies(b) : status;
}

static sop_status buffers(struct builder *b)
{
    static const char *const names[N_BUFFERS] = {"x",        "h",           "qkv",   "att",
                                                 "o",        "gate and up", "act",   "wanted x",
                                                 "wanted o", "wanted h",    "logits"};
    const sop_params *p = b->p;
    const int64_t rows[N_BUFFERS] = {
        [X] = p->dim,     [H] = p->dim,      [QKV] = qkv_row(p), [ATT] = p->heads * p->v,
        [O] = p->dim,     [GU] = 2 * p->ffn, [ACT] = p->ffn,     [OUT_X] = p->dim,
        [OUT_O] = p->dim, [OUT_H] = p->dim,  [LOGITS] = p->vocab};
    for (int32_t i = 0; i < N_BUFFERS; i++)
        if (sop_program_buffer(b->program, names[i],
                               i >= OUT_X ? SOP_EXTENT_OUTS : SOP_EXTENT_TOKENS,
                               (size_t)rows[i] * sop_dtype_bytes(dtype_of(b, i))) < 0)
            return SOP_E_NOMEM;
    return SOP_OK;
}

int32_t sop_act_dtype(const sop_file *f, const sop_device *device, int32_t numerics)
{
    /* the embedding's is that of a model whose other matrices are quantised */
    static const char *const names[] = {"blk.0.attn_q.weight", "layers.0.self_attn.q_proj.weight",
                                        "layers.0.self_attn.qkv_proj.weight",
                                        "embed_tokens.weight"};
    char name[160];
    sop_tensor t;
    if (device->ops->kind != SOP_DEVICE_CUDA || numerics == SOP_NUMERICS_EXACT) return SOP_F32;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < N_PREFIXES; k++) {
            (void)snprintf(name, sizeof name, "%s%s", prefixes[k], names[i]);
            if (sop_file_tensor(f, name, &t) && (t.dtype == SOP_BF16 || t.dtype == SOP_F16))
                return t.dtype;
        }
    return SOP_F32;
}

static sop_status modules(struct builder *b)
{
    const sop_params *p = b->p;
    const struct part table = whole(&EMBED, p->vocab);
    int32_t dtype;
    SOP_TRY(sop_quant_config(b->file, &b->quant));
    SOP_TRY(buffers(b));
    SOP_TRY(frequencies(b));
    SOP_TRY(matrix(b, &table, -1, p->dim, &b->embedding, &dtype));
    SOP_TRY(gather(b, "embedding", SOP_EXTENT_TOKENS, SOP_INPUT_IDS, weight(b->embedding), dtype,
                   p->vocab, p->embed_scale, X));
    for (int64_t l = 0; l < p->layers; l++) SOP_TRY(layer(b, l));
    return head(b, dtype);
}

sop_status sop_transformer(const sop_file *f, const sop_params *p, const sop_config *config,
                           int32_t act, sop_program *program, int64_t *n_parameters)
{
    struct builder b = {.file = f, .p = p, .program = program, .act = act};
    program->vocab = p->vocab;
    program->ctx = p->ctx;
    program->kv_dtype = config->modules.kv_cache_opt && config->numerics != SOP_NUMERICS_EXACT
                            ? config->kv_dtype
                            : SOP_F32;
    if (program->kv_dtype == SOP_F16 && act == SOP_BF16) program->kv_dtype = act;
    program->logits = LOGITS;
    program->lent = sop_file_lent(f);
    for (size_t i = 0; i < N_PREFIXES; i++) {
        b.prefix = prefixes[i];
        if (has(&b, &EMBED, -1)) break;
    }
    const sop_status status = modules(&b);
    free(b.last_blocks);
    *n_parameters = b.parameters;
    return status;
}
