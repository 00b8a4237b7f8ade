#include <math.h>
#include <sys/mman.h>

#include "base/test.h"
#include "core/op.h"
#include "ops/attention/attention.h"
#include "ops/call_test.h"
#include "ops/ops.h"

#define EACH_ROW(row) \
    for (const sop_row *row = sop_op_attention.rows; \
         row < sop_op_attention.rows + sop_op_attention.n_rows; row++)

enum { MOST_SEQS = 8 };

/* 0, or the size that small heads have instead, so that tensor cores take them: of the channels there are more
 * keys hold 0, and pools are of f16. What tests expect stays, but for a weight's rounding to 16 bits. */
static int64_t wide;
static int is_wide; /* the world that was opened last */

/* A call's operands: queries of 0, keys and values of NaN until a test sets them. */
struct world {
    sop_attention_desc d;
    int32_t queries[MOST_SEQS], keys[MOST_SEQS]; /* set before open() */
    float *q, *o, *lse;
    void *k, *v;
    int32_t *table, *q_start, *kv_len;
    sop_operand args[SOP_ATTENTION_ROLES];
    int64_t narrow; /* channels that keys of set_kv() have */
};

static void *take(size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (!p) abort();
    memset(p, 0xff, bytes);
    return p;
}

/* Pages lie in the pool in the order that seed gives. */
static void open_world(struct world *w, uint64_t seed)
{
    sop_attention_desc *d = &w->d;
    w->narrow = d->k;
    is_wide = 0;
    if (wide && (d->k == 1 || d->k == 8 || d->k == 16) && d->kv_dtype == SOP_F32) {
        d->scale = (float)(1 / sqrt((double)d->k));
        d->k = d->v = wide;
        d->kv_dtype = SOP_F16;
        is_wide = 1;
    } else if (wide && d->k == 64 && d->kv_dtype == SOP_F32) {
        d->kv_dtype = SOP_F16;
        is_wide = 1;
    }
    for (int s = 0; s < (d->seqs ? d->seqs : 1); s++) {
        d->tokens += w->queries[s];
        if (w->keys[s] > d->max_kv) d->max_kv = w->keys[s];
    }
    sop_op_attention.complete(d);
    if (sop_op_attention.check(d) != SOP_OK) printf("%s\n", sop_last_error());
    for (int32_t role = 0; role < SOP_ATTENTION_ROLES; role++) {
        sop_tensor t;
        sop_op_attention.view(d, role, &t);
        w->args[role] = (sop_operand){t.ndim ? take(t.bytes) : NULL, t.bytes};
    }
    w->q = w->args[SOP_ATTENTION_Q].data;
    w->k = w->args[SOP_ATTENTION_K_POOL].data;
    w->v = w->args[SOP_ATTENTION_V_POOL].data;
    w->o = w->args[SOP_ATTENTION_O].data;
    w->lse = w->args[SOP_ATTENTION_LSE].data;
    w->table = w->args[SOP_ATTENTION_TABLE].data;
    w->q_start = w->args[SOP_ATTENTION_Q_START].data;
    w->kv_len = w->args[SOP_ATTENTION_KV_LEN].data;
    memset(w->q, 0, w->args[SOP_ATTENTION_Q].bytes);
    *(int32_t *)w->args[SOP_ATTENTION_LIVE].data = (int32_t)d->seqs;
    w->q_start[0] = 0;
    for (int s = 0; s < d->seqs; s++) {
        w->q_start[s + 1] = w->q_start[s] + w->queries[s];
        w->kv_len[s] = w->keys[s];
    }
    const int64_t entries = d->seqs * d->table_stride;
    for (int64_t i = 0; i < entries; i++) w->table[i] = (int32_t)i;
    for (int64_t i = entries - 1; i > 0 && seed; i--) {
        const int64_t j = (int64_t)(sop_random(&seed) % (uint64_t)(i + 1));
        const int32_t other = w->table[j];
        w->table[j] = w->table[i];
        w->table[i] = other;
    }
}

static void close_world(struct world *w)
{
    for (int32_t role = 0; role < SOP_ATTENTION_ROLES; role++) free(w->args[role].data);
}

/* Every channel of key and value j of a sequence, in KV head g. */
static void set_kv(struct world *w, int64_t s, int64_t j, int64_t g, double k, double v)
{
    const sop_attention_desc *d = &w->d;
    const int64_t page = w->table[s * d->table_stride + j / d->page], at = j % d->page;
    for (int64_t i = 0; i < d->k; i++)
        sop_store(w->k, d->kv_dtype, page * d->kp_page + at * d->kp_token + g * d->kp_head + i,
                  i < w->narrow ? k : 0);
    for (int64_t i = 0; i < d->v; i++)
        sop_store(w->v, d->kv_dtype, page * d->vp_page + at * d->vp_token + g * d->vp_head + i, v);
}

static void set_q(struct world *w, float x)
{
    for (size_t i = 0; i < w->args[SOP_ATTENTION_Q].bytes / sizeof x; i++) w->q[i] = x;
}

/* Keys of 0 (or k), value j at position j, in all sequences and heads. */
static void count_up(struct world *w, double k)
{
    for (int64_t s = 0; s < w->d.seqs; s++)
        for (int64_t j = 0; j < w->keys[s]; j++)
            for (int64_t g = 0; g < w->d.kv_heads; g++) set_kv(w, s, j, g, k, (double)j);
}

/* The same numbers for the same seed, sequence, position, head and channel, wherever they lie. */
static void random_kv(struct world *w, uint64_t seed)
{
    const sop_attention_desc *d = &w->d;
    for (int64_t s = 0; s < d->seqs; s++)
        for (int64_t j = 0; j < w->keys[s]; j++)
            for (int64_t g = 0; g < d->kv_heads; g++) {
                const int64_t page = w->table[s * d->table_stride + j / d->page];
                const int64_t at = j % d->page;
                uint64_t state = seed + 1000003 * (uint64_t)j + 7919 * (uint64_t)g;
                for (int64_t i = 0; i < d->k + d->v; i++) {
                    const double x = (double)(int64_t)sop_random(&state) * 0x1p-62;
                    if (i < d->k)
                        sop_store(w->k, d->kv_dtype,
                                  page * d->kp_page + at * d->kp_token + g * d->kp_head + i, x);
                    else
                        sop_store(w->v, d->kv_dtype,
                                  page * d->vp_page + at * d->vp_token + g * d->vp_head + i - d->k,
                                  x);
                }
            }
}

/* Query i of a sequence of n gets the numbers of position keys - n + i. */
static void random_q(struct world *w, uint64_t seed)
{
    const sop_attention_desc *d = &w->d;
    for (int64_t s = 0; s < d->seqs; s++)
        for (int64_t i = 0; i < w->queries[s]; i++)
            for (int64_t h = 0; h < d->heads; h++) {
                uint64_t state = seed + 1000033 * (uint64_t)(w->keys[s] - w->queries[s] + i) +
                                 7907 * (uint64_t)h;
                float *q = w->q + (w->q_start[s] + i) * d->q_stride + h * d->q_head;
                for (int64_t c = 0; c < d->k; c++)
                    q[c] = (float)((double)(int64_t)sop_random(&state) * 0x1p-62);
            }
}

/* Run; the outputs hold NaN before. 0 when the row does not take it here. */
static int run_world(struct world *w, const sop_row *row)
{
    if (!row_takes(row, &w->d)) return 0;
    memset(w->o, 0xff, w->args[SOP_ATTENTION_O].bytes);
    memset(w->lse, 0xff, w->args[SOP_ATTENTION_LSE].bytes);
    CHECK(run_row(&sop_op_attention, row, &w->d, w->args, 2) == SOP_OK);
    return 1;
}

static float out(const struct world *w, int64_t token, int64_t h)
{
    const float *o = w->o + token * w->d.o_stride + h * w->d.o_head;
    for (int64_t i = 1; i < w->d.v; i++)
        if (memcmp(o + i, o, sizeof *o) != 0) return NAN; /* all channels hold the same value */
    return o[0];
}

static int near(float got, double want, double within)
{
    if (is_wide) within = fmax(within, 0x1p-10 * fmax(1, fabs(want)));
    return fabs((double)got - want) <= within;
}

/* What a weight near 1 may be off by: the prompts' rows of a card round it to f16, as tensor cores want it,
 * while their sum has it as it was. */
static double weight_of(const sop_row *row)
{
    return row->device == SOP_DEVICE_CUDA ? 0x1p-11 : 1e-6;
}

/* ---- what a query sees ---- */

static void equal_scores_give_the_mean_and_their_log_sum(void)
{
    struct world w = {.d = {.k = 8}, .queries = {4}, .keys = {4}};
    open_world(&w, 0);
    count_up(&w, 1);
    set_q(&w, 1);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        for (int t = 0; t < 4; t++)
            CHECK(near(out(&w, t, 0), 1.5, 1e-6) && near(w.lse[t], 4.214721, 1e-6));
    }
    close_world(&w);
}

static void the_causal_corner_is_at_the_bottom_right(void)
{
    struct world w = {.d = {.k = 64, .causal = 1}, .queries = {2}, .keys = {5}};
    open_world(&w, 0);
    count_up(&w, 0);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 1.5, 1e-6) && near(out(&w, 1, 0), 2, 1e-6));
    }
    close_world(&w);
}

static void a_query_before_the_first_key_gets_zero_and_minus_infinity(void)
{
    struct world w = {.d = {.k = 64, .causal = 1, .page = 16}, .queries = {4}, .keys = {1}};
    open_world(&w, 0);
    set_kv(&w, 0, 0, 0, 0.5, 3);
    set_q(&w, 0.25f);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        for (int t = 0; t < 3; t++) CHECK(out(&w, t, 0) == 0 && w.lse[t] == -INFINITY);
        CHECK(out(&w, 3, 0) == 3 && near(w.lse[3], 0.125 * 8, 1e-6));
    }
    close_world(&w);
}

static void a_window_counts_the_query_itself(void)
{
    static const double want[] = {0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5};
    struct world w = {.d = {.k = 64, .causal = 1, .window = 4}, .queries = {8}, .keys = {8}};
    open_world(&w, 0);
    count_up(&w, 0);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        for (int t = 0; t < 8; t++) CHECK(near(out(&w, t, 0), want[t], 1e-6));
    }
    close_world(&w);
}

static void a_decode_step_sees_its_window_only(void)
{
    struct world w = {.d = {.k = 16, .causal = 1, .window = 512}, .queries = {1}, .keys = {600}};
    open_world(&w, 3);
    count_up(&w, 0);
    /* keys out of the window may be gone: their page is no page */
    w.table[0] = -1;
    EACH_ROW(row)
    {
        if (run_world(&w, row)) CHECK(near(out(&w, 0, 0), 343.5, 1e-4));
    }
    close_world(&w);
}

static void keys_beyond_a_sequence_are_not_read(void)
{
    struct world w = {.d = {.k = 8, .seqs = 2, .page = 4}, .queries = {1, 1}, .keys = {4, 2}};
    open_world(&w, 0);
    count_up(&w, 0); /* the rest of the pool is NaN */
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 1.5, 1e-6) && near(out(&w, 1, 0), 0.5, 1e-6));
    }
    close_world(&w);
}

static void no_queries_no_keys_and_no_sequences_are_fine(void)
{
    struct world w = {.d = {.k = 8, .seqs = 2, .causal = 1}, .queries = {0, 3}, .keys = {4096, 0}};
    open_world(&w, 0);
    EACH_ROW(row)
    {
        *(int32_t *)w.args[SOP_ATTENTION_LIVE].data = 2;
        if (!run_world(&w, row)) continue;
        for (int t = 0; t < 3; t++) CHECK(out(&w, t, 0) == 0 && w.lse[t] == -INFINITY);
        *(int32_t *)w.args[SOP_ATTENTION_LIVE].data = 0;
        run_world(&w, row);
        CHECK(isnan(w.lse[0])); /* as it was */
    }
    close_world(&w);
}

/* ---- numbers ---- */

static void scores_far_below_zero_still_have_a_softmax(void)
{
    struct world w = {
        .d = {.k = 128, .kv_dtype = SOP_F16, .causal = 1}, .queries = {1}, .keys = {4}};
    open_world(&w, 0);
    for (int j = 0; j < 4; j++) set_kv(&w, 0, j, 0, -(500 + j), j + 1);
    w.q[0] = 448;
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 1, weight_of(row)) && near(w.lse[0], -19798.990, 4e-3));
    }
    close_world(&w);
}

static void products_beyond_half_precision_are_fine(void)
{
    struct world w = {.d = {.k = 128, .kv_dtype = SOP_F16}, .queries = {1}, .keys = {2}};
    open_world(&w, 0);
    for (int j = 0; j < 2; j++) set_kv(&w, 0, j, 0, 30, j + 1);
    set_q(&w, 30);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 1.5, 1.5 * weight_of(row)) && near(w.lse[0], 10183.031, 4e-3));
    }
    close_world(&w);
}

static void the_cap_comes_before_the_mask(void)
{
    struct world w = {.d = {.k = 1, .cap = 1, .causal = 1}, .queries = {2}, .keys = {2}};
    open_world(&w, 0);
    set_kv(&w, 0, 0, 0, 0, 3);
    set_kv(&w, 0, 1, 0, 100, 5);
    set_q(&w, 1);
    EACH_ROW(row)
    {
        if (run_world(&w, row)) CHECK(out(&w, 0, 0) == 3 && w.lse[0] == 0);
    }
    close_world(&w);
}

static void the_cap_bounds_large_scores(void)
{
    static const double in[] = {124, -60, 1, 0};
    static const double want[] = {29.984588, -28.920827, 0.99962979, 0};
    struct world w = {
        .d = {.k = 1, .cap = 30, .seqs = 4}, .queries = {1, 1, 1, 1}, .keys = {1, 1, 1, 1}};
    open_world(&w, 0);
    for (int s = 0; s < 4; s++) set_kv(&w, s, 0, 0, in[s], 1);
    set_q(&w, 1);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        for (int s = 0; s < 4; s++)
            CHECK(near(w.lse[s], want[s], 3e-7 * fabs(want[s])) && near(out(&w, s, 0), 1, 1e-6));
    }
    close_world(&w);
}

/* ---- heads ---- */

static void a_query_head_reads_the_kv_head_of_its_group(void)
{
    static const int heads[][2] = {{48, 2}, {40, 2}, {80, 4}, {28, 4}, {71, 1}, {9, 3}, {5, 5}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct world w = {.d = {.k = 8, .heads = heads[i][0], .kv_heads = heads[i][1], .causal = 1},
                          .queries = {3},
                          .keys = {70}};
        open_world(&w, 0);
        for (int j = 0; j < 70; j++)
            for (int g = 0; g < heads[i][1]; g++) set_kv(&w, 0, j, g, 0, g);
        EACH_ROW(row)
        {
            if (!run_world(&w, row)) continue;
            for (int t = 0; t < 3; t++)
                for (int h = 0; h < heads[i][0]; h++)
                    CHECK(out(&w, t, h) == (float)(h / (heads[i][0] / heads[i][1])));
        }
        close_world(&w);
    }
}

static void heads_that_do_not_divide_are_refused(void)
{
    static const int heads[][2] = {{3, 2}, {33, 2}, {4, 0}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        sop_attention_desc d = {.tokens = 1, .k = 8, .heads = heads[i][0], .kv_heads = 1};
        sop_op_attention.complete(&d);
        d.kv_heads = heads[i][1];
        CHECK(sop_op_attention.check(&d) == SOP_E_SHAPE && strstr(sop_last_error(), "kv_heads"));
    }
}

/* ---- what is added to scores, and to their sum ---- */

static void a_sink_takes_its_share_and_has_no_value(void)
{
    struct world w = {.d = {.k = 8, .heads = 2, .sinks = 1}, .queries = {1}, .keys = {3}};
    open_world(&w, 0);
    count_up(&w, 0);
    float *sinks = w.args[SOP_ATTENTION_SINKS].data;
    sinks[0] = 1.0986123f; /* log 3: as much as all the keys */
    sinks[1] = -INFINITY;
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 0.5, 1e-6) && near(w.lse[0], 1.7917595, 1e-6));
        CHECK(near(out(&w, 0, 1), 1, 1e-6) && near(w.lse[1], 1.0986123, 1e-6));
    }
    close_world(&w);
}

static void a_query_that_sees_nothing_has_its_sink(void)
{
    struct world w = {.d = {.k = 8, .causal = 1, .sinks = 1}, .queries = {2}, .keys = {1}};
    open_world(&w, 0);
    count_up(&w, 0);
    ((float *)w.args[SOP_ATTENTION_SINKS].data)[0] = 100;
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(out(&w, 0, 0) == 0 && near(w.lse[0], 100, 1e-5));
        CHECK(near(w.lse[1], 100, 1e-5));
    }
    close_world(&w);
}

static void alibi_falls_with_the_distance_on_both_sides(void)
{
    struct world w = {.d = {.k = 8, .alibi = 1}, .queries = {3}, .keys = {3}};
    open_world(&w, 0);
    count_up(&w, 0);
    ((float *)w.args[SOP_ATTENTION_SLOPES].data)[0] = 0.69314718f; /* a half for each key of it */
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 1 / 1.75, 1e-6) && near(out(&w, 1, 0), 1, 1e-6));
        CHECK(near(w.lse[1], 0.6931472, 1e-6));
    }
    close_world(&w);
}

static void a_boolean_mask_hides_keys_even_all_of_them(void)
{
    struct world w = {
        .d = {.k = 8, .heads = 4, .mask_heads = 2, .mask_dtype = SOP_U8, .mask_head = 5},
        .queries = {2},
        .keys = {4}};
    open_world(&w, 0);
    count_up(&w, 0);
    static const uint8_t mask[2][2][4] = {{{0, 1, 0, 255}, {0, 0, 0, 0}},
                                          {{1, 1, 1, 1}, {0, 0, 2, 0}}};
    for (int t = 0; t < 2; t++)
        for (int h = 0; h < 2; h++)
            memcpy((uint8_t *)w.args[SOP_ATTENTION_MASK].data + t * w.d.mask_stride + h * 5,
                   mask[t][h], 4);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 2, 1e-6) && near(out(&w, 0, 1), 2, 1e-6));
        CHECK(out(&w, 0, 2) == 0 && w.lse[2] == -INFINITY);
        CHECK(near(out(&w, 1, 1), 1.5, 1e-6) && near(out(&w, 1, 3), 2, 1e-6));
    }
    close_world(&w);
}

static void a_mask_of_numbers_is_added_after_the_cap(void)
{
    struct world w = {.d = {.k = 8, .cap = 1, .mask_heads = 1}, .queries = {1}, .keys = {2}};
    open_world(&w, 0);
    count_up(&w, 1000);
    set_q(&w, 1);
    float *mask = w.args[SOP_ATTENTION_MASK].data;
    mask[0] = 0;
    mask[1] = 1.0986123f; /* three times the weight */
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        CHECK(near(out(&w, 0, 0), 0.75, 1e-6) && near(w.lse[0], 2.3862944, 1e-6));
    }
    close_world(&w);
}

static void cross_attention_sees_all_keys_whatever_their_number(void)
{
    struct world w = {.d = {.k = 8, .seqs = 3}, .queries = {3, 5, 2}, .keys = {130, 2, 1}};
    open_world(&w, 2);
    count_up(&w, 0);
    EACH_ROW(row)
    {
        if (!run_world(&w, row)) continue;
        for (int t = 0; t < 10; t++)
            CHECK(near(out(&w, t, 0), t < 3 ? 64.5 : t < 8 ? 0.5 : 0, 1e-5));
    }
    close_world(&w);
}

static void pools_of_codes_are_read_by_the_scales_of_their_head(void)
{
    for (int32_t type = SOP_I8; type <= SOP_F8; type += SOP_F8 - SOP_I8) {
        struct world w = {.d = {.k = 8, .heads = 2, .kv_dtype = type}, .queries = {1}, .keys = {2}};
        open_world(&w, 0);
        float *scales = w.args[SOP_ATTENTION_K_SCALES].data;
        for (int g = 0; g < 2; g++) {
            set_kv(&w, 0, 0, g, 0, 12);
            set_kv(&w, 0, 1, g, g ? -10 : 10, -4);
            scales[g] = 0.1f;
        }
        scales = w.args[SOP_ATTENTION_V_SCALES].data;
        scales[0] = 0.5f, scales[1] = 2;
        set_q(&w, 0.38841876f); /* 8 q / sqrt(8) = log 3 */
        EACH_ROW(row)
        {
            if (!run_world(&w, row)) continue;
            CHECK(near(out(&w, 0, 0), 0, 1e-5) && near(w.lse[0], 1.3862944, 1e-5));
            CHECK(near(out(&w, 0, 1), 16, 1e-4));
        }
        close_world(&w);
    }
}

static void masks_that_do_not_fit_are_refused(void)
{
    sop_attention_desc d = {.tokens = 1, .k = 8, .heads = 3, .mask_heads = 2};
    sop_op_attention.complete(&d);
    CHECK(sop_op_attention.check(&d) == SOP_E_SHAPE && strstr(sop_last_error(), "mask_heads=2"));
    d.mask_heads = 3;
    d.mask_dtype = SOP_I32;
    CHECK(sop_op_attention.check(&d) == SOP_E_ARG && strstr(sop_last_error(), "mask must be"));
}

/* ---- pages ---- */

static void cached_and_new_keys_are_found_through_the_table(void)
{
    struct world w = {
        .d = {.k = 8, .causal = 1, .page = 4, .pages = 4}, .queries = {4}, .keys = {8}};
    open_world(&w, 0);
    for (int swapped = 0; swapped < 2; swapped++) {
        w.table[0] = swapped ? 1 : 3;
        w.table[1] = swapped ? 3 : 1;
        count_up(&w, 0);
        EACH_ROW(row)
        {
            if (run_world(&w, row)) CHECK(near(out(&w, 3, 0), 3.5, 1e-6));
        }
    }
    close_world(&w);
}

/* Prefill of 90 queries and decode, over pages of 1, 3, 16 and 64 in four orders, token-major or
 * head-major: the same bits. */
static void where_the_pages_lie_changes_no_bit(void)
{
    static const int pages[] = {64, 1, 3, 16};
    for (int kind = 0; kind < 4; kind++) EACH_ROW(row)
        {
            float *first = NULL, *first_lse = NULL;
            for (uint64_t trial = 0; trial < 8; trial++) {
                struct world w = {.d = {.k = 40,
                                        .v = 24,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .causal = 1,
                                        .page = pages[trial % 4],
                                        .seqs = 2,
                                        .kv_dtype = kind % 2 ? SOP_F16 : SOP_F32},
                                  .queries = {kind < 2 ? 90 : 1, 2},
                                  .keys = {600, 77}};
                if (trial >= 4) {
                    w.d.kp_head = 40, w.d.kp_token = 80;
                    w.d.vp_head = 30, w.d.vp_token = 64;
                    w.d.vp_page = 64 * w.d.page + 5;
                }
                open_world(&w, trial);
                random_kv(&w, 1);
                random_q(&w, 2);
                if (run_world(&w, row)) {
                    if (!first) {
                        first = w.o, first_lse = w.lse;
                        w.args[SOP_ATTENTION_O].data = w.args[SOP_ATTENTION_LSE].data = NULL;
                    } else {
                        CHECK(memcmp(w.o, first, w.args[SOP_ATTENTION_O].bytes) == 0);
                        CHECK(memcmp(w.lse, first_lse, w.args[SOP_ATTENTION_LSE].bytes) == 0);
                    }
                }
                close_world(&w);
            }
            free(first);
            free(first_lse);
        }
}

/* Page 2066 with a stride of 1,039,680 elements begins past 2^31. Address space only: two pages are
 * touched. */
static void pages_past_two_to_the_31_elements_are_read(void)
{
    enum { STRIDE = 1039680, PAGES = 2067 };
    const size_t bytes = (size_t)STRIDE * PAGES * 2;
    void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) {
        SKIP("pages_past_two_to_the_31_elements_are_read", "no 4.3 GB of address space");
        return;
    }
    struct world w = {
        .d = {.k = 8, .causal = 1, .page = 2, .kv_dtype = SOP_F16}, .queries = {1}, .keys = {4}};
    open_world(&w, 0);
    w.d.pages = PAGES;
    w.d.kp_page = w.d.vp_page = STRIDE;
    free(w.k);
    free(w.v);
    w.k = w.v = w.args[SOP_ATTENTION_K_POOL].data = w.args[SOP_ATTENTION_V_POOL].data = pool;
    w.args[SOP_ATTENTION_K_POOL].bytes = w.args[SOP_ATTENTION_V_POOL].bytes = bytes;
    w.table[0] = 2065;
    w.table[1] = 2066;
    for (int j = 0; j < 4; j++) set_kv(&w, 0, j, 0, j + 1, j + 1);
    EACH_ROW(row)
    {
        if (run_world(&w, row)) CHECK(near(out(&w, 0, 0), 2.5, 1e-6));
    }
    w.args[SOP_ATTENTION_K_POOL].data = w.args[SOP_ATTENTION_V_POOL].data = NULL;
    close_world(&w);
    (void)munmap(pool, bytes);
}

static void a_batch_of_65536_gives_every_request_its_own(void)
{
    enum { N = 65536 };
    sop_attention_desc d = {.tokens = N, .seqs = N, .max_kv = 1, .k = 64, .page = 1};
    sop_op_attention.complete(&d);
    sop_operand args[SOP_ATTENTION_ROLES];
    for (int32_t role = 0; role < SOP_ATTENTION_ROLES; role++) {
        sop_tensor t;
        sop_op_attention.view(&d, role, &t);
        args[role] = (sop_operand){calloc(t.bytes, 1), t.bytes};
    }
    int32_t live = N;
    sop_op_attention.fill(&d, 0, live, args);
    float *v = args[SOP_ATTENTION_V_POOL].data, *o = args[SOP_ATTENTION_O].data;
    for (int64_t i = 0; i < (int64_t)N * 64; i++) v[i] = (float)(i / 64 % 97);
    EACH_ROW(row)
    {
        if (!row_takes(row, &d)) continue;
        int64_t bad = 0;
        memset(o, 0xff, args[SOP_ATTENTION_O].bytes);
        CHECK(run_row(&sop_op_attention, row, &d, args, 2) == SOP_OK);
        for (int64_t i = 0; i < (int64_t)N * 64; i++) bad += o[i] != (float)(i / 64 % 97);
        CHECK(bad == 0);
    }
    for (int32_t role = 0; role < SOP_ATTENTION_ROLES; role++) free(args[role].data);
}

/* ---- splits ---- */

/* One sequence of n keys in steps of the given sizes, against all at once. */
static int same_in_steps(const sop_row *row, sop_attention_desc d, int32_t n, const int32_t *steps)
{
    struct world all = {.d = d, .queries = {n}, .keys = {n}};
    int same = 1;
    open_world(&all, 5);
    random_kv(&all, 1);
    random_q(&all, 2);
    if (run_world(&all, row))
        for (int32_t at = 0; at < n; at += *steps, steps += steps[1] != 0) {
            const int32_t step = at + *steps < n ? *steps : n - at;
            struct world w = {.d = d, .queries = {step}, .keys = {at + step}};
            open_world(&w, 6);
            random_kv(&w, 1);
            random_q(&w, 2);
            run_world(&w, row);
            same &= memcmp(w.o, all.o + at * all.d.o_stride, w.args[SOP_ATTENTION_O].bytes) == 0;
            same &= memcmp(w.lse, all.lse + at * d.heads, w.args[SOP_ATTENTION_LSE].bytes) == 0;
            close_world(&w);
        }
    close_world(&all);
    return same;
}

static void without_blocks_of_keys_a_prompt_may_be_cut_anywhere(void)
{
    static const int32_t steps[] = {5, 64, 17, 100, 1, 1, 40, 3, 0};
    const sop_attention_desc plain = {
        .k = 32, .heads = 6, .kv_heads = 2, .causal = 1, .kv_dtype = SOP_F16};
    sop_attention_desc window = plain, odd = plain;
    window.window = 50;
    odd.k = 23, odd.v = 72, odd.cap = 4, odd.heads = 7, odd.kv_heads = 1;
    EACH_ROW(row)
    {
        /* the reference is plain and takes long; the others merge at their own borders */
        if (row->device != SOP_DEVICE_CPU) continue; /* cards have their own borders, too */
        if (row->traits & (SOP_ROW_REFERENCE | SOP_ROW_TILED | SOP_ROW_RING)) continue;
        CHECK(same_in_steps(row, plain, 240, steps));
        CHECK(same_in_steps(row, window, 240, steps));
        CHECK(same_in_steps(row, odd, 240, steps));
    }
}

/* One call by two rows: the same bits. */
static int same_by_two(const char *one, const char *other, int32_t queries, int32_t kv_dtype)
{
    struct world w = {.d = {.k = 40,
                            .v = 72,
                            .heads = 7,
                            .kv_heads = 1,
                            .causal = 1,
                            .cap = 3,
                            .kv_dtype = kv_dtype},
                      .queries = {queries},
                      .keys = {700}};
    const sop_row *rows[] = {row_named(&sop_op_attention, one),
                             row_named(&sop_op_attention, other)};
    int same = 1;
    open_world(&w, 4);
    random_kv(&w, 1);
    random_q(&w, 2);
    const size_t bytes = w.args[SOP_ATTENTION_O].bytes;
    void *first = take(bytes);
    if (run_world(&w, rows[0])) {
        memcpy(first, w.o, bytes);
        if (run_world(&w, rows[1])) same = memcmp(first, w.o, bytes) == 0;
    }
    free(first);
    close_world(&w);
    return same;
}

static void both_widths_give_the_same_bits(void)
{
    for (int32_t type = SOP_F32; type <= SOP_BF16; type++)
        for (int32_t queries = 1; queries < 100; queries += 90) {
            CHECK(same_by_two("attention_flash_avx2", "attention_flash_avx512", queries, type));
            CHECK(same_by_two("attention_tiled_avx2", "attention_tiled_avx512", queries, type));
            CHECK(same_by_two("attention_ring_avx2", "attention_ring_avx512", queries, type));
        }
}

/* What changes with the batch does not change the bits: the path asked for. */
static void in_the_invariant_mode_flash_serves_every_path(void)
{
    EACH_ROW(row)
    {
        if (row->device != SOP_DEVICE_CPU) continue;
        for (uint32_t path = SOP_ROW_FLASH; path <= SOP_ROW_RING; path *= 2) {
            sop_attention_desc d = {
                .tokens = 1, .k = 8, .paths = path, .numerics = SOP_NUMERICS_INVARIANT};
            sop_op_attention.complete(&d);
            const char *why = row->refuse(&d);
            if (row->traits & SOP_ROW_FLASH) CHECK(why == NULL);
            if (row->traits & (SOP_ROW_TILED | SOP_ROW_RING))
                CHECK(why && strstr(why, "invariant"));
        }
    }
}

static void a_sequence_gets_the_same_bits_alone_and_in_a_batch(void)
{
    EACH_ROW(row)
    {
        struct world alone = {
            .d = {.k = 32, .heads = 6, .kv_heads = 2, .causal = 1}, .queries = {5}, .keys = {700}};
        if (row->device != SOP_DEVICE_CPU && !(row->traits & SOP_ROW_INVARIANT)) continue;
        struct world batch = {.d = {.k = 32, .heads = 6, .kv_heads = 2, .causal = 1, .seqs = 4},
                              .queries = {3, 12, 5, 0},
                              .keys = {3, 900, 700, 10}};
        open_world(&alone, 1);
        open_world(&batch, 2);
        random_kv(&alone, 1);
        random_kv(&batch, 1);
        random_q(&alone, 2);
        random_q(&batch, 2);
        if (run_world(&alone, row) && run_world(&batch, row)) {
            CHECK(memcmp(alone.o, batch.o + 15 * batch.d.o_stride,
                         alone.args[SOP_ATTENTION_O].bytes) == 0);
            CHECK(memcmp(alone.lse, batch.lse + 15 * 6, alone.args[SOP_ATTENTION_LSE].bytes) == 0);
        }
        close_world(&alone);
        close_world(&batch);
    }
}

static void merging_with_nothing_changes_no_bit(void)
{
    float o[3] = {7, 7, 7}, lse = 1.25f, none[3] = {0}, none_lse = -INFINITY;
    sop_attention_merge(o, &lse, none, none_lse, 3);
    CHECK(o[0] == 7 && o[2] == 7 && lse == 1.25f);
    sop_attention_merge(none, &none_lse, o, lse, 3);
    CHECK(none[0] == 7 && none[2] == 7 && none_lse == 1.25f);
    float a = 0, b = 0, a_lse = -INFINITY;
    sop_attention_merge(&a, &a_lse, &b, -INFINITY, 1);
    CHECK(a == 0 && a_lse == -INFINITY);
}

static void parts_merge_by_their_natural_logarithms(void)
{
    float o[11], o2[11], lse = 2;
    for (int i = 0; i < 11; i++) o[i] = 1, o2[i] = 0;
    sop_attention_merge(o, &lse, o2, 0, 11);
    for (int i = 0; i < 11; i++) CHECK(near(o[i], 0.8807971, 1e-7));
    CHECK(near(lse, 2.1269280, 3e-7));
}

static void without_the_log_sum_exp_the_result_is_the_same(void)
{
    EACH_ROW(row)
    {
        struct world w = {.d = {.k = 32, .heads = 2, .causal = 1}, .queries = {40}, .keys = {400}};
        open_world(&w, 1);
        random_kv(&w, 1);
        random_q(&w, 2);
        if (run_world(&w, row)) {
            const size_t bytes = w.args[SOP_ATTENTION_O].bytes;
            void *first = take(bytes), *lse = w.args[SOP_ATTENTION_LSE].data;
            memcpy(first, w.o, bytes);
            w.args[SOP_ATTENTION_LSE].data = NULL;
            memset(w.o, 0xff, bytes);
            CHECK(run_row(&sop_op_attention, row, &w.d, w.args, 2) == SOP_OK);
            CHECK(memcmp(first, w.o, bytes) == 0);
            w.args[SOP_ATTENTION_LSE].data = lse;
            free(first);
        }
        close_world(&w);
    }
}

static void a_path_that_is_no_candidate_is_refused_with_the_reason(void)
{
    static const struct {
        uint32_t trait;
        const char *word;
    } paths[] = {{SOP_ROW_FLASH, "flash"}, {SOP_ROW_TILED, "tiled"}, {SOP_ROW_RING, "ring"}};
    for (int p = 0; p < 3; p++) EACH_ROW(row)
        {
            sop_attention_desc d = {.tokens = 1, .k = 8, .paths = paths[p].trait};
            sop_op_attention.complete(&d);
            const char *why = row->refuse(&d);
            if (row->device != SOP_DEVICE_CPU) continue;
            for (int other = 0; other < 3; other++)
                if (row->traits & paths[other].trait)
                    CHECK(other == p ? why == NULL
                                     : why && strstr(why, paths[other].word) &&
                                           strstr(why, "not a candidate"));
        }
}

static void too_little_scratch_is_refused_with_the_numbers(void)
{
    sop_attention_desc d = {.tokens = 8, .max_kv = 100000, .k = 64};
    sop_op_attention.complete(&d);
    EACH_ROW(row)
    {
        const sop_facts facts = {.workers = 1};
        sop_split all, some;
        if (!row->plan || row->device != SOP_DEVICE_CPU) continue;
        CHECK(row->plan(&d, NULL, &facts, SIZE_MAX, &all) == SOP_OK);
        CHECK(row->plan(&d, NULL, &facts, 1000, &some) == SOP_E_LIMIT);
        CHECK(strstr(sop_last_error(), "1000 allowed"));
        /* blocks wait in fewer places when there is less room */
        if (all.word[SOP_ATTENTION_WAVE] > 1) {
            CHECK(row->plan(&d, NULL, &facts, all.scratch_bytes - 1, &some) == SOP_OK);
            CHECK(some.scratch_bytes < all.scratch_bytes);
        }
    }
}

/* What a few numbers tell of every row. */
static void known_answers(void)
{
    RUN(equal_scores_give_the_mean_and_their_log_sum);
    RUN(the_causal_corner_is_at_the_bottom_right);
    RUN(a_query_before_the_first_key_gets_zero_and_minus_infinity);
    RUN(a_window_counts_the_query_itself);
    RUN(a_decode_step_sees_its_window_only);
    RUN(keys_beyond_a_sequence_are_not_read);
    RUN(no_queries_no_keys_and_no_sequences_are_fine);
    RUN(scores_far_below_zero_still_have_a_softmax);
    RUN(products_beyond_half_precision_are_fine);
    RUN(the_cap_comes_before_the_mask);
    RUN(the_cap_bounds_large_scores);
    RUN(a_query_head_reads_the_kv_head_of_its_group);
    RUN(a_sink_takes_its_share_and_has_no_value);
    RUN(a_query_that_sees_nothing_has_its_sink);
    RUN(alibi_falls_with_the_distance_on_both_sides);
    RUN(a_boolean_mask_hides_keys_even_all_of_them);
    RUN(a_mask_of_numbers_is_added_after_the_cap);
    RUN(cross_attention_sees_all_keys_whatever_their_number);
    RUN(pools_of_codes_are_read_by_the_scales_of_their_head);
    RUN(cached_and_new_keys_are_found_through_the_table);
}

int main(void)
{
    static const int64_t heads[] = {0, 64, 128};
    for (int i = 0; i < 3; i++) {
        wide = heads[i];
        known_answers();
    }
    wide = 0;
    RUN(heads_that_do_not_divide_are_refused);
    RUN(masks_that_do_not_fit_are_refused);
    RUN(where_the_pages_lie_changes_no_bit);
    RUN(pages_past_two_to_the_31_elements_are_read);
    RUN(a_batch_of_65536_gives_every_request_its_own);
    RUN(without_blocks_of_keys_a_prompt_may_be_cut_anywhere);
    RUN(both_widths_give_the_same_bits);
    RUN(in_the_invariant_mode_flash_serves_every_path);
    RUN(a_sequence_gets_the_same_bits_alone_and_in_a_batch);
    RUN(merging_with_nothing_changes_no_bit);
    RUN(parts_merge_by_their_natural_logarithms);
    RUN(without_the_log_sum_exp_the_result_is_the_same);
    RUN(a_path_that_is_no_candidate_is_refused_with_the_reason);
    RUN(too_little_scratch_is_refused_with_the_numbers);
    return test_report();
}
