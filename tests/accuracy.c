/* The accuracy judge: runs a real model over its goldens, teacher-forced, and holds it to the bars.
 *
 *     accuracy MODEL.gguf NAME exact|fast [chunked]
 *
 * NAME.gold and llamacpp.json in tests/data/goldens say what the float32 model and llama.cpp make of
 * the same positions. The prompt goes in as steps of the largest size, the output one token a step,
 * as in generation; `chunked` feeds the output as one step too. Because all before the first miss is
 * the oracle's own output, the first miss is also where a free run first leaves it.
 * A model that is not there is a skip. */
#include "goldens_read.h"

#include "sop/model.h"

#include <jansson.h>
#include <unistd.h>

#include "base/test.h"

/* Choices may differ where the oracle's two best are this near: float32 sums in another order move a
 * logit by up to 1e-4 nat, against float64. */
static const double undecided_nat = 0.01;

/* Of the oracle's choices, with quantised activations. */
static const struct {
    const char *name;
    double share;
} bars[] = {{"smollm2-135m", 0.98}, {"qwen2.5-coder-0.5b", 0.98}, {"gemma3-270m", 0.96}};

typedef struct tally {
    int positions, misses, decided_misses; /* decided: the oracle's two best are apart */
    double kl, worst, worst_kl;            /* kl: the mean */
} tally;

static tally ours, llama;
static double share_bar;
static int exact;

static void count(tally *t, const golden_prompt *p, const golden_verdict *v)
{
    double kl = 0;
    printf("%-26s %5d + %d", p->name, p->n_prompt, p->n_out);
    for (int32_t i = 0; i < p->n_out; i++) {
        const float *top = p->positions[i].logprob;
        t->positions++;
        t->misses += v[i].missed;
        t->decided_misses += v[i].missed && (double)top[0] - (double)top[1] >= undecided_nat;
        t->worst = fmax(t->worst, v[i].under);
        t->worst_kl = fmax(t->worst_kl, v[i].kl);
        t->kl += v[i].kl; /* the sum, until all are counted */
        kl += v[i].kl;
        if (v[i].missed) printf(" [%d: %d, %.4f nat]", i, v[i].choice, v[i].under);
    }
    printf(" kl %.3g\n", kl / p->n_out);
}

static sop_status step(sop_super *s, int32_t seq, const int32_t *ids, int32_t n, int32_t want,
                       float *logits)
{
    int32_t next[64]; /* as many as a golden has outputs, at most */
    sop_step_item item = {.seq = seq, .n_ids = n, .ids = ids, .want = want};
    return sop_super_step(s, &item, 1, next, want == SOP_WANT_NONE ? NULL : logits);
}

/* The verdicts [n_out] of one prompt. logits [rows, vocab]: one row, or one of each output token. */
static sop_status run_prompt(sop_super *s, const golden_prompt *p, int chunked, float *logits,
                             golden_verdict *verdicts)
{
    sop_super_facts facts;
    int32_t seq;
    sop_super_facts_of(s, &facts);
    sop_status status = sop_super_open(s, &seq);
    if (status) return status;
    /* The last token of the prompt gives the first row. */
    int32_t before = chunked ? p->n_prompt - 1 : p->n_prompt;
    for (int32_t at = 0; !status && at < before;) {
        int32_t n = before - at < facts.max_tokens ? before - at : facts.max_tokens;
        int32_t want = !chunked && at + n == before ? SOP_WANT_LAST : SOP_WANT_NONE;
        status = step(s, seq, p->prompt + at, n, want, logits);
        at += n;
    }
    if (!status && chunked) {
        int32_t ids[64];
        ids[0] = p->prompt[before];
        memcpy(ids + 1, p->out, (size_t)(p->n_out - 1) * sizeof *ids);
        status = step(s, seq, ids, p->n_out, SOP_WANT_ALL, logits);
    }
    for (int32_t i = 0; !status && i < p->n_out; i++) {
        if (!chunked && i > 0) status = step(s, seq, &p->out[i - 1], 1, SOP_WANT_LAST, logits);
        if (status) break;
        const float *row = logits + (chunked ? i * facts.vocab : 0);
        verdicts[i] = golden_judge(&p->positions[i], row, (int32_t)facts.vocab);
    }
    sop_super_close(s, seq);
    return status;
}

static int run_all(const char *path, const goldens *g, int chunked)
{
    sop_runtime *rt = NULL;
    sop_model *model = NULL;
    sop_super *super = NULL;
    sop_config config;
    sop_model_facts facts;
    sop_limits limits = {.max_seqs = 1, .max_outs = chunked ? 64 : 1};
    golden_verdict verdicts[64];
    float *logits = malloc((size_t)limits.max_outs * (size_t)g->vocab * sizeof *logits);
    sop_config_defaults(&config);
    config.numerics = exact ? SOP_NUMERICS_EXACT : SOP_NUMERICS_FAST;
    config.kv_dtype = exact ? SOP_F32 : config.kv_dtype;
    for (int32_t i = 0; i < g->n_prompts; i++) {
        int64_t tokens = g->prompts[i].n_prompt + g->prompts[i].n_out;
        limits.ctx = tokens > limits.ctx ? tokens : limits.ctx;
        if (g->prompts[i].n_out > 64) {
            printf("%s: %d output tokens, at most 64\n", g->prompts[i].name, g->prompts[i].n_out);
            goto out;
        }
    }
    sop_status status = logits ? sop_runtime_create(&config, NULL, "", &rt) : SOP_E_NOMEM;
    if (!status) status = sop_model_open(rt, path, &model);
    if (!status) sop_model_facts_of(model, &facts);
    if (!status && facts.vocab != g->vocab) {
        printf("%s: a vocabulary of %lld, its goldens have %d\n", path, (long long)facts.vocab,
               g->vocab);
        goto out;
    }
    if (!status) status = sop_model_super(model, &limits, &super);
    for (int32_t i = 0; !status && i < g->n_prompts; i++) {
        status = run_prompt(super, &g->prompts[i], chunked, logits, verdicts);
        if (!status) count(&ours, &g->prompts[i], verdicts);
        fflush(stdout);
    }
    if (status) printf("%s: %s\n", path, sop_last_error());
    ours.kl /= fmax(ours.positions, 1);
out:
    sop_super_destroy(super);
    sop_model_close(model);
    sop_runtime_destroy(rt);
    free(logits);
    return ours.positions == 64 * g->n_prompts;
}

static int read_llama(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/goldens/llamacpp.json", SOP_TEST_DATA);
    json_t *doc = json_load_file(path, 0, NULL);
    int found = json_unpack(doc, "{s:{s:{s:i, s:i, s:F, s:F}}}", "models", name, "positions",
                            &llama.positions, "misses", &llama.misses, "worst", &llama.worst, "kl",
                            &llama.kl) == 0;
    json_decref(doc);
    return found;
}

static void every_choice_is_the_oracles_but_where_it_is_undecided_itself(void)
{
    CHECK(ours.decided_misses == 0);
    CHECK(ours.worst < undecided_nat);
}

static void the_share_of_the_oracles_choices_reaches_the_bar(void)
{
    CHECK(ours.positions - ours.misses >= share_bar * ours.positions);
}

static void misses_worst_distance_and_divergence_are_no_worse_than_llama_cpps(void)
{
    CHECK(ours.positions == llama.positions);
    CHECK(ours.misses <= llama.misses);
    CHECK(ours.worst <= llama.worst);
    CHECK(ours.kl <= llama.kl);
}

int main(int argc, char **argv)
{
    goldens g;
    char path[512];
    int chunked = argc == 5 && strcmp(argv[4], "chunked") == 0;
    exact = argc >= 4 && strcmp(argv[3], "exact") == 0;
    if (argc != 4 + chunked || (!exact && strcmp(argv[3], "fast") != 0)) {
        fprintf(stderr, "usage: %s MODEL.gguf NAME exact|fast [chunked]\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (strcmp(bars[i].name, argv[2]) == 0) share_bar = bars[i].share;
    if (access(argv[1], R_OK) != 0) {
        SKIP(argv[2], "its file is not there");
        return test_report();
    }
    snprintf(path, sizeof path, "%s/goldens/%s.gold", SOP_TEST_DATA, argv[2]);
    const char *why = goldens_open(&g, path);
    if (why || share_bar <= 0 || !read_llama(argv[2])) {
        fprintf(stderr, "%s: %s\n", path, why ? why : "no bar, or not in llamacpp.json");
        return 1;
    }
    int whole = run_all(argv[1], &g, chunked);
    goldens_close(&g);
    if (!whole) return 1;
    printf(
        "%s %s%s: %d of %d are not the oracle's best, worst %.4f nat, mean KL %.3g, largest %.3g\n"
        "llama.cpp: %d of %d, worst %.4f nat, mean KL %.3g\n",
        argv[2], argv[3], chunked ? " chunked" : "", ours.misses, ours.positions, ours.worst,
        ours.kl, ours.worst_kl, llama.misses, llama.positions, llama.worst, llama.kl);
    if (exact) RUN(every_choice_is_the_oracles_but_where_it_is_undecided_itself);
    RUN(the_share_of_the_oracles_choices_reaches_the_bar);
    RUN(misses_worst_distance_and_divergence_are_no_worse_than_llama_cpps);
    return test_report();
}
