/* super/program.h: a model as one flat list of modules. Model code writes it, super runs it; it names
 * ops and buffers, never rows or devices. */
#ifndef SUPER_PROGRAM_H
#define SUPER_PROGRAM_H

#include "ops/ops.h"
#include "sop/plan.h"
#include "super/kv.h"

/* Which live count bounds a module or buffer. */
enum { SOP_EXTENT_TOKENS, SOP_EXTENT_SEQS, SOP_EXTENT_OUTS };

/* What a step brings, by kind; SLOTS and TABLE there are for each KV group. */
enum {
    SOP_INPUT_IDS,      /* [tokens] i32 */
    SOP_INPUT_POS,      /* [tokens] i32 */
    SOP_INPUT_SLOTS,    /* [tokens] i32 */
    SOP_INPUT_Q_START,  /* [seqs + 1] i32 */
    SOP_INPUT_KV_LEN,   /* [seqs] i32 */
    SOP_INPUT_TABLE,    /* [seqs, table_stride] i32 */
    SOP_INPUT_OUT_ROWS, /* [outs] i32: the token of each wanted row */
    SOP_INPUT_SAMPLING, /* [outs] sop_sampling */
    SOP_INPUT_NEXT,     /* [outs] i32: the result */
    SOP_N_INPUTS
};

enum {
    SOP_ARG_NONE,
    SOP_ARG_BUFFER, /* index: of the program's buffers; offset in bytes */
    SOP_ARG_WEIGHT, /* index: of the program's weights */
    SOP_ARG_INPUT,  /* index: SOP_INPUT_; offset: the KV layer, of SLOTS and TABLE */
    SOP_ARG_POOL,   /* index: the layer; offset: 0 K, 1 V */
    SOP_ARG_SCALES, /* as POOL: what a pool of codes is multiplied by */
    SOP_ARG_LIVE,   /* index: SOP_EXTENT_ + 1, or 0 for the module's own */
};

typedef struct sop_arg {
    int32_t kind, index;
    int64_t offset;
} sop_arg;

/* Every desc starts with the bound of its outermost extent. */
typedef union sop_any_desc {
    int64_t extent;
#define X(name) sop_##name##_desc name;
    SOP_OP_MAP(X)
#undef X
} sop_any_desc;

#define SOP_MAX_ARGS SOP_ATTENTION_ROLES /* attention has most */

/* Modules that the configuration can switch to portable variants. */
enum { SOP_MODULE_ROPE = 1u << 0, SOP_MODULE_KV = 1u << 1 };

typedef struct sop_module {
    const char *kind; /* "qkv projection", as people read it */
    const sop_op *op;
    const char *folded, *note; /* a module that is part of this one, and how; or NULL */
    int32_t layer;             /* -1: outside the layers */
    int32_t extent;            /* SOP_EXTENT_ */
    int32_t guard;             /* the role whose values must be finite, or -1 */
    uint32_t switches;         /* SOP_MODULE_ */
    sop_arg args[SOP_MAX_ARGS];
    sop_any_desc desc; /* extents are set for each class of steps */
} sop_module;

typedef struct sop_buffer {
    const char *name;
    int32_t extent, reserved;
    size_t row_bytes;
} sop_buffer;

/* A weight: where it lies in the file, and the layouts that were made of it. */
typedef struct sop_weight {
    char name[64];
    int32_t dtype;
    uint32_t layouts; /* SOP_LAYOUT_ bits that can be read on the device */
    int64_t n, k;
    sop_operand plain;  /* on the device; in the mapped file where the device sees it */
    sop_operand packed; /* SOP_LAYOUT_PANEL16 */
    const void *file;   /* in the mapping */
    size_t file_bytes;
    size_t period;      /* bytes after which it repeats itself; 0: it does not */
    void *own;          /* host memory of a converted copy, freed with the program */
    int32_t keep_plain; /* some module reads the plain form every step */
    int32_t reserved;
} sop_weight;

typedef struct sop_program {
    sop_module *modules;
    sop_buffer *buffers;
    sop_weight *weights;
    sop_kv_layer *layers;
    int32_t n_modules, n_buffers, n_weights, n_layers;
    int64_t vocab, ctx;
    int32_t logits; /* buffer */
    int32_t kv_dtype;
    bool lent; /* weights lie on the device already, but those that the program owns */
    /* what place() reserved */
    sop_device *device;
    size_t placed_bytes;
} sop_program;

void sop_program_init(sop_program *p);
void sop_program_finish(sop_program *p);

/* Each returns the index, or -1 after SOP_E_NOMEM was said. */
int32_t sop_program_buffer(sop_program *p, const char *name, int32_t extent, size_t row_bytes);
int32_t sop_program_weight(sop_program *p, const char *name, int32_t dtype, int64_t n, int64_t k,
                           const void *data, size_t bytes);
/* A weight of n floats that the program owns (converted norms, biases, rope frequencies). */
int32_t sop_program_floats(sop_program *p, const char *name, const float *data, int64_t n);
int32_t sop_program_layer(sop_program *p, sop_kv_layer layer);
/* Copies the module; its desc is completed when a class is planned. */
int32_t sop_program_add(sop_program *p, const sop_module *m);

/* Bytes that place() would reserve. */
sop_status sop_program_weight_bytes(sop_program *p, sop_planner *planner, int32_t max_tokens,
                                    uint32_t bound, size_t *out);
/* Put the weights where the device reads them: in the layouts that the best rows of one-token and
 * full steps want. settle is told of each weight's file pages when they are done with (stays false),
 * or will be read in place by steps (stays true); may be NULL. */
typedef void sop_settle_fn(void *ctx, const void *data, size_t bytes, bool stays);
sop_status sop_program_place(sop_program *p, sop_planner *planner, int32_t max_tokens,
                             uint32_t bound, sop_settle_fn *settle, void *ctx);

#endif
