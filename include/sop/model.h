/* sop/model.h: a model file, ready for super operators. */
#ifndef SOP_MODEL_H
#define SOP_MODEL_H

#include "sop/super.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A device, its planner and a configuration. */
typedef struct sop_runtime sop_runtime;

/** config  NULL for the defaults; copied
 * device  NULL: the CPU with config's threads, owned by the runtime; else the caller's, outliving it
 * store   as in sop_planner_create()
 *
 * SOP_E_ARG, SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_runtime_create(const sop_config *config, sop_device *device,
                                                   const char *store, sop_runtime **out);
SOP_API void sop_runtime_destroy(sop_runtime *rt);
SOP_API sop_planner *sop_runtime_planner(sop_runtime *rt);
SOP_API sop_device *sop_runtime_device(sop_runtime *rt);

typedef struct sop_model sop_model;

/** Open a GGUF file or a Hugging Face folder (qwen2, qwen3, llama, mistral, gemma3). Weights stay
 * mapped; a row that wants another layout gets it packed once, here.
 *
 * rt   outlives the model
 *
 * SOP_E_IO, SOP_E_FORMAT and SOP_E_UNSUPPORTED with the name and the numbers, SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_model_open(sop_runtime *rt, const char *path, sop_model **out);
SOP_API void sop_model_close(sop_model *m);

/** A tensor that somebody else holds, dense, under its name in a Hugging Face file. */
typedef struct sop_model_tensor {
    const char *name;
    sop_tensor view;
} sop_model_tensor;

/** A model of tensors that lie on the runtime's device already (a framework's): they are read in place, at
 * every step, and outlive the model. Vectors are f32. What is written into them later counts from the next
 * step on.
 *
 * config   the model's config.json, zero-terminated
 * tensors  of a Hugging Face file; beside them may stand "rotary_emb.inv_freq", the frequencies of rope
 *          of layers that see all, as the framework has them
 *
 * Errors as of sop_model_open(). */
SOP_API SOP_MUST_USE sop_status sop_model_of(sop_runtime *rt, const char *config,
                                             const sop_model_tensor *tensors, int64_t n,
                                             sop_model **out);

typedef struct sop_model_facts {
    const char *arch;                                         /* "qwen2" */
    const char *name;                                         /* the file's own, or "" */
    int64_t layers, dim, heads, kv_heads, k, ffn, vocab, ctx; /* ctx: trained context */
    int64_t parameters;
    size_t weight_bytes;    /* in the file */
    size_t step_read_bytes; /* weights that one decode step reads */
} sop_model_facts;
SOP_API void sop_model_facts_of(const sop_model *m, sop_model_facts *out);

/** Sizes of a super operator. 0 takes the standard value. */
typedef struct sop_limits {
    int64_t ctx;         /* tokens of one sequence; min(trained, 4096) */
    int32_t max_seqs;    /* sequences at once; 1 */
    int32_t max_tokens;  /* tokens of one step; the configuration's max_step_tokens */
    int32_t max_outs;    /* rows of output of one step; max_seqs */
    int32_t logits_only; /* 1: nothing is sampled, steps give logits alone */
    int64_t kv_tokens;   /* tokens that fit in all pages together; ctx * max_seqs */
    sop_queue *queue; /* of the runtime's device: steps run there, in order with all that its owner
                        * puts there; NULL: on one of its own */
} sop_limits;

/** The super operator of the model: reserves all the memory that steps will use.
 *
 * out   destroy it before the model is closed
 *
 * SOP_E_LIMIT when the configuration's memory limit does not do, with the numbers; SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_model_super(sop_model *m, const sop_limits *limits,
                                                sop_super **out);

/** What it would hold, without reserving it. SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_model_predict(sop_model *m, const sop_limits *limits,
                                                  sop_memory *out);

#ifdef __cplusplus
}
#endif

#endif
