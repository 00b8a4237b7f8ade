#include "table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sop/types.h"

int64_t sop_torch_eval(const struct expr *e, const int64_t *names)
{
    int64_t stack[SOP_TORCH_CODE] = {0};
    int32_t n = 0;
    for (int32_t i = 0; i < e->n; i++) {
        const int32_t v = e->step[i].value;
        switch (e->step[i].sign) {
        case 'n': stack[n++] = names[v]; break;
        case 'i': stack[n++] = v; break;
        case '+': n--, stack[n - 1] += stack[n]; break;
        case '-': n--, stack[n - 1] -= stack[n]; break;
        case '*': n--, stack[n - 1] *= stack[n]; break;
        default: n--, stack[n - 1] /= stack[n]; break;
        }
    }
    return n ? stack[0] : 1;
}

struct reader {
    struct sop_torch_op *op;
    const char *at;
    const char *why; /* the first that went wrong, or NULL */
};

static void fail(struct reader *r, const char *why)
{
    if (!r->why) r->why = why;
}

/* A word of letters, digits and _ into out [cap]. */
static void word(struct reader *r, char *out, size_t cap)
{
    size_t n = 0;
    while (isalnum((unsigned char)*r->at) || *r->at == '_') {
        if (n + 1 < cap) out[n++] = *r->at;
        r->at++;
    }
    out[n] = 0;
    if (n == 0) fail(r, "a name is missing");
}

static void copy(char *out, const char *text, size_t cap)
{
    (void)snprintf(out, cap, "%s", text);
}

static bool take(struct reader *r, const char *text)
{
    const size_t n = strlen(text);
    if (strncmp(r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

static const sop_field *field_of(const sop_op *op, const char *key)
{
    for (int32_t i = 0; i < op->n_fields; i++)
        if (strcmp(op->fields[i].key, key) == 0) return &op->fields[i];
    return NULL;
}

static int32_t symbol_of(struct reader *r, const char *text)
{
    struct sop_torch_op *op = r->op;
    for (int32_t i = 0; i < op->n_names; i++)
        if (strcmp(op->symbol[i].text, text) == 0) return i;
    if (op->n_names == SOP_TORCH_NAMES) {
        fail(r, "too many names");
        return 0;
    }
    const sop_field *f = field_of(op->op, text);
    copy(op->symbol[op->n_names].text, text, sizeof op->symbol[0].text);
    op->symbol[op->n_names].offset = f && f->kind == SOP_FIELD_I64 ? (int32_t)f->offset : -1;
    return op->n_names++;
}

static void step(struct reader *r, struct expr *e, char sign, int32_t value)
{
    if (e->n == SOP_TORCH_CODE) {
        fail(r, "an expression is too long");
        return;
    }
    e->step[e->n].sign = sign;
    e->step[e->n++].value = value;
}

static void factor(struct reader *r, struct expr *e)
{
    char text[16];
    if (isdigit((unsigned char)*r->at)) {
        char *end;
        step(r, e, 'i', (int32_t)strtol(r->at, &end, 10));
        r->at = end;
        return;
    }
    word(r, text, sizeof text);
    step(r, e, 'n', symbol_of(r, text));
}

static void expression(struct reader *r, struct expr *e)
{
    char sign = 0;
    e->n = 0;
    do {
        factor(r, e);
        while (*r->at == '*' || *r->at == '/') {
            const char times = *r->at++;
            factor(r, e);
            step(r, e, times, 0);
        }
        if (sign) step(r, e, sign, 0);
        sign = *r->at;
    } while (take(r, "+") || take(r, "-"));
}

static void dims(struct reader *r, struct operand *o)
{
    if (!take(r, "[")) fail(r, "[ is missing");
    if (take(r, "**")) {
        o->stars = 2;
        for (int32_t i = 0; i < 2; i++) {
            o->dim[i].n = 0;
            step(r, &o->dim[i], 'n', symbol_of(r, i ? "heads" : "tokens"));
        }
        o->n_dims = 2;
        if (!take(r, ",")) fail(r, ", is missing");
    } else if (take(r, "*")) {
        o->stars = 1;
    }
    do {
        if (o->n_dims == SOP_MAX_DIMS) {
            fail(r, "too many dimensions");
            return;
        }
        expression(r, &o->dim[o->n_dims++]);
    } while (take(r, ","));
    if (!take(r, "]")) fail(r, "] is missing");
}

/* Where a view's numbers come from: op's view of this role in a desc whose fields all differ. */
static void look(struct reader *r, struct operand *o)
{
    /* None that an operator fixes, or that changes what it fixes. */
    static const int32_t types[] = {SOP_F16, SOP_BF16, SOP_I8, SOP_I64, SOP_F8};
    const sop_op *op = r->op->op;
    _Alignas(8) char desc[1024];
    sop_tensor v = {0};
    int32_t n_types = 0;
    if (op->desc_bytes > sizeof desc) {
        fail(r, "the desc is too large");
        return;
    }
    /* An operand may be there for codes alone: a second look has every type f8. */
    for (int32_t codes = 0; codes < 2; codes++) {
        memset(desc, 0, sizeof desc);
        n_types = 0;
        for (int32_t i = 0; i < op->n_fields; i++) {
            const sop_field *f = &op->fields[i];
            char *at = desc + f->offset;
            if (f->kind == SOP_FIELD_I64)
                *(int64_t *)at = 100003 + 1009 * (int64_t)i;
            else if (f->kind == SOP_FIELD_I32)
                *(int32_t *)at = 7;
            else if (f->kind == SOP_FIELD_DTYPE)
                *(int32_t *)at = codes ? SOP_F8 : types[n_types++ % 5];
        }
        op->view(desc, o->role, &v);
        if (v.dtype >= 0) break;
    }
    if (v.dtype < 0) {
        fail(r, "the library has no such operand");
        return;
    }
    o->dtype = v.dtype;
    o->dtype_offset = -1;
    for (int32_t i = 0; i < op->n_fields && n_types; i++)
        if (op->fields[i].kind == SOP_FIELD_DTYPE &&
            *(int32_t *)(desc + op->fields[i].offset) == v.dtype)
            o->dtype_offset = (int32_t)op->fields[i].offset;
    for (int32_t d = 0; d < o->n_dims; d++) {
        o->stride[d] = -1;
        for (int32_t i = 0; v.ndim == o->n_dims && i < op->n_fields; i++)
            if (op->fields[i].kind == SOP_FIELD_I64 && d < v.ndim - 1 &&
                *(int64_t *)(desc + op->fields[i].offset) == v.stride[d])
                o->stride[d] = (int32_t)op->fields[i].offset;
    }
    if (v.ndim != o->n_dims) { /* seen otherwise there; the first stride has its usual name */
        char key[32];
        (void)snprintf(key, sizeof key, "%s_stride", o->name);
        const sop_field *f = field_of(op, key);
        if (f && o->n_dims > 1) o->stride[0] = (int32_t)f->offset;
    }
    /* A stride that is an extent too is dense: heads of [tokens, heads]. */
    for (int32_t d = 0; d < o->n_dims; d++)
        for (int32_t i = 0; i < r->op->n_names; i++)
            if (o->stride[d] >= 0 && o->stride[d] == r->op->symbol[i].offset) o->stride[d] = -1;
}

static void operand(struct reader *r, const char *name, struct operand *o)
{
    memset(o, 0, sizeof *o);
    copy(o->name, name, sizeof o->name);
    o->flag_offset = o->like = o->role = -1;
    for (int32_t i = 0; i < r->op->op->n_roles; i++)
        if (strcmp(r->op->op->roles[i].name, name) == 0) o->role = i;
    if (o->role < 0) {
        fail(r, "the operator has no such operand");
        return;
    }
    o->optional = take(r, "?");
    o->written = take(r, "!");
    o->packed = take(r, "%");
    if (take(r, "{")) {
        char key[16];
        char *end;
        word(r, key, sizeof key);
        const sop_field *f = field_of(r->op->op, key);
        if (!f || f->kind != SOP_FIELD_I32 || !take(r, "=")) {
            fail(r, "no such flag");
            return;
        }
        o->flag_offset = (int32_t)f->offset;
        o->flag = (int32_t)strtol(r->at, &end, 10);
        r->at = end;
        if (!take(r, "}")) fail(r, "} is missing");
    }
    dims(r, o);
    look(r, o);
}

static void scalar(struct reader *r, const char *name, struct scalar *s)
{
    char key[16];
    memset(s, 0, sizeof *s);
    copy(s->name, name, sizeof s->name);
    copy(key, name, sizeof key);
    if (take(r, ">")) word(r, key, sizeof key);
    const sop_field *f = field_of(r->op->op, key);
    if (!f) {
        fail(r, "the operator has no such field");
        return;
    }
    s->offset = (int32_t)f->offset;
    s->kind = f->kind;
    s->is_float = f->kind == SOP_FIELD_F32;
    s->symbol = f->kind == SOP_FIELD_I64 ? symbol_of(r, key) : -1;
    if (take(r, "=")) {
        char *end;
        s->has_default = true;
        s->standard = strtod(r->at, &end);
        r->at = end;
    }
}

bool sop_torch_parse(const char *line, struct sop_torch_op *op, const char **why)
{
    struct reader r = {.op = op, .at = line};
    char text[32];
    memset(op, 0, sizeof *op);
    word(&r, op->name, sizeof op->name);
    r.at += strspn(r.at, " ");
    word(&r, text, sizeof text);
    op->op = sop_op_find(text);
    if (!op->op) {
        *why = NULL; /* an older library */
        return false;
    }
    bool outs = false;
    while (!r.why) {
        r.at += strspn(r.at, " ");
        if (!*r.at) break;
        if (take(&r, "->")) {
            outs = true;
            continue;
        }
        char name[16];
        word(&r, name, sizeof name);
        if (take(&r, ":=")) {
            const int32_t k = op->n_rules++;
            op->rule[k].symbol = symbol_of(&r, name);
            expression(&r, &op->rule[k].expr);
            continue;
        }
        if (!outs && op->n_args == SOP_TORCH_ARGS) {
            fail(&r, "too many arguments");
            break;
        }
        if (!strchr("[?!%{", *r.at) || !*r.at) {
            scalar(&r, name, &op->arg[op->n_args++].scalar);
            continue;
        }
        struct operand *o = outs ? &op->out[op->n_outs] : &op->arg[op->n_args].operand;
        operand(&r, name, o);
        if (!outs) {
            op->arg[op->n_args++].is_operand = true;
            continue;
        }
        o->written = true;
        op->n_outs++;
        if (take(&r, ":")) {
            word(&r, name, sizeof name);
            for (int32_t i = 0; i < op->n_args; i++)
                if (strcmp(op->arg[i].is_operand ? op->arg[i].operand.name : op->arg[i].scalar.name,
                           name) == 0)
                    o->like = i;
            if (o->like < 0) fail(&r, "an output is like no argument");
        } else if (o->dtype_offset >= 0) {
            o->dtype = SOP_F32;
        }
    }
    /* A name may have turned out to be an extent after an operand had it as a stride. */
    for (int32_t i = 0; i < op->n_args + op->n_outs; i++) {
        struct operand *o = i < op->n_args ? &op->arg[i].operand : &op->out[i - op->n_args];
        if (i < op->n_args && !op->arg[i].is_operand) continue;
        for (int32_t d = 0; d < o->n_dims; d++)
            for (int32_t k = 0; k < op->n_names; k++)
                if (o->stride[d] >= 0 && o->stride[d] == op->symbol[k].offset) o->stride[d] = -1;
    }
    *why = r.why;
    return !r.why;
}
