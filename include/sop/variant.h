/* sop/variant.h: what a kernel plugs into: the call it gets, the row that offers it, the contract
 * (op) it stands under. A row may come with the library, from a shared object, or at run time. */
#ifndef SOP_VARIANT_H
#define SOP_VARIANT_H

#include "sop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_device sop_device; /* sop/device.h */
typedef struct sop_queue sop_queue;

/** A pointer that a kernel may follow, with the bytes it may touch. data is NULL for an optional
 * operand that is absent. */
typedef struct sop_operand {
    void *data;
    size_t bytes;
} sop_operand;

/** What a row's plan decided: a fixed blob that its run reads (split, grid, tile), and the scratch it
 * wants, 64-byte aligned. */
typedef struct sop_split {
    int64_t word[8];
    size_t scratch_bytes;
} sop_split;

/** All that a kernel gets. A run allocates nothing and syncs with nothing but its own workers. */
typedef struct sop_call {
    uint32_t size; /* sizeof(sop_call) */
    uint32_t n_args;
    const void *desc; /* the op's desc; for a span row, an array of its modules' descs */
    const sop_operand
        *args; /* in the order of the op's roles; a span's modules one after another */
    const sop_split *split;
    void *prepared; /* what prepare made, or NULL */
    void *scratch;  /* split->scratch_bytes */
    sop_queue *queue;
} sop_call;

/* What a processor can run; bits of sop_row.needs and sop_facts.features. */
enum {
    SOP_CPU_AVX2 = 1u << 0,   /* AVX2, FMA3 and F16C */
    SOP_CPU_AVX512 = 1u << 1, /* AVX-512 F, BW, DQ and VL */
    SOP_CPU_VNNI = 1u << 2,   /* AVX-512 VNNI */
    SOP_CPU_AMX = 1u << 3,    /* AMX tiles with int8 and bf16 */
};
/* The same for an NVIDIA GPU. */
enum {
    SOP_CUDA_SM80 = 1u << 0,  /* compute capability 8.0 or newer */
    SOP_CUDA_SM89 = 1u << 1,  /* 8.9 or newer */
    SOP_CUDA_SM90 = 1u << 2,  /* 9.0 or newer */
    SOP_CUDA_SM90A = 1u << 3, /* 9.0 exactly: code that uses wgmma runs on no other */
};

typedef enum sop_device_kind {
    SOP_DEVICE_CPU = 0,
    SOP_DEVICE_CUDA = 1,
    SOP_DEVICE_TEST = 2
} sop_device_kind;

/** What a plan may know of the device. */
typedef struct sop_facts {
    uint32_t size;
    int32_t kind;      /* sop_device_kind */
    uint32_t features; /* SOP_CPU_ or SOP_CUDA_ bits */
    int32_t workers;   /* threads of a CPU, multiprocessors of a GPU */
    int64_t l1_bytes, l2_bytes, l3_bytes;
    double read_bytes_s; /* measured ceilings; 0 when not measured */
    double f32_flops_s, i8_ops_s;
} sop_facts;

/** A parameter that a tuner may turn: its values are lo, lo*step or lo+step, ..., hi. */
typedef struct sop_param {
    const char *name;
    int32_t lo, hi, step, standard;
} sop_param;

/* Traits of a row. */
enum {
    SOP_ROW_REFERENCE = 1u << 0, /* takes everything, right before fast */
    SOP_ROW_INVARIANT =
        1u << 1,               /* a row of the result does not depend on how many rows there are */
    SOP_ROW_QUANT_X = 1u << 2, /* quantises activations to 8 bits: not for SOP_NUMERICS_EXACT */
    SOP_ROW_FLASH = 1u << 3,   /* the attention paths; a desc names those it allows */
    SOP_ROW_TILED = 1u << 4,
    SOP_ROW_RING = 1u << 5,
    SOP_ROW_ROUNDS = 1u << 6, /* rounds factors to 16 bits: not for SOP_NUMERICS_EXACT */
};

/** How exact a result must be. */
typedef enum sop_numerics {
    SOP_NUMERICS_FAST = 0,      /* activations may be quantised, within the op's stated bound */
    SOP_NUMERICS_EXACT = 1,     /* float32 activations and sums */
    SOP_NUMERICS_INVARIANT = 2, /* as fast, and bitwise the same for any batch */
} sop_numerics;

/* Where a weight's bytes lie; bits, so that a desc can say which of them there are. */
enum {
    SOP_LAYOUT_PLAIN = 1u << 0,   /* as in the file, row after row */
    SOP_LAYOUT_PANEL16 = 1u << 1, /* ops/linear/pack.h */
};

/** One way to run one op. */
typedef struct sop_row {
    uint32_t size;     /* sizeof(sop_row) */
    int32_t device;    /* sop_device_kind */
    const char *name;  /* the same in logs, results, tables and cache keys */
    const char *route; /* "c", "cuda", "jit", "triton", "cutlass", "tvm", "vendor", "torch" */
    uint32_t needs, traits;
    uint32_t layout; /* the one SOP_LAYOUT_ it reads weights in; 0 when it has none */
    int32_t n_params;
    const sop_param *params;
    const char *const *span; /* NULL, or the ops it covers in order, ended by NULL */

    /** Why it cannot take this desc, or NULL. Reads the desc only. */
    const char *(*refuse)(const void *desc);
    /** Pure, under 0.3 us: fill the blob and say the scratch. NULL: no blob, no scratch. params holds
     * n_params values, or is NULL for the standard ones. SOP_E_LIMIT when budget bytes do not do. */
    sop_status (*plan)(const void *desc, const int32_t *params, const sop_facts *facts,
                       size_t budget, sop_split *split);
    /** For a library that must search or allocate, off the request path; NULL when not needed. Until
     * it has succeeded for a desc class the row is refused. */
    sop_status (*prepare)(const void *desc, sop_device *device, void **state);
    void (*release)(void *state);
    sop_status (*run)(const sop_call *call);
} sop_row;

/* Roles of operands. */
enum {
    SOP_ROLE_IN = 0,
    SOP_ROLE_OUT = 1u << 0,
    SOP_ROLE_PARTIAL = 1u << 1, /* out, and what is not addressed stays as it was */
    SOP_ROLE_OPTIONAL = 1u << 2,
    SOP_ROLE_WEIGHT = 1u << 3, /* may come packed: the row's layout says how it lies */
    SOP_ROLE_INDEX = 1u << 4,  /* integers that address something: op->fill makes valid ones */
    SOP_ROLE_LIVE = 1u << 5,  /* i32 [1]: live rows, at most the desc's; the rest stays untouched */
    SOP_ROLE_TALLY = 1u << 6, /* out, of all live rows together: depends on how many there are */
};

typedef struct sop_role {
    const char *name;
    uint32_t flags;
    int32_t alias; /* the role of an input that this output may be, or -1 */
} sop_role;

/* Kinds of a desc's fields. */
enum { SOP_FIELD_I64, SOP_FIELD_I32, SOP_FIELD_F32, SOP_FIELD_DTYPE, SOP_FIELD_WORD };

/** A field of a desc as a person writes it: "m=1 n=4608 k=3584 w=bf16". */
typedef struct sop_field {
    const char *key;
    uint32_t offset;
    int32_t kind;
    const char *words; /* SOP_FIELD_WORD: "silu|gelu_tanh", value = position */
    const char *help;
} sop_field;

/** What one call costs, whatever the variant: the least bytes and the arithmetic of the formula. */
typedef struct sop_cost {
    double flops, read_bytes, write_bytes;
} sop_cost;

/** Where a reference leaves float64 results instead of rounding them into the operands: for each
 * role, value[i] and bound[i] of the element at place i of the dense output. bound is how far a
 * right variant with these traits may be from value. */
typedef struct sop_judge {
    uint32_t traits; /* of the row that is judged */
    int32_t n_roles;
    double *const *value, *const *bound; /* [n_roles], NULL for inputs */
} sop_judge;

/** The contract. */
typedef struct sop_op {
    uint32_t size; /* sizeof(sop_op) */
    uint32_t desc_bytes;
    const char *name, *formula;
    const sop_field *fields;
    const sop_role *roles;
    const sop_row *rows;      /* best first; the last is the reference */
    const char *const *cases; /* shapes to check and time, as text; ended by NULL */
    int32_t n_fields, n_roles, n_rows;
    /** Fill what is 0 from the rest: dense strides, default types. */
    void (*complete)(void *desc);
    /** SOP_OK, or the sentence. */
    sop_status (*check)(const void *desc);
    /** Shape, strides, dtype and bytes of one operand; data stays NULL. ndim 0 and dtype -1 when the
     * desc has no such operand. */
    void (*view)(const void *desc, int32_t role, sop_tensor *out);
    /** Valid values for the INDEX and LIVE operands, in host memory; the same for the same seed.
     * live is the count the LIVE operand holds, or -1 when it is absent. NULL when there are none. */
    void (*fill)(const void *desc, uint64_t seed, int64_t live, const sop_operand *args);
    /** The formula in double, in its own order. judge NULL: round into the operands. */
    sop_status (*reference)(const sop_call *call, const sop_judge *judge);
    void (*cost)(const void *desc, sop_cost *out);
    const char *backward; /* the op that is its gradient, or NULL */
    /** Bytes of the weight in role in a layout, and the packing of its rows [begin, end) (multiples
     * of 16, or the end) from plain to out; NULL for ops without weights. */
    size_t (*packed_bytes)(const void *desc, int32_t role, uint32_t layout);
    void (*pack)(const void *desc, int32_t role, uint32_t layout, const void *plain, void *out,
                 int64_t begin, int64_t end);
} sop_op;

/** Workers of a queue: run fn over [0, n) in pieces of grain, on all of them, and return when all is
 * done. Which worker gets which piece may change from run to run; a kernel's result must not. */
typedef void sop_range_fn(const void *arg, int64_t begin, int64_t end, int32_t worker);
SOP_API void sop_parallel(sop_queue *queue, int64_t n, int64_t grain, sop_range_fn *fn,
                          const void *arg);
SOP_API int32_t sop_workers(const sop_queue *queue);

/** Every op of the library, ended by NULL, and one by name (NULL when there is none). */
SOP_API const sop_op *const *sop_ops(void);
SOP_API const sop_op *sop_op_find(const char *name);

/** Read "key=value key=value" into a desc of op, then complete and check it. SOP_E_ARG names the key
 * and the nearest one; SOP_E_SHAPE. */
SOP_API SOP_MUST_USE sop_status sop_desc_parse(const sop_op *op, const char *text, void *desc);
/** The desc as such a text, into out [cap], always zero-terminated. */
SOP_API void sop_desc_print(const sop_op *op, const void *desc, char *out, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
