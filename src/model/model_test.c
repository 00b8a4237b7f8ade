/* Every architecture, from both kinds of files, against logits that transformers computed. */
#include "sop/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

enum { N = 24 };

struct reference {
    int32_t ids[N];
    float *logits; /* [N, vocab] */
    size_t vocab;
};

static struct reference reference_of(const char *arch, const char *what)
{
    struct reference r = {.logits = NULL};
    char path[512];
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s/%s.ids", arch, what);
    FILE *f = fopen(path, "rb");
    CHECK(f && fread(r.ids, sizeof r.ids, 1, f) == 1);
    if (f) (void)fclose(f);
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s/%s.logits", arch, what);
    f = fopen(path, "rb");
    CHECK(f != NULL);
    if (!f) return r;
    (void)fseek(f, 0, SEEK_END);
    r.vocab = (size_t)ftell(f) / N / sizeof(float);
    rewind(f);
    r.logits = malloc(N * r.vocab * sizeof(float));
    CHECK(r.logits && fread(r.logits, sizeof(float), N * r.vocab, f) == N * r.vocab);
    (void)fclose(f);
    return r;
}

/* The worst difference to the reference over all positions, in units of the logits' spread; the ids go
 * in as steps of these sizes (0 ends them). */
static double worst(const char *arch, const char *file, const char *what, const sop_config *config,
                    const int32_t *steps)
{
    struct reference r = reference_of(arch, what);
    sop_runtime *rt;
    sop_model *m = NULL;
    sop_super *s = NULL;
    char path[512];
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s/%s", arch, file);
    const sop_limits limits = {.ctx = 64, .max_seqs = 1, .max_tokens = N, .max_outs = N};
    CHECK(sop_runtime_create(config, NULL, "", &rt) == SOP_OK);
    if (sop_model_open(rt, path, &m) != SOP_OK || sop_model_super(m, &limits, &s) != SOP_OK)
        printf("%s: %s\n", path, sop_last_error());
    CHECK(m && s);
    double most = s ? 0 : INFINITY, spread = 0;
    int32_t seq, at = 0, next[N];
    sop_model_facts facts = {0};
    if (m) sop_model_facts_of(m, &facts);
    CHECK((size_t)facts.vocab == r.vocab &&
          strcmp(facts.arch, *file == 'h' ? arch : facts.arch) == 0);
    float *logits = malloc(N * r.vocab * sizeof *logits);
    if (s) CHECK(sop_super_open(s, &seq) == SOP_OK);
    for (int32_t i = 0; s && at < N; i++) {
        const int32_t n = steps[i] && steps[i] < N - at ? steps[i] : N - at;
        const sop_step_item it = {.seq = seq, .n_ids = n, .ids = r.ids + at, .want = SOP_WANT_ALL};
        const sop_status status = sop_super_step(s, &it, 1, next, logits + (size_t)at * r.vocab);
        if (status != SOP_OK) printf("%s: %s\n", path, sop_last_error());
        CHECK(status == SOP_OK);
        if (status != SOP_OK) break;
        at += n;
    }
    for (size_t i = 0; s && i < N * r.vocab; i++) {
        spread = fmax(spread, fabs((double)r.logits[i]));
        most = fmax(most, fabs((double)logits[i] - (double)r.logits[i]));
        if (isnan(logits[i])) most = INFINITY;
    }
    sop_super_destroy(s);
    sop_model_close(m);
    sop_runtime_destroy(rt);
    free(logits);
    free(r.logits);
    return most / spread;
}

static const int32_t whole[] = {0}, ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0},
                     chunks[] = {7, 1, 9, 2, 0};

static const struct {
    const char *arch, *file, *what;
} models[] = {{"qwen2", "model.gguf", "model"}, {"qwen2", "hf", "model"},
              {"qwen2", "quant.gguf", "quant"}, {"qwen3", "model.gguf", "model"},
              {"qwen3", "hf", "model"},         {"llama", "model.gguf", "model"},
              {"llama", "hf", "model"},         {"mistral", "model.gguf", "model"},
              {"mistral", "hf", "model"},       {"gemma3", "model.gguf", "model"},
              {"gemma3", "hf", "model"},        {"phi3", "model.gguf", "model"},
              {"phi3", "hf", "model"},          {"phi3", "hf-awq", "awq"},
              {"llama", "hf-awq", "awq"},       {"llama", "hf-gptq", "gptq"},
              {"llama", "hf-fp8", "fp8"},       {"llama", "hf-mixed", "mixed"},
              {"llama", "hf-packed", "packed"}};

static void judge(int32_t numerics, int32_t kv_dtype, double limit)
{
    static const int32_t *const ways[] = {whole, ones, chunks};
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = numerics;
    config.kv_dtype = kv_dtype;
    config.guard = SOP_GUARD_ALWAYS;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t w = 0; w < 3; w++) {
            const double e =
                worst(models[i].arch, models[i].file, models[i].what, &config, ways[w]);
            if (!(e <= limit))
                printf("%s/%s way %zu: off by %g of the spread, allowed %g\n", models[i].arch,
                       models[i].file, w, e, limit);
            CHECK(e <= limit);
        }
}

/* float32 against float32 in another order of sums: some 30 roundings deep */
static void exact_numerics_agree_with_transformers_in_every_way_of_stepping(void)
{
    judge(SOP_NUMERICS_EXACT, SOP_F16, 2e-5);
}

/* 8-bit activations and float16 keys and values: half a step of 127 a product, averaged over a row */
static void fast_numerics_stay_near(void)
{
    judge(SOP_NUMERICS_FAST, SOP_F16, 5e-2);
}

static void invariant_numerics_stay_near(void)
{
    judge(SOP_NUMERICS_INVARIANT, SOP_F16, 5e-2);
}

/* Of each key and value, int8 is off by half of 1.1 / 127 of the largest in its head, e4m3 by up to 2^-4
 * of itself: 8 and 16 times float16's own, in sums of 16 to 64. */
static void keys_and_values_of_8_bits_stay_near(void)
{
    judge(SOP_NUMERICS_FAST, SOP_I8, 8e-2);
    judge(SOP_NUMERICS_FAST, SOP_F8, 15e-2);
}

/* A tiny llama that says it is "llamb". */
static void an_architecture_that_is_not_known_is_told_which_are(void)
{
    char path[] = "/tmp/model_test_XXXXXX", bytes[4096], want[256];
    FILE *from = fopen(SOP_TEST_DATA "/tiny/llama/model.gguf", "rb");
    FILE *to = fdopen(mkstemp(path), "wb");
    sop_runtime *rt;
    sop_model *m;
    size_t n;
    for (int first = 1; (n = fread(bytes, 1, sizeof bytes, from)) > 0; first = 0) {
        char *name = first ? memmem(bytes, n, "llama", 5) : NULL;
        if (name) name[4] = 'b';
        CHECK((!first || name) && fwrite(bytes, 1, n, to) == n);
    }
    CHECK(fclose(from) == 0 && fclose(to) == 0);
    CHECK(sop_runtime_create(NULL, NULL, "", &rt) == SOP_OK);
    CHECK(sop_model_open(rt, path, &m) == SOP_E_UNSUPPORTED);
    int at = snprintf(want, sizeof want, "architecture \"llamb\", superop has");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].file, "model.gguf") == 0)
            at += snprintf(want + at, sizeof want - (size_t)at, "%s %s", i ? "," : "",
                           models[i].arch);
    CHECK(strstr(sop_last_error(), want) != NULL);
    sop_runtime_destroy(rt);
    CHECK(remove(path) == 0);
}

int main(void)
{
    RUN(an_architecture_that_is_not_known_is_told_which_are);

    RUN(exact_numerics_agree_with_transformers_in_every_way_of_stepping);
    RUN(fast_numerics_stay_near);
    RUN(invariant_numerics_stay_near);
    RUN(keys_and_values_of_8_bits_stay_near);
    return test_report();
}
