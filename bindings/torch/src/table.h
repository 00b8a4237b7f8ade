/* table.h: the lines of lines.c, read and joined with what the library says of its operators. */
#ifndef SOP_TORCH_TABLE_H
#define SOP_TORCH_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "sop/desc.h"

enum { SOP_TORCH_ARGS = 24, SOP_TORCH_OUTS = 4, SOP_TORCH_NAMES = 24, SOP_TORCH_CODE = 8 };

/* Sums, differences, products and quotients: postfix, a step is a name, a number or a sign. */
struct expr {
    int32_t n;
    struct {
        char sign; /* '+' '-' '*' '/', 'n' a name, 'i' a number */
        int32_t value;
    } step[SOP_TORCH_CODE];
};

struct operand {
    char name[16];
    int32_t role;
    int32_t n_dims;
    int32_t
        stars; /* leading dims that are put together: 0 none, 1 into dim 0, 2 into dims 0 and 1 */
    bool optional, written, packed;
    struct expr dim[SOP_MAX_DIMS];
    int32_t stride[SOP_MAX_DIMS]; /* offset in the desc of the stride of a dim; -1: it is dense */
    int32_t dtype_offset;         /* in the desc; -1: it is dtype */
    int32_t dtype;
    int32_t flag_offset, flag; /* set when the operand is there; -1: none */
    int32_t like; /* of an output: the argument that gives the type, or is its number; -1: dtype */
};

struct scalar {
    char name[16];
    int32_t offset, kind; /* of the field */
    int32_t symbol;       /* the name that it is, or -1 */
    bool is_float, has_default;
    double standard;
};

struct argument {
    bool is_operand;
    struct operand operand;
    struct scalar scalar;
};

struct sop_torch_op {
    const sop_op *op;
    char name[24];
    int32_t n_args, n_outs, n_names, n_rules;
    struct argument arg[SOP_TORCH_ARGS];
    struct operand out[SOP_TORCH_OUTS];
    struct {
        char text[16];
        int32_t offset; /* of the I64 field of this name, or -1 */
    } symbol[SOP_TORCH_NAMES];
    struct {
        int32_t symbol;
        struct expr expr;
    } rule[4];
};

/* The value of an expression of names. */
int64_t sop_torch_eval(const struct expr *e, const int64_t *names);

/* Read a line. false: it does not fit the library, and why says how; or NULL: its operator is not there. */
bool sop_torch_parse(const char *line, struct sop_torch_op *out, const char **why);

#endif
