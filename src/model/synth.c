/* A matrix of random numbers needs no memory of its own: all are windows into one ring of normal
 * numbers, which lies in memory once and is mapped again and again, as often as the largest one wants.
 * A device copies the first turn of it and doubles that. The ring is a prime number of pages long, so
 * that the rows of a matrix differ. */
#include "model/synth.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "core/op.h"
#include "model/arch.h"
#include "model/safetensors.h"

#define PREFIX "synth:"

enum { RING = SOP_SYNTH_RING };

bool sop_synth_is(const char *path)
{
    return strncmp(path, PREFIX, sizeof PREFIX - 1) == 0;
}

struct synth {
    sop_file *f;
    int32_t dtype;
    size_t turn;         /* where in the ring the next matrix begins */
    const uint8_t *norm; /* weights of norms, all alike */
};

static sop_status tensor(struct synth *s, int64_t layer, const char *name, int64_t rows,
                         int64_t cols)
{
    char full[160];
    uint64_t blocks;
    const uint64_t dims[2] = {(uint64_t)rows, (uint64_t)cols};
    const bool vector = rows == 1, norm = strstr(name, "norm") != NULL;
    const int n = layer < 0
                      ? snprintf(full, sizeof full, "%s", name)
                      : snprintf(full, sizeof full, "model.layers.%lld.%s", (long long)layer, name);
    sop_file_tensor_entry *t = sop_file_add_tensor(s->f);
    if (!t) return SOP_E_NOMEM;
    t->name = sop_file_take_str(s->f, full, (size_t)n);
    t->type = sop_dtype_text(s->dtype);
    if (!t->name) return SOP_E_NOMEM;
    t->view.dtype = s->dtype;
    if (!sop_file_shape(&t->view, vector ? 1 : 2, vector ? dims + 1 : dims, 1, &blocks))
        return sop_fail(SOP_E_FORMAT, "%s has [%lld, %lld] elements", full, (long long)rows,
                        (long long)cols);
    sop_file_point(&t->view, norm ? s->norm : s->f->ring + s->turn,
                   blocks * sop_dtype_bytes(s->dtype));
    s->turn = (s->turn + (size_t)1021 * 64) % RING;
    return SOP_OK;
}

static sop_status layer(struct synth *s, const sop_params *p, const char *arch, int64_t l)
{
    const bool gemma = strncmp(arch, "gemma3", 6) == 0, qwen3 = strcmp(arch, "qwen3") == 0;
    const int64_t q = p->heads * p->k, k = p->kv_heads * p->k, v = p->kv_heads * p->v;
    bool bias = strcmp(arch, "qwen2") == 0;
    SOP_TRY(tensor(s, l, "input_layernorm.weight", 1, p->dim));
    SOP_TRY(tensor(s, l, "self_attn.q_proj.weight", q, p->dim));
    SOP_TRY(tensor(s, l, "self_attn.k_proj.weight", k, p->dim));
    SOP_TRY(tensor(s, l, "self_attn.v_proj.weight", v, p->dim));
    if (bias || (sop_file_bool(s->f, "attention_bias", &bias) && bias)) {
        SOP_TRY(tensor(s, l, "self_attn.q_proj.bias", 1, q));
        SOP_TRY(tensor(s, l, "self_attn.k_proj.bias", 1, k));
        SOP_TRY(tensor(s, l, "self_attn.v_proj.bias", 1, v));
    }
    if (gemma || qwen3) {
        SOP_TRY(tensor(s, l, "self_attn.q_norm.weight", 1, p->k));
        SOP_TRY(tensor(s, l, "self_attn.k_norm.weight", 1, p->k));
    }
    SOP_TRY(tensor(s, l, "self_attn.o_proj.weight", p->dim, p->heads * p->v));
    SOP_TRY(tensor(s, l, "post_attention_layernorm.weight", 1, p->dim));
    if (gemma) {
        SOP_TRY(tensor(s, l, "pre_feedforward_layernorm.weight", 1, p->dim));
        SOP_TRY(tensor(s, l, "post_feedforward_layernorm.weight", 1, p->dim));
    }
    SOP_TRY(tensor(s, l, "mlp.gate_proj.weight", p->ffn, p->dim));
    SOP_TRY(tensor(s, l, "mlp.up_proj.weight", p->ffn, p->dim));
    return tensor(s, l, "mlp.down_proj.weight", p->dim, p->ffn);
}

/* splitmix64 */
static uint64_t mix(uint64_t i)
{
    uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The ring, mapped until `most` bytes from any place in it are there. */
static sop_status make_ring(sop_file *f, int32_t dtype, size_t most)
{
    const size_t turns = most / RING + 2;
    const int fd = memfd_create("superop synth", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, RING) != 0) {
        if (fd >= 0) (void)close(fd);
        return sop_fail(SOP_E_NOMEM, "synth: %d bytes: %m", RING);
    }
    uint8_t *at = mmap(NULL, turns * RING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool ok = at != MAP_FAILED;
    if (ok) {
        f->ring = at;
        f->ring_bytes = turns * RING;
    }
    for (size_t i = 0; i < turns && ok; i++)
        ok = mmap(at + i * RING, RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
             MAP_FAILED;
    (void)close(fd);
    if (!ok) return sop_fail(SOP_E_NOMEM, "synth: %zu bytes: %m", turns * RING);
    /* four uniform numbers of 16 bits make a normal one; a standard deviation of 0.02 keeps what a
     * product of normed rows gives near 1 */
    for (int64_t i = 0; i < (int64_t)(RING / sop_dtype_bytes(dtype)); i++) {
        const uint64_t z = mix((uint64_t)i);
        const double sum =
            (double)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
        sop_store(at, dtype, i, (sum / 65536 - 2) * 1.7320508 * 0.02);
    }
    return mprotect(at, turns * RING, PROT_READ) == 0
               ? SOP_OK
               : sop_fail(SOP_E_NOMEM, "synth: %zu bytes: %m", turns * RING);
}

static sop_status tensors(sop_file *f, int32_t dtype)
{
    struct synth s = {.f = f, .dtype = dtype};
    sop_params *p = sop_file_take(f, sizeof *p);
    const char *arch = sop_file_str(f, "model_type", NULL);
    bool tied = true;
    if (!p) return SOP_E_NOMEM;
    if (!arch) return sop_fail(SOP_E_FORMAT, "the shape does not say model_type");
    SOP_TRY(sop_params_common(f, arch, p));
    if (!sop_file_i64(f, "vocab_size", &p->vocab) || p->vocab < 1 || p->vocab >= INT32_MAX)
        return sop_fail(SOP_E_FORMAT, "the shape has no vocab_size from 1 to %d", INT32_MAX - 1);
    int64_t most = p->heads * p->k * p->dim;
    if (p->ffn * p->dim > most) most = p->ffn * p->dim;
    if (p->vocab * p->dim > most) most = p->vocab * p->dim;
    SOP_TRY(make_ring(f, dtype, (size_t)most * sop_dtype_bytes(dtype)));
    const int64_t widest = p->dim > p->k ? p->dim : p->k;
    uint8_t *norm = sop_file_take(f, (uint64_t)widest * sop_dtype_bytes(dtype));
    if (!norm) return SOP_E_NOMEM;
    for (int64_t i = 0; i < widest; i++) /* Gemma's are added to 1 */
        sop_store(norm, dtype, i, strncmp(arch, "gemma", 5) == 0 ? 0 : 1);
    s.norm = norm;
    SOP_TRY(tensor(&s, -1, "model.embed_tokens.weight", p->vocab, p->dim));
    for (int64_t l = 0; l < p->layers; l++) SOP_TRY(layer(&s, p, arch, l));
    SOP_TRY(tensor(&s, -1, "model.norm.weight", 1, p->dim));
    if (sop_file_bool(f, "tie_word_embeddings", &tied) && !tied)
        SOP_TRY(tensor(&s, -1, "lm_head.weight", p->vocab, p->dim));
    return SOP_OK;
}

/* The config.json of a shape: of bench/shapes, or a file. */
static sop_status config_of(sop_file *f, const char *shape, size_t n)
{
    char known[512] = "";
    size_t at = 0;
    for (const sop_text *s = sop_synth_shapes; s->name; s++) {
        if (strlen(s->name) == n && memcmp(s->name, shape, n) == 0)
            return sop_config_parse(f, s->text, strlen(s->text), s->name);
        if (at < sizeof known)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", s->name);
    }
    if (!memchr(shape, '/', n) && !memchr(shape, '.', n))
        return sop_fail(SOP_E_NOT_FOUND, "no shape \"%.*s\": there are %s, or a config.json",
                        (int)n, shape, known);
    char *path = sop_file_take_str(f, shape, n);
    if (!path) return SOP_E_NOMEM;
    if (access(path, F_OK) != 0)
        return sop_fail(SOP_E_NOT_FOUND, "no shape and no file %s: there are %s", path, known);
    SOP_TRY(sop_file_map_in(f, path));
    return sop_config_parse(f, (const char *)f->maps[0].base, f->maps[0].size, path);
}

/* "f16" at the end of a name, or what the shape says, as transformers does before its release 5 and since. */
static sop_status dtype_of(const sop_file *f, const char *word, int32_t *out)
{
    static const struct {
        const char *name, *torch;
        int32_t dtype;
    } types[] = {
        {"bf16", "bfloat16", SOP_BF16}, {"f16", "float16", SOP_F16}, {"f32", "float32", SOP_F32}};
    const char *torch = sop_file_str(f, "torch_dtype", NULL);
    if (!torch) torch = sop_file_str(f, "dtype", NULL);
    if (!torch) torch = "bfloat16";
    for (int i = 0; i < 3; i++)
        if (word ? strcmp(word, types[i].name) == 0 : strcmp(torch, types[i].torch) == 0) {
            *out = types[i].dtype;
            return SOP_OK;
        }
    return sop_fail(SOP_E_ARG, "synth: the type is \"%s\", must be bf16, f16 or f32",
                    word ? word : torch);
}

sop_status sop_synth_open(sop_file *f, const char *path)
{
    const char *shape = path + sizeof PREFIX - 1, *colon = strrchr(shape, ':');
    int32_t dtype = SOP_BF16;
    SOP_TRY(config_of(f, shape, colon ? (size_t)(colon - shape) : strlen(shape)));
    SOP_TRY(sop_file_seal(f)); /* the keys, which the tensors follow from */
    SOP_TRY(dtype_of(f, colon ? colon + 1 : NULL, &dtype));
    SOP_TRY(tensors(f, dtype));
    return sop_file_seal(f);
}
