/* sop/super.h: the super operator of a model: its modules over shared buffers, run a step at a time.
 *
 * A step takes new tokens of some sequences, appends their keys and values and gives logits or next
 * tokens. It is a transaction: when it fails, lengths and caches are as before. */
#ifndef SOP_SUPER_H
#define SOP_SUPER_H

#include "sop/config.h"
#include "sop/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_super sop_super;

/** What memory a super operator and its model hold, in bytes; predicted before anything is reserved,
 * and exact after. */
typedef struct sop_memory {
    size_t weights; /* packed or copied for the device */
    size_t kv;      /* pages of all layers */
    size_t buffers; /* activations, placed by liveness */
    size_t scratch; /* the largest that any planned row wants */
    size_t inputs;  /* step slots, on the device and pinned on the host */
    size_t mapped;  /* of the weight file, that stay in use in place */
    size_t pools;   /* weights + kv + buffers + scratch + inputs */
    size_t process; /* pools + mapped + host + what the process held before the model was opened */
    size_t host;    /* pinned, for keys and values of sequences that wait; apart from pools */
} sop_memory;

enum { SOP_WANT_NONE = 0, SOP_WANT_LAST = 1, SOP_WANT_ALL = 2 };

typedef struct sop_step_item {
    int32_t seq;   /* from sop_super_open() */
    int32_t n_ids; /* new tokens, >= 1 */
    const int32_t *ids;
    int32_t want; /* SOP_WANT_: a row of output for none, the last or each of them */
    int32_t reserved;
    sop_sampling sampling; /* how the rows wanted are sampled */
} sop_step_item;

/** Sequences. SOP_E_LIMIT with the numbers when all are open. */
SOP_API SOP_MUST_USE sop_status sop_super_open(sop_super *s, int32_t *seq);
SOP_API void sop_super_close(sop_super *s, int32_t seq);
/** A new sequence that shares the pages of one so far; the first append copies a shared page. */
SOP_API SOP_MUST_USE sop_status sop_super_fork(sop_super *s, int32_t seq, int32_t *out);
SOP_API int64_t sop_super_length(const sop_super *s, int32_t seq);
/** Forget what stands after the first `length` tokens. Not past what a windowed layer has dropped:
 * SOP_E_ARG. */
SOP_API SOP_MUST_USE sop_status sop_super_truncate(sop_super *s, int32_t seq, int64_t length);

/** Send the keys and values of a sequence that waits to the host (config's kv_host_gb), so that others get
 * its pages; what it shares with other sequences stays. The copies start now and run beside the steps to
 * come. A step without free pages does so by itself, with the sequence that waited longest.
 * SOP_E_LIMIT with the numbers when the host's pages do not suffice. */
SOP_API SOP_MUST_USE sop_status sop_super_offload(sop_super *s, int32_t seq);
/** Start to bring it back before it is needed; its next step does so in any case, and waits for it.
 * SOP_E_LIMIT with the numbers when there are not enough free pages. */
SOP_API SOP_MUST_USE sop_status sop_super_restore(sop_super *s, int32_t seq);

/** Run one step.
 *
 * next     [rows wanted] receives the sampled id of each, in order
 * logits   [rows wanted, vocab] f32, or NULL
 *
 * SOP_E_ARG, SOP_E_LIMIT (context, tokens of a step, pages: with the numbers), SOP_E_NUMERIC and
 * SOP_E_DEVICE when the ladder has no row left. */
SOP_API SOP_MUST_USE sop_status sop_super_step(sop_super *s, const sop_step_item *items,
                                               int32_t n_items, int32_t *next, float *logits);

/** Run n_steps steps of one token of each sequence, one behind the other: each but the first takes the
 * tokens that the one before sampled, which never leave the device meanwhile.
 *
 * items    as of sop_super_step(), n_ids 1 and want SOP_WANT_LAST; a row's sampling counter grows by 1 a
 *          step
 * n_steps  1 to SOP_MOST_AHEAD, and at most the tokens of a step
 * next     [n_steps, n_items] receives what was sampled
 *
 * All of it or nothing, as a step. What to do about a token that ends a sequence is the caller's:
 * sop_super_truncate(). Errors as of sop_super_step(). */
SOP_API SOP_MUST_USE sop_status sop_super_ahead(sop_super *s, const sop_step_item *items,
                                                int32_t n_items, int32_t n_steps, int32_t *next);
enum { SOP_MOST_AHEAD = 64 };

/** Put a step on the queue for a caller whose tokens lie on the device: it returns before the work is done.
 *
 * items    as of sop_super_step(); ids may be NULL, sampling is not looked at
 * ids      [tokens] i32 on the device, of all items one after another; NULL: the items' own. One outside
 *          of the vocabulary is a token of zeros
 * pos      [tokens] i32 on the device: the positions that rope turns by; NULL: each token's place in its
 *          sequence
 * logits   [rows wanted, vocab] f32 on the device; NULL when none are wanted
 *
 * Lengths grow at once, and what goes wrong on the device from then on is the queue's to tell: nothing is
 * tried again. Errors as of sop_super_step(). */
SOP_API SOP_MUST_USE sop_status sop_super_put(sop_super *s, const sop_step_item *items,
                                              int32_t n_items, const int32_t *ids,
                                              const int32_t *pos, float *logits);

/** n more tokens of a sequence whose keys and values the caller writes into its pages.
 * SOP_E_LIMIT with the numbers. */
SOP_API SOP_MUST_USE sop_status sop_super_extend(sop_super *s, int32_t seq, int64_t n);
/** Where keys (which = 0) or values (1) of a layer lie on the device: [pages, heads, tokens of a page, k]. */
SOP_API void sop_super_pool(const sop_super *s, int32_t layer, int32_t which, sop_tensor *out);
/** The pages of a sequence in a layer, in order, -1 for what its window has dropped, into pages [cap];
 * returns how many there are. */
SOP_API int64_t sop_super_pages(const sop_super *s, int32_t seq, int32_t layer, int32_t *pages,
                                int64_t cap);

typedef struct sop_super_facts {
    int32_t max_tokens, max_seqs, max_outs; /* of one step */
    int64_t ctx;                            /* tokens of one sequence */
    int64_t vocab;
    int32_t n_modules;
} sop_super_facts;
SOP_API void sop_super_facts_of(const sop_super *s, sop_super_facts *out);
SOP_API void sop_super_memory(const sop_super *s, sop_memory *out);

/** Counters since the super operator was made; each only grows. */
typedef struct sop_super_counts {
    uint64_t steps, plan_hits, plan_misses;
    uint64_t retries, step_downs, guard_checks, guard_trips, quarantines;
    uint64_t graphs, replays;     /* recorded; run */
    double plan_s, run_s;         /* seconds spent choosing and running */
    uint64_t pages_out, pages_in; /* of keys and values, to the host and back */
} sop_super_counts;
SOP_API void sop_super_counts_of(const sop_super *s, sop_super_counts *out);

/** One line of an explanation. */
typedef struct sop_explain_line {
    const char *module;     /* "qkv projection" */
    int32_t layer;          /* -1: outside the layers */
    int32_t repeats;        /* layers that are planned the same way */
    const char *variant;    /* NULL when the module is folded into another: see note */
    const char *note;       /* the desc, or how the module is folded */
    const sop_row *skipped; /* not NULL: this line says why a row was passed over */
    const char *why;
    size_t scratch_bytes;
    double predicted_s; /* of one run, 0 when nothing is known */
} sop_explain_line;
typedef void sop_explain_fn(void *ctx, const sop_explain_line *line);

/** What a step of `seqs` sequences with `tokens` new tokens each, `length` tokens long after it, would
 * run, as things stand now (free memory, quarantine, configuration). */
SOP_API SOP_MUST_USE sop_status sop_super_explain(sop_super *s, int32_t seqs, int64_t tokens,
                                                  int64_t length, sop_explain_fn *fn, void *ctx);

SOP_API void sop_super_destroy(sop_super *s);

#ifdef __cplusplus
}
#endif

#endif
