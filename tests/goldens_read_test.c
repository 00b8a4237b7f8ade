/* A sound file of goldens is read, any other is refused, and a judgement is right. */
#include "goldens_read.h"

#include "base/test.h"

enum { VOCAB = 100, WORDS = 5 + 8 + 2 + 3 + 2 + 2 * sizeof(golden_position) / 4 };

/* One prompt of 3 ids with 2 output ids; at each position token i has the probability of 2^-(i+1),
 * and the last 36 tokens share what remains. */
static char *sound_file(void)
{
    int32_t head[] = {VOCAB, GOLDEN_TOP, 1}, sizes[] = {3, 2}, ids[] = {7, 8, 9, 0, 0};
    golden_position p[2] = {0};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < GOLDEN_TOP; k++) {
            p[i].id[k] = k;
            p[i].logprob[k] = (float)-(k + 1) * logf(2);
        }
        p[i].rest = p[i].logprob[GOLDEN_TOP - 1];
    }
    char *data = calloc(WORDS, 4), *at = data;
    memcpy(at, "SOPGOLD1", 8);
    memcpy(at + 8, head, sizeof head);
    memcpy(at + 20, "tiny", 4);
    memcpy(at + 20 + GOLDEN_NAME, sizes, sizeof sizes);
    memcpy(at + 28 + GOLDEN_NAME, ids, sizeof ids);
    memcpy(at + 48 + GOLDEN_NAME, p, sizeof p);
    return data;
}

static char *copy_of(const char *data, size_t bytes)
{
    char *copy =
        malloc(bytes + 1); /* exactly sized but for malloc(0): reads past it show in asan */
    memcpy(copy, data, bytes);
    return copy;
}

static void a_sound_file_is_read(void)
{
    goldens g;
    CHECK(goldens_parse(&g, sound_file(), WORDS * 4) == NULL);
    CHECK(g.vocab == VOCAB && g.n_prompts == 1);
    CHECK(strcmp(g.prompts[0].name, "tiny") == 0);
    CHECK(g.prompts[0].n_prompt == 3 && g.prompts[0].prompt[2] == 9);
    CHECK(g.prompts[0].n_out == 2 && g.prompts[0].positions[1].id[63] == 63);
    goldens_close(&g);
}

static void a_file_cut_anywhere_is_refused(void)
{
    char *data = sound_file();
    for (size_t bytes = 0; bytes < WORDS * 4; bytes++) {
        goldens g;
        CHECK(goldens_parse(&g, copy_of(data, bytes), (int64_t)bytes) != NULL);
    }
    free(data);
}

static void any_number_out_of_range_is_refused(void)
{
    const int32_t wild[] = {-1, INT32_MAX, INT32_MIN, 1 << 30};
    const size_t at[] = {8,
                         12,
                         16,
                         20 + GOLDEN_NAME,
                         24 + GOLDEN_NAME,
                         28 + GOLDEN_NAME,
                         40 + GOLDEN_NAME,
                         48 + GOLDEN_NAME};
    char *data = sound_file();
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (size_t w = 0; w < sizeof wild / sizeof *wild; w++) {
            if (at[i] == 8 && wild[w] > 0) continue; /* a large vocabulary is no fault */
            goldens g;
            char *bad = copy_of(data, WORDS * 4);
            memcpy(bad + at[i], &wild[w], 4);
            CHECK(goldens_parse(&g, bad, WORDS * 4) != NULL);
        }
    free(data);
}

static void a_judgement_counts_the_choice_its_distance_and_the_divergence(void)
{
    goldens g;
    float logits[VOCAB];
    CHECK(goldens_parse(&g, sound_file(), WORDS * 4) == NULL);
    const golden_position *p = g.prompts[0].positions;

    /* The same distribution, shifted: the best is the best and nothing diverges. */
    for (int i = 0; i < VOCAB; i++)
        logits[i] = 3 + (i < GOLDEN_TOP ? p->logprob[i] : p->rest - logf(VOCAB - GOLDEN_TOP));
    golden_verdict v = golden_judge(p, logits, VOCAB);
    CHECK(v.choice == 0 && !v.missed && v.under == 0 && fabs(v.kl) < 1e-6);

    /* Even logits: KL = sum p log p + log V; the second token beats them by a hair. */
    for (int i = 0; i < VOCAB; i++) logits[i] = 0;
    logits[1] = 1e-6f;
    v = golden_judge(p, logits, VOCAB);
    CHECK(v.choice == 1 && v.missed && fabs(v.under - log(2)) < 1e-6);
    CHECK(fabs(v.kl - (log(VOCAB) - 2 * log(2))) < 1e-5);

    /* A choice that the oracle does not list counts as its 64th. */
    logits[80] = 5;
    v = golden_judge(p, logits, VOCAB);
    CHECK(v.choice == 80 && v.missed && fabs(v.under - 63 * log(2)) < 1e-4);
    goldens_close(&g);
}

static void the_goldens_of_the_real_models_are_sound(void)
{
    const char *models[] = {"smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"};
    for (int m = 0; m < 3; m++) {
        char path[512];
        goldens g;
        snprintf(path, sizeof path, "%s/goldens/%s.gold", SOP_TEST_DATA, models[m]);
        const char *why = goldens_open(&g, path);
        CHECK(why == NULL);
        if (why) continue;
        CHECK(g.n_prompts == 20);
        for (int32_t i = 0; i < g.n_prompts; i++) CHECK(g.prompts[i].n_out == 64);
        goldens_close(&g);
    }
}

int main(void)
{
    RUN(a_sound_file_is_read);
    RUN(a_file_cut_anywhere_is_refused);
    RUN(any_number_out_of_range_is_refused);
    RUN(a_judgement_counts_the_choice_its_distance_and_the_divergence);
    RUN(the_goldens_of_the_real_models_are_sound);
    return test_report();
}
