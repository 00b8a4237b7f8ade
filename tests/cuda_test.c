/* The CUDA device, and models on it: the same logits as transformers has, the same tokens as the CPU,
 * eagerly and as graphs. Without a card everything is skipped. */
#include "sop/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

static sop_device *card;

static void memory_is_zeroed_and_copies_come_back(void)
{
    enum { BYTES = 1 << 20 };
    char *host = malloc(BYTES);
    void *a, *b;
    sop_queue *q;
    CHECK(card->ops->reserve(card, BYTES, &a) == SOP_OK &&
          card->ops->reserve(card, 0, &b) == SOP_OK);
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    memset(host, 1, BYTES);
    CHECK(card->ops->copy(q, host, a, BYTES, SOP_COPY_OUT) == SOP_OK);
    CHECK(card->ops->wait(q) == SOP_OK);
    for (int i = 0; i < BYTES; i++) CHECK(host[i] == 0);
    for (int i = 0; i < BYTES; i++) host[i] = (char)(i * 7);
    CHECK(card->ops->copy(q, a, host, BYTES / 2, SOP_COPY_IN) == SOP_OK);
    CHECK(card->ops->copy(q, (char *)a + BYTES / 2, a, BYTES / 2, SOP_COPY_WITHIN) == SOP_OK);
    memset(host, 1, BYTES);
    CHECK(card->ops->copy(q, host, a, BYTES, SOP_COPY_OUT) == SOP_OK);
    CHECK(card->ops->wait(q) == SOP_OK);
    for (int i = 0; i < BYTES / 2; i++)
        CHECK(host[i] == (char)(i * 7) && host[i + BYTES / 2] == host[i]);
    card->ops->queue_destroy(q);
    card->ops->release(card, a, BYTES);
    card->ops->release(card, b, 0);
    free(host);
}

static void what_does_not_fit_is_refused_with_the_numbers(void)
{
    void *p = &p;
    CHECK(card->ops->reserve(card, (size_t)1 << 50, &p) == SOP_E_NOMEM);
    CHECK(!p && strstr(sop_last_error(), "1125899906842624 bytes"));
    CHECK(card->ops->reserve(card, 64, &p) == SOP_OK); /* and the device lives */
    card->ops->release(card, p, 64);
}

static void a_recorded_call_runs_on_what_its_operands_hold_then(void)
{
    enum { N = 1000 };
    sop_planner *planner;
    sop_plan *plan;
    sop_queue *q;
    sop_graph *g;
    float *memory, host[N];
    const sop_add_desc desc = {.tokens = 1, .dim = N};
    CHECK(sop_planner_create(card, "", &planner) == SOP_OK);
    CHECK(sop_plan_add(planner, &desc, &plan) == SOP_OK);
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    CHECK(card->ops->reserve(card, 3 * sizeof host, (void **)&memory) == SOP_OK);
    const sop_operand args[SOP_ADD_ROLES] = {[SOP_ADD_A] = {memory, sizeof host},
                                             [SOP_ADD_B] = {memory + N, sizeof host},
                                             [SOP_ADD_Y] = {memory + 2 * N, sizeof host}};
    CHECK(card->ops->record_begin(q) == SOP_OK);
    CHECK(sop_plan_run(plan, q, args, NULL) == SOP_OK);
    CHECK(card->ops->record_end(q, &g) == SOP_OK);
    for (int round = 1; round < 3; round++) {
        for (int i = 0; i < N; i++) host[i] = (float)(round * i);
        CHECK(card->ops->copy(q, memory, host, sizeof host, SOP_COPY_IN) == SOP_OK);
        CHECK(card->ops->copy(q, memory + N, host, sizeof host, SOP_COPY_IN) == SOP_OK);
        CHECK(card->ops->replay(q, g) == SOP_OK);
        CHECK(card->ops->copy(q, host, memory + 2 * N, sizeof host, SOP_COPY_OUT) == SOP_OK);
        CHECK(card->ops->wait(q) == SOP_OK);
        for (int i = 0; i < N; i++) CHECK(host[i] == (float)(2 * round * i));
    }
    card->ops->graph_destroy(g);
    card->ops->queue_destroy(q);
    card->ops->release(card, memory, 3 * sizeof host);
    sop_plan_destroy(plan);
    sop_planner_destroy(planner);
}

/* Live rows of ones times ones, by cuBLASLt: eagerly, then as a graph of its own. */
static void a_product_of_a_library_runs_recorded_as_it_does_eagerly(void)
{
    enum { M = 40, LIVE = 17, WIDTH = 64, K = 136 };
    static const char *const others[] = {"linear_skinny_sm90", "linear_gemm_sm90"};
    const sop_linear_desc desc = {.tokens = M,
                                  .k = K,
                                  .n = {WIDTH},
                                  .w_dtype = {SOP_BF16},
                                  .x_dtype = SOP_BF16,
                                  .y_dtype = SOP_F32};
    const size_t x_bytes = M * K * 2, w_bytes = WIDTH * K * 2, y_bytes = M * WIDTH * 4;
    const size_t bytes = x_bytes + w_bytes + y_bytes + 64;
    sop_planner *planner;
    sop_plan *plan;
    sop_queue *q;
    sop_graph *g;
    char *memory, *scratch;
    CHECK(sop_planner_create(card, "", &planner) == SOP_OK);
    for (int i = 0; i < 2; i++)
        CHECK(sop_planner_quarantine(planner, others[i], "the test leaves it out") == SOP_OK);
    CHECK(sop_plan_linear(planner, &desc, &plan) == SOP_OK);
    if (strcmp(sop_plan_variant(plan), "linear_cublaslt") != 0) {
        SKIP("a library's product", "linear_cublaslt was not chosen");
        sop_plan_destroy(plan);
        sop_planner_destroy(planner);
        return;
    }
    char *host = malloc(bytes);
    for (size_t i = 0; i < x_bytes + w_bytes; i += 2) memcpy(host + i, "\x80\x3f", 2); /* 1 */
    *(int32_t *)(host + bytes - 64) = LIVE;
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    CHECK(card->ops->reserve(card, bytes, (void **)&memory) == SOP_OK);
    CHECK(card->ops->reserve(card, sop_plan_scratch(plan), (void **)&scratch) == SOP_OK);
    const sop_operand args[SOP_LINEAR_ROLES] = {
        [SOP_LINEAR_X] = {memory, x_bytes},
        [SOP_LINEAR_W0] = {memory + x_bytes, w_bytes},
        [SOP_LINEAR_LIVE] = {memory + bytes - 64, 4},
        [SOP_LINEAR_Y] = {memory + x_bytes + w_bytes, y_bytes}};
    CHECK(card->ops->record_begin(q) == SOP_OK);
    CHECK(sop_plan_run(plan, q, args, scratch) == SOP_OK);
    CHECK(card->ops->record_end(q, &g) == SOP_OK);
    for (int recorded = 0; recorded < 2; recorded++) {
        float *y = (float *)(host + x_bytes + w_bytes);
        for (int i = 0; i < M * WIDTH; i++) y[i] = -1;
        CHECK(card->ops->copy(q, memory, host, bytes, SOP_COPY_IN) == SOP_OK);
        CHECK((recorded ? card->ops->replay(q, g) : sop_plan_run(plan, q, args, scratch)) ==
              SOP_OK);
        CHECK(card->ops->copy(q, y, args[SOP_LINEAR_Y].data, y_bytes, SOP_COPY_OUT) == SOP_OK);
        CHECK(card->ops->wait(q) == SOP_OK);
        for (int i = 0; i < M * WIDTH; i++) CHECK(y[i] == (i < LIVE * WIDTH ? (float)K : -1.0f));
    }
    free(host);
    card->ops->graph_destroy(g);
    card->ops->queue_destroy(q);
    card->ops->release(card, memory, bytes);
    card->ops->release(card, scratch, sop_plan_scratch(plan));
    sop_plan_destroy(plan);
    sop_planner_destroy(planner);
}

/* ---- models ---- */

enum { N = 24 }; /* ids of a reference */

static const char *const models[] = {"qwen2/model.gguf", "qwen2/quant.gguf", "qwen3/model.gguf",
                                     "llama/hf",         "mistral/hf",       "gemma3/model.gguf"};

struct opened {
    sop_runtime *rt;
    sop_model *model;
    sop_super *super;
    int64_t vocab;
};

/* device NULL: the CPU; without: a row that is left out, or NULL. */
/* without: n rows that are left out. */
static int open_path(struct opened *o, sop_device *device, const char *path,
                     const char *const *without, int32_t n, const sop_config *config,
                     const sop_limits *limits)
{
    sop_model_facts facts = {0};
    *o = (struct opened){0};
    sop_status s = sop_runtime_create(config, device, "", &o->rt);
    for (int32_t i = 0; i < n && s == SOP_OK; i++)
        s = sop_planner_quarantine(sop_runtime_planner(o->rt), without[i],
                                   "the test leaves it out");
    if (s == SOP_OK) s = sop_model_open(o->rt, path, &o->model);
    if (s == SOP_OK) s = sop_model_super(o->model, limits, &o->super);
    if (s != SOP_OK) printf("%s: %s\n", path, sop_last_error());
    if (s == SOP_OK) sop_model_facts_of(o->model, &facts);
    o->vocab = facts.vocab;
    return s == SOP_OK;
}

static int open_model(struct opened *o, sop_device *device, const char *file,
                      const sop_config *config, const sop_limits *limits)
{
    char path[512];
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s", file);
    return open_path(o, device, path, NULL, 0, config, limits);
}

static void close_model(struct opened *o)
{
    sop_super_destroy(o->super);
    sop_model_close(o->model);
    sop_runtime_destroy(o->rt);
}

static void *read_reference(const char *file, const char *what, size_t bytes)
{
    char path[512];
    void *data = calloc(1, bytes);
    const int quant = strstr(file, "quant") != NULL, arch = (int)strcspn(file, "/");
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%.*s/%s.%s", arch, file,
                   quant ? "quant" : "model", what);
    FILE *f = fopen(path, "rb");
    CHECK(f && data && fread(data, bytes, 1, f) == 1);
    if (f) (void)fclose(f);
    return data;
}

/* The worst difference to transformers' logits, in units of their spread; the ids go in as steps of
 * these sizes (0 ends them). */
static double worst(const char *file, const sop_config *config, const int32_t *steps)
{
    struct opened o;
    const sop_limits limits = {.ctx = 64, .max_seqs = 1, .max_tokens = N, .max_outs = N};
    int32_t seq, at = 0, next[N];
    double most = INFINITY, spread = 0;
    if (!open_model(&o, card, file, config, &limits)) return most;
    const size_t n_logits = N * (size_t)o.vocab;
    int32_t *ids = read_reference(file, "ids", N * sizeof *ids);
    float *want = read_reference(file, "logits", n_logits * sizeof *want);
    float *got = calloc(n_logits, sizeof *got);
    CHECK(sop_super_open(o.super, &seq) == SOP_OK);
    for (int32_t i = 0; at < N; i++) {
        const int32_t n = steps[i] && steps[i] < N - at ? steps[i] : N - at;
        const sop_step_item it = {.seq = seq, .n_ids = n, .ids = ids + at, .want = SOP_WANT_ALL};
        const sop_status s = sop_super_step(o.super, &it, 1, next, got + at * o.vocab);
        if (s != SOP_OK) printf("%s: %s\n", file, sop_last_error());
        if (s != SOP_OK) goto out;
        at += n;
    }
    most = 0;
    for (size_t i = 0; i < n_logits; i++) {
        spread = fmax(spread, fabs((double)want[i]));
        most =
            isnan(got[i]) ? (double)INFINITY : fmax(most, fabs((double)got[i] - (double)want[i]));
    }
    most /= spread;
out:
    free(got);
    free(want);
    free(ids);
    close_model(&o);
    return most;
}

static void judge(int32_t numerics, int32_t guard, double limit)
{
    static const int32_t whole[] = {0}, chunks[] = {7, 1, 9, 2, 0};
    static const int32_t ones[N + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int32_t *const ways[] = {whole, ones, chunks};
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = numerics;
    config.guard = guard;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t w = 0; w < 3; w++) {
            const double e = worst(models[i], &config, ways[w]);
            if (!(e <= limit))
                printf("%s way %zu: off by %g of the spread, allowed %g\n", models[i], w, e, limit);
            CHECK(e <= limit);
        }
}

/* float32 against float32 in another order of sums: some 30 roundings deep */
static void exact_numerics_agree_with_transformers_node_by_node(void)
{
    judge(SOP_NUMERICS_EXACT, SOP_GUARD_ALWAYS, 2e-5);
}

static void exact_numerics_agree_with_transformers_as_graphs(void)
{
    judge(SOP_NUMERICS_EXACT, SOP_GUARD_OFF, 2e-5);
}

static void fast_numerics_stay_near(void)
{
    judge(SOP_NUMERICS_FAST, SOP_GUARD_OFF, 5e-2);
}

/* n more tokens of each sequence, all in one step a time; ids [seqs][n]. */
static int generate(struct opened *o, const int32_t *prompts, const int32_t *lengths, int32_t seqs,
                    int32_t n, int32_t *ids)
{
    sop_step_item items[8];
    int32_t seq[8], next[8];
    for (int32_t s = 0; s < seqs; s++)
        if (sop_super_open(o->super, &seq[s]) != SOP_OK) return 0;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t s = 0; s < seqs; s++)
            items[s] = (sop_step_item){.seq = seq[s],
                                       .n_ids = i ? 1 : lengths[s],
                                       .ids = i ? &ids[s * n + i - 1] : prompts + s * N,
                                       .want = SOP_WANT_LAST};
        if (sop_super_step(o->super, items, seqs, next, NULL) != SOP_OK) {
            printf("step %d: %s\n", i, sop_last_error());
            return 0;
        }
        for (int32_t s = 0; s < seqs; s++) ids[s * n + i] = next[s];
    }
    for (int32_t s = 0; s < seqs; s++) sop_super_close(o->super, seq[s]);
    return 1;
}

static void batches_of_any_length_say_what_the_cpu_says_from_few_graphs(void)
{
    enum { SEQS = 5, TOKENS = 40 };
    static const int32_t lengths[SEQS] = {1, 24, 7, 16, 2};
    const sop_limits limits = {.ctx = 128, .max_seqs = SEQS, .max_tokens = 64, .max_outs = SEQS};
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = SOP_NUMERICS_EXACT;
    config.guard = SOP_GUARD_OFF;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct opened cpu, gpu;
        int32_t prompts[SEQS * N], want[SEQS * TOKENS], got[SEQS * TOKENS];
        if (!open_model(&cpu, NULL, models[i], &config, &limits) ||
            !open_model(&gpu, card, models[i], &config, &limits)) {
            CHECK(0);
            continue;
        }
        for (int32_t k = 0; k < SEQS * N; k++) prompts[k] = (int32_t)((k * 7919 + 13) % cpu.vocab);
        CHECK(generate(&cpu, prompts, lengths, SEQS, TOKENS, want));
        sop_super_counts counts;
        sop_super_counts_of(gpu.super, &counts);
        const uint64_t recorded = counts.graphs;
        CHECK(recorded == 4);
        CHECK(generate(&gpu, prompts, lengths, SEQS, TOKENS, got));
        int32_t same = 0;
        for (int32_t k = 0; k < SEQS * TOKENS; k++) same += want[k] == got[k];
        if (same < SEQS * TOKENS)
            printf("%s: %d of %d tokens agree\n", models[i], same, SEQS * TOKENS);
        CHECK(same == SEQS * TOKENS);
        sop_super_counts_of(gpu.super, &counts);
        /* the ladder of 1, 2, 4, 5 sequences was recorded before; the prompts are a class of their own */
        CHECK(counts.replays == TOKENS && counts.graphs == recorded + 1);
        close_model(&cpu);
        close_model(&gpu);
    }
}

/* ---- layers in one kernel ---- */

enum { SPANS = 1 };

/* Rows, and the shapes and most sequences that they take. */
static const struct {
    const char *shape;
    int32_t seqs;
    const char *row[SPANS];
} spans[SPANS] = {
    {"head", 5, {"layer_decode_sm90"}},
};

struct found {
    const char *row;
    int n;
};

static void find_span(void *ctx, const sop_explain_line *l)
{
    struct found *f = ctx;
    if (l->variant && strcmp(l->variant, f->row) == 0) f->n++;
}

enum { LAYER_STEPS = 90, LAYER_SEQS = 5 };

/* Prompts of some lengths, then steps of one token each, every seventh with more tokens of the first
 * sequences; the tokens are given. Logits of each sequence's last token, [LAYER_STEPS][LAYER_SEQS]. */
static int walk(struct opened *o, int32_t seqs, float *logits)
{
    static const int32_t lengths[LAYER_SEQS] = {130, 1, 700, 64, 63};
    int32_t seq[LAYER_SEQS], next[LAYER_SEQS], ids[1024];
    for (int32_t i = 0; i < 1024; i++) ids[i] = (int32_t)((i * 7919 + 13) % o->vocab);
    for (int32_t s = 0; s < seqs; s++)
        if (sop_super_open(o->super, &seq[s]) != SOP_OK) return 0;
    for (int32_t i = 0; i < LAYER_STEPS; i++) {
        sop_step_item items[LAYER_SEQS];
        for (int32_t s = 0; s < seqs; s++)
            items[s] = (sop_step_item){.seq = seq[s],
                                       .n_ids = i == 0                ? lengths[s]
                                                : i % 7 == 6 && s < 2 ? 2 - s
                                                                      : 1,
                                       .ids = ids + (i * 31 + s * 17) % 300,
                                       .want = SOP_WANT_LAST};
        if (sop_super_step(o->super, items, seqs, next,
                           logits + (size_t)(i * LAYER_SEQS) * (size_t)o->vocab) != SOP_OK) {
            printf("step %d: %s\n", i, sop_last_error());
            return 0;
        }
    }
    return 1;
}

/* Each rounds to 16 bits in other places: the activations of every layer, some 2^-9 of their size. */
static void layers_in_one_kernel_say_what_their_modules_say(void)
{
    static const char *const shapes[] = {"synth:" SOP_TEST_DATA "/shapes/head64.json",
                                         "synth:" SOP_TEST_DATA "/shapes/head64.json:f16",
                                         "synth:" SOP_TEST_DATA "/shapes/head128.json",
                                         "synth:" SOP_TEST_DATA "/shapes/head128.json:bf16"};
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_OFF;
    for (size_t i = 0; i < SPANS * sizeof shapes / sizeof *shapes; i++)
        for (int32_t seqs = 1; seqs <= spans[i % SPANS].seqs; seqs++) {
            const sop_limits limits = {
                .ctx = 1024, .max_seqs = seqs, .max_tokens = 1024, .max_outs = seqs};
            const char *shape = shapes[i / SPANS], *const *rows = spans[i % SPANS].row;
            struct opened one, many;
            struct found found = {rows[0], 0};
            if (!strstr(shape, spans[i % SPANS].shape)) continue;
            if (!open_path(&one, card, shape, rows + 1, SPANS - 1, &config, &limits) ||
                !open_path(&many, card, shape, rows, SPANS, &config, &limits)) {
                CHECK(0);
                continue;
            }
            CHECK(sop_super_explain(one.super, seqs, 1, 100, find_span, &found) == SOP_OK);
            CHECK(found.n > 0);
            const size_t row = (size_t)one.vocab, n = LAYER_STEPS * LAYER_SEQS * row;
            float *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
            CHECK(walk(&one, seqs, a) && walk(&many, seqs, b));
            double most = 0;
            for (int32_t k = 0; k < LAYER_STEPS * LAYER_SEQS; k++) {
                double err = 0, all = 0;
                if (k % LAYER_SEQS >= seqs) continue;
                for (size_t v = 0; v < row; v++) {
                    const double x = a[(size_t)k * row + v], y = b[(size_t)k * row + v];
                    err += (x - y) * (x - y);
                    all += y * y;
                }
                const double off = sqrt(err / all);
                if (!(off <= most)) most = off;
            }
            sop_super_counts counts;
            sop_super_counts_of(one.super, &counts);
            if (!(most < 0.02) || counts.retries)
                printf("%s, %s, %d sequences: off by %g, %llu retries\n", found.row, shape, seqs,
                       most, (unsigned long long)counts.retries);
            CHECK(most < 0.02 && counts.retries == 0);
            close_model(&one); /* and the same bits once more */
            CHECK(open_path(&one, card, shape, rows + 1, SPANS - 1, &config, &limits) &&
                  walk(&one, seqs, b) && memcmp(a, b, n * sizeof *a) == 0);
            free(a);
            free(b);
            close_model(&one);
            close_model(&many);
        }
}

int main(void)
{
    if (sop_device_cuda(0, &card) != SOP_OK) {
        SKIP("everything", sop_last_error());
        return test_report();
    }
    sop_facts facts;
    card->ops->facts(card, &facts);
    printf("%s, features %u, %d multiprocessors, %lld bytes of L2\n", card->ops->name,
           facts.features, facts.workers, (long long)facts.l2_bytes);
    RUN(memory_is_zeroed_and_copies_come_back);
    RUN(what_does_not_fit_is_refused_with_the_numbers);
    RUN(a_recorded_call_runs_on_what_its_operands_hold_then);
    RUN(a_product_of_a_library_runs_recorded_as_it_does_eagerly);
    RUN(exact_numerics_agree_with_transformers_node_by_node);
    RUN(exact_numerics_agree_with_transformers_as_graphs);
    RUN(fast_numerics_stay_near);
    RUN(batches_of_any_length_say_what_the_cpu_says_from_few_graphs);
    RUN(layers_in_one_kernel_say_what_their_modules_say);
    sop_device_destroy(card);
    return test_report();
}
