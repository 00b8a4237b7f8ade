#include "sop/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/file_index.h"
#include "model/safetensors.h"
#include "super/state.h"

struct sop_runtime {
    sop_config config;
    sop_device *device, *own;
    sop_planner *planner;
};

struct sop_model {
    sop_runtime *rt;
    sop_file *file;
    sop_program program;
    sop_params params;
    size_t base_bytes; /* that the process held before the weights */
    sop_model_facts facts;
    char arch[32], name[128];
};

static const sop_arch *const archs[] = {&sop_arch_qwen2,   &sop_arch_qwen3,  &sop_arch_llama,
                                        &sop_arch_mistral, &sop_arch_gemma3, &sop_arch_phi3};
enum { N_ARCHS = sizeof archs / sizeof *archs }; /* NOLINT(bugprone-sizeof-expression) */

/* Bytes of this process in memory now. */
static size_t resident_bytes(void)
{
    char line[128] = "", *end; /* pages in all, pages in memory, ... */
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (!fgets(line, sizeof line, f)) line[0] = 0;
    (void)fclose(f);
    (void)strtoull(line, &end, 10);
    return (size_t)strtoull(end, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}

sop_status sop_runtime_create(const sop_config *config, sop_device *device, const char *store,
                              sop_runtime **out)
{
    *out = NULL;
    sop_runtime *rt = calloc(1, sizeof *rt);
    if (!rt) return sop_fail(SOP_E_NOMEM, "runtime: %zu bytes", sizeof *rt);
    if (config)
        rt->config = *config;
    else
        sop_config_defaults(&rt->config);
    rt->device = device;
    sop_status status = SOP_OK;
    if (!device) {
        status = sop_device_cpu(rt->config.threads, &rt->own);
        rt->device = rt->own;
    }
    if (status == SOP_OK) status = sop_planner_create(rt->device, store, &rt->planner);
    if (status != SOP_OK) {
        sop_runtime_destroy(rt);
        return status;
    }
    *out = rt;
    return SOP_OK;
}

void sop_runtime_destroy(sop_runtime *rt)
{
    if (!rt) return;
    sop_planner_destroy(rt->planner);
    sop_device_destroy(rt->own);
    free(rt);
}

sop_planner *sop_runtime_planner(sop_runtime *rt)
{
    return rt->planner;
}

sop_device *sop_runtime_device(sop_runtime *rt)
{
    return rt->device;
}

static sop_status find_arch(const sop_file *f, const sop_arch **out)
{
    const bool gguf = sop_file_kind(f) == SOP_FILE_GGUF;
    const char *key = gguf ? "general.architecture" : "model_type";
    const char *name = sop_file_str(f, key, NULL);
    if (!name) return sop_fail(SOP_E_FORMAT, "the file does not say %s", key);
    for (size_t i = 0; i < N_ARCHS; i++) {
        const size_t n = strlen(archs[i]->name);
        if (strncmp(name, archs[i]->name, n) == 0 &&
            (!name[n] || (!gguf && strcmp(name + n, "_text") == 0))) {
            *out = archs[i];
            return SOP_OK;
        }
    }
    char known[256] = "";
    for (size_t i = 0, at = 0; i < N_ARCHS && at < sizeof known; i++)
        at +=
            (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", archs[i]->name);
    return sop_fail(SOP_E_UNSUPPORTED, "architecture \"%s\", superop has %s", name, known);
}

/* The vocabulary is what the embedding table has rows for. */
static sop_status vocabulary(const sop_file *f, int64_t *out)
{
    static const char *const names[] = {"token_embd.weight", "model.embed_tokens.weight",
                                        "language_model.model.embed_tokens.weight",
                                        "model.language_model.embed_tokens.weight",
                                        "embed_tokens.weight"};
    sop_tensor t;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sop_file_tensor(f, names[i], &t) && t.ndim == 2 && t.shape[0] > 0 &&
            t.shape[0] < INT32_MAX) {
            *out = t.shape[0];
            return SOP_OK;
        }
    return sop_fail(SOP_E_FORMAT, "the file has no matrix of embeddings (%s)",
                    sop_file_kind(f) == SOP_FILE_GGUF ? names[0] : names[1]);
}

/* Pages that steps will read are fetched now, those that are packed elsewhere given back. */
static void settle(void *ctx, const void *data, size_t bytes, bool stays)
{
    union {
        const void *in;
        void *out;
    } cast = {data};
    const sop_tensor t = {.data = cast.out, .bytes = bytes, .dtype = SOP_U8};
    if (!stays) {
        sop_file_forget(ctx, &t);
        return;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    volatile const char *at = data;
    for (size_t i = 0; i < bytes; i += page) (void)at[i];
}

static uint32_t bound_of(const sop_config *c)
{
    return c->numerics == SOP_NUMERICS_INVARIANT ? SOP_CHOOSE_INVARIANT : 0;
}

static sop_status load(sop_model *m)
{
    const sop_config *c = &m->rt->config;
    const sop_arch *arch = NULL;
    SOP_TRY(find_arch(m->file, &arch));
    (void)snprintf(m->arch, sizeof m->arch, "%s", arch->name);
    SOP_TRY(sop_params_common(m->file, arch->name, &m->params));
    SOP_TRY(vocabulary(m->file, &m->params.vocab));
    SOP_TRY(arch->params(m->file, &m->params));
    const int32_t act = sop_act_dtype(m->file, m->rt->device, c->numerics);
    SOP_TRY(sop_transformer(m->file, &m->params, c, act, &m->program, &m->facts.parameters));
    for (int32_t i = 0; i < m->program.n_modules; i++) /* as the planner will see them */
        if (m->program.modules[i].op == &sop_op_linear)
            m->program.modules[i].desc.linear.numerics = c->numerics;
    return sop_program_place(&m->program, m->rt->planner, c->max_step_tokens, bound_of(c),
                             sop_file_lent(m->file) ? NULL : settle, m->file);
}

/* A file's index of tensors that are there already. */
static sop_status lend(const char *config, const sop_model_tensor *tensors, int64_t n,
                       sop_file **out)
{
    sop_file *f = *out = sop_file_create();
    if (!f) return SOP_E_NOMEM;
    f->kind = SOP_FILE_HF;
    f->lent = true;
    SOP_TRY(sop_config_parse(f, config, strlen(config), "the configuration"));
    for (int64_t i = 0; i < n; i++) {
        const char *name = tensors[i].name;
        sop_file_tensor_entry *t = sop_file_add_tensor(f);
        if (!t) return SOP_E_NOMEM;
        t->name = sop_file_take_str(f, name, strlen(name));
        if (!t->name) return SOP_E_NOMEM;
        t->view = tensors[i].view;
        t->type = sop_dtype_text(t->view.dtype);
        int64_t step = 1;
        for (int32_t d = t->view.ndim; d-- > 0; step *= t->view.shape[d])
            if (t->view.shape[d] > 1 && t->view.stride[d] != step)
                return sop_fail(SOP_E_FORMAT,
                                "%s: the stride of dimension %d is %lld, must be %lld", name, d,
                                (long long)t->view.stride[d], (long long)step);
    }
    return sop_file_seal(f);
}

/* From a file, or from tensors when path is NULL. */
static sop_status open_model(sop_runtime *rt, const char *path, const char *config,
                             const sop_model_tensor *tensors, int64_t n, sop_model **out)
{
    *out = NULL;
    sop_model *m = calloc(1, sizeof *m);
    if (!m) return sop_fail(SOP_E_NOMEM, "model: %zu bytes", sizeof *m);
    m->rt = rt;
    sop_program_init(&m->program);
    sop_status status = path ? sop_file_open(path, &m->file) : lend(config, tensors, n, &m->file);
    m->base_bytes = resident_bytes();
    if (status == SOP_OK) status = load(m);
    if (status != SOP_OK) {
        sop_model_close(m);
        return status;
    }
    const sop_params *p = &m->params;
    const char *name = sop_file_str(m->file, "general.name", NULL);
    (void)snprintf(m->name, sizeof m->name, "%s", name ? name : "");
    const int64_t parameters = m->facts.parameters;
    m->facts = (sop_model_facts){.arch = m->arch,
                                 .name = m->name,
                                 .layers = p->layers,
                                 .dim = p->dim,
                                 .heads = p->heads,
                                 .kv_heads = p->kv_heads,
                                 .k = p->k,
                                 .ffn = p->ffn,
                                 .vocab = p->vocab,
                                 .ctx = p->ctx,
                                 .parameters = parameters};
    for (int32_t i = 0; i < m->program.n_weights; i++)
        m->facts.weight_bytes += m->program.weights[i].file_bytes;
    for (int32_t i = 0; i < m->program.n_modules; i++) {
        const sop_module *y = &m->program.modules[i];
        sop_cost c;
        if (y->op != &sop_op_linear) continue;
        sop_any_desc d = y->desc;
        d.linear.tokens = 1;
        y->op->complete(&d);
        y->op->cost(&d, &c);
        m->facts.step_read_bytes += (size_t)c.read_bytes;
    }
    *out = m;
    return SOP_OK;
}

sop_status sop_model_open(sop_runtime *rt, const char *path, sop_model **out)
{
    return open_model(rt, path, NULL, NULL, 0, out);
}

sop_status sop_model_of(sop_runtime *rt, const char *config, const sop_model_tensor *tensors,
                        int64_t n, sop_model **out)
{
    return open_model(rt, NULL, config, tensors, n, out);
}

void sop_model_close(sop_model *m)
{
    if (!m) return;
    sop_program_finish(&m->program);
    sop_file_close(m->file);
    free(m);
}

void sop_model_facts_of(const sop_model *m, sop_model_facts *out)
{
    *out = m->facts;
}

static sop_super_spec spec_of(const sop_model *m, const sop_limits *limits)
{
    const sop_limits none = {0}, *l = limits ? limits : &none;
    const sop_config *c = &m->rt->config;
    sop_super_spec s = {.program = &m->program,
                        .planner = m->rt->planner,
                        .config = c,
                        .ctx = l->ctx,
                        .kv_tokens = l->kv_tokens,
                        .max_seqs = l->max_seqs ? l->max_seqs : 1,
                        .max_tokens = l->max_tokens ? l->max_tokens : c->max_step_tokens,
                        .max_outs = l->max_outs,
                        .queue = l->queue,
                        .logits_only = l->logits_only != 0,
                        .base_bytes = m->base_bytes};
    if (!s.ctx) s.ctx = c->ctx;
    if (!s.ctx) s.ctx = m->params.ctx < 4096 ? m->params.ctx : 4096;
    if (!s.max_outs) s.max_outs = s.max_seqs;
    if (s.max_tokens < s.max_seqs) s.max_tokens = s.max_seqs;
    if (!s.kv_tokens) s.kv_tokens = s.ctx * s.max_seqs;
    return s;
}

sop_status sop_model_super(sop_model *m, const sop_limits *limits, sop_super **out)
{
    const sop_super_spec s = spec_of(m, limits);
    return sop_super_create(&s, out);
}

sop_status sop_model_predict(sop_model *m, const sop_limits *limits, sop_memory *out)
{
    const sop_super_spec s = spec_of(m, limits);
    return sop_super_predict(&s, out);
}
