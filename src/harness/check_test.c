/* Rows with a planted fault: each must be caught, and named for what it does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/test.h"
#include "core/op.h"
#include "harness/harness.h"
#include "harness/operands.h"
#include "ops/ops.h"

#if defined(__SANITIZE_ADDRESS__)
enum { ASAN = 1 };
#else
enum { ASAN = 0 };
#endif

static enum plant {
    NOTHING,
    DROPS_TERM,
    LEAVES_UNWRITTEN,
    WRITES_PAST_END,
    WRITES_BEFORE,
    COPIES_PAST_END,
    WRITES_GAP,
    COPIES_GAP,
    READS_GAP,
    READS_SCRATCH,
    WRITES_PAST_SCRATCH,
    WRITES_PAST_END_ALL_LIVE,
    HEEDS_THREADS,
    HEEDS_LIVE,
    IGNORES_LIVE,
    CHANGES_INPUT,
    YIELDS_NAN,
    FAILS
} planted;

static int runs, once; /* how often the row ran; whether it is to run once a trial */
static int halved;     /* the run before had some rows live only */

/* rmsnorm, rightly, but for what is planted. */
static sop_status run(const sop_call *call)
{
    const sop_rmsnorm_desc *d = call->desc;
    const int64_t live = sop_live(call, SOP_RMSNORM_LIVE, d->tokens);
    const int64_t tokens = planted == IGNORES_LIVE ? d->tokens : live;
    float *x = call->args[SOP_RMSNORM_X].data, *y = call->args[SOP_RMSNORM_Y].data;
    const float *r = call->args[SOP_RMSNORM_R].data, *w = call->args[SOP_RMSNORM_W].data;
    float *s = call->args[SOP_RMSNORM_R_OUT].data;
    runs++;
    if (planted == FAILS) return sop_fail(SOP_E_DEVICE, "the planted row fails");
    for (int64_t t = 0; t < tokens; t++) {
        double sum = planted == READS_SCRATCH ? (double)*(float *)call->scratch : 0;
        for (int64_t i = planted == DROPS_TERM; i < d->dim; i++) {
            double v = (double)x[t * d->x_stride + i];
            if (r) v += (double)r[t * d->r_stride + i];
            sum += v * v;
        }
        if (planted == READS_GAP && t < d->tokens - 1) sum += (double)x[t * d->x_stride + d->dim];
        float scale = (float)(1 / sqrt(sum / (double)d->dim + (double)d->eps));
        if (planted == HEEDS_THREADS) scale *= 1 + 1e-7f * (float)sop_workers(call->queue);
        if (planted == HEEDS_LIVE) scale *= 1 + 1e-7f * (float)(live != d->tokens);
        for (int64_t i = 0; i < d->dim; i++) {
            float v = x[t * d->x_stride + i];
            if (r) s[t * d->r_stride + i] = v += r[t * d->r_stride + i];
            if (planted == LEAVES_UNWRITTEN && t == tokens - 1 && i == d->dim - 1) continue;
            y[t * d->y_stride + i] = v * scale * (d->offset + w[i]);
        }
    }
    const int64_t end = (d->tokens - 1) * d->y_stride + d->dim;
    if (planted == WRITES_PAST_END) y[end] = 1;
    if (planted == WRITES_PAST_END_ALL_LIVE && halved && live == d->tokens) y[end] = 1;
    halved = live < d->tokens;
    if (planted == WRITES_BEFORE) y[-1] = 1;
    if (planted == WRITES_GAP && tokens > 1) y[d->dim] = 1;
    if (planted == COPIES_GAP && tokens > 1) y[d->dim] = x[d->dim];
    if (planted == COPIES_PAST_END) y[end] = x[(d->tokens - 1) * d->x_stride + d->dim];
    if (planted == WRITES_PAST_SCRATCH) ((float *)call->scratch)[16] = 1;
    if (planted == CHANGES_INPUT) x[0] += 1;
    if (planted == YIELDS_NAN && tokens) y[0] = NAN;
    return SOP_OK;
}

static sop_status plan(const void *desc, const int32_t *params, const sop_facts *facts,
                       size_t budget, sop_split *split)
{
    (void)desc, (void)params, (void)facts, (void)budget;
    split->scratch_bytes = 64;
    return SOP_OK;
}

/* A CPU that passes for a device with memory of its own. */
static const sop_device_ops *cpu_ops;
static int copied;

static void other_facts(const sop_device *d, sop_facts *out)
{
    cpu_ops->facts(d, out);
    out->kind = SOP_DEVICE_TEST;
}

static int32_t other_sees_host(const sop_device *d)
{
    (void)d;
    return 0;
}

static sop_status other_copy(sop_queue *q, void *dst, const void *src, size_t bytes,
                             int32_t direction)
{
    copied++;
    return cpu_ops->copy(q, dst, src, bytes, direction);
}

static sop_check_result result_on(sop_device *other, enum plant plant)
{
    const sop_row row = {sizeof row,
                         other ? SOP_DEVICE_TEST : SOP_DEVICE_CPU,
                         "rmsnorm_planted",
                         "c",
                         .traits = SOP_ROW_INVARIANT,
                         .plan = plan,
                         .run = run};
    const sop_row *rows[] = {&row};
    sop_rmsnorm_desc desc;
    sop_checker *c = NULL;
    sop_check_result r = {.verdict = -1};
    planted = plant;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=5 dim=70 x_stride=75 y_stride=80", &desc) ==
          SOP_OK);
    CHECK((other ? sop_checker_create_on(other, &c) : sop_checker_create(&c)) == SOP_OK);
    if (once) sop_checker_once(c);
    CHECK(sop_check(c, &sop_op_rmsnorm, rows, 1, &desc, &r) == SOP_OK);
    sop_checker_destroy(c);
    return r;
}

static sop_check_result result_of(enum plant plant)
{
    return result_on(NULL, plant);
}

static void caught(enum plant plant, const char *words)
{
    const sop_check_result r = result_of(plant);
    const int good = r.verdict == SOP_CHECK_FAIL && strstr(r.why, words);
    if (!good) printf("plant %d: verdict %d: \"%s\"\n", plant, r.verdict, r.why);
    CHECK(good);
}

static void what_an_unwritten_element_holds_is_no_value_and_no_poison(void)
{
    const int32_t floats[] = {SOP_F16, SOP_BF16, SOP_F32, SOP_F64};
    const int32_t integers[] = {SOP_I8, SOP_I32, SOP_I64};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        const uint64_t held = sop_unwritten(floats[i]);
        const size_t bytes = sop_dtype_bytes(floats[i]);
        CHECK(isnan(sop_load(&held, floats[i], 0)));
        for (int k = 0; k < 4; k++) { /* at an even and an odd address */
            unsigned char around[16];
            sop_poison(around, sizeof around, k & 2 ? SOP_POISON : SOP_POISON_OUT);
            CHECK(memcmp(around + (k & 1), &held, bytes) != 0);
        }
    }
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const uint64_t held = sop_unwritten(integers[i]);
        CHECK(sop_load(&held, integers[i], 0) <= -128);
    }
    for (int k = 0; k < 2; k++) {
        uint64_t around;
        sop_poison(&around, sizeof around, k ? SOP_POISON : SOP_POISON_OUT);
        for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
            CHECK(isnan(sop_load(&around, floats[i], 0)));
    }
}

static void a_row_of_elements_is_its_elements(void)
{
    const int32_t dtypes[] = {SOP_F64, SOP_F32, SOP_F16, SOP_BF16, SOP_F8, SOP_I8, SOP_I64};
    enum { N = 256, FROM = 3 };
    _Alignas(8) uint8_t data[(N + FROM) * 8];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i + i / 256 * 7);
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        double row[N];
        sop_load_row(data, dtypes[k], FROM, N, row);
        for (int64_t i = 0; i < N; i++) {
            const double one = sop_load(data, dtypes[k], FROM + i);
            CHECK(isnan(one) ? isnan(row[i]) : row[i] == one);
        }
    }
}

static void a_right_row_passes_within_the_bound(void)
{
    const sop_check_result r = result_of(NOTHING);
    CHECK(r.verdict == SOP_CHECK_PASS);
    CHECK(r.trials == 7);
    CHECK(r.worst > 0 && r.worst < 1);
}

static void a_dropped_term_is_caught(void)
{
    caught(DROPS_TERM, "within");
}

static void an_unwritten_element_is_caught(void)
{
    caught(LEAVES_UNWRITTEN, "y[349] was not written");
}

static void a_write_to_a_gap_is_caught(void)
{
    caught(WRITES_GAP, "y changed where nothing is to be written");
}

static void a_gap_copied_to_a_gap_is_caught(void)
{
    caught(COPIES_GAP, "y changed where nothing is to be written");
}

static void a_read_of_a_gap_shows_as_nan(void)
{
    caught(READS_GAP, "nan, must be");
}

static void a_read_of_fresh_scratch_shows_as_nan(void)
{
    caught(READS_SCRATCH, "nan, must be");
}

static void a_result_that_heeds_the_threads_is_caught(void)
{
    caught(HEEDS_THREADS, "y differs between 1 thread and 2 threads");
}

static void a_result_that_heeds_the_live_rows_is_caught(void)
{
    caught(HEEDS_LIVE, "depends on how many rows are live");
}

static void a_row_that_ignores_live_is_caught(void)
{
    caught(IGNORES_LIVE, "changed where nothing is to be written");
}

static void a_changed_input_is_caught(void)
{
    caught(CHANGES_INPUT, "changed the input x");
}

static void a_nan_is_caught(void)
{
    caught(YIELDS_NAN, "nan, must be");
}

static void a_failing_run_is_caught_with_its_sentence(void)
{
    caught(FAILS, "the planted row fails");
}

static void a_write_past_the_end_is_caught(void)
{
    caught(WRITES_PAST_END, "wrote outside of y");
}

static void a_write_before_the_start_is_caught(void)
{
    caught(WRITES_BEFORE, "wrote outside of y");
}

static void what_lies_past_an_end_copied_past_another_is_caught(void)
{
    caught(COPIES_PAST_END, "wrote outside of y");
}

static void a_write_past_the_scratch_is_caught(void)
{
    caught(WRITES_PAST_SCRATCH, "wrote outside of the scratch");
}

static sop_status run_rightly(const sop_call *call)
{
    const enum plant was = planted;
    planted = NOTHING;
    const sop_status status = run(call);
    planted = was;
    return status;
}

static void only_the_guilty_row_is_blamed(void)
{
    const sop_row guilty = {.size = sizeof guilty,
                            .name = "rmsnorm_planted",
                            .traits = SOP_ROW_INVARIANT,
                            .plan = plan,
                            .run = run};
    sop_row innocent = guilty;
    const sop_row *rows[] = {&guilty, &innocent};
    const enum plant plants[] = {CHANGES_INPUT, WRITES_PAST_END, WRITES_BEFORE,
                                 WRITES_PAST_END_ALL_LIVE};
    sop_rmsnorm_desc desc;
    sop_checker *c = NULL;
    innocent.run = run_rightly;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=5 dim=70", &desc) == SOP_OK);
    CHECK(sop_checker_create(&c) == SOP_OK);
    for (size_t i = 0; i < (ASAN ? 1 : sizeof plants / sizeof *plants); i++) {
        sop_check_result r[2];
        planted = plants[i];
        CHECK(sop_check(c, &sop_op_rmsnorm, rows, 2, &desc, r) == SOP_OK);
        CHECK(r[0].verdict == SOP_CHECK_FAIL);
        if (r[1].verdict != SOP_CHECK_PASS) printf("plant %d: \"%s\"\n", planted, r[1].why);
        CHECK(r[1].verdict == SOP_CHECK_PASS);
    }
    sop_checker_destroy(c);
}

/* softmax by powers of two: the maximum is taken off after the factor has rounded. */
static sop_status run_late_maximum(const sop_call *call)
{
    const sop_softmax_desc *d = call->desc;
    const int64_t live = sop_live(call, SOP_SOFTMAX_LIVE, d->tokens);
    const float log2e = 1.44269504f * d->scale;
    for (int64_t t = 0; t < live; t++) {
        const float *x = (const float *)call->args[SOP_SOFTMAX_X].data + t * d->x_stride;
        float *y = (float *)call->args[SOP_SOFTMAX_Y].data + t * d->y_stride;
        float most = -INFINITY;
        double sum = 0;
        for (int64_t i = 0; i < d->dim; i++) most = fmaxf(most, x[i] * log2e);
        for (int64_t i = 0; i < d->dim; i++) sum += (double)(y[i] = exp2f(x[i] * log2e - most));
        for (int64_t i = 0; i < d->dim; i++) y[i] = (float)((double)y[i] / sum);
    }
    return SOP_OK;
}

static void what_is_lost_far_from_zero_is_caught(void)
{
    const sop_row row = {.size = sizeof row, .name = "softmax_planted", .run = run_late_maximum};
    const sop_row *rows[] = {&row};
    sop_softmax_desc desc;
    sop_checker *c = NULL;
    sop_check_result r;
    CHECK(sop_desc_parse(&sop_op_softmax, "tokens=3 dim=33", &desc) == SOP_OK);
    CHECK(sop_checker_create(&c) == SOP_OK);
    CHECK(sop_check(c, &sop_op_softmax, rows, 1, &desc, &r) == SOP_OK);
    CHECK(r.verdict == SOP_CHECK_FAIL && strncmp(r.why, "far from zero: y[", 17) == 0);
    sop_checker_destroy(c);
}

static void a_trial_is_one_run_where_that_is_asked_for(void)
{
    int of[2];
    for (once = 0; once < 2; once++) {
        runs = 0;
        const sop_check_result r = result_of(NOTHING);
        CHECK(r.verdict == SOP_CHECK_PASS && r.trials == 7);
        of[once] = runs;
    }
    once = 0;
    CHECK(of[0] == of[1] + 2 * 7);
}

static void rows_of_another_device_run_on_copies(void)
{
    sop_device *d;
    sop_device_ops ops;
    CHECK(sop_device_cpu(1, &d) == SOP_OK);
    cpu_ops = d->ops;
    ops = *cpu_ops;
    ops.facts = other_facts;
    ops.sees_host = other_sees_host;
    ops.copy = other_copy;
    d->ops = &ops;
    const sop_check_result right = result_on(d, NOTHING);
    CHECK(right.verdict == SOP_CHECK_PASS && right.trials == 7);
    CHECK(copied > 0);
    const struct {
        enum plant plant;
        const char *words;
    } faults[] = {{DROPS_TERM, "within"},
                  {LEAVES_UNWRITTEN, "y[349] was not written"},
                  {CHANGES_INPUT, "the first run changed the input x"},
                  {WRITES_BEFORE, "the first run wrote outside of y"},
                  {WRITES_PAST_SCRATCH, "the first run wrote outside of the scratch"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults - (ASAN ? 2 : 0); i++) {
        const sop_check_result r = result_on(d, faults[i].plant);
        const int good = r.verdict == SOP_CHECK_FAIL && strstr(r.why, faults[i].words);
        if (!good) printf("plant %d: verdict %d: \"%s\"\n", faults[i].plant, r.verdict, r.why);
        CHECK(good);
    }
    d->ops = cpu_ops;
    sop_device_destroy(d);
}

static void a_refusal_is_a_skip_with_its_reason(void)
{
    sop_rmsnorm_desc desc;
    sop_checker *c = NULL;
    const sop_row *rows[] = {&sop_op_rmsnorm.rows[sop_op_rmsnorm.n_rows - 2]};
    sop_check_result r;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=1 dim=8 x=f16", &desc) == SOP_OK);
    CHECK(sop_checker_create(&c) == SOP_OK);
    CHECK(sop_check(c, &sop_op_rmsnorm, rows, 1, &desc, &r) == SOP_OK);
    CHECK(r.verdict == SOP_CHECK_SKIP && strcmp(r.why, "a type is not f32") == 0);
    sop_checker_destroy(c);
}

/* A library that a row has to prepare with; what it says. */
static sop_status library;
static int prepared;

static sop_status prepare(const void *desc, sop_device *d, void **state)
{
    (void)desc, (void)d;
    if (library != SOP_OK) return sop_fail(library, "the planted library says no");
    prepared++;
    *state = &prepared;
    return SOP_OK;
}

static void release(void *state)
{
    prepared -= state == &prepared;
}

static void a_library_that_is_missing_is_a_skip_and_one_that_fails_a_fault(void)
{
    const sop_row row = {sizeof row,   SOP_DEVICE_CPU,     "rmsnorm_planted",  "vendor",
                         .plan = plan, .prepare = prepare, .release = release, .run = run};
    const sop_row *rows[] = {&row};
    const struct {
        sop_status library;
        int32_t verdict;
    } cases[] = {{SOP_OK, SOP_CHECK_PASS},
                 {SOP_E_NOT_FOUND, SOP_CHECK_SKIP},
                 {SOP_E_UNSUPPORTED, SOP_CHECK_SKIP},
                 {SOP_E_DEVICE, SOP_CHECK_FAIL}};
    sop_rmsnorm_desc desc;
    sop_checker *c = NULL;
    planted = NOTHING;
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=1 dim=8", &desc) == SOP_OK);
    CHECK(sop_checker_create(&c) == SOP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sop_check_result r;
        library = cases[i].library;
        CHECK(sop_check(c, &sop_op_rmsnorm, rows, 1, &desc, &r) == SOP_OK);
        CHECK(r.verdict == cases[i].verdict && prepared == 0);
        CHECK(library == SOP_OK || strstr(r.why, "the planted library says no"));
    }
    sop_checker_destroy(c);
}

int main(void)
{
    RUN(what_an_unwritten_element_holds_is_no_value_and_no_poison);
    RUN(a_row_of_elements_is_its_elements);
    RUN(a_right_row_passes_within_the_bound);
    RUN(a_dropped_term_is_caught);
    RUN(an_unwritten_element_is_caught);
    RUN(a_write_to_a_gap_is_caught);
    RUN(a_gap_copied_to_a_gap_is_caught);
    RUN(a_read_of_a_gap_shows_as_nan);
    RUN(a_read_of_fresh_scratch_shows_as_nan);
    RUN(a_result_that_heeds_the_threads_is_caught);
    RUN(a_result_that_heeds_the_live_rows_is_caught);
    RUN(a_row_that_ignores_live_is_caught);
    RUN(a_changed_input_is_caught);
    RUN(a_nan_is_caught);
    RUN(a_failing_run_is_caught_with_its_sentence);
    RUN(a_refusal_is_a_skip_with_its_reason);
    RUN(a_library_that_is_missing_is_a_skip_and_one_that_fails_a_fault);
    RUN(only_the_guilty_row_is_blamed);
    RUN(what_is_lost_far_from_zero_is_caught);
    RUN(a_trial_is_one_run_where_that_is_asked_for);
    RUN(rows_of_another_device_run_on_copies);
    if (ASAN) {
        SKIP("writes outside of operands", "the address sanitizer ends the process there");
    } else {
        RUN(a_write_past_the_end_is_caught);
        RUN(a_write_before_the_start_is_caught);
        RUN(what_lies_past_an_end_copied_past_another_is_caught);
        RUN(a_write_past_the_scratch_is_caught);
    }
    return test_report();
}
