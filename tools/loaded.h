/* tools/loaded.h: a model opened as the options say; run, explain and bench share it. */
#ifndef TOOLS_LOADED_H
#define TOOLS_LOADED_H

#include "sop/model.h"

#include "cli.h"

typedef struct loaded {
    sop_device *device; /* NULL: the runtime's own CPU */
    sop_runtime *runtime;
    sop_model *model;
    sop_super *super;
    sop_tokenizer *tokenizer; /* NULL: a model of random numbers */
    int32_t seq;              /* one open sequence */
    int32_t numerics;         /* of the configuration */
    sop_super_facts facts;
    sop_model_facts model_facts;
    double open_s;       /* seconds from the path to the first step */
    double read_bytes_s; /* what this machine reads, by loaded_measure() */
} loaded;

/* Opens what the options name; limits: what is 0 is filled from them. Returns an exit code, and
 * leaves nothing behind when it fails. */
int loaded_open(loaded *m, const sop_limits *limits);
void loaded_close(loaded *m);
/* Measures read_bytes_s, the first time it is asked: half a second; 0 when it cannot be. */
void loaded_measure(loaded *m);

extern const char *loaded_model, *loaded_config;
extern int64_t loaded_threads, loaded_ctx;
extern int32_t loaded_kv, loaded_device, loaded_numerics;

/* clang-format off */
#define LOADED_OPTIONS(model_is_required) \
    {"model", 'm', CLI_TEXT, &loaded_model, "MODEL", .help = "a path, a pulled name, or synth:SHAPE", \
     .required = (model_is_required)}, \
    {"config", 'c', CLI_TEXT, &loaded_config, "FILE", .help = "YAML; the options below win"}, \
    {"threads", 't', CLI_INT, &loaded_threads, "N", .help = "0: one a core (0)", .hi = 1024}, \
    {"ctx", 0, CLI_INT, &loaded_ctx, "N", .help = "tokens of the context; 0: what the model takes, at " \
     "most 4096 (0)", .hi = 1 << 24}, \
    {"kv", 0, CLI_WORD, &loaded_kv, "f16|f32|i8|f8", .help = "type of keys and values (f16)"}, \
    {"device", 0, CLI_WORD, &loaded_device, CLI_DEVICES, .help = "where it runs (cpu)"}, \
    {"numerics", 0, CLI_WORD, &loaded_numerics, "fast|exact|invariant", \
     .help = "exact: float32 activations; invariant: the same in any batch (fast)"}, \
    CLI_PLUGIN
/* clang-format on */

#endif
