/* Memory that runs out, from the opening of a model to a token: every allocation fails once, and each
 * time the answer is a status, nothing leaks and nothing breaks. And a step allocates nothing. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"
#include "sop/model.h"
#include "sop/tokenizer.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);

static int64_t n_allocations, fails_at = -1; /* counted from 0; -1: none fails */
static bool fails_on;                        /* all later ones fail too */

static bool fails(void)
{
    const int64_t at = __atomic_fetch_add(&n_allocations, 1, __ATOMIC_RELAXED);
    return fails_at >= 0 && (fails_on ? at >= fails_at : at == fails_at);
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return fails() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return fails() ? 12 /* ENOMEM */ : __real_posix_memalign(out, align, n);
}

typedef struct opened {
    sop_runtime *runtime;
    sop_model *model;
    sop_super *super;
    sop_tokenizer *tokenizer;
    int32_t seq;
} opened;

static sop_status open_all(const char *path, opened *o)
{
    sop_config config;
    const sop_limits limits = {.ctx = 512};
    *o = (opened){.seq = -1};
    sop_config_defaults(&config);
    config.threads = 2;
    config.kv_host_gb = 0.001;
    config.kv_dtype = strstr(path, "hf-awq") ? SOP_I8 : SOP_F16;
    sop_status s = sop_runtime_create(&config, NULL, "", &o->runtime);
    if (s == SOP_OK) s = sop_model_open(o->runtime, path, &o->model);
    if (s == SOP_OK) s = sop_tokenizer_open(path, &o->tokenizer);
    if (s == SOP_OK) s = sop_model_super(o->model, &limits, &o->super);
    if (s == SOP_OK) s = sop_super_open(o->super, &o->seq);
    return s;
}

static void close_all(opened *o)
{
    sop_super_destroy(o->super);
    sop_tokenizer_close(o->tokenizer);
    sop_model_close(o->model);
    sop_runtime_destroy(o->runtime);
}

static sop_status step(opened *o, const int32_t *ids, int32_t n, int32_t *next)
{
    const sop_step_item item = {.seq = o->seq, .n_ids = n, .ids = ids, .want = SOP_WANT_LAST};
    return sop_super_step(o->super, &item, 1, next, NULL);
}

static sop_status answer(const char *path)
{
    static const char text[] = "the dog and the fox";
    int32_t ids[64], next = 0;
    size_t n = 0;
    opened o;
    sop_status s = open_all(path, &o);
    if (s == SOP_OK)
        s = sop_tokenizer_encode(o.tokenizer, text, sizeof text - 1, true, ids, 32, &n);
    if (s == SOP_OK) s = step(&o, ids, (int32_t)n, &next);
    for (int i = 0; i < 3 && s == SOP_OK; i++) s = step(&o, &next, 1, &next);
    close_all(&o);
    return s;
}

static const char *const models[] = {
    SOP_TEST_DATA "/tiny/llama/model.gguf",
    SOP_TEST_DATA "/tiny/qwen2/hf",
    SOP_TEST_DATA "/tiny/gemma3/model.gguf",
    SOP_TEST_DATA "/tiny/phi3/hf-awq",
};
enum { N_MODELS = sizeof models / sizeof *models, MOST = 200 };

static void each_allocation_may_fail(void)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        fails_at = -1, n_allocations = 0;
        CHECK(answer(models[i]) == SOP_OK);
        const int64_t all = n_allocations, most = all < MOST ? all : MOST;
        printf("%s: %lld allocations, %lld of them fail\n", models[i], (long long)all,
               (long long)most);
        for (int64_t k = 0; k < 2 * most; k++) {
            fails_on = k % 2, fails_at = k / 2, n_allocations = 0;
            const sop_status s = answer(models[i]);
            fails_at = -1;
            if (s != SOP_OK && s != SOP_E_NOMEM)
                printf("allocation %lld: %s: %s\n", (long long)(k / 2), sop_status_text(s),
                       sop_last_error());
            CHECK(s == SOP_OK || s == SOP_E_NOMEM);
            CHECK(s == SOP_OK || *sop_last_error());
        }
        CHECK(answer(models[i]) == SOP_OK);
    }
}

static void a_decode_step_allocates_nothing(void)
{
    static const int32_t ids[] = {1, 2, 3, 4};
    for (size_t i = 0; i < N_MODELS; i++) {
        opened o;
        int32_t next = 0;
        fails_at = -1;
        CHECK(open_all(models[i], &o) == SOP_OK);
        CHECK(step(&o, ids, 4, &next) == SOP_OK);
        sop_super_facts facts;
        sop_super_facts_of(o.super, &facts);
        /* The guard looks at one module of a step, in turn, and is planned at its first look. */
        for (int k = 0; k < facts.n_modules; k++) CHECK(step(&o, &next, 1, &next) == SOP_OK);
        n_allocations = 0;
        for (int k = 0; k < 16; k++) {
            if (k % 3 == 0) CHECK(sop_super_offload(o.super, o.seq) == SOP_OK);
            if (k % 2 == 0) CHECK(sop_super_restore(o.super, o.seq) == SOP_OK);
            CHECK(step(&o, &next, 1, &next) == SOP_OK);
        }
        CHECK(n_allocations == 0);
        close_all(&o);
    }
}

int main(void)
{
    RUN(each_allocation_may_fail);
    RUN(a_decode_step_allocates_nothing);
    return test_report();
}
