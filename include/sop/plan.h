/* sop/plan.h: choose how to run an operator once, run it many times. */
#ifndef SOP_PLAN_H
#define SOP_PLAN_H

#include "sop/device.h"
#include "sop/grad.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Knows the rows of a device (built in, and added), what is in quarantine, and what was measured. */
typedef struct sop_planner sop_planner;

/** device  outlives the planner
 * store   where proofs, times and quarantines are kept: a path, NULL for store.sqlite in
 *         $XDG_CACHE_HOME/superop, "" for memory alone. A store that cannot be opened costs one
 *         warning, never the call
 *
 * SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_planner_create(sop_device *device, const char *store,
                                                   sop_planner **out);
SOP_API void sop_planner_destroy(sop_planner *p);

/** Offer a row under an op (op NULL for a span row: it names its ops). The row and what it points to
 * outlive the planner or its removal. Added rows are tried before the built-in ones, newest first.
 * Removal retires every plan that uses the row; no step may run meanwhile. SOP_E_NOT_FOUND,
 * SOP_E_ARG (a size or device that does not fit, a name that is taken). */
SOP_API SOP_MUST_USE sop_status sop_planner_add(sop_planner *p, const char *op, const sop_row *row);
SOP_API SOP_MUST_USE sop_status sop_planner_remove(sop_planner *p, const sop_row *row);

/** A shared object with rows exports one of these:
 *
 *     SOP_API const sop_plugin sop_plugin_rows = {sizeof(sop_plugin), ops, rows, n}; */
typedef struct sop_plugin {
    uint32_t size;         /* sizeof(sop_plugin) */
    const char *const *op; /* [n]: the op of each row, NULL for a span */
    const sop_row *rows;   /* [n] */
    int32_t n;
} sop_plugin;
#define SOP_PLUGIN_SYMBOL "sop_plugin_rows"

/** Load the rows of a shared object. SOP_E_NOT_FOUND with the loader's words when it is not there:
 * then the planner is as it was. */
SOP_API SOP_MUST_USE sop_status sop_planner_load(sop_planner *p, const char *path);

/** Never use a row again on this machine; kept in the store. why: one sentence. */
SOP_API SOP_MUST_USE sop_status sop_planner_quarantine(sop_planner *p, const char *row,
                                                       const char *why);
/** Why a row is in quarantine, or NULL. */
SOP_API const char *sop_planner_quarantined(const sop_planner *p, const char *row);
/** Let a row serve again. SOP_E_NOT_FOUND when it is not in quarantine. */
SOP_API SOP_MUST_USE sop_status sop_planner_release(sop_planner *p, const char *row);

/** Remember that a row took ns (the median of n runs) for a desc here: from then on the fastest of the measured candidates
 * is chosen before the unmeasured. */
SOP_API SOP_MUST_USE sop_status sop_planner_measured(sop_planner *p, const sop_op *op,
                                                     const void *desc, const char *row, double ns,
                                                     int64_t n);

/** A chosen row. */
typedef struct sop_choice {
    const sop_row *row;
    void *prepared;
    uint32_t mark; /* for the crash journal; 0: a built-in row */
    uint32_t reserved;
    sop_split split;
} sop_choice;

/* What a choice is bound by, beside the desc. */
enum {
    SOP_CHOOSE_PORTABLE = 1u << 0,  /* rows without special instructions only */
    SOP_CHOOSE_INVARIANT = 1u << 1, /* rows that are the same for any batch only */
};

/** The row for one desc, from the cache or made. budget: scratch bytes there are; SIZE_MAX for any.
 * SOP_E_UNSUPPORTED only when the reference itself is refused. */
SOP_API SOP_MUST_USE sop_status sop_planner_choose(sop_planner *p, const sop_op *op,
                                                   const void *desc, uint32_t bound, size_t budget,
                                                   sop_choice *out);
/** The same, saying for each row that was passed over why, and for those behind the chosen one that go
 * another route. why lasts until skip returns. */
typedef void sop_skip_fn(void *ctx, const sop_row *row, const char *why);
SOP_API SOP_MUST_USE sop_status sop_planner_explain(sop_planner *p, const sop_op *op,
                                                    const void *desc, uint32_t bound, size_t budget,
                                                    sop_skip_fn *skip, void *ctx, sop_choice *out);

/** One operator, planned. */
typedef struct sop_plan sop_plan;

/** Plan op for desc. desc  the op's desc in sop/desc.h or sop/grad.h; what is 0 is completed
 * out   free it with sop_plan_destroy(). NULL on failure
 *
 * SOP_E_ARG, SOP_E_SHAPE (the sentence of the op), SOP_E_UNSUPPORTED, SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_plan_create(sop_planner *p, const sop_op *op, const void *desc,
                                                sop_plan **out);
SOP_API void sop_plan_destroy(sop_plan *plan);
/** The chosen variant's name, for example "rmsnorm_f32_avx2". */
SOP_API const char *sop_plan_variant(const sop_plan *plan);
/** Bytes of scratch that sop_plan_run() wants, 64-byte aligned; 0 for none. */
SOP_API size_t sop_plan_scratch(const sop_plan *plan);
/** Run on a queue of the planner's device: args in the order of the op's roles (the enum beside its
 * desc). Allocates nothing, takes no lock, reads no environment; safe from several threads at once
 * when their outputs and scratch differ. SOP_E_SHAPE when an operand is smaller than planned. */
SOP_API SOP_MUST_USE sop_status sop_plan_run(const sop_plan *plan, sop_queue *queue,
                                             const sop_operand *args, void *scratch);

/* Typed helpers: the compiler checks that the desc is the op's. */
#define SOP_PLAN_HELPER(op) \
    static inline SOP_MUST_USE sop_status sop_plan_##op( \
        sop_planner *p, const sop_##op##_desc *desc, sop_plan **out) \
    { \
        return sop_plan_create(p, sop_op_find(#op), desc, out); \
    }
SOP_OP_MAP(SOP_PLAN_HELPER)
SOP_GRAD_OP_MAP(SOP_PLAN_HELPER)
#undef SOP_PLAN_HELPER

#ifdef __cplusplus
}
#endif

#endif
