/* plan/planner.h: the inside of sop/plan.h, for the super operator. */
#ifndef PLAN_PLANNER_H
#define PLAN_PLANNER_H

#include <stdbool.h>

#include "plan/journal.h"
#include "sop/plan.h"

/* Beside the SOP_CHOOSE_ bounds of sop/plan.h: rows that must search or allocate may do so now. */
enum { SOP_CHOOSE_PREPARE = 1u << 31 };

/* Grows when choices made before may no longer be what would be chosen now. */
uint64_t sop_planner_epoch(const sop_planner *p);
const sop_facts *sop_planner_facts(const sop_planner *p);
sop_device *sop_planner_device(const sop_planner *p);

/* Row i of an op as the planner tries them: the added ones, newest first, then the built-in; NULL past
 * the last. The same of the spans. */
const sop_row *sop_planner_row(const sop_planner *p, const sop_op *op, int32_t i);
const sop_row *sop_planner_span_row(const sop_planner *p, int32_t i);

/* What the device was measured to do at most, for predictions; until then there are none. */
void sop_planner_set_ceilings(sop_planner *p, double read_bytes_s, double f32_flops_s,
                              double i8_ops_s);

/* The place where a queue marks the row it runs; NULL while no row from outside was added. */
sop_mark *sop_planner_mark(sop_planner *p);
void sop_planner_unmark(sop_planner *p, sop_mark *mark);

/* What a row took for a desc here, 0 when it was not measured. */
double sop_planner_time_ns(sop_planner *p, const sop_op *op, const void *desc, const char *row);

/* A span row that covers the first ops of [n]: true, the choice and how many it covers. */
bool sop_planner_span(sop_planner *p, const sop_op *const *ops, const void *const *descs, int32_t n,
                      uint32_t bound, size_t budget, sop_skip_fn *skip, void *ctx, sop_choice *out,
                      int32_t *covered);

#endif
