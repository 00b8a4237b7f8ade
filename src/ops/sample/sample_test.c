#include "ops/sample/sample.h"

#include <math.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

/* Rows of the same logits [vocab] with params [n]; ids [n]. */
static void sample(const sop_row *row, int32_t dtype, void *logits, int64_t vocab,
                   sop_sampling *params, int64_t n, int32_t *ids)
{
    const sop_sample_desc d = {.rows = n, .vocab = vocab, .x_dtype = dtype};
    const sop_operand args[SOP_SAMPLE_ROLES] = {
        [SOP_SAMPLE_LOGITS] = {logits, (size_t)vocab * sop_dtype_bytes(dtype)},
        [SOP_SAMPLE_PARAMS] = {params, (size_t)n * sizeof *params},
        [SOP_SAMPLE_IDS] = {ids, (size_t)n * sizeof *ids}};
    CHECK(run_row(&sop_op_sample, row, &d, args, 2) == SOP_OK);
}

static int32_t one(const sop_row *row, float *logits, int64_t vocab, sop_sampling s)
{
    int32_t id = -7;
    sample(row, SOP_F32, logits, vocab, &s, 1, &id);
    return id;
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_sample.n_rows; r++)
        if (row_runs(&sop_op_sample.rows[r])) test(&sop_op_sample.rows[r]);
}

/* How often each token comes in draws 0, 1, 2, ... of a seed. An id out of range fails. */
static void frequencies(const sop_row *row, float *logits, int64_t vocab, sop_sampling s,
                        int64_t draws, double *share)
{
    sop_sampling *params = malloc((size_t)draws * sizeof *params);
    int32_t *ids = malloc((size_t)draws * sizeof *ids);
    int64_t strays = 0;
    for (int64_t i = 0; i < draws; i++) {
        params[i] = s;
        params[i].counter = (uint64_t)i;
    }
    sample(row, SOP_F32, logits, vocab, params, draws, ids);
    for (int64_t i = 0; i < vocab; i++) share[i] = 0;
    for (int64_t i = 0; i < draws; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            strays++;
        else
            share[ids[i]] += 1 / (double)draws;
    }
    CHECK(strays == 0);
    free(params);
    free(ids);
}

static void logs(const double *p, int n, float *logits)
{
    for (int i = 0; i < n; i++) logits[i] = (float)log(p[i]);
}

/* A share of p among n draws, within 4.5 deviations. */
static int close_to(double share, double p, double n)
{
    return fabs(share - p) < 4.5 * sqrt(p * (1 - p) / n);
}

enum { DRAWS = 100000 };

static void philox_gives_its_published_answers(void)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int k = 0; k < 3; k++) {
        uint32_t out[4];
        sop_philox(known[k].counter, known[k].key, out);
        CHECK(memcmp(out, known[k].out, sizeof out) == 0);
    }
}

/* P-SMP-01 */
static void border_ties(const sop_row *row)
{
    const double p[] = {0.4, 0.3, 0.3, 0};
    float logits[4];
    double share[4];
    logs(p, 4, logits);
    frequencies(row, logits, 4, (sop_sampling){.temperature = 1, .top_k = 2, .seed = 1}, DRAWS,
                share);
    CHECK(close_to(share[0], 0.4 / 0.7, DRAWS) && close_to(share[1], 0.3 / 0.7, DRAWS));
    CHECK(share[2] == 0 && share[3] == 0);
}

static void ties_at_the_top_k_border_go_to_the_lower_index(void)
{
    each(border_ties);
}

/* P-SMP-02 */
static void k_then_p(const sop_row *row)
{
    const double p[] = {0.6, 0.3, 0.1};
    float logits[3];
    double share[3];
    logs(p, 3, logits);
    frequencies(row, logits, 3, (sop_sampling){.temperature = 1, .top_k = 1, .top_p = 0.8f}, 1000,
                share);
    CHECK(fabs(share[0] - 1) < 1e-9);
    frequencies(row, logits, 3, (sop_sampling){.temperature = 1, .top_k = 2, .top_p = 0.7f}, DRAWS,
                share);
    CHECK(close_to(share[0], 2 / 3.0, DRAWS) && close_to(share[1], 1 / 3.0, DRAWS));
    CHECK(share[2] == 0);
}

static void top_p_works_on_what_top_k_left_renormalised(void)
{
    each(k_then_p);
}

/* P-SMP-03; 0 is "off" here, so the least mass stands in for it. */
static void exact_mass(const sop_row *row)
{
    const double p[] = {0.5, 0.25, 0.25};
    const float masses[] = {0.5f, 0.75f, 1, 1e-6f};
    const int kept[] = {1, 2, 3, 1};
    float logits[3];
    double share[3];
    logs(p, 3, logits);
    for (int k = 0; k < 4; k++) {
        frequencies(row, logits, 3, (sop_sampling){.temperature = 1, .top_p = masses[k]}, 10000,
                    share);
        for (int i = 0; i < 3; i++) CHECK((share[i] > 0) == (i < kept[k]));
    }
}

static void top_p_keeps_the_smallest_set_that_reaches_it(void)
{
    each(exact_mass);
}

/* P-SMP-04 */
static void one_hot(const sop_row *row)
{
    static float logits[32000];
    static double share[32000];
    const sop_sampling s = {.temperature = 1, .top_k = 1 << 30, .top_p = 1};
    const int is_ref = (row->traits & SOP_ROW_REFERENCE) != 0;
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 32000; i++) logits[i] = kind ? -INFINITY : -1e4f;
        logits[1] = 0;
        frequencies(row, logits, 32000, s, is_ref ? 20 : 2000, share);
        CHECK(fabs(share[1] - 1) < 1e-9);
        frequencies(row, logits, 16, s, is_ref ? 10000 : 1000000, share);
        CHECK(fabs(share[1] - 1) < 1e-6);
    }
}

static void no_id_outside_of_the_vocabulary_comes(void)
{
    each(one_hot);
}

/* P-SMP-05 */
static void not_finite(const sop_row *row)
{
    const float odd[] = {NAN, INFINITY, -INFINITY};
    float nothing[] = {NAN, NAN, INFINITY, -INFINITY};
    double share[4];
    for (int k = 0; k < 3; k++) {
        float logits[] = {1, odd[k], 3, 2};
        CHECK(one(row, logits, 4, (sop_sampling){.temperature = 0}) == 2);
        frequencies(row, logits, 4, (sop_sampling){.temperature = 1, .seed = 3}, 10000, share);
        CHECK(share[1] == 0 && share[0] > 0.05 && share[2] > 0.6 && share[3] > 0.2);
    }
    CHECK(one(row, nothing, 4, (sop_sampling){.temperature = 0}) == -1);
    CHECK(one(row, nothing, 4, (sop_sampling){.temperature = 1, .top_k = 2, .top_p = 0.5f}) == -1);
}

static void logits_that_are_not_finite_are_ignored(void)
{
    each(not_finite);
}

/* P-SMP-06 */
static void tiny_temperature(const sop_row *row)
{
    float values[] = {2.875f, 2.955f, 11.0625f}, temperatures[] = {1e-5f, 1e-8f, 1e-45f, 0};
    uint16_t halves[3];
    for (int i = 0; i < 3; i++) halves[i] = sop_f32_to_f16(values[i]);
    for (int k = 0; k < 4; k++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            sop_sampling s = {.temperature = temperatures[k], .seed = seed, .top_p = 0.9f};
            int32_t id = -7;
            CHECK(one(row, values, 3, s) == 2);
            sample(row_named(&sop_op_sample, "sample_ref"), SOP_F16, halves, 3, &s, 1, &id);
            CHECK(id == 2);
        }
}

static void a_tiny_temperature_does_not_overflow(void)
{
    each(tiny_temperature);
}

/* P-SMP-07 */
static void company(const sop_row *row)
{
    float logits[1000];
    int32_t alone, with[3];
    for (int i = 0; i < 1000; i++) logits[i] = (float)(i * 7919 % 1000) * 0.004f;
    for (uint64_t step = 0; step < 50; step++) {
        sop_sampling s[3] = {{.temperature = 1.3f, .seed = 99, .counter = step + 5},
                             {.temperature = 0.8f, .seed = 42, .counter = step},
                             {.temperature = 0}};
        sample(row, SOP_F32, logits, 1000, &s[1], 1, &alone);
        sample(row, SOP_F32, logits, 1000, s, 3, with);
        CHECK(with[1] == alone);
    }
}

static void a_draw_does_not_depend_on_its_neighbours(void)
{
    each(company);
}

/* P-SMP-09 */
static void choices(const sop_row *row)
{
    float logits[1000] = {0};
    int32_t ids[2][3] = {{0}};
    for (int reply = 0; reply < 2; reply++) {
        sop_sampling s[3];
        for (uint64_t c = 0; c < 3; c++)
            s[c] = (sop_sampling){.temperature = 1, .seed = 7, .counter = c << 32};
        sample(row, SOP_F32, logits, 1000, s, 3, ids[reply]);
    }
    CHECK(memcmp(ids[0], ids[1], sizeof ids[0]) == 0);
    CHECK(ids[0][0] != ids[0][1] && ids[0][1] != ids[0][2] && ids[0][0] != ids[0][2]);
}

static void counters_of_one_seed_differ_and_repeat(void)
{
    each(choices);
}

/* P-SMP-10 */
static void top_k_of_twelve(const sop_row *row)
{
    float logits[] = {-2, -1, 0, 0.8f, 0, 0.1f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, -3};
    double share[12];
    for (int k = 1; k <= 2; k++) {
        frequencies(row, logits, 12, (sop_sampling){.temperature = 1, .top_k = k}, 10000, share);
        for (int i = 0; i < 12; i++) CHECK((share[i] > 0) == (i == 3 || (k == 2 && i == 10)));
    }
}

static void top_k_keeps_k(void)
{
    each(top_k_of_twelve);
}

static void floor_of_half(const sop_row *row)
{
    const double p[] = {0.5, 0.2, 0.3};
    float logits[3];
    double share[3];
    logs(p, 3, logits);
    frequencies(row, logits, 3, (sop_sampling){.temperature = 1, .min_p = 0.5f}, DRAWS, share);
    CHECK(close_to(share[0], 0.625, DRAWS) && share[1] == 0 && close_to(share[2], 0.375, DRAWS));
}

static void min_p_is_relative_to_the_largest(void)
{
    each(floor_of_half);
}

static void shares(const sop_row *row)
{
    enum { N = 40 };
    float logits[N];
    double p[N], share[N], total = 0;
    for (int i = 0; i < N; i++) logits[i] = sinf((float)i) * 2;
    for (int i = 0; i < N; i++) total += p[i] = exp((double)logits[i] / (double)1.7f);
    frequencies(row, logits, N, (sop_sampling){.temperature = 1.7f, .seed = 12345}, DRAWS, share);
    for (int i = 0; i < N; i++) CHECK(close_to(share[i], p[i] / total, DRAWS));
}

static void shares_follow_the_softmax_at_a_temperature(void)
{
    each(shares);
}

static void large_ties(const sop_row *row)
{
    static float logits[5000];
    for (int i = 0; i < 5000; i++) logits[i] = (float)(i % 13);
    logits[1023] = logits[1024] = logits[4999] = 40;
    CHECK(one(row, logits, 5000, (sop_sampling){.temperature = 0}) == 1023);
    logits[1023] = 0;
    CHECK(one(row, logits, 5000, (sop_sampling){.temperature = 0}) == 1024);
    CHECK(one(row, logits + 1025, 3975, (sop_sampling){.temperature = 0}) == 3974);
    float zeros[] = {-1, -0.0f, 0.0f};
    CHECK(one(row, zeros, 3, (sop_sampling){.temperature = 0}) == 1);
}

static void greedy_takes_the_lowest_index_of_the_largest(void)
{
    each(large_ties);
}

/* Every filter on shapes that stress the selection: flat, two values, steps, far apart. */
static void every_row_draws_the_same_tokens(void)
{
    enum { V = 3000, N = 60 };
    static float logits[V];
    const sop_row *ref = row_named(&sop_op_sample, "sample_ref");
    for (int shape = 0; shape < 5; shape++) {
        for (int i = 0; i < V; i++) {
            const float r = (float)(i * 48271LL % 2147483647 % 1009);
            const int hundreds = i / 100;
            const float kinds[] = {1, (float)(i % 2), (float)hundreds, r * 1e30f, r * 0.01f};
            logits[i] = kinds[shape];
        }
        sop_sampling s[N];
        int32_t want[N], got[N];
        for (int i = 0; i < N; i++)
            s[i] = (sop_sampling){.temperature = (float[]){0.5f, 1, 3}[i % 3],
                                  .top_p = (float[]){0, 0.1f, 0.5f, 0.999f}[i % 4],
                                  .min_p = (float[]){0, 0.01f, 1.5f}[i / 4 % 3],
                                  .top_k = (int32_t[]){0, 1, 50, 2999, 3000}[i % 5],
                                  .seed = 11,
                                  .counter = (uint64_t)i};
        sample(ref, SOP_F32, logits, V, s, N, want);
        for (int32_t r = 0; r < sop_op_sample.n_rows - 1; r++) {
            if (!row_runs(&sop_op_sample.rows[r])) continue;
            sample(&sop_op_sample.rows[r], SOP_F32, logits, V, s, N, got);
            CHECK(memcmp(want, got, sizeof want) == 0);
        }
    }
}

int main(void)
{
    RUN(philox_gives_its_published_answers);
    RUN(ties_at_the_top_k_border_go_to_the_lower_index);
    RUN(top_p_works_on_what_top_k_left_renormalised);
    RUN(top_p_keeps_the_smallest_set_that_reaches_it);
    RUN(no_id_outside_of_the_vocabulary_comes);
    RUN(logits_that_are_not_finite_are_ignored);
    RUN(a_tiny_temperature_does_not_overflow);
    RUN(a_draw_does_not_depend_on_its_neighbours);
    RUN(counters_of_one_seed_differ_and_repeat);
    RUN(top_k_keeps_k);
    RUN(min_p_is_relative_to_the_largest);
    RUN(shares_follow_the_softmax_at_a_temperature);
    RUN(greedy_takes_the_lowest_index_of_the_largest);
    RUN(every_row_draws_the_same_tokens);
    return test_report();
}
