/* What it costs the host to plan a step of 64 sequences: to look at it, and to find or make its plan. Lengths
 * and counts of tokens change from step to step. */
#ifndef TESTS_PLAN_COSTS_H
#define TESTS_PLAN_COSTS_H

#include <stdlib.h>

#include "base/clock.h"
#include "base/test.h"
#include "super/state.h"

enum { PLAN_SEQS = 64, PLAN_MOST = 255 }; /* of tokens of a sequence in a ragged step */

/* Medians, in us; of the plan that is not there yet, for each of `layers`. */
struct plan_costs {
    double decode, ragged, miss;
    int64_t tokens; /* of a ragged step, on average */
};

static inline int plan_by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of a super operator for PLAN_SEQS sequences, as many outputs, and 256 tokens of each. */
static inline struct plan_costs plan_costs_of(sop_super *s, int32_t layers)
{
    enum { BATCHES = 1000 };
    static const int32_t ids[PLAN_MOST + 1];
    static double t[3][BATCHES];
    struct plan_costs costs = {0};
    sop_step_item items[PLAN_SEQS];
    sop_step_class c;
    sop_steps *steps;
    uint32_t state = 1;
    for (int32_t i = 0; i < PLAN_SEQS; i++) {
        int32_t seq;
        CHECK(sop_super_open(s, &seq) == SOP_OK);
        items[i] = (sop_step_item){.seq = seq, .ids = ids, .want = SOP_WANT_LAST};
    }
    for (int32_t b = 0; b < BATCHES; b++) {
        const int32_t grows = items[b % PLAN_SEQS].seq;
        CHECK(sop_super_reserve(s, grows, 1) == SOP_OK);
        sop_kv_commit(s->kv, grows, 1);
        for (int32_t ragged = 0; ragged < 2; ragged++) {
            const int32_t calls = ragged ? 10 : 100;
            for (int32_t i = 0; i < PLAN_SEQS; i++) {
                state = state * 1664525u + 1013904223u;
                items[i].n_ids = ragged ? 1 + (int32_t)((state >> 8) % PLAN_MOST) : 1;
                costs.tokens += ragged ? items[i].n_ids : 0;
            }
            const double t0 = sop_now_s();
            for (int32_t k = 0; k < calls; k++) {
                CHECK(sop_super_sense(s, items, PLAN_SEQS, true, 1, &c) == SOP_OK);
                CHECK(sop_steps_get(s, &c, &steps) == SOP_OK);
            }
            t[ragged][b] = (sop_now_s() - t0) / calls;
        }
        const double t0 = sop_now_s();
        CHECK(sop_steps_make(s, &c, s->scratch_bytes, &steps) == SOP_OK);
        t[2][b] = (sop_now_s() - t0) / layers;
        sop_steps_destroy(s, steps);
    }
    for (int32_t i = 0; i < PLAN_SEQS; i++) sop_super_close(s, items[i].seq);
    for (int32_t k = 0; k < 3; k++) qsort(t[k], BATCHES, sizeof(double), plan_by_value);
    costs.decode = t[0][BATCHES / 2] * 1e6;
    costs.ragged = t[1][BATCHES / 2] * 1e6;
    costs.miss = t[2][BATCHES / 2] * 1e6;
    costs.tokens /= BATCHES;
    printf(
        "plan of a step of %d sequences: decode %.3f us; ragged, %lld tokens, %.3f us; a miss %.3f us a "
        "layer\n",
        PLAN_SEQS, costs.decode, (long long)costs.tokens, costs.ragged, costs.miss);
    return costs;
}

#endif
