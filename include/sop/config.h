/* sop/config.h: what a user may decide about the engine, and the YAML file that says it. */
#ifndef SOP_CONFIG_H
#define SOP_CONFIG_H

#include "sop/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/** When the outputs of a module are looked through for NaN and Inf. */
typedef enum sop_guard {
    SOP_GUARD_OFF = 0,
    SOP_GUARD_SAMPLE = 1, /* one module of a step, each in its turn */
    SOP_GUARD_ALWAYS = 2,
} sop_guard;

/** Every key of the file, under the same name; docs/configuration.md tells what each one changes.
 * Plain data without padding: it may be copied, compared and hashed. */
typedef struct sop_config {
    struct {
        int32_t rope, flash_attn, ring_attn, kv_cache_opt; /* 0 or 1 */
    } modules;
    struct {
        int64_t min_seq_for_ring;        /* tokens */
        double min_free_mem_for_ring_gb; /* of 2^30 bytes */
        int64_t max_batch_for_tiled;     /* sequences */
    } thresholds;
    struct {
        double backoff_factor;
        int32_t enable; /* 0 or 1 */
        int32_t max_retries;
    } fallback;
    double memory_limit_gb;  /* of 2^30 bytes; 0: no limit of ours */
    double kv_host_gb;       /* host memory for keys and values of sequences that wait; 0: none */
    int64_t ctx;             /* tokens of one sequence; 0: what the model was trained for */
    int32_t numerics;        /* sop_numerics */
    int32_t guard;           /* sop_guard */
    int32_t kv_dtype;        /* SOP_F32, SOP_F16, SOP_I8 or SOP_F8 */
    int32_t max_step_tokens; /* of all sequences of a step */
    int32_t threads;         /* 0: one for each core this process may use */
    int32_t reserved;        /* 0 */
} sop_config;

/** The defaults. */
SOP_API void sop_config_defaults(sop_config *out);

/** Read a YAML file: what it does not name has its default. The file is one mapping, and strict: an
 * unknown or repeated key, a wrong type and a value out of range are errors that name the line, the
 * key and what is allowed.
 *
 * out  unchanged on failure
 *
 * SOP_E_IO, SOP_E_FORMAT, SOP_E_LIMIT (over 64 KiB), SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_config_load(const char *path, sop_config *out);
/** The same for a text in memory; name stands for the path in errors. */
SOP_API SOP_MUST_USE sop_status sop_config_read(const char *text, size_t bytes, const char *name,
                                                sop_config *out);

/** All keys as YAML that sop_config_read() takes, each with what it allows as a comment, into
 * out [cap], always zero-terminated. Returns the length of the whole text without its zero. */
SOP_API size_t sop_config_print(const sop_config *config, char *out, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
