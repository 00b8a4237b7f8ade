/* Parameters that every architecture has, in the names of both kinds of files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"

static bool is_gguf(const sop_file *f)
{
    return sop_file_kind(f) == SOP_FILE_GGUF;
}

static const char *key(char *buf, size_t cap, const char *arch, const char *gguf)
{
    (void)snprintf(buf, cap, "%s.%s", arch, gguf);
    return buf;
}

bool sop_params_i64(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                    int64_t *out)
{
    char buf[128];
    if (!is_gguf(f)) return hf && sop_file_i64(f, hf, out);
    return gguf && sop_file_i64(f, key(buf, sizeof buf, arch, gguf), out);
}

bool sop_params_f64(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                    double *out)
{
    char buf[128];
    if (!is_gguf(f)) return hf && sop_file_f64(f, hf, out);
    return gguf && sop_file_f64(f, key(buf, sizeof buf, arch, gguf), out);
}

void sop_params_window(sop_params *p, int64_t window)
{
    for (int64_t l = 0; l < p->layers; l++) p->window[l] = window;
}

static sop_status need(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                       int64_t most, int64_t *out)
{
    const char *name = is_gguf(f) ? gguf : hf;
    if (!sop_params_i64(f, arch, gguf, hf, out))
        return sop_fail(SOP_E_FORMAT, "%s: the key %s is missing or no whole number", arch, name);
    if (*out < 1 || *out > most)
        return sop_fail(SOP_E_FORMAT, "%s: %s is %lld, must be 1 to %lld", arch, name,
                        (long long)*out, (long long)most);
    return SOP_OK;
}

/* head_count may be one number or one for each layer; superop takes them all alike. */
static sop_status heads(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                        int64_t *out)
{
    char buf[128];
    const int64_t n = is_gguf(f) ? sop_file_array(f, key(buf, sizeof buf, arch, gguf)) : -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t h;
        if (!sop_file_array_i64(f, buf, i, &h) || h < 1 || h > 65536 || (i && h != *out))
            return sop_fail(SOP_E_UNSUPPORTED, "%s: %s differs between layers", arch, buf);
        *out = h;
    }
    return n > 0 ? SOP_OK : need(f, arch, gguf, hf, 65536, out);
}

static sop_status rope_kind(const char *arch, const char *text, sop_rope_scaling_kind *out)
{
    static const struct {
        const char *text;
        sop_rope_scaling_kind kind;
    } kinds[] = {{"none", SOP_ROPE_PLAIN},
                 {"default", SOP_ROPE_PLAIN},
                 {"linear", SOP_ROPE_LINEAR},
                 {"yarn", SOP_ROPE_YARN},
                 {"llama3", SOP_ROPE_LLAMA3}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(text, kinds[i].text) == 0) {
            *out = kinds[i].kind;
            return SOP_OK;
        }
    return sop_fail(SOP_E_UNSUPPORTED,
                    "%s: rope scaling \"%s\", superop has none, linear, yarn and llama3", arch,
                    text);
}

static sop_status rope_gguf(const sop_file *f, const char *arch, sop_rope_scaling *r)
{
    char buf[128];
    const char *type = sop_file_str(f, key(buf, sizeof buf, arch, "rope.scaling.type"), NULL);
    (void)sop_params_f64(f, arch, "rope.freq_base", NULL, &r->base);
    if (type) SOP_TRY(rope_kind(arch, type, &r->kind));
    (void)sop_params_f64(f, arch, "rope.scaling.factor", NULL, &r->factor);
    (void)sop_params_f64(f, arch, "rope.scaling.original_context_length", NULL, &r->original);
    (void)sop_params_f64(f, arch, "rope.scaling.attn_factor", NULL, &r->attention_factor);
    (void)sop_params_f64(f, arch, "rope.scaling.yarn_beta_fast", NULL, &r->beta_fast);
    (void)sop_params_f64(f, arch, "rope.scaling.yarn_beta_slow", NULL, &r->beta_slow);
    return SOP_OK;
}

sop_status sop_params_rope_hf(const sop_file *f, const char *prefix, const sop_params *p,
                              sop_rope_scaling *r)
{
    char k[160];
#define AT(name) (snprintf(k, sizeof k, "%s.%s", prefix, name), k)
    const char *type = sop_file_str(f, AT("rope_type"), NULL);
    if (!type) type = sop_file_str(f, AT("type"), NULL);
    if (type) SOP_TRY(rope_kind("config.json", type, &r->kind));
    (void)sop_file_f64(f, AT("rope_theta"), &r->base);
    (void)sop_file_f64(f, AT("factor"), &r->factor);
    (void)sop_file_f64(f, AT("original_max_position_embeddings"), &r->original);
    (void)sop_file_f64(f, AT("low_freq_factor"), &r->low_freq);
    (void)sop_file_f64(f, AT("high_freq_factor"), &r->high_freq);
    (void)sop_file_f64(f, AT("beta_fast"), &r->beta_fast);
    (void)sop_file_f64(f, AT("beta_slow"), &r->beta_slow);
    (void)sop_file_f64(f, AT("attention_factor"), &r->attention_factor);
    (void)sop_file_f64(f, AT("mscale"), &r->mscale);
    (void)sop_file_f64(f, AT("mscale_all_dim"), &r->mscale_all_dim);
#undef AT
    if (r->kind == SOP_ROPE_YARN && r->original > 0 && r->factor == 0)
        r->factor = (double)p->ctx / r->original;
    return SOP_OK;
}

sop_status sop_params_common(const sop_file *f, const char *arch, sop_params *p)
{
    double eps = 0;
    SOP_TRY(need(f, arch, "block_count", "num_hidden_layers", SOP_MAX_LAYERS, &p->layers));
    SOP_TRY(need(f, arch, "embedding_length", "hidden_size", 1 << 20, &p->dim));
    SOP_TRY(need(f, arch, "feed_forward_length", "intermediate_size", 1 << 24, &p->ffn));
    SOP_TRY(heads(f, arch, "attention.head_count", "num_attention_heads", &p->heads));
    p->kv_heads = p->heads;
    if (is_gguf(f) || sop_params_i64(f, arch, NULL, "num_key_value_heads", &p->kv_heads))
        SOP_TRY(heads(f, arch, "attention.head_count_kv", "num_key_value_heads", &p->kv_heads));
    if (p->heads % p->kv_heads)
        return sop_fail(SOP_E_FORMAT, "%s: %lld query heads over %lld KV heads", arch,
                        (long long)p->heads, (long long)p->kv_heads);
    if (!sop_params_i64(f, arch, "attention.key_length", "head_dim", &p->k)) {
        if (p->dim % p->heads)
            return sop_fail(SOP_E_FORMAT, "%s: %lld channels over %lld heads and no head size",
                            arch, (long long)p->dim, (long long)p->heads);
        p->k = p->dim / p->heads;
    }
    p->v = p->k;
    (void)sop_params_i64(f, arch, "attention.value_length", NULL, &p->v);
    p->rot = p->k;
    (void)sop_params_i64(f, arch, "rope.dimension_count", NULL, &p->rot);
    if (p->k < 1 || p->k > 65536 || p->v < 1 || p->v > 65536 || p->rot < 2 || p->rot > p->k ||
        p->rot % 2)
        return sop_fail(SOP_E_FORMAT, "%s: heads of %lld and %lld channels, %lld of them rotated",
                        arch, (long long)p->k, (long long)p->v, (long long)p->rot);
    p->ctx = 4096;
    (void)sop_params_i64(f, arch, "context_length", "max_position_embeddings", &p->ctx);
    if (p->ctx < 1 || p->ctx > INT32_MAX)
        return sop_fail(SOP_E_FORMAT, "%s: a context of %lld tokens", arch, (long long)p->ctx);
    if (!sop_params_f64(f, arch, "attention.layer_norm_rms_epsilon", "rms_norm_eps", &eps))
        eps = 1e-6;
    if (!(eps > 0 && eps < 1))
        return sop_fail(SOP_E_FORMAT, "%s: the norm's epsilon is %g", arch, eps);
    p->eps = eps;
    double base = 10000;
    (void)sop_params_f64(f, arch, NULL, "rope_theta", &base);
    p->rope[0] = (sop_rope_scaling){.base = base};
    if (is_gguf(f)) {
        SOP_TRY(rope_gguf(f, arch, &p->rope[0]));
    } else {
        SOP_TRY(sop_params_rope_hf(f, "rope_scaling", p, &p->rope[0]));
        SOP_TRY(sop_params_rope_hf(f, "rope_parameters", p, &p->rope[0]));
    }
    p->rope[1] = p->rope[0];
    return SOP_OK;
}
