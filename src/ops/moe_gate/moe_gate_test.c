#include "ops/moe_gate/moe_gate.h"

#include <math.h>

#include "base/test.h"
#include "ops/call_test.h"
#include "ops/ops.h"

enum { MOST = 256 };

struct result {
    int32_t ids[MOST], counts[MOST], perm[MOST];
    float weights[MOST];
};

static void gate(const sop_row *row, int64_t tokens, int64_t experts, int64_t top, int32_t over,
                 float *x, struct result *out)
{
    sop_moe_gate_desc d = {.tokens = tokens, .experts = experts, .top = top, .over = over};
    sop_op_moe_gate.complete(&d);
    memset(out, 0xff, sizeof *out);
    const sop_operand args[SOP_MOE_GATE_ROLES] = {
        [SOP_MOE_GATE_X] = {x, (size_t)(tokens * experts) * sizeof *x},
        [SOP_MOE_GATE_IDS] = {out->ids, sizeof out->ids},
        [SOP_MOE_GATE_WEIGHTS] = {out->weights, sizeof out->weights},
        [SOP_MOE_GATE_COUNTS] = {out->counts, sizeof out->counts},
        [SOP_MOE_GATE_PERM] = {out->perm, sizeof out->perm}};
    CHECK(run_row(&sop_op_moe_gate, row, &d, args, 2) == SOP_OK);
}

static void each(void (*test)(const sop_row *row))
{
    for (int32_t r = 0; r < sop_op_moe_gate.n_rows; r++)
        if (row_runs(&sop_op_moe_gate.rows[r])) test(&sop_op_moe_gate.rows[r]);
}

/* P-GEN-04 */
static void both_sums(const sop_row *row)
{
    float x[] = {2, 1, 0, -1};
    struct result r;
    gate(row, 1, 4, 2, SOP_MOE_ALL, x, &r);
    CHECK(fabsf(r.weights[0] - 0.6439143f) < 1e-6f && fabsf(r.weights[1] - 0.2368828f) < 1e-6f);
    gate(row, 1, 4, 2, SOP_MOE_CHOSEN, x, &r);
    CHECK(fabsf(r.weights[0] - 0.7310586f) < 1e-6f && fabsf(r.weights[1] - 0.2689414f) < 1e-6f);
}

static void weights_sum_over_all_experts_or_the_chosen(void)
{
    each(both_sums);
}

static void tied(const sop_row *row)
{
    enum { EXPERTS = 20 };
    float x[EXPERTS];
    struct result r;
    for (int e = 0; e < EXPERTS; e++) x[e] = e % 3 == 1 ? 1 : e % 2 ? 0.0f : -0.0f;
    gate(row, 1, EXPERTS, 9, SOP_MOE_CHOSEN, x, &r);
    const int32_t want[] = {1, 4, 7, 10, 13, 16, 19, 0, 2}; /* -0 is 0 */
    for (int j = 0; j < 9; j++) CHECK(r.ids[j] == want[j]);
}

static void ties_go_to_the_lower_index(void)
{
    each(tied);
}

/* Experts that are never written to are the addresses of a crash. */
static void broken(const sop_row *row)
{
    enum { EXPERTS = 19 };
    float x[EXPERTS];
    struct result r;
    for (int e = 0; e < EXPERTS; e++) x[e] = e == 3 ? 2 : e == 17 ? -INFINITY : NAN;
    gate(row, 1, EXPERTS, 4, SOP_MOE_CHOSEN, x, &r);
    CHECK(r.ids[0] == 3 && r.ids[1] == 17 && r.ids[2] == 0 && r.ids[3] == 1);
    CHECK(isnan(r.weights[0]));
    gate(row, 1, EXPERTS, 2, SOP_MOE_CHOSEN, x, &r);
    CHECK(r.weights[0] == 1 && r.weights[1] == 0);
    for (int e = 0; e < EXPERTS; e++) x[e] = NAN;
    gate(row, 1, EXPERTS, 2, SOP_MOE_ALL, x, &r);
    CHECK(r.ids[0] == 0 && r.ids[1] == 1 && isnan(r.weights[0]));
    for (int e = 0; e < EXPERTS; e++) x[e] = -INFINITY;
    gate(row, 1, EXPERTS, 2, SOP_MOE_ALL, x, &r);
    CHECK(r.ids[0] == 0 && r.ids[1] == 1 && r.weights[0] == 0 && r.weights[1] == 0);
}

static void ids_are_valid_whatever_the_logits(void)
{
    each(broken);
}

/* Token t chooses t % 3 and then 4. */
static void sorted(const sop_row *row)
{
    enum { TOKENS = 7, EXPERTS = 5 };
    float x[TOKENS * EXPERTS] = {0};
    struct result r;
    for (int t = 0; t < TOKENS; t++) x[t * EXPERTS + t % 3] = 9, x[t * EXPERTS + 4] = 8;
    gate(row, TOKENS, EXPERTS, 2, SOP_MOE_ALL, x, &r);
    const int32_t counts[] = {3, 2, 2, 0, 7};
    const int32_t perm[] = {0, 6, 12, 2, 8, 4, 10, 1, 3, 5, 7, 9, 11, 13};
    for (int e = 0; e < EXPERTS; e++) CHECK(r.counts[e] == counts[e]);
    for (int k = 0; k < 2 * TOKENS; k++) CHECK(r.perm[k] == perm[k]);
}

static void pairs_stand_by_expert_and_then_by_number(void)
{
    each(sorted);
}

static void more_experts_than_there_are_is_refused(void)
{
    sop_moe_gate_desc d;
    CHECK(sop_desc_parse(&sop_op_moe_gate, "tokens=2 experts=8 top=9", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "top=9"));
}

static void pairs_past_int32_are_refused(void)
{
    sop_moe_gate_desc d;
    CHECK(sop_desc_parse(&sop_op_moe_gate, "tokens=300000000 experts=8 top=8", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "tokens=300000000"));
}

int main(void)
{
    RUN(weights_sum_over_all_experts_or_the_chosen);
    RUN(ties_go_to_the_lower_index);
    RUN(ids_are_valid_whatever_the_logits);
    RUN(pairs_stand_by_expert_and_then_by_number);
    RUN(more_experts_than_there_are_is_refused);
    RUN(pairs_past_int32_are_refused);
    return test_report();
}
