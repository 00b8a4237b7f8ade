/* Every architecture, from both kinds of files, against logits that transformers computed. */
#include "sop/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"
#include "model/file.h"
#include "ops/linear/dequant.h"

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

/* A file's tensors as somebody else would hold them: vectors as floats, which *floats [n] owns. */
static sop_model_tensor *held(const sop_file *f, int64_t *n, float ***floats)
{
    *n = sop_file_n_tensors(f);
    sop_model_tensor *list = calloc((size_t)*n, sizeof *list);
    *floats = calloc((size_t)*n, sizeof **floats);
    for (int64_t i = 0; i < *n; i++) {
        sop_tensor *t = &list[i].view;
        list[i].name = sop_file_tensor_name(f, i);
        CHECK(sop_file_tensor(f, list[i].name, t));
        if (t->ndim != 1) continue;
        (*floats)[i] = malloc((size_t)t->shape[0] * sizeof(float));
        sop_dequant_row(t->dtype, t->data, t->shape[0], (*floats)[i]);
        t->data = (*floats)[i];
        t->dtype = SOP_F32;
        t->bytes = (size_t)t->shape[0] * sizeof(float);
    }
    return list;
}

/* Keys and values of a sequence, into the pages of another that has room for as many. */
static void copy_pages(sop_super *s, int32_t from, int32_t to, int32_t layers)
{
    enum { MOST = 4 };
    int32_t a[MOST], b[MOST];
    for (int32_t l = 0; l < layers; l++) {
        const int64_t n = sop_super_pages(s, from, l, a, MOST);
        CHECK(n >= 1 && n <= MOST && sop_super_pages(s, to, l, b, MOST) == n);
        for (int32_t which = 0; which < 2; which++) {
            sop_tensor pool;
            sop_super_pool(s, l, which, &pool);
            const size_t page = (size_t)pool.stride[0] * sop_dtype_bytes(pool.dtype);
            CHECK(pool.bytes == page * (size_t)pool.shape[0]);
            for (int64_t i = 0; i < n; i++)
                memcpy((char *)pool.data + (size_t)b[i] * page,
                       (char *)pool.data + (size_t)a[i] * page, page);
        }
    }
}

static void tensors_that_are_there_are_a_model_as_their_file_is(void)
{
    enum { HALF = 11 };
    static const char *const of[] = {"qwen2", "llama", "gemma3"};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct reference r = reference_of(of[k], "model");
        const sop_limits limits = {
            .ctx = 64, .max_seqs = 2, .max_tokens = N, .max_outs = N, .logits_only = 1};
        char path[512], config[8192] = "";
        sop_runtime *rt;
        sop_model *m = NULL;
        sop_super *s = NULL;
        sop_file *f = NULL;
        sop_config c;
        float **floats;
        int32_t a = 0, b = 0, places[N];
        int64_t n;
        (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s/hf/config.json", of[k]);
        FILE *text = fopen(path, "re");
        CHECK(text && fread(config, 1, sizeof config - 1, text) > 0 && fclose(text) == 0);
        *strrchr(path, '/') = 0;
        CHECK(sop_file_open(path, &f) == SOP_OK);
        sop_model_tensor *list = held(f, &n, &floats);
        sop_config_defaults(&c);
        c.numerics = SOP_NUMERICS_EXACT;
        CHECK(sop_runtime_create(&c, NULL, "", &rt) == SOP_OK);
        if (sop_model_of(rt, config, list, n, &m) != SOP_OK ||
            sop_model_super(m, &limits, &s) != SOP_OK)
            printf("%s: %s\n", of[k], sop_last_error());
        CHECK(s && sop_super_open(s, &a) == SOP_OK && sop_super_open(s, &b) == SOP_OK);
        float *logits = malloc(2 * N * r.vocab * sizeof *logits), *others = logits + N * r.vocab;
        double spread = 0, worst_a = 0, worst_b = 0;
        sop_step_item it = {.seq = a, .n_ids = N, .want = SOP_WANT_ALL};
        CHECK(sop_super_put(s, &it, 1, r.ids, NULL, logits) == SOP_OK);
        /* half of it in the other sequence by hand; then its own tokens, with positions said */
        CHECK(sop_super_extend(s, b, N) == SOP_OK);
        sop_model_facts facts;
        sop_model_facts_of(m, &facts);
        copy_pages(s, a, b, (int32_t)facts.layers);
        CHECK(sop_super_truncate(s, b, HALF) == SOP_OK && sop_super_length(s, b) == HALF);
        for (int32_t i = HALF; i < N; i++) places[i] = i;
        it = (sop_step_item){.seq = b, .n_ids = N - HALF, .want = SOP_WANT_ALL};
        CHECK(sop_super_put(s, &it, 1, r.ids + HALF, places + HALF, others) == SOP_OK);
        for (size_t i = 0; i < N * r.vocab; i++) {
            spread = fmax(spread, fabs((double)r.logits[i]));
            worst_a = fmax(worst_a, fabs((double)logits[i] - (double)r.logits[i]));
            if (i >= HALF * r.vocab)
                worst_b =
                    fmax(worst_b, fabs((double)others[i - HALF * r.vocab] - (double)r.logits[i]));
        }
        CHECK(worst_a <= 2e-5 * spread && worst_b <= 2e-5 * spread);
        CHECK(sop_super_put(s, &it, 1, NULL, NULL, others) == SOP_E_ARG); /* ids nowhere */
        CHECK(sop_super_ahead(s, &it, 1, 1, places) == SOP_E_ARG);        /* nothing is sampled */
        CHECK(sop_super_step(s, &it, 1, places, NULL) == SOP_E_ARG);
        CHECK(sop_super_extend(s, b, 1000) == SOP_E_LIMIT && sop_super_length(s, b) == N);
        sop_super_destroy(s);
        sop_model_close(m);
        if (k == 0) { /* a framework's own frequencies of rope are taken: of none nothing turns */
            static float zeros[64];
            sop_model_tensor *more = malloc((size_t)(n + 1) * sizeof *more);
            memcpy(more, list, (size_t)n * sizeof *more);
            more[n] = (sop_model_tensor){.name = "model.rotary_emb.inv_freq",
                                         .view = {.data = zeros,
                                                  .bytes = (size_t)facts.k / 2 * sizeof(float),
                                                  .dtype = SOP_F32,
                                                  .ndim = 1,
                                                  .shape = {facts.k / 2},
                                                  .stride = {1}}};
            CHECK(sop_model_of(rt, config, more, n + 1, &m) == SOP_OK);
            CHECK(sop_model_super(m, &limits, &s) == SOP_OK);
            CHECK(sop_super_open(s, &a) == SOP_OK);
            it = (sop_step_item){.seq = a, .n_ids = N, .want = SOP_WANT_ALL};
            CHECK(sop_super_put(s, &it, 1, r.ids, NULL, others) == SOP_OK);
            double apart = 0;
            for (size_t i = 0; i < N * r.vocab; i++)
                apart = fmax(apart, fabs((double)others[i] - (double)logits[i]));
            CHECK(apart > 1e-2 * spread);
            sop_super_destroy(s);
            sop_model_close(m);
            free(more);
        }
        list[0].view.stride[0]++;
        list[0].view.shape[0] = 2;
        CHECK(sop_model_of(rt, config, list, n, &m) == SOP_E_FORMAT);
        sop_runtime_destroy(rt);
        sop_file_close(f);
        for (int64_t i = 0; i < n; i++) free(floats[i]);
        free(floats);
        free(list);
        free(logits);
        free(r.logits);
    }
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
    RUN(tensors_that_are_there_are_a_model_as_their_file_is);
    RUN(fast_numerics_stay_near);
    RUN(invariant_numerics_stay_near);
    RUN(keys_and_values_of_8_bits_stay_near);
    return test_report();
}
