/* super/state.h: what the files of the super operator share.
 *
 *   super.c   made and unmade, sequences, a step from its items to its results
 *   inputs.c  the step's inputs: where they lie, what they hold
 *   place.c   buffers by liveness
 *   steps.c   a class of steps -> rows, calls
 *   run.c     a planned step -> done, with the ladder
 *   explain.c */
#ifndef SUPER_STATE_H
#define SUPER_STATE_H

#include <stdbool.h>

#include "plan/planner.h"
#include "sop/super.h"
#include "super/program.h"

/* A class of steps: what the plan of a step follows from. Everything else is read on the device. */
typedef struct sop_step_class {
    int32_t tokens, seqs, outs; /* bounds, from the ladder */
    uint32_t paths;             /* attention paths that the thresholds allow */
} sop_step_class;

/* A row and its call; the call points into the step plan. */
typedef struct sop_node {
    const sop_row *row;
    int32_t module, n_modules; /* the first, and how many a span covers */
    uint32_t mark;
    int32_t first_arg; /* of the step plan's args */
    sop_call call;
    sop_split split;
} sop_node;

typedef struct sop_steps {
    sop_step_class class;
    uint64_t epoch;
    int32_t n_nodes;
    sop_node *nodes;
    sop_operand *args;    /* of all nodes, one after another */
    sop_any_desc *descs;  /* [n_modules] */
    const void **desc_of; /* [n_modules]: &descs[i], for spans */
    const sop_op **op_of; /* [n_modules] */
    sop_graph *graph;     /* recorded, or NULL */
} sop_steps;

enum { SOP_MAX_CLASSES = 256 };

struct sop_super {
    const sop_program *program;
    sop_planner *planner;
    sop_device *device;
    sop_queue *queue;
    sop_config config;
    sop_super_facts facts;
    sop_kv *kv;
    uint32_t bound; /* SOP_CHOOSE_ of every choice */
    bool use_graphs;

    /* One reservation each. */
    void *arena; /* activations; then what a retried module would overwrite */
    size_t arena_bytes, save_at, save_bytes;
    size_t *buffer_at; /* [n_buffers] */
    void *scratch;
    size_t scratch_bytes;
    void *inputs, *staging; /* the same layout on the device and on the host */
    size_t input_bytes, input_at[SOP_N_INPUTS + 1][SOP_MAX_KV_GROUPS], live_at, count_at;
    sop_memory memory;
    double budget_bytes; /* of the pools: free memory is what is left of it */

    sop_steps *classes[SOP_MAX_CLASSES];
    int32_t n_classes, last; /* last: the class of the step before */
    sop_choice finite;       /* the guard's own row, for the desc below */
    sop_finite_desc finite_desc;

    sop_super_counts counts;
    uint64_t watch_until; /* steps are guarded whole until this one */
    uint32_t faults;
    int32_t guard_turn;
    sop_mark *mark, no_mark;
    uint64_t *seen, senses; /* seen [max_seqs]: the last step that a sequence stood in */

    /* of the step that runs */
    int32_t n_tokens, n_seqs, n_outs;
    int64_t longest;
};

/* inputs.c */
sop_status sop_inputs_layout(sop_super *s);
sop_operand sop_input(const sop_super *s, int32_t kind, int32_t group);
sop_operand sop_input_live(const sop_super *s, int32_t extent);
void *sop_input_host(const sop_super *s, int32_t kind, int32_t group);
sop_status sop_inputs_send(sop_super *s, const sop_step_item *items, int32_t n_items);

/* place.c */
sop_status sop_place_buffers(const sop_program *p, const sop_super_facts *f, size_t *at,
                             size_t *bytes, size_t *save);
int64_t sop_extent_of(const sop_step_class *c, int32_t extent);

/* steps.c */
uint32_t sop_steps_paths(const sop_super *s, int32_t seqs, int64_t most_queries, int64_t longest);
sop_step_class sop_steps_class(const sop_super *s, int32_t tokens, int32_t seqs, int32_t outs,
                               uint32_t paths);
sop_status sop_steps_get(sop_super *s, const sop_step_class *c, sop_steps **out);
sop_status sop_steps_make(sop_super *s, const sop_step_class *c, size_t budget, sop_steps **out);
void sop_steps_desc(const sop_super *s, const sop_module *m, const sop_step_class *c,
                    sop_any_desc *out);
uint32_t sop_steps_bound(const sop_super *s, const sop_module *m);
void sop_steps_destroy(sop_super *s, sop_steps *steps);
double sop_super_free_bytes(const sop_super *s);

/* run.c */
sop_status sop_run_steps(sop_super *s, sop_steps *steps);
/* The step once more, with every module guarded, and the ladder. */
sop_status sop_run_again(sop_super *s, const sop_step_class *class);
/* Records a plan that runs from a recording, unless it is there. */
sop_status sop_run_record(sop_super *s, sop_steps *steps);

/* super.c: what model code calls. base_bytes: what the process held before the model was opened;
 * mapped: bytes of the weight file that steps read in place. */
typedef struct sop_super_spec {
    const sop_program *program;
    sop_planner *planner;
    const sop_config *config;
    int64_t ctx, kv_tokens;
    int32_t max_seqs, max_tokens, max_outs;
    size_t base_bytes;
} sop_super_spec;
sop_status sop_super_predict(const sop_super_spec *spec, sop_memory *out);
sop_status sop_super_create(const sop_super_spec *spec, sop_super **out);
/* For tests: the budget that free memory is counted from; record and replay also on the CPU. */
void sop_super_set_budget(sop_super *s, double bytes);
void sop_super_set_graphs(sop_super *s, bool on);

#endif
