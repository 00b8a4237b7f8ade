/* The CUDA device, and models on it: the same logits as transformers has, the same tokens as the CPU,
 * eagerly and as graphs. Without a card everything is skipped. */
#include "sop/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/test.h"
#include "ops/ops.h"
#include "plan_costs.h"

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

#ifdef SOP_CUDA
int cudaSetDevice(
    int device); /* of the runtime that is linked in, as others in a process call theirs */

/* CUDA keeps the last error of a thread until it is asked for. */
static void an_error_that_others_left_is_no_fault_of_a_row(void)
{
    sop_planner *planner;
    sop_plan *plan;
    sop_queue *q;
    float *memory;
    const sop_add_desc desc = {.tokens = 1, .dim = 4};
    CHECK(sop_planner_create(card, "", &planner) == SOP_OK);
    CHECK(sop_plan_add(planner, &desc, &plan) == SOP_OK);
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    CHECK(card->ops->reserve(card, 48, (void **)&memory) == SOP_OK);
    const sop_operand args[SOP_ADD_ROLES] = {
        [SOP_ADD_A] = {memory, 16}, [SOP_ADD_B] = {memory + 4, 16}, [SOP_ADD_Y] = {memory + 8, 16}};
    CHECK(cudaSetDevice(4096) != 0);
    CHECK(sop_plan_run(plan, q, args, NULL) == SOP_OK && card->ops->wait(q) == SOP_OK);
    card->ops->queue_destroy(q);
    card->ops->release(card, memory, 48);
    sop_plan_destroy(plan);
    sop_planner_destroy(planner);
}
#endif

/* Live rows of ones times ones, by cuBLASLt: eagerly, then as a graph of its own. */
static void a_product_of_a_library_runs_recorded_as_it_does_eagerly(void)
{
    enum { M = 40, LIVE = 17, WIDTH = 64, K = 136 };
    static const char *const others[] = {"linear_few_sm90", "linear_stream_sm90",
                                         "linear_skinny_sm90", "linear_gemm_sm90",
                                         "linear_gemm_sm80"};
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
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
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

/* Ones times ones with scales that differ from block to block, through rings that turn many times: a scale
 * read while the next one's bytes came in made sums infinite. */
static void scales_of_long_rows_are_those_of_their_blocks(void)
{
    enum { M = 64, WIDTH = 8192, BLOCKS = 224, K = 128 * BLOCKS };
    const sop_linear_desc desc = {.tokens = M,
                                  .k = K,
                                  .n = {WIDTH},
                                  .w_dtype = {SOP_F8_128},
                                  .x_dtype = SOP_BF16,
                                  .y_dtype = SOP_F32};
    const size_t x_bytes = (size_t)M * K * 2, w_bytes = (size_t)WIDTH * BLOCKS * 132;
    const size_t y_bytes = (size_t)M * WIDTH * 4, bytes = x_bytes + w_bytes + y_bytes;
    sop_planner *planner;
    sop_plan *plan;
    sop_queue *q;
    char *memory, *scratch;
    CHECK(sop_planner_create(card, "", &planner) == SOP_OK);
    CHECK(sop_plan_linear(planner, &desc, &plan) == SOP_OK);
    printf("by %s\n", sop_plan_variant(plan));
    char *host = malloc(bytes), *w = host + x_bytes;
    for (size_t i = 0; i < x_bytes; i += 2) memcpy(host + i, "\x80\x3f", 2);
    for (int64_t i = 0; i < (int64_t)WIDTH * BLOCKS; i++) {
        const float scale = (float)(1 + (i / BLOCKS + i % BLOCKS) % 5);
        memcpy(w + 132 * i, &scale, 4);
        memset(w + 132 * i + 4, 0x38, 128); /* 1 */
    }
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    CHECK(card->ops->reserve(card, bytes, (void **)&memory) == SOP_OK);
    CHECK(card->ops->reserve(card, sop_plan_scratch(plan), (void **)&scratch) == SOP_OK);
    const sop_operand args[SOP_LINEAR_ROLES] = {
        [SOP_LINEAR_X] = {memory, x_bytes},
        [SOP_LINEAR_W0] = {memory + x_bytes, w_bytes},
        [SOP_LINEAR_Y] = {memory + x_bytes + w_bytes, y_bytes}};
    CHECK(card->ops->copy(q, memory, host, bytes, SOP_COPY_IN) == SOP_OK);
    for (int run = 0; run < 4; run++) {
        const float *y = (float *)(w + w_bytes);
        int64_t wrong = 0;
        CHECK(sop_plan_run(plan, q, args, scratch) == SOP_OK);
        CHECK(card->ops->copy(q, w + w_bytes, args[SOP_LINEAR_Y].data, y_bytes, SOP_COPY_OUT) ==
              SOP_OK);
        CHECK(card->ops->wait(q) == SOP_OK);
        for (int64_t r = 0; r < WIDTH; r++) {
            float sum = 0;
            for (int64_t b = 0; b < BLOCKS; b++) sum += (float)(128 * (1 + (r + b) % 5));
            for (int64_t t = 0; t < M; t++) wrong += y[t * WIDTH + r] != sum;
        }
        CHECK(wrong == 0);
    }
    free(host);
    card->ops->queue_destroy(q);
    card->ops->release(card, memory, bytes);
    card->ops->release(card, scratch, sop_plan_scratch(plan));
    sop_plan_destroy(plan);
    sop_planner_destroy(planner);
}

/* Decode attention reads its lengths while the kernel before it ends, which here is the one that writes them. */
static void lengths_count_that_the_kernel_before_wrote(void)
{
    enum { SEQS = 8, KEYS = 2048, HEADS = 14, KV_HEADS = 2, K = 64, PAGE = 16, ROUNDS = 8 };
    enum {
        ROWS = 2048,
        COLS = 8192,
        WORDS = ROWS * COLS,
        LAST = WORDS - COLS,
        PAGES = KEYS / PAGE
    };
    enum { POOL = SEQS * KEYS * KV_HEADS * K, Q = SEQS * HEADS * K };
    const sop_add_desc add = {.tokens = ROWS, .dim = COLS};
    const sop_attention_desc desc = {.tokens = SEQS,
                                     .seqs = SEQS,
                                     .max_kv = KEYS,
                                     .heads = HEADS,
                                     .kv_heads = KV_HEADS,
                                     .k = K,
                                     .page = PAGE,
                                     .causal = 1,
                                     .q_dtype = SOP_BF16,
                                     .kv_dtype = SOP_BF16,
                                     .o_dtype = SOP_BF16};
    const size_t words = (size_t)WORDS * 4, pool = (size_t)POOL * 2, q_bytes = (size_t)Q * 2;
    const size_t tables = 4 * (SEQS * PAGES + SEQS + 1 + 3), bytes = pool + 2 * q_bytes + tables;
    sop_planner *planner;
    sop_plan *sum, *plan;
    sop_queue *q;
    char *memory, *sums, *scratch, *host = malloc(bytes);
    int32_t *const table = (int32_t *)(host + pool + 2 * q_bytes), lengths[SEQS];
    uint16_t got[2][Q];
    CHECK(sop_planner_create(card, "", &planner) == SOP_OK);
    CHECK(sop_plan_add(planner, &add, &sum) == SOP_OK);
    CHECK(sop_plan_attention(planner, &desc, &plan) == SOP_OK);
    printf("by %s\n", sop_plan_variant(plan));
    CHECK(card->ops->queue_create(card, &q) == SOP_OK);
    CHECK(card->ops->reserve(card, bytes, (void **)&memory) == SOP_OK);
    CHECK(card->ops->reserve(card, 3 * words, (void **)&sums) == SOP_OK); /* of zeros */
    CHECK(card->ops->reserve(card, sop_plan_scratch(plan), (void **)&scratch) == SOP_OK);
    for (size_t i = 0; i < (pool + q_bytes) / 2; i++) { /* about 1, either sign */
        const uint16_t x = (uint16_t)(0x3f00 | (i * 7919 % 251) << 8 << 7 | i * 104729 % 127);
        memcpy(host + 2 * i, &x, 2);
    }
    for (int32_t i = 0; i < SEQS * PAGES; i++) table[i] = i;
    for (int32_t i = 0; i <= SEQS; i++) table[SEQS * PAGES + i] = i;
    CHECK(card->ops->copy(q, memory, host, bytes, SOP_COPY_IN) == SOP_OK);
    const sop_operand of_sum[SOP_ADD_ROLES] = {[SOP_ADD_A] = {sums, words},
                                               [SOP_ADD_B] = {sums + words, words},
                                               [SOP_ADD_Y] = {sums + 2 * words, words}};
    char *const at_table = memory + pool + 2 * q_bytes;
    const sop_operand args[SOP_ATTENTION_ROLES] = {
        [SOP_ATTENTION_Q] = {memory + pool, q_bytes},
        [SOP_ATTENTION_K_POOL] = {memory, pool},
        [SOP_ATTENTION_V_POOL] = {memory, pool},
        [SOP_ATTENTION_TABLE] = {at_table, 4 * SEQS * PAGES},
        [SOP_ATTENTION_Q_START] = {at_table + 4 * SEQS * PAGES, 4 * (SEQS + 1)},
        [SOP_ATTENTION_KV_LEN] = {sums + 2 * words + 4 * (size_t)LAST, sizeof lengths},
        [SOP_ATTENTION_O] = {memory + pool + q_bytes, q_bytes}};
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t s = 0; s < SEQS; s++) lengths[s] = round % 2 ? KEYS - 37 * s : 1 + 29 * s;
        CHECK(card->ops->copy(q, sums + 4 * (size_t)LAST, lengths, sizeof lengths, SOP_COPY_IN) ==
              SOP_OK);
        CHECK(card->ops->wait(q) == SOP_OK);
        for (int32_t again = 0; again < 2; again++) { /* the second time they are long there */
            if (!again) CHECK(sop_plan_run(sum, q, of_sum, NULL) == SOP_OK);
            CHECK(sop_plan_run(plan, q, args, scratch) == SOP_OK);
            CHECK(card->ops->copy(q, got[again], args[SOP_ATTENTION_O].data, q_bytes,
                                  SOP_COPY_OUT) == SOP_OK);
            CHECK(card->ops->wait(q) == SOP_OK);
        }
        CHECK(memcmp(got[0], got[1], q_bytes) == 0);
    }
    free(host);
    card->ops->queue_destroy(q);
    card->ops->release(card, memory, bytes);
    card->ops->release(card, sums, 3 * words);
    card->ops->release(card, scratch, sop_plan_scratch(plan));
    sop_plan_destroy(sum);
    sop_plan_destroy(plan);
    sop_planner_destroy(planner);
}

/* ---- models ---- */

enum { N = 24 }; /* ids of a reference */

static const char *const models[] = {"qwen2/model.gguf", "qwen2/quant.gguf", "qwen3/model.gguf",
                                     "llama/hf",         "mistral/hf",       "gemma3/model.gguf",
                                     "llama/hf-awq",     "llama/hf-fp8",     "llama/hf-mixed",
                                     "phi3/hf",          "phi3/hf-awq"};

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
    const char *quantised = strstr(file, "hf-"); /* "llama/hf-awq": awq */
    (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%.*s/%s.%s", arch, file,
                   quantised ? quantised + 3
                   : quant   ? "quant"
                             : "model",
                   what);
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

static void judge(int32_t numerics, int32_t guard, int32_t kv_dtype, double limit)
{
    static const int32_t whole[] = {0}, chunks[] = {7, 1, 9, 2, 0};
    static const int32_t ones[N + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int32_t *const ways[] = {whole, ones, chunks};
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = numerics;
    config.guard = guard;
    config.kv_dtype = kv_dtype;
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
    judge(SOP_NUMERICS_EXACT, SOP_GUARD_ALWAYS, SOP_F16, 2e-5);
}

static void exact_numerics_agree_with_transformers_as_graphs(void)
{
    judge(SOP_NUMERICS_EXACT, SOP_GUARD_OFF, SOP_F16, 2e-5);
}

static void fast_numerics_stay_near(void)
{
    judge(SOP_NUMERICS_FAST, SOP_GUARD_OFF, SOP_F16, 5e-2);
}

static void keys_and_values_of_8_bits_stay_near(void)
{
    judge(SOP_NUMERICS_FAST, SOP_GUARD_OFF, SOP_I8, 8e-2);
    judge(SOP_NUMERICS_FAST, SOP_GUARD_OFF, SOP_F8, 15e-2);
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
        CHECK(recorded > 4);
        CHECK(generate(&gpu, prompts, lengths, SEQS, TOKENS, got));
        int32_t same = 0;
        for (int32_t k = 0; k < SEQS * TOKENS; k++) same += want[k] == got[k];
        if (same < SEQS * TOKENS)
            printf("%s: %d of %d tokens agree\n", models[i], same, SEQS * TOKENS);
        CHECK(same == SEQS * TOKENS);
        sop_super_counts_of(gpu.super, &counts);
        /* the ladder of 1, 2, 4, 5 sequences was recorded before, short prompts too */
        CHECK(counts.replays == TOKENS && counts.graphs == recorded);
        close_model(&cpu);
        close_model(&gpu);
    }
}

/* Each sequence in a step of its own, in turns; ids [seqs][n]. */
static int generate_in_turns(struct opened *o, const int32_t *prompts, const int32_t *lengths,
                             int32_t seqs, int32_t n, int32_t *ids)
{
    int32_t seq[8];
    for (int32_t s = 0; s < seqs; s++)
        if (sop_super_open(o->super, &seq[s]) != SOP_OK) return 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t s = 0; s < seqs; s++) {
            const sop_step_item it = {.seq = seq[s],
                                      .n_ids = i ? 1 : lengths[s],
                                      .ids = i ? &ids[s * n + i - 1] : prompts + s * N,
                                      .want = SOP_WANT_LAST};
            if (i == n / 2 && s == 0 && /* ahead of their turn */
                (sop_super_offload(o->super, seq[2]) != SOP_OK ||
                 sop_super_offload(o->super, seq[3]) != SOP_OK ||
                 sop_super_restore(o->super, seq[2]) != SOP_OK))
                return 0;
            if (sop_super_step(o->super, &it, 1, &ids[s * n + i], NULL) != SOP_OK) {
                printf("step %d: %s\n", i, sop_last_error());
                return 0;
            }
        }
    for (int32_t s = 0; s < seqs; s++) sop_super_close(o->super, seq[s]);
    return 1;
}

/* 5 sequences of up to 2 pages where 6 pages are. Steps of one sequence are what the CPU's were. */
static void sequences_that_wait_on_the_host_answer_as_if_they_never_left(void)
{
    enum { SEQS = 5, TOKENS = 70 };
    static const int32_t lengths[SEQS] = {1, 24, 7, 16, 2}, kv_dtypes[] = {SOP_F16, SOP_I8};
    const sop_limits roomy = {.ctx = 128, .max_seqs = SEQS, .max_tokens = 64, .max_outs = SEQS};
    sop_limits tight = roomy;
    sop_config config;
    tight.kv_tokens = 64;
    for (size_t i = 0; i < 2 * sizeof models / sizeof *models; i++) {
        const char *file = models[i / 2];
        struct opened all, few;
        int32_t prompts[SEQS * N], want[SEQS * TOKENS], got[SEQS * TOKENS];
        sop_super_counts counts;
        sop_config_defaults(&config);
        config.guard = SOP_GUARD_OFF;
        config.kv_dtype = kv_dtypes[i % 2];
        config.kv_host_gb = 0.01;
        if (!open_model(&all, card, file, &config, &roomy) ||
            !open_model(&few, card, file, &config, &tight)) {
            CHECK(0);
            continue;
        }
        for (int32_t k = 0; k < SEQS * N; k++) prompts[k] = (int32_t)((k * 7919 + 13) % all.vocab);
        CHECK(generate_in_turns(&all, prompts, lengths, SEQS, TOKENS, want));
        CHECK(generate_in_turns(&few, prompts, lengths, SEQS, TOKENS, got));
        sop_super_counts_of(few.super, &counts);
        const int windowed = strstr(file, "mistral") || strstr(file, "phi3"); /* pages for all */
        CHECK(counts.pages_out >= counts.pages_in && counts.pages_in > (windowed ? 1 : 20));
        if (memcmp(want, got, sizeof want) != 0) printf("%s, %d: other tokens\n", file, (int)i % 2);
        CHECK(memcmp(want, got, sizeof want) == 0);
        close_model(&all);
        close_model(&few);
    }
}

/* ---- layers in one kernel ---- */

enum { SPANS = 3 };

/* Rows, the first of which is tested, and the shapes and most sequences that it takes. */
static const struct {
    const char *shape;
    int32_t seqs, step;
    const char *row[SPANS];
} spans[SPANS] = {
    {"head", 5, 1, {"layer_decode_sm90", "layers_decode_sm90", "layers_stream_sm90"}},
    {"half", 2, 1, {"layers_decode_sm90", "layer_decode_sm90", "layers_stream_sm90"}},
    {"large", 4, 3, {"layers_stream_sm90", "layer_decode_sm90", "layers_decode_sm90"}},
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
                                         "synth:" SOP_TEST_DATA "/shapes/head128.json:bf16",
                                         "synth:" SOP_TEST_DATA "/shapes/qwen2-half.json",
                                         "synth:" SOP_TEST_DATA "/shapes/qwen2-half.json:f16",
                                         "synth:" SOP_TEST_DATA "/shapes/large64.json",
                                         "synth:" SOP_TEST_DATA "/shapes/large128.json"};
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_OFF;
    for (size_t i = 0; i < SPANS * sizeof shapes / sizeof *shapes; i++)
        for (int32_t seqs = 1; seqs <= spans[i % SPANS].seqs; seqs += spans[i % SPANS].step) {
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

/* ---- what a step promises beside right logits ---- */

#define HEAD64 "synth:" SOP_TEST_DATA "/shapes/head64.json"
#define HEAD128 "synth:" SOP_TEST_DATA "/shapes/head128.json:bf16"

enum { MOST_SEQS = 64 };

/* Sequences of these lengths, opened and fed in one step each of at most max tokens; the last row of
 * logits of each goes to rows [seqs, vocab] (or NULL), its token to next. */
static int feed(struct opened *o, const int32_t *lengths, int32_t seqs, int32_t max, int32_t *seq,
                int32_t *next, float *rows)
{
    int32_t ids[1024];
    for (int32_t from = 0; from < seqs;) {
        sop_step_item items[MOST_SEQS];
        int32_t n = 0, tokens = 0;
        for (; from + n < seqs && tokens + lengths[from + n] <= max; n++) {
            const int32_t s = from + n;
            if (sop_super_open(o->super, &seq[s]) != SOP_OK) return 0;
            for (int32_t k = 0; k < lengths[s]; k++)
                ids[tokens + k] = (int32_t)(((k + 1) * 7919 + s * 104729) % o->vocab);
            items[n] = (sop_step_item){
                .seq = seq[s], .n_ids = lengths[s], .ids = ids + tokens, .want = SOP_WANT_LAST};
            tokens += lengths[s];
        }
        if (sop_super_step(o->super, items, n, next + from,
                           rows ? rows + (size_t)from * (size_t)o->vocab : NULL) != SOP_OK) {
            printf("prompts: %s\n", sop_last_error());
            return 0;
        }
        from += n;
    }
    return 1;
}

static int one_each(struct opened *o, const int32_t *seq, const int32_t *ids, int32_t seqs,
                    int32_t *next, float *rows)
{
    sop_step_item items[MOST_SEQS];
    for (int32_t s = 0; s < seqs; s++)
        items[s] =
            (sop_step_item){.seq = seq[s], .n_ids = 1, .ids = &ids[s], .want = SOP_WANT_LAST};
    const sop_status status = sop_super_step(o->super, items, seqs, next, rows);
    if (status != SOP_OK) printf("step: %s\n", sop_last_error());
    return status == SOP_OK;
}

static void close_all(struct opened *o, const int32_t *seq, int32_t seqs)
{
    for (int32_t s = 0; s < seqs; s++) sop_super_close(o->super, seq[s]);
}

/* The first sequence beside 0, 6 and 63 others, prompt and steps: its logits, to the bit. */
static void invariant_numerics_give_the_same_bits_in_any_batch(void)
{
    static const char *const shapes[] = {HEAD64, HEAD128,
                                         "synth:" SOP_TEST_DATA "/tiny/qwen2/hf/config.json:f32"};
    static const int32_t batches[] = {1, 7, MOST_SEQS};
    enum { STEPS = 12 };
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = SOP_NUMERICS_INVARIANT;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const sop_limits limits = {
            .ctx = 512, .max_seqs = MOST_SEQS, .max_tokens = 1024, .max_outs = MOST_SEQS};
        struct opened o;
        CHECK(open_path(&o, card, shapes[i], NULL, 0, &config, &limits));
        if (!o.super) continue;
        const size_t row = (size_t)o.vocab;
        float *alone = calloc((STEPS + 1) * row, sizeof *alone);
        float *rows = calloc(MOST_SEQS * row, sizeof *rows);
        for (int b = 0; b < 3; b++) {
            int32_t lengths[MOST_SEQS], seq[MOST_SEQS], next[MOST_SEQS], differ = 0;
            for (int32_t s = 0; s < batches[b]; s++) lengths[s] = s ? 1 + s * 7 % 13 : 150;
            CHECK(feed(&o, lengths, batches[b], 1024, seq, next, rows));
            for (int32_t k = 0; k <= STEPS; k++) {
                if (b == 0) memcpy(alone + (size_t)k * row, rows, row * sizeof *rows);
                differ += memcmp(alone + (size_t)k * row, rows, row * sizeof *rows) != 0;
                if (k < STEPS) CHECK(one_each(&o, seq, next, batches[b], next, rows));
            }
            if (differ)
                printf("%s, batch %d: %d of %d rows differ\n", shapes[i], batches[b], differ,
                       STEPS + 1);
            CHECK(differ == 0);
            close_all(&o, seq, batches[b]);
        }
        free(alone);
        free(rows);
        close_model(&o);
    }
}

/* Each step both are given the CPU's tokens. Where the card says another one, the CPU's logits of the two
 * must be nearer than both may be off. */
static void greedy_tokens_are_those_of_the_cpu_around_512_tokens(void)
{
    static const struct {
        int32_t seqs, from;
    } batches[] = {{1, 509}, {7, 508}, {MOST_SEQS, 480}};
    static const char *const files[] = {"qwen2/model.gguf", "llama/hf", "gemma3/model.gguf"};
    static const struct {
        int32_t numerics;
        double off; /* of the spread of the logits */
    } modes[] = {{SOP_NUMERICS_EXACT, 2e-5}, {SOP_NUMERICS_FAST, 2e-2}};
    enum { STEPS = 8 };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int m = 0; m < 2; m++) {
            const sop_limits limits = {
                .ctx = 640, .max_seqs = MOST_SEQS, .max_tokens = 1024, .max_outs = MOST_SEQS};
            struct opened cpu, gpu;
            sop_config config;
            int32_t same = 0, near = 0, all = 0;
            sop_config_defaults(&config);
            config.numerics = modes[m].numerics;
            config.guard = SOP_GUARD_OFF;
            if (!open_model(&cpu, NULL, files[i], &config, &limits) ||
                !open_model(&gpu, card, files[i], &config, &limits)) {
                CHECK(0);
                continue;
            }
            const size_t row = (size_t)cpu.vocab;
            float *logits = calloc(MOST_SEQS * row, sizeof *logits);
            for (int b = 0; b < 3; b++) {
                const int32_t seqs = batches[b].seqs;
                int32_t lengths[MOST_SEQS], want[MOST_SEQS], got[MOST_SEQS];
                int32_t on_cpu[MOST_SEQS], on_gpu[MOST_SEQS];
                for (int32_t s = 0; s < seqs; s++) lengths[s] = batches[b].from + s;
                if (seqs == MOST_SEQS) /* mixed: most are short */
                    for (int32_t s = 0; s < seqs - 4; s++) lengths[s] = 1 + s;
                CHECK(feed(&cpu, lengths, seqs, 1024, on_cpu, want, logits));
                CHECK(feed(&gpu, lengths, seqs, 1024, on_gpu, got, NULL));
                for (int32_t k = 0;; k++) {
                    for (int32_t s = 0; s < seqs; s++, all++) {
                        const float *l = logits + (size_t)s * row;
                        double spread = 0;
                        for (size_t v = 0; v < row; v++) spread = fmax(spread, fabs((double)l[v]));
                        if (got[s] == want[s])
                            same++;
                        else if (got[s] >= 0 && (double)l[want[s]] - (double)l[got[s]] <=
                                                    2 * modes[m].off * spread)
                            near++;
                    }
                    if (k == STEPS) break;
                    memcpy(got, want, sizeof got); /* ids of the step */
                    CHECK(one_each(&gpu, on_gpu, want, seqs, got, NULL));
                    CHECK(one_each(&cpu, on_cpu, want, seqs, want, logits));
                }
                close_all(&cpu, on_cpu, seqs);
                close_all(&gpu, on_gpu, seqs);
            }
            printf("%s, %s: %d tokens of %d the same, %d where two are near\n", files[i],
                   m ? "fast" : "exact", same, all, near);
            CHECK(same + near == all && near * 20 <= all);
            free(logits);
            close_model(&cpu);
            close_model(&gpu);
        }
}

/* A prompt of n tokens in steps of at most 2,048, and steps of one token: the last logits of each, rows
 * [1 + LONG_STEPS, vocab]. */
enum { LONG_STEPS = 3, LONG_MOST = 2048, LONG_LONGEST = 4097 };

static int long_logits(struct opened *o, int32_t n, float *rows)
{
    static int32_t ids[LONG_LONGEST + LONG_STEPS];
    int32_t seq, next;
    for (int32_t i = 0; i < n + LONG_STEPS; i++)
        ids[i] = (int32_t)(((i + 1) * 7919 + i / 31 * 104729) % o->vocab);
    if (sop_super_open(o->super, &seq) != SOP_OK) return 0;
    for (int32_t at = 0, k = 0; at < n + LONG_STEPS;) {
        const int32_t left = at < n ? n - at : 1, step = left < LONG_MOST ? left : LONG_MOST;
        const sop_step_item item = {
            .seq = seq, .n_ids = step, .ids = ids + at, .want = SOP_WANT_LAST};
        if (sop_super_step(o->super, &item, 1, &next, rows + (size_t)k * (size_t)o->vocab) !=
            SOP_OK) {
            printf("%d tokens, at %d: %s\n", n, at, sop_last_error());
            return 0;
        }
        at += step;
        k += at >= n;
    }
    sop_super_close(o->super, seq);
    return 1;
}

/* What 16 bits lose does not grow with the context: what is far out of the first 256 tokens' bound is wrong. */
static void long_prompts_are_as_near_to_the_cpu_as_short_ones(void)
{
    static const char *const shapes[] = {HEAD64, HEAD128};
    static const int32_t lengths[] = {200, 520, 1030, 2045, 4096, LONG_LONGEST};
    for (size_t i = 0; i < 2; i++) {
        const sop_limits limits = {.ctx = 8192, .max_seqs = 2, .max_tokens = LONG_MOST};
        struct opened cpu, gpu;
        sop_config config;
        double shortest = 0;
        sop_config_defaults(&config);
        config.guard = SOP_GUARD_OFF;
        CHECK(open_path(&gpu, card, shapes[i], NULL, 0, &config, &limits));
        config.numerics = SOP_NUMERICS_EXACT;
        CHECK(open_path(&cpu, NULL, shapes[i], NULL, 0, &config, &limits));
        if (!cpu.super || !gpu.super) continue;
        const size_t row = (size_t)cpu.vocab, all = (1 + LONG_STEPS) * row;
        float *want = calloc(all, sizeof *want), *got = calloc(all, sizeof *got);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            double spread = 0, off[1 + LONG_STEPS] = {0}, most = 0;
            CHECK(long_logits(&cpu, lengths[k], want) && long_logits(&gpu, lengths[k], got));
            for (size_t v = 0; v < all; v++) {
                spread = fmax(spread, fabs((double)want[v]));
                off[v / row] = fmax(off[v / row], fabs((double)want[v] - (double)got[v]));
            }
            printf("%s, %d tokens: off by", i ? "heads of 128" : "heads of 64", lengths[k]);
            for (int j = 0; j <= LONG_STEPS; j++) {
                printf(" %.4f", off[j] / spread);
                most = fmax(most, off[j] / spread);
            }
            printf(" of the spread\n");
            if (k == 0) shortest = most;
            CHECK(most <= 2 * shortest);
        }
        free(want);
        free(got);
        close_model(&cpu);
        close_model(&gpu);
    }
}

/* As many keys as all layers in one kernel are let, and some more, in steps of one token. */
static void layers_in_one_kernel_read_as_long_as_they_may(void)
{
    enum { PROMPT_STEP = 2048, FROM = 14336 - 6, STEPS = 12 };
    static const char *const of_layers[] = {"layers_decode_sm90", "layer_decode_sm90"};
    static const char *const shape = "synth:" SOP_TEST_DATA "/shapes/qwen2-half.json";
    const sop_limits limits = {.ctx = 16384, .max_seqs = 1, .max_tokens = PROMPT_STEP};
    static int32_t ids[FROM + STEPS];
    struct opened o[2];
    struct found found = {of_layers[0], 0};
    float *rows[2];
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_OFF;
    for (int k = 0; k < 2; k++) {
        CHECK(open_path(&o[k], card, shape, k ? of_layers : of_layers + 1, k ? 2 : 1, &config,
                        &limits));
        if (!o[k].super) return;
        rows[k] = calloc(STEPS * (size_t)o[k].vocab, sizeof **rows);
        int32_t seq, next;
        for (int32_t i = 0; i < FROM + STEPS; i++)
            ids[i] = (int32_t)(((i + 1) * 7919 + i / 31 * 104729) % o[k].vocab);
        CHECK(sop_super_open(o[k].super, &seq) == SOP_OK);
        for (int32_t at = 0, n; at < FROM + STEPS; at += n) {
            n = at >= FROM ? 1 : FROM - at < PROMPT_STEP ? FROM - at : PROMPT_STEP;
            const sop_step_item item = {
                .seq = seq, .n_ids = n, .ids = ids + at, .want = SOP_WANT_LAST};
            CHECK(sop_super_step(o[k].super, &item, 1, &next,
                                 rows[k] + (at < FROM ? 0 : (at - FROM) * o[k].vocab)) == SOP_OK);
        }
    }
    CHECK(sop_super_explain(o[0].super, 1, 1, FROM, find_span, &found) == SOP_OK);
    CHECK(found.n > 0);
    double err = 0, all = 0;
    for (size_t i = 0; i < STEPS * (size_t)o[0].vocab; i++) {
        const double x = rows[0][i], y = rows[1][i];
        err += (x - y) * (x - y);
        all += y * y;
    }
    printf("at %d keys off by %g\n", FROM, sqrt(err / all));
    CHECK(sqrt(err / all) < 0.02);
    for (int k = 0; k < 2; k++) {
        free(rows[k]);
        close_model(&o[k]);
    }
}

/* Some greedy and some drawn, the same tokens one step at a time and 24 ahead of the host. */
static void steps_ahead_say_what_steps_one_by_one_say(void)
{
    enum { SEQS = 5, STEPS = 48 };
    static const int32_t lengths[SEQS] = {1, 24, 63, 64, 130};
    const sop_limits limits = {.ctx = 256, .max_seqs = SEQS, .max_tokens = 512, .max_outs = SEQS};
    for (size_t i = 0; i < sizeof models / sizeof *models + 2; i++) {
        const size_t n = sizeof models / sizeof *models;
        struct opened o;
        sop_super_counts before, after;
        int32_t said[2][STEPS + 1][SEQS];
        CHECK(i < n ? open_model(&o, card, models[i], NULL, &limits)
                    : open_path(&o, card, i == n ? HEAD64 : HEAD128, NULL, 0, NULL, &limits));
        if (!o.super) continue;
        for (int ahead = 0; ahead < 2; ahead++) {
            int32_t seq[SEQS];
            CHECK(feed(&o, lengths, SEQS, 512, seq, said[ahead][0], NULL));
            sop_super_counts_of(o.super, &before);
            for (int32_t k = 0; k < STEPS; k += ahead ? STEPS / 2 : 1) {
                sop_step_item items[SEQS];
                for (int32_t s = 0; s < SEQS; s++)
                    items[s] = (sop_step_item){.seq = seq[s],
                                               .n_ids = 1,
                                               .ids = &said[ahead][k][s],
                                               .want = SOP_WANT_LAST,
                                               .sampling = {.temperature = s % 2 ? 1.0f : 0,
                                                            .seed = 7,
                                                            .counter = (uint64_t)k}};
                CHECK((ahead
                           ? sop_super_ahead(o.super, items, SEQS, STEPS / 2, said[1][k + 1])
                           : sop_super_step(o.super, items, SEQS, said[0][k + 1], NULL)) == SOP_OK);
            }
            sop_super_counts_of(o.super, &after);
            CHECK(after.replays - before.replays == STEPS && after.graphs == before.graphs);
            for (int32_t s = 0; s < SEQS; s++) {
                CHECK(sop_super_length(o.super, seq[s]) == lengths[s] + STEPS);
                sop_super_close(o.super, seq[s]);
            }
        }
        CHECK(memcmp(said[0], said[1], sizeof said[0]) == 0);
        close_model(&o);
    }
}

static void planning_costs_on_the_card_what_the_design_says(void)
{
    const sop_limits limits = {
        .ctx = 512, .max_seqs = PLAN_SEQS, .max_tokens = PLAN_SEQS * 256, .max_outs = PLAN_SEQS};
    struct opened o;
    CHECK(open_model(&o, card, "qwen2/model.gguf", NULL, &limits));
    int holds = 0;
    for (int i = 0; i < 8 && !holds; i++) { /* until there is a quiet moment */
        const struct plan_costs costs = plan_costs_of(o.super, 2);
        holds = costs.decode < 1 && costs.ragged < 5 && costs.miss < 5;
    }
    CHECK(holds);
    close_model(&o);
}

/* What the model takes of the card: its pools. Beside them there are the context and the kernels' code,
 * which the first model brings, and the recorded steps. */
static void the_card_holds_what_was_predicted(void)
{
    const sop_limits limits = {.ctx = 65536, .max_seqs = 8, .max_tokens = 4096, .max_outs = 8};
    for (int round = 0; round < 2; round++) {
        sop_runtime *rt;
        sop_model *m;
        sop_super *s;
        sop_memory predicted;
        size_t before, opened, all;
        int32_t seq, next;
        static int32_t ids[4096];
        CHECK(card->ops->memory(card, &before, &all) == SOP_OK);
        CHECK(sop_runtime_create(NULL, card, "", &rt) == SOP_OK);
        CHECK(sop_model_open(rt, HEAD128, &m) == SOP_OK);
        CHECK(sop_model_predict(m, &limits, &predicted) == SOP_OK);
        CHECK(sop_model_super(m, &limits, &s) == SOP_OK);
        CHECK(sop_super_open(s, &seq) == SOP_OK);
        const sop_step_item item = {.seq = seq, .n_ids = 4096, .ids = ids, .want = SOP_WANT_LAST};
        CHECK(sop_super_step(s, &item, 1, &next, NULL) == SOP_OK);
        CHECK(card->ops->memory(card, &opened, &all) == SOP_OK);
        const double said = (double)(predicted.pools - predicted.inputs / 2) * 0x1p-20;
        const double held = (double)(before - opened) * 0x1p-20;
        if (round == 0)
            printf("context and code so far %.0f MB; the first model takes %.1f MB of code and "
                   "pools\n",
                   (double)(all - before) * 0x1p-20, held);
        else
            printf("card: %.1f MB predicted, %.1f MB taken\n", said, held);
        CHECK(round == 0 || fabs(said - held) <= 0.03 * held);
        sop_super_destroy(s);
        sop_model_close(m);
        sop_runtime_destroy(rt);
    }
}

static const sop_device_ops *ops_of_card;
static int reservations;

static sop_status count_reserve(sop_device *d, size_t bytes, void **out)
{
    reservations++;
    return ops_of_card->reserve(d, bytes, out);
}

/* Pools are reserved before the first step, and nothing after it. What is free of the card is told alone: other
 * processes take of it as well. */
static void steps_take_nothing_of_the_card(void)
{
    enum { SEQS = 8, LONGEST = 3000 };
    static const int32_t lengths[] = {1, 700, 5, LONGEST, 17, 300, 64, 2049, 511, 130};
    const sop_limits limits = {
        .ctx = 8192, .max_seqs = SEQS, .max_tokens = SEQS * LONGEST, .max_outs = SEQS};
    struct opened o;
    size_t before, after, all;
    static int32_t ids[LONGEST];
    sop_device_ops counting = *card->ops;
    ops_of_card = card->ops;
    counting.reserve = count_reserve;
    card->ops = &counting;
    CHECK(open_path(&o, card, HEAD128, NULL, 0, NULL, &limits));
    CHECK(reservations > 0);
    reservations = 0;
    CHECK(card->ops->memory(card, &before, &all) == SOP_OK);
    for (int32_t seqs = 1; seqs <= SEQS && o.super; seqs++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            int32_t seq[SEQS], next[SEQS];
            sop_step_item items[SEQS];
            for (int32_t s = 0; s < seqs; s++) {
                CHECK(sop_super_open(o.super, &seq[s]) == SOP_OK);
                items[s] = (sop_step_item){
                    .seq = seq[s], .n_ids = lengths[i], .ids = ids, .want = SOP_WANT_LAST};
            }
            CHECK(sop_super_step(o.super, items, seqs, next, NULL) == SOP_OK);
            CHECK(one_each(&o, seq, next, seqs, next, NULL));
            close_all(&o, seq, seqs);
        }
    CHECK(card->ops->memory(card, &after, &all) == SOP_OK);
    printf("%zu bytes of the card were free, then %zu\n", before, after);
    CHECK(reservations == 0);
    close_model(&o);
    card->ops = ops_of_card;
}

/* ---- faults: a rope row that fails in one of these ways ---- */

enum { FAULT_LAUNCH, FAULT_NAN, FAULT_STICKY };
static int fault_kind, fault_calls;

static sop_status rope_faulty(const sop_call *call)
{
    static const float nan_value = NAN;
    const sop_row *row = sop_op_rope.rows;
    while (strcmp(row->name, "rope_cuda") != 0) row++;
    sop_rope_desc d = *(const sop_rope_desc *)call->desc;
    sop_operand args[SOP_ROPE_ROLES];
    sop_call as = *call;
    memcpy(args, call->args, sizeof args);
    as.args = args;
    fault_calls++;
    switch (fault_kind) {
    case FAULT_LAUNCH: /* a grid without blocks */
        as.desc = &d;
        d.tokens = (int64_t)1 << 32;
        break;
    case FAULT_STICKY:                        /* the positions lie in the first page of all */
        args[SOP_ROPE_POS].data = (void *)64; // NOLINT(performance-no-int-to-ptr)
        break;
    default: break;
    }
    SOP_TRY(row->run(&as));
    if (fault_kind != FAULT_NAN) return SOP_OK;
    return card->ops->copy(call->queue, args[SOP_ROPE_Y].data, &nan_value, 4, SOP_COPY_IN);
}

static const sop_row row_faulty = {.size = sizeof(sop_row),
                                   .device = SOP_DEVICE_CUDA,
                                   .name = "test:rope_faulty",
                                   .route = "cuda",
                                   .traits = SOP_ROW_INVARIANT,
                                   .run = rope_faulty};

enum { FAULT_STEPS = 6 };

/* A prompt and some steps, with the faulty row or without; what they say. */
static sop_status answer(const char *store, int faulty, int32_t *said, sop_super_counts *counts,
                         char *quarantine, size_t cap)
{
    const sop_limits limits = {.ctx = 128, .max_seqs = 2, .max_tokens = 64, .max_outs = 2};
    struct opened o = {0};
    static const int32_t prompt[] = {5, 17, 250, 3, 99, 100, 7};
    int32_t seq, next = 0;
    sop_config config;
    sop_config_defaults(&config);
    config.numerics = SOP_NUMERICS_EXACT;
    sop_status s = sop_runtime_create(&config, card, store, &o.rt);
    if (s == SOP_OK && faulty) s = sop_planner_add(sop_runtime_planner(o.rt), "rope", &row_faulty);
    if (s == SOP_OK) s = sop_model_open(o.rt, SOP_TEST_DATA "/tiny/qwen2/model.gguf", &o.model);
    if (s == SOP_OK) s = sop_model_super(o.model, &limits, &o.super);
    if (s == SOP_OK) s = sop_super_open(o.super, &seq);
    for (int32_t i = 0, length = 0; i < FAULT_STEPS && s == SOP_OK; i++) {
        const sop_step_item item = {.seq = seq,
                                    .n_ids = i ? 1 : 7,
                                    .ids = i ? &said[i - 1] : prompt,
                                    .want = SOP_WANT_LAST};
        s = sop_super_step(o.super, &item, 1, &next, NULL);
        length += s == SOP_OK ? item.n_ids : 0; /* a step is all or nothing */
        CHECK(sop_super_length(o.super, seq) == length);
        said[i] = next;
    }
    char why[512];
    (void)snprintf(why, sizeof why, "%s", s == SOP_OK ? "" : sop_last_error());
    if (o.super) sop_super_counts_of(o.super, counts);
    const char *q = o.rt ? sop_planner_quarantined(sop_runtime_planner(o.rt), row_faulty.name) : "";
    (void)snprintf(quarantine, cap, "%s", q ? q : "");
    close_model(&o);
    return s == SOP_OK ? s : sop_fail(s, "%s", why);
}

static void a_row_that_fails_on_the_card_is_replaced(void)
{
    /* in memory its steps are recorded; on disk it is marked, so each of its calls is waited for */
    char folder[] = "/tmp/sop_cuda_XXXXXX", store[64], cmd[96];
    CHECK(mkdtemp(folder) != NULL);
    for (int kind = FAULT_LAUNCH; kind <= FAULT_NAN; kind++)
        for (int on_disk = 0; on_disk < 2; on_disk++) {
            int32_t want[FAULT_STEPS], got[FAULT_STEPS];
            sop_super_counts c = {0};
            char why[256];
            store[0] = '\0';
            if (on_disk) (void)snprintf(store, sizeof store, "%s/store%d.sqlite", folder, kind);
            fault_calls = 0;
            fault_kind = kind;
            CHECK(answer("", 0, want, &c, why, sizeof why) == SOP_OK);
            const sop_status s = answer(store, 1, got, &c, why, sizeof why);
            if (s != SOP_OK) printf("fault %d, disk %d: %s\n", kind, on_disk, sop_last_error());
            CHECK(s == SOP_OK && memcmp(want, got, sizeof want) == 0);
            CHECK(fault_calls > 0 && c.quarantines == 1 && c.step_downs == 1 && c.retries > 0);
            CHECK(strstr(why, kind == FAULT_NAN ? "not finite" : "invalid"));
            if (!on_disk) continue;
            fault_calls = 0;
            CHECK(answer(store, 1, got, &c, why, sizeof why) == SOP_OK);
            CHECK(fault_calls == 0 && why[0] && memcmp(want, got, sizeof want) == 0);
        }
    (void)snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    CHECK(system(cmd) == 0);
}

/* In a process of its own, whose card is gone afterwards. together: the row is one of a recording. Ends with 0 when all was as it should be. */
static int sticky(const char *store, const char *together)
{
    int32_t said[FAULT_STEPS];
    sop_super_counts c = {0};
    char why[256];
    void *p;
    fault_kind = FAULT_STICKY;
    const sop_status s = answer(store, 1, said, &c, why, sizeof why);
    printf("sticky fault: %s\nquarantine: %s\n", sop_last_error(), why);
    if (s == SOP_OK || !strstr(sop_last_error(), *together ? "recorded" : row_faulty.name))
        return 1;
    if (card->ops->reserve(card, 64, &p) != SOP_E_INTERNAL) return 2; /* not a row's fault */
    return *together || why[0] ? 0 : 3;
}

static void a_fault_that_takes_the_card_is_told_at_the_next_start(void)
{
    char folder[] = "/tmp/sop_cuda_XXXXXX", store[64], cmd[96], self[512];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(mkdtemp(folder) != NULL && n > 0);
    self[n > 0 ? n : 0] = 0;
    (void)snprintf(store, sizeof store, "%s/store.sqlite", folder);
    for (int together = 1; together >= 0; together--) { /* recorded with others; and alone */
        const pid_t child = fork();
        if (child == 0) {
            (void)execl(self, self, "sticky", together ? "" : store, together ? "together" : "",
                        (char *)NULL);
            _exit(9);
        }
        int how = 0;
        CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    int32_t want[FAULT_STEPS], got[FAULT_STEPS];
    sop_super_counts c;
    char why[256];
    fault_calls = 0;
    CHECK(answer("", 0, want, &c, why, sizeof why) == SOP_OK);
    CHECK(answer(store, 1, got, &c, why, sizeof why) == SOP_OK);
    CHECK(fault_calls == 0 && strstr(why, "illegal") && memcmp(want, got, sizeof want) == 0);
    (void)snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    CHECK(system(cmd) == 0);
}

static int is_picked(const char *name, int argc, char **argv)
{
    int picked = argc < 2;
    for (int i = 1; i < argc; i++) picked |= strstr(name, argv[i]) != NULL;
    return picked;
}
#define PICK(fn) \
    do { \
        if (is_picked(#fn, argc, argv)) RUN(fn); \
    } while (0)

/* cuda_test [WORD...]: the tests with one of them in their names. */
int main(int argc, char **argv)
{
    if (sop_device_cuda(0, &card) != SOP_OK) {
        SKIP("everything", sop_last_error());
        return test_report();
    }
    if (argc == 4 && strcmp(argv[1], "sticky") == 0) return sticky(argv[2], argv[3]);
    sop_facts facts;
    card->ops->facts(card, &facts);
    printf("%s, features %u, %d multiprocessors, %lld bytes of L2\n", card->ops->name,
           facts.features, facts.workers, (long long)facts.l2_bytes);
    PICK(memory_is_zeroed_and_copies_come_back);
    PICK(what_does_not_fit_is_refused_with_the_numbers);
    PICK(a_recorded_call_runs_on_what_its_operands_hold_then);
#ifdef SOP_CUDA
    PICK(an_error_that_others_left_is_no_fault_of_a_row);
#endif
    PICK(a_product_of_a_library_runs_recorded_as_it_does_eagerly);
    PICK(scales_of_long_rows_are_those_of_their_blocks);
    PICK(steps_take_nothing_of_the_card);
    PICK(lengths_count_that_the_kernel_before_wrote);
    PICK(exact_numerics_agree_with_transformers_node_by_node);
    PICK(exact_numerics_agree_with_transformers_as_graphs);
    PICK(fast_numerics_stay_near);
    PICK(keys_and_values_of_8_bits_stay_near);
    PICK(batches_of_any_length_say_what_the_cpu_says_from_few_graphs);
    PICK(sequences_that_wait_on_the_host_answer_as_if_they_never_left);
    PICK(layers_in_one_kernel_say_what_their_modules_say);
    PICK(invariant_numerics_give_the_same_bits_in_any_batch);
    PICK(greedy_tokens_are_those_of_the_cpu_around_512_tokens);
    PICK(long_prompts_are_as_near_to_the_cpu_as_short_ones);
    PICK(layers_in_one_kernel_read_as_long_as_they_may);
    PICK(steps_ahead_say_what_steps_one_by_one_say);
    PICK(planning_costs_on_the_card_what_the_design_says);
    PICK(the_card_holds_what_was_predicted);
    PICK(a_row_that_fails_on_the_card_is_replaced);
    PICK(a_fault_that_takes_the_card_is_told_at_the_next_start);
    sop_device_destroy(card);
    return test_report();
}
