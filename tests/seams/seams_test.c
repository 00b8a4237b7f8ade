/* The seams hold: what plugs in from outside runs the tiny models right, and what breaks is caught at
 * its module's edge. Nothing of the library knows of these plug-ins. */
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/test.h"
#include "seams/tagged.h"
#include "sop/model.h"
#include "super/state.h"

#define MODEL SOP_TEST_DATA "/tiny/qwen2/model.gguf"
enum { VOCAB = 320, PROMPT = 24 };

static const int32_t prompt[PROMPT] = {5,  17, 250, 3,  99, 100, 7,  44, 45, 300, 12, 13,
                                       14, 15, 16,  90, 91, 200, 33, 34, 35, 36,  37, 38};

struct rig {
    sop_runtime *rt;
    sop_model *model;
    sop_super *super;
};

static struct rig rig_of(const sop_config *config, sop_device *device, const char *store,
                         int32_t seqs, int64_t ctx)
{
    struct rig r = {0};
    const sop_limits limits = {.ctx = ctx, .max_seqs = seqs, .max_tokens = 64, .max_outs = seqs};
    CHECK(sop_runtime_create(config, device, store, &r.rt) == SOP_OK);
    if (device && device->ops->kind == SOP_DEVICE_TEST)
        CHECK(tagged_add_rows(sop_runtime_planner(r.rt)) == SOP_OK);
    if (sop_model_open(r.rt, MODEL, &r.model) != SOP_OK ||
        sop_model_super(r.model, &limits, &r.super) != SOP_OK) {
        printf("%s\n", sop_last_error());
        exit(1);
    }
    return r;
}

static void rig_close(struct rig *r)
{
    sop_super_destroy(r->super);
    sop_model_close(r->model);
    sop_runtime_destroy(r->rt);
}

/* Greedy: the prompt in one step, then n more tokens one by one; logits [n, VOCAB] of each. */
static bool generate(sop_super *s, int32_t n, int32_t *ids, float *logits)
{
    int32_t seq;
    bool ok = sop_super_open(s, &seq) == SOP_OK;
    sop_step_item it = {.seq = seq, .n_ids = PROMPT, .ids = prompt, .want = SOP_WANT_LAST};
    for (int32_t i = 0; ok && i < n; i++) {
        ok = sop_super_step(s, &it, 1, &ids[i], logits + (size_t)i * VOCAB) == SOP_OK;
        it.n_ids = 1;
        it.ids = &ids[i];
    }
    if (!ok) printf("step: %s\n", sop_last_error());
    sop_super_close(s, seq);
    return ok;
}

enum { N = 12 };
static int32_t base_ids[N];
static float base_logits[N * VOCAB];

static void the_base_answers(void)
{
    struct rig r = rig_of(NULL, NULL, "", 1, 128);
    CHECK(generate(r.super, N, base_ids, base_logits));
    rig_close(&r);
}

static void a_second_device_with_its_own_addresses_gives_the_same_bits(void)
{
    sop_device *cpu, *tagged;
    sop_planner *planner = NULL;
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    CHECK(sop_device_cpu(2, &cpu) == SOP_OK && sop_planner_create(cpu, "", &planner) == SOP_OK);
    CHECK(tagged_create(cpu, planner, &tagged) == SOP_OK);
    struct rig r = rig_of(NULL, tagged, "", 1, 128);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(ids, base_ids, sizeof ids) == 0);
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    sop_super_counts c;
    sop_super_counts_of(r.super, &c);
    CHECK(c.replays >= N && c.graphs == c.plan_misses);
    CHECK(c.guard_checks == 0 || c.guard_trips == 0);
    CHECK(tagged_counted(tagged).refused == 0 && tagged_counted(tagged).replayed >= N);

    /* and it does refuse an address that is not its own */
    sop_queue *q;
    float host[4] = {0};
    CHECK(tagged->ops->queue_create(tagged, &q) == SOP_OK);
    CHECK(tagged->ops->copy(q, host, host, sizeof host, SOP_COPY_WITHIN) == SOP_OK);
    CHECK(tagged->ops->wait(q) == SOP_E_DEVICE);
    tagged->ops->queue_destroy(q);
    rig_close(&r);
    sop_device_destroy(tagged);
    sop_planner_destroy(planner);
    sop_device_destroy(cpu);
    free(logits);
}

static void what_runs_without_a_recording_is_recorded_once_before_the_first_step(void)
{
    const sop_limits limits = {.ctx = 2048, .max_seqs = 3, .max_tokens = 1500, .max_outs = 3};
    sop_device *cpu, *tagged;
    sop_planner *planner = NULL;
    sop_super_counts c;
    struct rig r = {0};
    CHECK(sop_device_cpu(2, &cpu) == SOP_OK && sop_planner_create(cpu, "", &planner) == SOP_OK);
    CHECK(tagged_create(cpu, planner, &tagged) == SOP_OK);
    CHECK(sop_runtime_create(NULL, tagged, "", &r.rt) == SOP_OK);
    CHECK(tagged_add_rows(sop_runtime_planner(r.rt)) == SOP_OK);
    CHECK(sop_model_open(r.rt, MODEL, &r.model) == SOP_OK);
    CHECK(sop_model_super(r.model, &limits, &r.super) == SOP_OK);
    CHECK(tagged_counted(tagged).widest == limits.max_tokens);
    sop_super_counts_of(r.super, &c);
    CHECK(c.graphs == c.plan_misses); /* these are kept, and no others */
    rig_close(&r);
    sop_device_destroy(tagged);
    sop_planner_destroy(planner);
    sop_device_destroy(cpu);
}

/* Three sequences of other lengths, drawn with seeds and greedily: n more tokens of each, one step a time or
 * some steps ahead of the host. */
enum { AHEAD_SEQS = 3, AHEAD = 2 * N };

static bool draw(sop_super *s, int32_t at_once, int32_t *ids)
{
    int32_t seq[AHEAD_SEQS];
    sop_step_item items[AHEAD_SEQS];
    bool ok = true;
    for (int32_t i = 0; i < AHEAD_SEQS && ok; i++) {
        ok = sop_super_open(s, &seq[i]) == SOP_OK;
        items[i] = (sop_step_item){.seq = seq[i],
                                   .n_ids = PROMPT - 7 * i,
                                   .ids = prompt + i,
                                   .want = SOP_WANT_LAST,
                                   .sampling = {.temperature = i ? 0.9f : 0,
                                                .top_p = 0.95f,
                                                .seed = 42 + (uint64_t)i,
                                                .counter = UINT32_MAX - 3}};
    }
    ok = ok && sop_super_step(s, items, AHEAD_SEQS, ids, NULL) == SOP_OK;
    for (int32_t k = 1; k < AHEAD && ok;) {
        const int32_t n = at_once < AHEAD - k ? at_once : AHEAD - k;
        for (int32_t i = 0; i < AHEAD_SEQS; i++) {
            items[i].n_ids = 1;
            items[i].ids = &ids[(k - 1) * AHEAD_SEQS + i];
            items[i].sampling.counter = UINT32_MAX - 3 + (uint64_t)k;
        }
        int32_t *next = ids + k * AHEAD_SEQS;
        ok = at_once ? sop_super_ahead(s, items, AHEAD_SEQS, n, next) == SOP_OK
                     : sop_super_step(s, items, AHEAD_SEQS, next, NULL) == SOP_OK;
        k += at_once ? n : 1;
    }
    if (!ok) printf("draw: %s\n", sop_last_error());
    for (int32_t i = 0; i < AHEAD_SEQS; i++) {
        CHECK(!ok || sop_super_length(s, seq[i]) == PROMPT - 7 * i + AHEAD - 1);
        sop_super_close(s, seq[i]);
    }
    return ok;
}

static void steps_ahead_say_what_steps_one_by_one_say(void)
{
    int32_t want[AHEAD * AHEAD_SEQS], got[AHEAD * AHEAD_SEQS];
    struct rig r = rig_of(NULL, NULL, "", AHEAD_SEQS, 128);
    CHECK(draw(r.super, 0, want));
    for (int32_t at_once = 1; at_once < AHEAD; at_once += 7) {
        CHECK(draw(r.super, at_once, got) && memcmp(want, got, sizeof want) == 0);
        sop_super_set_graphs(r.super, at_once > 1); /* recorded, too */
    }
    /* all of it or nothing, and what does not fit is said */
    int32_t seq;
    CHECK(sop_super_open(r.super, &seq) == SOP_OK);
    sop_step_item it = {.seq = seq, .n_ids = 64, .ids = prompt, .want = SOP_WANT_LAST};
    static int32_t many[64];
    it.ids = many;
    CHECK(sop_super_step(r.super, &it, 1, got, NULL) == SOP_OK);
    it.n_ids = 1;
    CHECK(sop_super_ahead(r.super, &it, 1, 65, got) == SOP_E_LIMIT);
    CHECK(sop_super_ahead(r.super, &it, 1, 64, got) == SOP_OK);
    CHECK(sop_super_ahead(r.super, &it, 1, 1, got) == SOP_E_LIMIT); /* the context is full */
    CHECK(sop_super_length(r.super, seq) == 128);
    it.want = SOP_WANT_NONE;
    CHECK(sop_super_ahead(r.super, &it, 1, 1, got) == SOP_E_ARG);
    rig_close(&r);

    sop_device *cpu, *tagged;
    sop_planner *planner = NULL;
    CHECK(sop_device_cpu(2, &cpu) == SOP_OK && sop_planner_create(cpu, "", &planner) == SOP_OK);
    CHECK(tagged_create(cpu, planner, &tagged) == SOP_OK);
    r = rig_of(NULL, tagged, "", AHEAD_SEQS, 128);
    const uint64_t replayed = tagged_counted(tagged).replayed;
    CHECK(draw(r.super, 5, got) && memcmp(want, got, sizeof want) == 0);
    CHECK(tagged_counted(tagged).replayed == replayed + AHEAD);
    CHECK(tagged_counted(tagged).refused == 0);
    rig_close(&r);
    sop_device_destroy(tagged);
    sop_planner_destroy(planner);
    sop_device_destroy(cpu);
}

/* In a recording no row is alone: the next start waits for each, and so finds it. */
static void what_took_the_device_is_found_at_the_next_start(void)
{
    static const char *const together = "several rows at once", *const row = "tagged:rope";
    sop_device *cpu, *tagged;
    sop_planner *planner = NULL;
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    CHECK(sop_device_cpu(2, &cpu) == SOP_OK && sop_planner_create(cpu, "", &planner) == SOP_OK);
    CHECK(tagged_create(cpu, planner, &tagged) == SOP_OK);
    struct rig r = rig_of(NULL, tagged, "", 1, 128);
    sop_planner *p = sop_runtime_planner(r.rt);
    const sop_limits limits = {.ctx = 128, .max_seqs = 1, .max_tokens = 64, .max_outs = 1};
    CHECK(generate(r.super, N, ids, logits)); /* recorded, and all is well */
    for (int start = 0; start < 2; start++) {
        tagged_lose(tagged, row);
        CHECK(!generate(r.super, N, ids, logits));
        CHECK(strstr(sop_last_error(), "lost"));
        CHECK((sop_planner_quarantined(p, together) != NULL) == (start == 0));
        CHECK((sop_planner_quarantined(p, row) != NULL) == (start == 1));
        tagged_lose(tagged, NULL);
        sop_super_destroy(r.super);
        r.super = NULL;
        if (start == 0) CHECK(sop_model_super(r.model, &limits, &r.super) == SOP_OK);
    }
    const char *why = sop_planner_quarantined(p, row);
    CHECK(why && strstr(why, "a fault that stays"));
    rig_close(&r);
    sop_device_destroy(tagged);
    sop_planner_destroy(planner);
    sop_device_destroy(cpu);
    free(logits);
}

/* ---- a rope row that yields NaN ---- */

static sop_planner *inner; /* chooses the rows that the plug-ins of this file stand in for */
static atomic_int nan_calls, nan_until;

static sop_status as_the_library(const char *op, const sop_call *call)
{
    sop_choice c;
    const sop_status status =
        sop_planner_choose(inner, sop_op_find(op), call->desc, 0, SIZE_MAX, &c);
    if (status != SOP_OK) return status;
    sop_call as = *call;
    as.split = &c.split;
    return c.row->run(&as);
}

static sop_status rope_nan(const sop_call *call)
{
    const sop_rope_desc *d = call->desc;
    const sop_status status = as_the_library("rope", call);
    const int calls = atomic_fetch_add(&nan_calls, 1);
    if (calls >= 0 && calls < atomic_load(&nan_until))
        ((float *)call->args[SOP_ROPE_Y].data)[d->k / 2] = NAN;
    return status;
}

static const sop_row row_nan = {.size = sizeof(sop_row),
                                .device = SOP_DEVICE_CPU,
                                .name = "test:rope_nan",
                                .route = "c",
                                .traits = SOP_ROW_INVARIANT,
                                .run = rope_nan};

/* ---- a rope row that has to prepare, as one that asks a library ---- */

static int prepared, released, served;

static sop_status rope_prepare(const void *desc, sop_device *d, void **state)
{
    (void)desc, (void)d;
    prepared++;
    *state = &prepared;
    return SOP_OK;
}

static void rope_release(void *state)
{
    released += state == &prepared;
}

static sop_status rope_prepared(const sop_call *call)
{
    served += call->prepared == &prepared;
    return as_the_library("rope", call);
}

static void a_row_that_prepares_does_so_before_the_first_step_alone(void)
{
    static const sop_row row = {.size = sizeof(sop_row),
                                .device = SOP_DEVICE_CPU,
                                .name = "test:rope_prepared",
                                .route = "vendor",
                                .traits = SOP_ROW_INVARIANT,
                                .prepare = rope_prepare,
                                .release = rope_release,
                                .run = rope_prepared};
    const sop_limits limits = {.ctx = 128, .max_seqs = 1, .max_tokens = 64, .max_outs = 1};
    int32_t ids[N];
    struct rig r = {0};
    float *logits = malloc(sizeof base_logits);
    CHECK(sop_runtime_create(NULL, NULL, "", &r.rt) == SOP_OK);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row) == SOP_OK);
    CHECK(sop_model_open(r.rt, MODEL, &r.model) == SOP_OK);
    CHECK(sop_model_super(r.model, &limits, &r.super) == SOP_OK);
    const int before = prepared;
    CHECK(before > 0 && generate(r.super, N, ids, logits));
    CHECK(prepared == before && served > 0);
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    rig_close(&r);
    CHECK(released == before);
    free(logits);
}

struct variants {
    char text[4096];
};

static void note(void *ctx, const sop_explain_line *line)
{
    struct variants *v = ctx;
    const size_t n = strlen(v->text);
    if (line->variant)
        (void)snprintf(v->text + n, sizeof v->text - n, "%s=%s\n", line->module, line->variant);
}

static struct variants variants_of(sop_super *s)
{
    struct variants v = {""};
    CHECK(sop_super_explain(s, 1, 1, 30, note, &v) == SOP_OK);
    return v;
}

static void a_rope_row_that_yields_nan_is_retried_and_replaced_alone(void)
{
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_ALWAYS;
    config.fallback.max_retries = 3;
    struct rig r = rig_of(&config, NULL, "", 1, 128);
    const struct variants before = variants_of(r.super);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
    CHECK(strstr(variants_of(r.super).text, "rope=test:rope_nan") != NULL);
    atomic_store(&nan_calls, 0);
    atomic_store(&nan_until, 1 << 30);
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    CHECK(atomic_load(&nan_calls) == 1 + 3); /* tried once and as often again as configured */
    sop_super_counts c;
    sop_super_counts_of(r.super, &c);
    CHECK(c.retries == 3 && c.guard_trips == 4 && c.step_downs == 1 && c.quarantines == 1);
    CHECK(strcmp(variants_of(r.super).text, before.text) == 0); /* every other module as before */
    const char *why = sop_planner_quarantined(sop_runtime_planner(r.rt), row_nan.name);
    CHECK(why && strstr(why, "not finite"));
    rig_close(&r);
    free(logits);
}

/* A recording stops for no guard; the step is judged by its logits. */
static void a_row_that_yields_nan_in_a_recorded_step_is_replaced(void)
{
    for (int with_next = 0; with_next < 2; with_next++) {
        sop_config config;
        sop_config_defaults(&config); /* guard: sample */
        struct rig r = rig_of(&config, NULL, "", 1, 128);
        sop_super_set_graphs(r.super, true);
        CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
        atomic_store(&nan_calls, 0);
        atomic_store(&nan_until, 1 << 30);
        int32_t ids[N], seq;
        float *logits = malloc(sizeof base_logits);
        sop_super_counts c;
        CHECK(sop_super_open(r.super, &seq) == SOP_OK);
        const sop_step_item it = {
            .seq = seq, .n_ids = PROMPT, .ids = prompt, .want = SOP_WANT_LAST};
        CHECK(sop_super_step(r.super, &it, 1, with_next ? ids : NULL, logits) == SOP_OK);
        CHECK(!with_next || ids[0] == base_ids[0]);
        CHECK(memcmp(logits, base_logits, VOCAB * sizeof *logits) == 0);
        sop_super_counts_of(r.super, &c);
        CHECK(c.replays == 1 && c.quarantines == 1 && c.step_downs == 1);
        CHECK(sop_super_length(r.super, seq) == PROMPT);
        rig_close(&r);
        free(logits);
    }
}

/* Found in what the recorded steps ahead said: all of them run again, one by one. */
static void a_row_that_yields_nan_ahead_is_replaced(void)
{
    int32_t want[AHEAD * AHEAD_SEQS], got[AHEAD * AHEAD_SEQS];
    struct rig r = rig_of(NULL, NULL, "", AHEAD_SEQS, 128);
    CHECK(draw(r.super, 0, want));
    sop_super_set_graphs(r.super, true);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
    atomic_store(&nan_calls, -9); /* the prompt and some steps are right */
    atomic_store(&nan_until, 1 << 30);
    CHECK(draw(r.super, 6, got) && memcmp(want, got, sizeof want) == 0);
    sop_super_counts c;
    sop_super_counts_of(r.super, &c);
    CHECK(c.quarantines == 1 && c.step_downs == 1);
    rig_close(&r);
}

static void a_row_that_fails_once_keeps_serving(void)
{
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_ALWAYS;
    struct rig r = rig_of(&config, NULL, "", 1, 128);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
    atomic_store(&nan_calls, 0);
    atomic_store(&nan_until, 1);
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    sop_super_counts c;
    sop_super_counts_of(r.super, &c);
    CHECK(c.retries == 1 && c.quarantines == 0);
    CHECK(strstr(variants_of(r.super).text, "rope=test:rope_nan") != NULL);
    rig_close(&r);
    free(logits);
}

static void with_fallback_off_the_step_fails_and_nothing_has_changed(void)
{
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_ALWAYS;
    config.fallback.enable = 0;
    struct rig r = rig_of(&config, NULL, "", 1, 128);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
    atomic_store(&nan_calls, 0);
    atomic_store(&nan_until, 1 << 30);
    int32_t seq, id;
    CHECK(sop_super_open(r.super, &seq) == SOP_OK);
    const sop_step_item it = {.seq = seq, .n_ids = PROMPT, .ids = prompt, .want = SOP_WANT_LAST};
    CHECK(sop_super_step(r.super, &it, 1, &id, NULL) == SOP_E_NUMERIC);
    CHECK(strstr(sop_last_error(), "test:rope_nan") != NULL);
    CHECK(sop_super_length(r.super, seq) == 0);
    atomic_store(&nan_until, 0);
    CHECK(sop_super_step(r.super, &it, 1, &id, NULL) == SOP_OK && id == base_ids[0]);
    rig_close(&r);
}

static void with_fallback_off_steps_ahead_fail_and_nothing_has_changed(void)
{
    for (int32_t guard = SOP_GUARD_SAMPLE; guard <= SOP_GUARD_ALWAYS; guard++)
        for (int graphs = 0; graphs < 2; graphs++) {
            sop_config config;
            sop_config_defaults(&config);
            config.guard = guard;
            config.fallback.enable = 0;
            struct rig r = rig_of(&config, NULL, "", 1, 128);
            sop_super_set_graphs(r.super, graphs);
            CHECK(sop_planner_add(sop_runtime_planner(r.rt), "rope", &row_nan) == SOP_OK);
            atomic_store(&nan_calls, 0);
            atomic_store(&nan_until, 0);
            int32_t seq, id, next[N];
            CHECK(sop_super_open(r.super, &seq) == SOP_OK);
            sop_step_item it = {.seq = seq, .n_ids = PROMPT, .ids = prompt, .want = SOP_WANT_LAST};
            CHECK(sop_super_step(r.super, &it, 1, &id, NULL) == SOP_OK && id == base_ids[0]);
            it.n_ids = 1, it.ids = &id;
            atomic_store(&nan_until, 1 << 30);
            CHECK(sop_super_ahead(r.super, &it, 1, N - 1, next) == SOP_E_NUMERIC);
            CHECK(sop_super_length(r.super, seq) == PROMPT);
            atomic_store(&nan_until, 0);
            CHECK(sop_super_ahead(r.super, &it, 1, N - 1, next) == SOP_OK);
            CHECK(memcmp(next, base_ids + 1, (N - 1) * sizeof *next) == 0);
            rig_close(&r);
        }
}

/* The last rung of a ladder fits where the rows that were chosen did, whatever the threads. */
static void the_reference_of_attention_is_always_left(void)
{
    sop_config config;
    sop_config_defaults(&config);
    config.threads = 64;
    struct rig r = rig_of(&config, NULL, "", 1, 4096);
    const sop_op *op = sop_op_find("attention");
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    CHECK(generate(r.super, N, ids, logits));
    for (int32_t i = 0; i < op->n_rows; i++)
        if (op->rows[i].device == SOP_DEVICE_CPU && !(op->rows[i].traits & SOP_ROW_REFERENCE))
            CHECK(sop_planner_quarantine(sop_runtime_planner(r.rt), op->rows[i].name, "a test") ==
                  SOP_OK);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(ids, base_ids, sizeof ids) == 0);
    CHECK(strstr(variants_of(r.super).text, "attention_ref") != NULL);
    rig_close(&r);
    free(logits);
}

/* ---- a giant over norm, qkv projection and rope ---- */

enum { GIANT_FINE, GIANT_STATUS, GIANT_NAN, GIANT_CRASH };
static atomic_int giant_mode, giant_calls;

/* Wins one-token steps; takes any that its members take. */
static const char *giant_refuse(const void *desc)
{
    const void *const *d = desc;
    sop_choice c;
    if (((const sop_rmsnorm_desc *)d[0])->tokens != 1) return "made for one token";
    return sop_planner_choose(inner, sop_op_find("linear"), d[1], 0, SIZE_MAX, &c) == SOP_OK &&
                   c.row->layout == SOP_LAYOUT_PANEL16
               ? NULL
               : "its linear reads panels";
}

static sop_status giant_plan(const void *desc, const int32_t *params, const sop_facts *f,
                             size_t budget, sop_split *split)
{
    static const char *const ops[] = {"rmsnorm", "linear", "rope"};
    const void *const *d = desc;
    (void)params, (void)f, (void)budget;
    for (int i = 0; i < 3; i++) {
        sop_choice c;
        const sop_status s = sop_planner_choose(inner, sop_op_find(ops[i]), d[i], 0, SIZE_MAX, &c);
        if (s != SOP_OK) return s;
        if (c.split.scratch_bytes > split->scratch_bytes)
            split->scratch_bytes = c.split.scratch_bytes;
    }
    return SOP_OK;
}

static sop_status giant_run(const sop_call *call)
{
    static const char *const ops[] = {"rmsnorm", "linear", "rope"};
    const void *const *d = call->desc;
    const sop_operand *args = call->args;
    atomic_fetch_add(&giant_calls, 1);
    if (atomic_load(&giant_mode) == GIANT_STATUS) return SOP_E_DEVICE;
    if (atomic_load(&giant_mode) == GIANT_CRASH) abort();
    for (int i = 0; i < 3; i++) {
        sop_call member = *call;
        const sop_op *op = sop_op_find(ops[i]);
        member.desc = d[i];
        member.args = args;
        member.n_args = (uint32_t)op->n_roles;
        const sop_status s = as_the_library(ops[i], &member);
        if (s != SOP_OK) return s;
        args += op->n_roles;
    }
    if (atomic_load(&giant_mode) == GIANT_NAN)
        *(float *)call->args[SOP_RMSNORM_ROLES + SOP_LINEAR_ROLES + SOP_ROPE_Y].data = NAN;
    return SOP_OK;
}

static const char *const giant_span[] = {"rmsnorm", "linear", "rope", NULL};
static const sop_row row_giant = {.size = sizeof(sop_row),
                                  .device = SOP_DEVICE_CPU,
                                  .name = "test:giant_norm_qkv_rope",
                                  .route = "c",
                                  .traits = SOP_ROW_INVARIANT,
                                  .layout = SOP_LAYOUT_PANEL16,
                                  .span = giant_span,
                                  .refuse = giant_refuse,
                                  .plan = giant_plan,
                                  .run = giant_run};

static void giant_fails(int mode, const char *store)
{
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_ALWAYS;
    struct rig r = rig_of(&config, NULL, store, 1, 128);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), NULL, &row_giant) == SOP_OK);
    CHECK(strstr(variants_of(r.super).text, "norm=test:giant_norm_qkv_rope") != NULL);
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    atomic_store(&giant_mode, GIANT_FINE);
    atomic_store(&giant_calls, 0);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    CHECK(atomic_load(&giant_calls) == 2 * (N - 1)); /* two layers, each one-token step */
    atomic_store(&giant_mode, mode);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    CHECK(strstr(variants_of(r.super).text, "giant") == NULL);
    rig_close(&r);

    /* at the next start it is still out, and the answer right */
    atomic_store(&giant_mode, GIANT_FINE);
    atomic_store(&giant_calls, 0);
    r = rig_of(&config, NULL, store, 1, 128);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), NULL, &row_giant) == SOP_OK);
    CHECK(sop_planner_quarantined(sop_runtime_planner(r.rt), row_giant.name) != NULL);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0);
    CHECK(atomic_load(&giant_calls) == 0);
    rig_close(&r);
    free(logits);
}

static void with_store(void (*test)(const char *store))
{
    char folder[] = "/tmp/sop_seams_XXXXXX", store[64], cmd[96];
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(store, sizeof store, "%s/store.sqlite", folder);
    test(store);
    (void)snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    CHECK(system(cmd) == 0);
}

static void fails_with_a_status(const char *store)
{
    giant_fails(GIANT_STATUS, store);
}

static void fails_with_nan(const char *store)
{
    giant_fails(GIANT_NAN, store);
}

static void crashes(const char *store)
{
    const pid_t child = fork();
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        struct rig r = rig_of(NULL, NULL, store, 1, 128);
        if (sop_planner_add(sop_runtime_planner(r.rt), NULL, &row_giant) != SOP_OK) _exit(7);
        int32_t ids[N];
        float *logits = malloc(sizeof base_logits);
        atomic_store(&giant_mode, GIANT_CRASH);
        (void)generate(r.super, N, ids, logits);
        _exit(8); /* it should not have come here */
    }
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how));
    struct rig r = rig_of(NULL, NULL, store, 1, 128);
    CHECK(sop_planner_add(sop_runtime_planner(r.rt), NULL, &row_giant) == SOP_OK);
    const char *why = sop_planner_quarantined(sop_runtime_planner(r.rt), row_giant.name);
    CHECK(why && strstr(why, "crash"));
    int32_t ids[N];
    float *logits = malloc(sizeof base_logits);
    atomic_store(&giant_mode, GIANT_FINE);
    atomic_store(&giant_calls, 0);
    CHECK(generate(r.super, N, ids, logits));
    CHECK(memcmp(logits, base_logits, sizeof base_logits) == 0 && atomic_load(&giant_calls) == 0);
    rig_close(&r);
    free(logits);
}

static void a_giant_that_returns_a_status_is_quarantined_across_a_restart(void)
{
    with_store(fails_with_a_status);
}

static void a_giant_that_yields_nan_is_quarantined_across_a_restart(void)
{
    with_store(fails_with_nan);
}

static void a_giant_that_crashed_is_known_from_the_journal_at_the_next_start(void)
{
    with_store(crashes);
}

/* ---- the attention paths ---- */

struct path {
    bool ring, tiled;
};

static void note_path(void *ctx, const sop_explain_line *line)
{
    struct path *p = ctx;
    if (line->variant && strcmp(line->module, "attention core") == 0) {
        p->ring |= strstr(line->variant, "ring") != NULL;
        p->tiled |= strstr(line->variant, "tiled") != NULL;
    }
}

static struct path path_of(sop_super *s, int32_t seqs, int64_t tokens, int64_t length)
{
    struct path p = {0};
    CHECK(sop_super_explain(s, seqs, tokens, length, note_path, &p) == SOP_OK);
    return p;
}

static void free_memory_and_length_flip_the_path(void)
{
    struct rig r = rig_of(NULL, NULL, "", 8, 70000);
    sop_memory m;
    sop_super_memory(r.super, &m);
    const double taken = (double)(m.pools - m.kv); /* all pages are free */
    sop_super_set_budget(r.super, taken + 8.001 * 0x1p30);
    CHECK(path_of(r.super, 1, 1, 65536).ring);
    CHECK(!path_of(r.super, 1, 1, 65535).ring);
    sop_super_set_budget(r.super, taken + 7.999 * 0x1p30);
    CHECK(!path_of(r.super, 1, 1, 65536).ring);
    CHECK(path_of(r.super, 4, 16, 1000).tiled);
    CHECK(!path_of(r.super, 5, 1, 1000).tiled);
    CHECK(!path_of(r.super, 1, 17, 1000).tiled);
    rig_close(&r);
}

/* ---- one plan, one graph ---- */

static void one_plan_and_one_graph_serve_a_thousand_steps(void)
{
    enum { SEQS = 8, STEPS = 1000, CTX = 256 };
    sop_config config;
    sop_config_defaults(&config);
    config.guard = SOP_GUARD_OFF;
    struct rig r = rig_of(&config, NULL, "", SEQS, CTX), alone = rig_of(&config, NULL, "", 1, CTX);
    sop_super_set_graphs(r.super, true);
    int32_t seq[SEQS], last[SEQS], next[SEQS], history[CTX], n_history = 0, watched = -1;
    int64_t most = 0;
    for (int i = 0; i < SEQS; i++) seq[i] = -1;
    for (int step = 0; step < STEPS; step++) {
        sop_step_item items[SEQS];
        int32_t of[SEQS], n = 0;
        for (int i = 0; i < SEQS; i++) {
            /* five to eight at a time: each leaves and comes back at its own pace */
            const bool wanted = i < 5 || (step / (40 + 7 * i)) % 2 == 0;
            const bool full = seq[i] >= 0 && sop_super_length(r.super, seq[i]) == CTX;
            if (seq[i] >= 0 && (!wanted || full)) {
                sop_super_close(r.super, seq[i]);
                seq[i] = -1;
                if (i == watched) watched = -2; /* its whole life was kept */
            }
            if (!wanted) continue;
            if (seq[i] < 0) {
                CHECK(sop_super_open(r.super, &seq[i]) == SOP_OK);
                last[i] = 3 + 11 * i + step % 50;
                if (watched == -1 && i == 6 && step > 100) watched = i;
            }
            if (i == watched) history[n_history++] = last[i];
            items[n] =
                (sop_step_item){.seq = seq[i], .n_ids = 1, .ids = &last[i], .want = SOP_WANT_LAST};
            of[n++] = i;
        }
        CHECK(sop_super_step(r.super, items, n, next, NULL) == SOP_OK);
        for (int k = 0; k < n; k++) {
            last[of[k]] = next[k];
            const int64_t length = sop_super_length(r.super, seq[of[k]]);
            if (length > most) most = length;
        }
    }
    sop_super_counts c;
    sop_super_counts_of(r.super, &c);
    CHECK(c.plan_misses == 1 && c.graphs == 1 && c.replays == STEPS && c.steps == STEPS);
    CHECK(most > 200);

    /* one of them, alone: the same tokens in its whole life */
    int32_t s, id = 0;
    CHECK(watched == -2 && n_history > 20);
    CHECK(sop_super_open(alone.super, &s) == SOP_OK);
    int wrong = 0;
    for (int i = 0; i + 1 < n_history; i++) {
        const sop_step_item it = {.seq = s, .n_ids = 1, .ids = &history[i], .want = SOP_WANT_LAST};
        CHECK(sop_super_step(alone.super, &it, 1, &id, NULL) == SOP_OK);
        wrong += id != history[i + 1];
    }
    CHECK(wrong == 0);
    rig_close(&r);
    rig_close(&alone);
}

int main(void)
{
    sop_device *cpu;
    CHECK(sop_device_cpu(2, &cpu) == SOP_OK && sop_planner_create(cpu, "", &inner) == SOP_OK);
    RUN(the_base_answers);
    RUN(a_second_device_with_its_own_addresses_gives_the_same_bits);
    RUN(what_runs_without_a_recording_is_recorded_once_before_the_first_step);
    RUN(steps_ahead_say_what_steps_one_by_one_say);
    RUN(what_took_the_device_is_found_at_the_next_start);
    RUN(a_row_that_prepares_does_so_before_the_first_step_alone);
    RUN(a_rope_row_that_yields_nan_is_retried_and_replaced_alone);
    RUN(a_row_that_yields_nan_in_a_recorded_step_is_replaced);
    RUN(a_row_that_yields_nan_ahead_is_replaced);
    RUN(a_row_that_fails_once_keeps_serving);
    RUN(with_fallback_off_the_step_fails_and_nothing_has_changed);
    RUN(with_fallback_off_steps_ahead_fail_and_nothing_has_changed);
    RUN(the_reference_of_attention_is_always_left);
    RUN(a_giant_that_returns_a_status_is_quarantined_across_a_restart);
    RUN(a_giant_that_yields_nan_is_quarantined_across_a_restart);
    RUN(a_giant_that_crashed_is_known_from_the_journal_at_the_next_start);
    RUN(free_memory_and_length_flip_the_path);
    RUN(one_plan_and_one_graph_serve_a_thousand_steps);
    sop_planner_destroy(inner);
    sop_device_destroy(cpu);
    return test_report();
}
