/* super/state.h: what the files of the super operator share.
 *
 *   super.c   made and unmade, sequences, a step from its items to its results
 *   inputs.c  the step's inputs: where they lie, what they hold
 *   place.c   buffers by liveness
 *   steps.c   a class of steps -> rows, calls
 *   run.c     a planned step -> done, with the ladder
 *   ahead.c   steps of which each takes what the one before sampled
 *   shapes.c  what steps can ask of each operator
 *   scales.c  the scales of keys and values of 8 bits
 *   explain.c */
#ifndef SUPER_STATE_H
#define SUPER_STATE_H

#include <stdbool.h>

#include "ops/advance/advance.h"
#include "plan/planner.h"
#include "sop/super.h"
#include "super/program.h"

/* A class of steps: what the plan of a step follows from. Everything else is read on the device. */
typedef struct sop_step_class {
    int32_t tokens, seqs, outs; /* bounds, from the ladder */
    uint32_t paths;             /* attention paths that the thresholds allow */
    int32_t keys;               /* that a sequence has at most */
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
    /* The step, and behind it its inputs become those of the next; row NULL until it is asked for. */
    struct {
        const sop_row *row;
        sop_advance_desc desc;
        sop_operand args[SOP_ADVANCE_ROLES];
        sop_split split;
        sop_call call;
        sop_graph *graph;
    } ahead;
} sop_steps;

/* Steps of so many tokens are not recorded: their launches hide behind their work. */
enum { SOP_MAX_CLASSES = 1024, SOP_RUN_PLAINLY = 512 };

struct sop_super {
    const sop_program *program;
    sop_planner *planner;
    sop_device *device;
    sop_queue *queue; /* where steps run */
    sop_queue *own;   /* where they are recorded; the same, unless steps run on a caller's */
    sop_config config;
    sop_super_facts facts;
    sop_kv *kv;
    uint32_t bound; /* SOP_CHOOSE_ of every choice */
    bool use_graphs, logits_only;
    bool alone, blamed; /* each row is waited for; one was found to have taken the device with it */

    /* One reservation each. */
    void *arena; /* activations; then what a retried module would overwrite */
    size_t arena_bytes, save_at, save_bytes;
    size_t *buffer_at; /* [n_buffers] */
    void *scratch;
    size_t scratch_bytes;
    void *inputs, *staging; /* the same layout on the device and on the host */
    size_t input_bytes, head_bytes, live_at, count_at, step_at, said_at; /* inputs.c draws it */
    size_t input_at[SOP_N_INPUTS][SOP_MAX_KV_GROUPS], few_at[SOP_N_INPUTS][SOP_MAX_KV_GROUPS];
    int32_t *table_row; /* [table_stride] */
    bool tables_lost;   /* what the device has of them is not what the host has */
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
sop_operand sop_input(const sop_super *s, int32_t kind, int32_t group, int32_t tokens);
sop_operand sop_input_live(const sop_super *s, int32_t extent);
sop_status sop_inputs_send(sop_super *s, const sop_step_item *items, int32_t n_items);
/* In the place of what was sent: what lies on the device, or NULL. */
sop_status sop_inputs_take(sop_super *s, const int32_t *ids, const int32_t *pos);

/* place.c */
sop_status sop_place_buffers(const sop_program *p, const sop_super_facts *f, size_t *at,
                             size_t *bytes, size_t *save);
int64_t sop_extent_of(const sop_step_class *c, int32_t extent);

/* steps.c */
uint32_t sop_steps_paths(const sop_super *s, int32_t seqs, int64_t most_queries, int64_t longest);
/* longest: keys of the longest sequence, after the step */
sop_step_class sop_steps_class(const sop_super *s, int32_t tokens, int32_t seqs, int32_t outs,
                               uint32_t paths, int64_t longest);
sop_status sop_steps_get(sop_super *s, const sop_step_class *c, sop_steps **out);
sop_status sop_steps_make(sop_super *s, const sop_step_class *c, size_t budget, sop_steps **out);
void sop_steps_desc(const sop_super *s, const sop_module *m, const sop_step_class *c,
                    sop_any_desc *out);
uint32_t sop_steps_bound(const sop_super *s, const sop_module *m);
void sop_steps_destroy(sop_super *s, sop_steps *steps);
double sop_super_free_bytes(const sop_super *s);

/* run.c. SOP_RUN_TOGETHER stands in quarantine while it is not known which row of a step took the device
 * with it. */
#define SOP_RUN_TOGETHER "several rows at once"
sop_status sop_run_steps(sop_super *s, sop_steps *steps); /* may return before all is done */
/* What steps did fails: blames, and runs the step again where the configuration lets it. */
sop_status sop_run_failed(sop_super *s, const sop_step_class *class, sop_status status);
/* The step once more, with every module guarded, and the ladder. */
sop_status sop_run_again(sop_super *s, const sop_step_class *class);
/* Records a plan that runs from a recording, unless it is there: a step, and where it has an ahead that. */
sop_status sop_run_record(sop_super *s, sop_steps *steps);
/* Records each kind of call of a plan once, and throws that away: a kernel is loaded when it is first launched
 * or recorded, and that is not to be in a request. */
sop_status sop_run_touch(sop_super *s, const sop_steps *steps);
/* n steps from recordings, SOP_E_UNSUPPORTED where there are none. */
sop_status sop_run_ahead(sop_super *s, sop_steps *steps, int32_t n);

/* scales.c: measured and set, once the memory is there; nothing to do where pools hold no codes. */
sop_status sop_scales_measure(sop_super *s);

/* ahead.c: what comes behind a step of one token of each sequence. */
sop_status sop_ahead_plan(sop_super *s, sop_steps *steps);

/* shapes.c: each (op, desc, bound) once that a step of any class may be planned with; *out is the
 * caller's to free. SOP_E_NOMEM. */
typedef struct sop_shape {
    const sop_op *op;
    sop_any_desc desc;
    uint32_t bound;
} sop_shape;
sop_status sop_super_shapes(const sop_super *s, sop_shape **out, int32_t *n);

/* super.c: counts what the items bring, and says what does not fit. has_ids: so that they can be looked
 * at. steps: of this class, one behind the other. */
sop_status sop_super_sense(sop_super *s, const sop_step_item *items, int32_t n_items, bool has_ids,
                           int32_t steps, sop_step_class *class);

/* Pages for the new tokens of a sequence of this step. Those that waited longest go to the host
 * until there are enough; where none is left to go, or the host is full, it is refused. */
sop_status sop_super_reserve(sop_super *s, int32_t seq, int64_t n);

/* What model code calls. base_bytes: what the process held before the model was opened;
 * mapped: bytes of the weight file that steps read in place. */
typedef struct sop_super_spec {
    const sop_program *program;
    sop_planner *planner;
    const sop_config *config;
    int64_t ctx, kv_tokens;
    int32_t max_seqs, max_tokens, max_outs;
    size_t base_bytes;
    sop_queue *queue; /* a caller's, or NULL */
    bool logits_only; /* nothing is sampled */
} sop_super_spec;
sop_status sop_super_predict(const sop_super_spec *spec, sop_memory *out);
sop_status sop_super_create(const sop_super_spec *spec, sop_super **out);
/* For tests: the budget that free memory is counted from; record and replay also on the CPU. */
void sop_super_set_budget(sop_super *s, double bytes);
void sop_super_set_graphs(sop_super *s, bool on);

#endif
