/* One call of torch.ops.superop: tensors to a desc, its plan, a run on the current stream.
 *
 * PyTorch calls sop_kernel functions, which know nothing but their arguments: there is one for each
 * line, and one for its .out. All go through call(). An error becomes a C++ exception of PyTorch's, so
 * this file is compiled with -fexceptions, and throws after all that it held was given back. */
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "lines.h"
#include "memo.h"
#include "shim.h"
#include "sop/status.h"
#include "table.h"

enum { OPS = 100, TENSORS = SOP_TORCH_ARGS + SOP_TORCH_OUTS, TEXT = 512 };

static _Thread_local void (*hear)(const char *op, const char *row);
static struct sop_torch_op ops[OPS];
static const char *lines[OPS];
static int32_t n_devices; /* of CUDA */
static int32_t n_ops;

struct tensor {
    sop_handle handle; /* NULL: it is not there */
    void *data;
    int32_t dtype;
    int64_t ndim;
    const int64_t *size, *stride;                     /* PyTorch's own */
    int64_t extent[SOP_MAX_DIMS], step[SOP_MAX_DIMS]; /* its dimensions as the operator sees them */
};

struct run {
    const struct sop_torch_op *op;
    const struct tensor *lead; /* whose leading dimensions the outputs have */
    void *stream;              /* of CUDA */
    int32_t n_lead;
    int32_t device_type, device_index;
    bool doubles;  /* operands are float64: then those of fixed type float32 are too */
    bool given;    /* outputs are the caller's */
    bool conflict; /* two operands whose strides are one to the operator have different ones */
    bool copied;   /* an operand is a copy of what was given */
    char error[TEXT];
    int64_t name[SOP_TORCH_NAMES]; /* -1: not known yet */
    double number[SOP_TORCH_ARGS];
    int64_t whole[SOP_TORCH_ARGS];
    struct tensor tensor[TENSORS]; /* arguments, then outputs */
};

static const struct {
    int32_t (**torch)(void);
    int32_t sop;
    const char *text;
} types[] = {
    {&sop_shim.f32, SOP_F32, "float32"},     {&sop_shim.f16, SOP_F16, "float16"},
    {&sop_shim.bf16, SOP_BF16, "bfloat16"},  {&sop_shim.f64, SOP_F64, "float64"},
    {&sop_shim.i8, SOP_I8, "int8"},          {&sop_shim.u8, SOP_U8, "uint8"},
    {&sop_shim.i32, SOP_I32, "int32"},       {&sop_shim.i64, SOP_I64, "int64"},
    {&sop_shim.f8, SOP_F8, "float8_e4m3fn"}, {&sop_shim.bool8, SOP_U8, "bool"},
};
enum { TYPES = sizeof types / sizeof *types };
static int32_t torch_type[TYPES]; /* what their functions said */
static int32_t torch_cpu;

static int32_t sop_type(int32_t torch)
{
    for (int32_t i = 0; i < TYPES; i++)
        if (torch_type[i] == torch) return types[i].sop;
    return -1;
}

static int32_t type_of_sop(int32_t sop)
{
    for (int32_t i = 0; i < TYPES; i++)
        if (types[i].sop == sop) return torch_type[i];
    return -1;
}

static const char *type_text(int32_t sop)
{
    for (int32_t i = 0; i < TYPES; i++)
        if (types[i].sop == sop) return types[i].text;
    return "a type superop does not know";
}

__attribute__((format(printf, 2, 3))) static bool fail(struct run *r, const char *format, ...)
{
    va_list list;
    const int n = snprintf(r->error, TEXT, "%s: ", r->op->name);
    va_start(list, format);
    (void)vsnprintf(r->error + n, TEXT - (size_t)n, format, list);
    va_end(list);
    return false;
}

/* The library's sentence. */
static bool hand_on(struct run *r, sop_status s)
{
    const char *text = sop_last_error();
    (void)snprintf(r->error, TEXT, "%s", text[0] ? text : sop_status_text(s));
    return false;
}

static bool look(struct run *r, struct tensor *t, const struct operand *o)
{
    int64_t *size, *stride;
    if (sop_shim.data(t->handle, &t->data) || sop_shim.ndim(t->handle, &t->ndim) ||
        sop_shim.sizes(t->handle, &size) || sop_shim.strides(t->handle, &stride) ||
        sop_shim.dtype(t->handle, &t->dtype))
        return fail(r, "%s has no memory of its own that could be read", o->name);
    t->size = size;
    t->stride = stride;
    return true;
}

static bool same_device(struct run *r, const struct tensor *t, const struct operand *o)
{
    int32_t type, index;
    if (sop_shim.device_type(t->handle, &type) || sop_shim.device_index(t->handle, &index))
        return fail(r, "%s is on no device", o->name);
    if (r->device_type < 0) {
        r->device_type = type;
        r->device_index = index;
    }
    if (type != r->device_type || index != r->device_index)
        return fail(r, "%s is on another device than the operands before it", o->name);
    return true;
}

static void dense(int64_t n, const int64_t *size, int64_t *stride)
{
    int64_t step = 1;
    for (int64_t i = n; i-- > 0;) {
        stride[i] = step;
        step *= size[i] > 1 ? size[i] : 1;
    }
}

/* Take a dense copy in this type (a PyTorch one) in its place. */
static bool copy_of(struct run *r, struct tensor *t, const struct operand *o, int32_t dtype)
{
    enum { MOST = 32 };
    int64_t stride[MOST];
    sop_handle fresh = NULL;
    if (o->written)
        return fail(r, "%s is written in place, and its strides or its type do not fit", o->name);
    if (t->ndim > MOST) return fail(r, "%s has %lld dimensions", o->name, (long long)t->ndim);
    dense(t->ndim, t->size, stride);
    if (sop_shim.empty(t->ndim, t->size, stride, dtype, r->device_type, r->device_index, &fresh))
        return fail(r, "no memory for a copy of %s", o->name);
    if (sop_shim.copy(fresh, t->handle, 1)) {
        (void)sop_shim.drop(fresh);
        return fail(r, "%s could not be copied", o->name);
    }
    (void)sop_shim.drop(t->handle);
    t->handle = fresh;
    r->copied = true;
    return look(r, t, o);
}

/* Dimensions [from, to) as one: false when no single stride walks them. */
static bool fold(const struct tensor *t, int64_t from, int64_t to, int64_t *extent, int64_t *step)
{
    *extent = 1;
    *step = 0;
    for (int64_t i = to; i-- > from;) {
        if (t->size[i] == 1) continue;
        if (*extent != 1 && *extent != 0 && t->size[i] != 0 && t->stride[i] != *step * *extent)
            return false;
        if (*extent == 1) *step = t->stride[i];
        *extent *= t->size[i];
    }
    return true;
}

/* The tensor's dimensions as the operator sees them; split: leading ones of ** as tokens and heads. */
static bool arrange(const struct operand *o, struct tensor *t, bool split)
{
    const int64_t lead = t->ndim - (o->n_dims - o->stars);
    const int32_t rest = o->n_dims - o->stars;
    bool fits = true;
    if (o->stars == 1) {
        fits = fold(t, 0, lead, &t->extent[0], &t->step[0]);
    } else if (o->stars == 2) {
        /* 0 heads would say that a desc does not know how many there are: then they are no tokens */
        const bool heads = split && lead > 0 && t->size[lead - 1] != 0;
        t->extent[1] = heads ? t->size[lead - 1] : 1;
        t->step[1] = heads ? t->stride[lead - 1] : 0;
        fits = fold(t, 0, heads ? lead - 1 : lead, &t->extent[0], &t->step[0]);
    }
    for (int32_t i = 0; i < rest; i++) {
        t->extent[o->stars + i] = t->size[lead + i];
        t->step[o->stars + i] = t->stride[lead + i];
    }
    /* Where there is but one, any step will do: take the one that equal shapes share. A step of 0, of what
     * was expanded, has no place in a desc: there 0 is what the operator makes dense. */
    int64_t step = 1;
    for (int32_t i = o->n_dims; i-- > 0;) {
        if (t->extent[i] <= 1) t->step[i] = step;
        if (t->step[i] != step && (o->stride[i] < 0 || t->step[i] == 0)) fits = false;
        step = t->step[i] * (t->extent[i] > 1 ? t->extent[i] : 1);
    }
    return fits;
}

static bool right_rank(struct run *r, const struct operand *o, const struct tensor *t)
{
    const int32_t want = o->n_dims - o->stars;
    if (o->stars ? t->ndim >= want : t->ndim == want) return true;
    return fail(r, "%s has %lld dimensions, wanted are %s%d", o->name, (long long)t->ndim,
                o->stars ? "at least " : "", want);
}

/* The type that the operator fixes for an operand. */
static int32_t fixed_type(const struct run *r, const struct operand *o)
{
    return r->doubles && o->dtype == SOP_F32 ? SOP_F64 : o->dtype;
}

/* Types as they have to be, by a copy where the operator fixes them. */
static bool convert(struct run *r, struct tensor *t, const struct operand *o)
{
    const int32_t want = fixed_type(r, o);
    const int32_t is = sop_type(t->dtype);
    if (is < 0) return fail(r, "%s has a type superop does not know", o->name);
    if (o->packed) {
        if (is != SOP_U8) return fail(r, "%s is %s, must be uint8", o->name, type_text(is));
        return true;
    }
    if (o->dtype_offset >= 0 || is == want) return true;
    const bool floats = (is == SOP_F16 || is == SOP_BF16 || is == SOP_F32 || is == SOP_F64) &&
                        (want == SOP_F32 || want == SOP_F64);
    if (floats || (is == SOP_I64 && want == SOP_I32)) return copy_of(r, t, o, type_of_sop(want));
    return fail(r, "%s is %s, must be %s", o->name, type_text(is), type_text(want));
}

static const struct operand *operand_of(const struct run *r, int32_t i)
{
    if (i >= r->op->n_args) return &r->op->out[i - r->op->n_args];
    return r->op->arg[i].is_operand ? &r->op->arg[i].operand : NULL;
}

/* All operands that came in: type, dimensions, dense copies where strides do not fit. */
static bool prepare(struct run *r, int32_t n)
{
    bool split = false;
    for (int32_t i = 0; i < n; i++) {
        const struct operand *o = operand_of(r, i);
        struct tensor *t = &r->tensor[i];
        if (!o || !t->handle) continue;
        if (!look(r, t, o) || !same_device(r, t, o)) return false;
        r->doubles |= o->dtype_offset >= 0 && sop_type(t->dtype) == SOP_F64;
    }
    for (int32_t i = 0; i < n; i++) {
        const struct operand *o = operand_of(r, i);
        struct tensor *t = &r->tensor[i];
        if (!o || !t->handle) continue;
        if (!convert(r, t, o) || !right_rank(r, o, t)) return false;
        if (o->stars && !r->lead) {
            r->lead = t;
            r->n_lead = (int32_t)t->ndim - (o->n_dims - o->stars);
        }
        if (o->stars == 2) split |= !arrange(o, t, false);
    }
    for (int32_t i = 0; i < n; i++) {
        const struct operand *o = operand_of(r, i);
        struct tensor *t = &r->tensor[i];
        if (!o || !t->handle || arrange(o, t, split)) continue;
        if (!copy_of(r, t, o, t->dtype)) return false;
        (void)arrange(o, t, split); /* what is dense fits */
    }
    return true;
}

static bool same_shape(const struct run *r, const struct tensor *t, int32_t n_lead)
{
    if (t->ndim < n_lead) return false;
    for (int32_t i = 0; i < n_lead; i++)
        if (t->size[i] != r->lead->size[i]) return false;
    return true;
}

/* Give the names their values, and see that all extents agree. */
static bool bind(struct run *r, int32_t n)
{
    const struct sop_torch_op *op = r->op;
    for (int32_t i = 0; i < op->n_names; i++) r->name[i] = -1;
    for (int32_t i = 0; i < op->n_args; i++) {
        const struct scalar *s = &op->arg[i].scalar;
        if (!op->arg[i].is_operand && s->symbol >= 0 && r->whole[i] != 0)
            r->name[s->symbol] = r->whole[i];
    }
    for (int32_t i = 0; i < n; i++) {
        const struct operand *o = operand_of(r, i);
        const struct tensor *t = &r->tensor[i];
        if (!o || !t->handle) continue;
        if (o->stars && r->lead != t) {
            const int32_t lead = (int32_t)t->ndim - (o->n_dims - o->stars);
            if (lead != r->n_lead || !same_shape(r, t, lead))
                return fail(r, "%s has other leading dimensions than the operands before it",
                            o->name);
        }
        for (int32_t d = 0; d < o->n_dims; d++) {
            const struct expr *e = &o->dim[d];
            const bool bytes = o->packed && d == o->n_dims - 1;
            if (e->n == 1 && e->step[0].sign == 'n' && !bytes && r->name[e->step[0].value] < 0)
                r->name[e->step[0].value] = t->extent[d];
        }
    }
    for (int32_t i = 0; i < op->n_rules; i++)
        if (r->name[op->rule[i].symbol] < 0)
            r->name[op->rule[i].symbol] = sop_torch_eval(&op->rule[i].expr, r->name);
    for (int32_t i = 0; i < op->n_names; i++)
        if (r->name[i] < 0) r->name[i] = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct operand *o = operand_of(r, i);
        const struct tensor *t = &r->tensor[i];
        if (!o || !t->handle) continue;
        for (int32_t d = 0; d < o->n_dims; d++) {
            const int64_t want = sop_torch_eval(&o->dim[d], r->name);
            if (o->packed && d == o->n_dims - 1) continue;
            if (t->extent[d] == want) continue;
            return fail(r, "%s has %lld in dimension %lld, the operands before it ask for %lld",
                        o->name, (long long)t->extent[d],
                        (long long)(t->ndim - o->n_dims + d < 0 ? 0 : t->ndim - o->n_dims + d),
                        (long long)want);
        }
    }
    return true;
}

/* The type of an output that nobody gave. */
static int32_t output_type(const struct run *r, const struct operand *o)
{
    if (o->like < 0) return type_of_sop(fixed_type(r, o));
    return r->op->arg[o->like].is_operand ? r->tensor[o->like].dtype
                                          : type_of_sop((int32_t)r->whole[o->like]);
}

/* Outputs that nobody gave. */
static bool make_outputs(struct run *r)
{
    enum { MOST = 32 };
    const struct sop_torch_op *op = r->op;
    for (int32_t i = 0; i < op->n_outs; i++) {
        const struct operand *o = &op->out[i];
        struct tensor *t = &r->tensor[op->n_args + i];
        int64_t size[MOST], stride[MOST];
        int32_t n = 0;
        if (o->stars) {
            if (r->n_lead + o->n_dims > MOST) return fail(r, "too many dimensions");
            for (; n < r->n_lead; n++) size[n] = r->lead->size[n];
        }
        for (int32_t d = o->stars; d < o->n_dims; d++)
            size[n++] = sop_torch_eval(&o->dim[d], r->name);
        dense(n, size, stride);
        const int32_t dtype = output_type(r, o);
        if (dtype < 0) return fail(r, "there is no type for %s", o->name);
        if (!t->handle &&
            sop_shim.empty(n, size, stride, dtype, r->device_type, r->device_index, &t->handle))
            return fail(r, "no memory for %s", o->name);
        if (!look(r, t, o)) return false;
        bool split = false;
        for (int32_t d = 0; o->stars == 2 && d < op->n_args; d++)
            if (op->arg[d].is_operand && op->arg[d].operand.stars == 2 && r->tensor[d].handle) {
                split = r->tensor[d].extent[1] != 1;
                break;
            }
        (void)arrange(o, t, split);
    }
    return true;
}

/* Fields of the desc that an operand has filled, a bit for each 4 bytes. */
struct seen {
    uint64_t bits[4];
};

static bool first_time(struct seen *s, int32_t offset)
{
    const uint64_t bit = (uint64_t)1 << (offset / 4 % 64);
    uint64_t *at = &s->bits[offset / 256 % 4];
    const bool first = !(*at & bit);
    *at |= bit;
    return first;
}

static bool set(struct run *r, char *desc, const struct operand *o, const struct tensor *t,
                struct seen *seen)
{
    if (o->flag_offset >= 0) *(int32_t *)(desc + o->flag_offset) |= o->flag;
    const int32_t is = sop_type(t->dtype);
    int32_t *dtype = o->dtype_offset >= 0 ? (int32_t *)(desc + o->dtype_offset) : NULL;
    if (dtype && !o->packed) {
        if (!first_time(seen, o->dtype_offset) && *dtype != is)
            return fail(r, "%s is %s, the operands before it ask for %s", o->name, type_text(is),
                        type_text(*dtype));
        *dtype = is;
    }
    const int64_t block = o->packed && dtype ? (int64_t)sop_dtype_bytes(*dtype) : 1;
    if (o->packed && dtype) {
        const int64_t length = sop_torch_eval(&o->dim[o->n_dims - 1], r->name);
        const size_t bytes = block ? sop_dtype_row_bytes(*dtype, length) : 0;
        if (!block || bytes == SIZE_MAX || (int64_t)bytes != t->extent[o->n_dims - 1])
            return fail(r, "%s has rows of %lld bytes; %lld elements of format %s have %lld",
                        o->name, (long long)t->extent[o->n_dims - 1], (long long)length,
                        sop_dtype_text(*dtype) ? sop_dtype_text(*dtype) : "?", (long long)bytes);
    }
    for (int32_t d = 0; d < o->n_dims; d++) {
        if (o->stride[d] < 0) continue;
        if (t->step[d] % block != 0)
            return fail(r, "%s has a stride of %lld bytes, no multiple of its blocks of %lld",
                        o->name, (long long)t->step[d], (long long)block);
        int64_t *step = (int64_t *)(desc + o->stride[d]);
        if (!first_time(seen, o->stride[d]) && *step != t->step[d] / block) {
            r->conflict = true;
            return fail(r, "%s has other strides than the operand it belongs to", o->name);
        }
        *step = t->step[d] / block;
    }
    return true;
}

static bool describe(struct run *r, char *desc)
{
    const struct sop_torch_op *op = r->op;
    struct seen seen = {{0}};
    memset(desc, 0, op->op->desc_bytes);
    for (int32_t i = 0; r->doubles && i < op->op->n_fields; i++) {
        const sop_field *f = &op->op->fields[i]; /* of operands that are absent too; no mask */
        if (f->kind == SOP_FIELD_DTYPE && strcmp(f->key, "mask") != 0)
            *(int32_t *)(desc + f->offset) = SOP_F64;
    }
    for (int32_t i = 0; i < op->n_names; i++)
        if (op->symbol[i].offset >= 0) *(int64_t *)(desc + op->symbol[i].offset) = r->name[i];
    for (int32_t i = 0; i < op->n_args; i++) {
        const struct scalar *s = &op->arg[i].scalar;
        if (op->arg[i].is_operand) continue;
        if (s->is_float)
            *(float *)(desc + s->offset) = (float)r->number[i] + 0.0f;
        else if (s->kind == SOP_FIELD_I64)
            *(int64_t *)(desc + s->offset) = s->symbol >= 0 ? r->name[s->symbol] : r->whole[i];
        else
            *(int32_t *)(desc + s->offset) = (int32_t)r->whole[i];
    }
    for (int32_t i = 0; i < op->n_args + op->n_outs; i++) {
        const struct operand *o = operand_of(r, i);
        if (o && r->tensor[i].handle && !set(r, desc, o, &r->tensor[i], &seen)) return false;
    }
    return true;
}

static size_t extent_bytes(const struct operand *o, const struct tensor *t)
{
    int64_t last = 0;
    for (int32_t d = 0; d < o->n_dims; d++) {
        if (t->extent[d] == 0) return 0;
        last += (t->extent[d] - 1) * t->step[d];
    }
    return (size_t)(last + 1) * sop_dtype_bytes(sop_type(t->dtype));
}

static void measure(const struct run *r, size_t *bytes)
{
    for (int32_t i = 0; i < r->op->n_args + r->op->n_outs; i++)
        if (r->tensor[i].handle) bytes[i] = extent_bytes(operand_of(r, i), &r->tensor[i]);
}

/* Where: the card, or on a CPU: below this a second thread costs more than it brings. 128 KB are 4 us of
 * one core. */
static int32_t index_of(const struct run *r, const size_t *bytes)
{
    size_t all = 0;
    if (r->device_type != torch_cpu) return r->device_index;
    for (int32_t i = 0; i < r->op->n_args + r->op->n_outs; i++) all += bytes[i];
    return all < 128 << 10 ? SOP_TORCH_SERIAL : SOP_TORCH_CPU;
}

/* index: for sop_torch_place(). p: where it was without a stream, or nothing that is known; then where it is. */
static bool find_place(struct run *r, int32_t index, struct place *p)
{
    if (index >= 0 && sop_shim.stream(index, &r->stream))
        return fail(r, "there is no current stream");
    if (p->queue && !r->stream) return true;
    const sop_status s = sop_torch_place(index, r->stream, p);
    return s == SOP_OK ? true : hand_on(r, s);
}

/* bytes: of each operand. */
static bool launch(struct run *r, const struct place *p, const struct kept *k, const size_t *bytes)
{
    const struct sop_torch_op *op = r->op;
    sop_operand args[32];
    const int64_t scratch_bytes = (int64_t)sop_torch_scratch(k), one = 1;
    sop_handle scratch = NULL;
    void *memory = NULL;
    memset(args, 0, (size_t)op->op->n_roles * sizeof *args);
    for (int32_t i = 0; i < op->n_args + op->n_outs; i++)
        if (r->tensor[i].handle)
            args[operand_of(r, i)->role] = (sop_operand){r->tensor[i].data, bytes[i]};
    if (scratch_bytes > 0 && (sop_shim.empty(1, &scratch_bytes, &one, type_of_sop(SOP_U8),
                                             r->device_type, r->device_index, &scratch) ||
                              sop_shim.data(scratch, &memory)))
        return fail(r, "no memory for scratch of %lld bytes", (long long)scratch_bytes);
    const char *row = sop_torch_row(k);
    const sop_status s = sop_torch_run(k, p, args, memory);
    if (scratch) (void)sop_shim.drop(scratch); /* the stream keeps its order: reuse waits */
    if (hear) hear(op->name, row);             /* it may call operators, which may replace k */
    return s == SOP_OK ? true : hand_on(r, s);
}

/* All that a plan depends on, in words: how many, or 0 where they are too many or cannot be read. */
static int32_t sign(struct run *r, int64_t *word)
{
    const struct sop_torch_op *op = r->op;
    const int32_t tensors = op->n_args + (r->given ? op->n_outs : 0);
    int32_t n = 0;
    word[n++] = (int64_t)(op - ops) << 1 | r->given;
    for (int32_t i = 0; i < tensors; i++) {
        int64_t ndim, *size, *stride;
        int32_t dtype, type, index;
        if (n == SOP_TORCH_WORDS) return 0;
        if (i < op->n_args && !op->arg[i].is_operand) {
            if (op->arg[i].scalar.is_float)
                memcpy(&word[n++], &r->number[i], sizeof *word);
            else
                word[n++] = r->whole[i];
            continue;
        }
        const sop_handle h = r->tensor[i].handle;
        if (!h) {
            word[n++] = -1;
            continue;
        }
        if (sop_shim.ndim(h, &ndim) || sop_shim.sizes(h, &size) || sop_shim.strides(h, &stride) ||
            sop_shim.dtype(h, &dtype) || sop_shim.device_type(h, &type) ||
            sop_shim.device_index(h, &index) || n + 2 + 2 * ndim > SOP_TORCH_WORDS)
            return 0;
        word[n++] = ndim << 8 | dtype;
        word[n++] = (int64_t)type << 32 | (uint32_t)index;
        for (int64_t d = 0; d < ndim; d++) {
            word[n++] = size[d];
            word[n++] = stride[d];
        }
        if (r->device_type < 0) {
            r->device_type = type;
            r->device_index = index;
        }
    }
    return n;
}

/* A call like one before. */
static bool again(struct run *r, const struct sop_torch_memo *m)
{
    const struct sop_torch_op *op = r->op;
    struct place place = m->place;
    for (int32_t i = 0; !r->given && i < op->n_outs; i++)
        if (sop_shim.empty(m->out[i].ndim, m->out[i].size, m->out[i].stride, m->out[i].dtype,
                           r->device_type, r->device_index, &r->tensor[op->n_args + i].handle))
            return fail(r, "no memory for %s", op->out[i].name);
    for (int32_t i = 0; i < op->n_args + op->n_outs; i++) {
        struct tensor *t = &r->tensor[i];
        if (t->handle && sop_shim.data(t->handle, &t->data))
            return fail(r, "%s has no memory of its own that could be read",
                        operand_of(r, i)->name);
    }
    return find_place(r, m->index, &place) && launch(r, &place, m->kept, m->bytes);
}

static void remember(const struct run *r, const int64_t *word, int32_t n, struct kept *kept,
                     int32_t index, const struct place *place, const size_t *bytes)
{
    const struct sop_torch_op *op = r->op;
    const struct tensor *out = &r->tensor[op->n_args];
    if (r->copied || !sop_torch_planned(kept)) return;
    for (int32_t i = 0; i < op->n_outs; i++)
        if (out[i].ndim > SOP_TORCH_MEMO_DIMS) return;
    struct sop_torch_memo *m = sop_torch_memo_of(word, n);
    if (!m) return;
    sop_torch_memo_put(m, word, n, kept);
    m->index = index;
    m->place = r->stream ? (struct place){0} : *place;
    memcpy(m->bytes, bytes, sizeof m->bytes);
    for (int32_t i = 0; i < op->n_outs; i++) {
        m->out[i].ndim = out[i].ndim;
        m->out[i].dtype = out[i].dtype;
        memcpy(m->out[i].size, out[i].size, (size_t)out[i].ndim * sizeof(int64_t));
        memcpy(m->out[i].stride, out[i].stride, (size_t)out[i].ndim * sizeof(int64_t));
    }
}

/* A second chance for strides that the operator refuses: dense copies of all inputs. */
static bool densify(struct run *r)
{
    bool any = false;
    for (int32_t i = 0; i < r->op->n_args; i++) {
        const struct operand *o = operand_of(r, i);
        struct tensor *t = &r->tensor[i];
        int64_t stride[32];
        if (!o || !t->handle || o->written || t->ndim > 32) continue;
        dense(t->ndim, t->size, stride);
        for (int64_t d = 0; d < t->ndim; d++)
            if (t->size[d] > 1 && t->stride[d] != stride[d]) {
                if (!copy_of(r, t, o, t->dtype)) return false;
                any = true;
                break;
            }
    }
    return any;
}

/* From the tensors to the desc. */
static bool arguments(struct run *r, int32_t n, char *desc)
{
    if (!prepare(r, n) || !bind(r, n)) return false;
    if (r->device_type < 0) return fail(r, "no operand is a tensor");
    return (r->given || make_outputs(r)) && describe(r, desc);
}

/* Whether there are outputs, and no element in any. */
static bool all_empty(const struct run *r)
{
    for (int32_t i = 0; i < r->op->n_outs; i++)
        if (extent_bytes(&r->op->out[i], &r->tensor[r->op->n_args + i]) != 0) return false;
    return r->op->n_outs > 0;
}

static bool work(struct run *r)
{
    const struct sop_torch_op *op = r->op;
    const int32_t n = op->n_args + (r->given ? op->n_outs : 0);
    int64_t word[SOP_TORCH_WORDS];
    const int32_t n_words = sign(r, word);
    const struct sop_torch_memo *m = n_words ? sop_torch_memo_of(word, n_words) : NULL;
    if (m && sop_torch_memo_has(m, word, n_words)) return again(r, m);

    _Alignas(8) char desc[1024];
    struct place place = {0};
    struct kept *kept = NULL;
    size_t bytes[TENSORS] = {0};
    r->device_type = -1;
    if (!arguments(r, n, desc) && (!r->conflict || !densify(r) || !arguments(r, n, desc)))
        return false;
    if (all_empty(r)) return true;
    measure(r, bytes);
    const int32_t index = index_of(r, bytes);
    if (!find_place(r, index, &place)) return false;
    sop_status s = sop_torch_get(&place, op->op, desc, &kept);
    if (s == SOP_E_SHAPE || s == SOP_E_ARG) {
        (void)hand_on(r, s);
        if (!densify(r) || !arguments(r, n, desc)) return false;
        measure(r, bytes);
        s = sop_torch_get(&place, op->op, desc, &kept);
    }
    if (s != SOP_OK) return hand_on(r, s);
    if (n_words) remember(r, word, n_words, kept, index, &place, bytes);
    const bool right = launch(r, &place, kept, bytes);
    sop_torch_put(kept);
    return right;
}

static sop_handle take(sop_value v, bool optional)
{
    sop_handle h = NULL;
    if (!optional) {
        memcpy(&h, &v, sizeof h);
        return h;
    }
    void *box;
    memcpy(&box, &v, sizeof box);
    if (!box) return NULL;
    memcpy(&h, box, sizeof h);
    sop_shim.drop_value(box);
    return h;
}

static void call(const struct sop_torch_op *op, bool given, sop_value *stack)
{
    struct run r; /* 5 KB, of which most calls need little */
    void *guard = NULL;
    memset(&r, 0, offsetof(struct run, error));
    r.op = op;
    r.given = given;
    r.device_type = -1;
    r.error[0] = 0;
    for (int32_t i = 0; i < op->n_args + op->n_outs; i++) r.tensor[i].handle = NULL;
    for (int32_t i = 0; i < op->n_args; i++) {
        const struct argument *a = &op->arg[i];
        if (a->is_operand)
            r.tensor[i].handle = take(stack[i], a->operand.optional);
        else if (a->scalar.is_float)
            memcpy(&r.number[i], &stack[i], sizeof r.number[i]);
        else
            memcpy(&r.whole[i], &stack[i], sizeof r.whole[i]);
    }
    for (int32_t i = 0; given && i < op->n_outs; i++)
        r.tensor[op->n_args + i].handle = take(stack[op->n_args + i], false);

    /* The library makes the tensor's device the thread's; PyTorch wants its own back, where there is more
     * than one. */
    int32_t index = -1, type = -1;
    for (int32_t i = 0; i < op->n_args && type < 0 && n_devices > 1; i++)
        if (r.tensor[i].handle && (sop_shim.device_type(r.tensor[i].handle, &type) ||
                                   sop_shim.device_index(r.tensor[i].handle, &index)))
            type = -1;
    if (type >= 0 && type == sop_shim.cuda() && sop_shim.guard) (void)sop_shim.guard(index, &guard);
    const bool right = work(&r);
    if (guard) (void)sop_shim.unguard(guard);

    for (int32_t i = 0; i < op->n_args; i++)
        if (r.tensor[i].handle) (void)sop_shim.drop(r.tensor[i].handle);
    for (int32_t i = 0; i < op->n_outs; i++) {
        sop_handle h = r.tensor[op->n_args + i].handle;
        if (right && !given)
            memcpy(&stack[i], &h, sizeof h);
        else if (h)
            (void)sop_shim.drop(h);
    }
    if (!right) sop_shim.check(false, op->name, "superop", 0, r.error);
}

/* clang-format off */
#define KERNEL(i) \
    static void kernel_##i(sop_value *s, uint64_t in, uint64_t out) \
    { (void)in, (void)out; call(&ops[i - 100], false, s); } \
    static void kernel_out_##i(sop_value *s, uint64_t in, uint64_t out) \
    { (void)in, (void)out; call(&ops[i - 100], true, s); }
#define TEN(X, d) X(d##0) X(d##1) X(d##2) X(d##3) X(d##4) X(d##5) X(d##6) X(d##7) X(d##8) X(d##9)
#define ALL(X) TEN(X, 10) TEN(X, 11) TEN(X, 12) TEN(X, 13) TEN(X, 14) TEN(X, 15) TEN(X, 16) \
    TEN(X, 17) TEN(X, 18) TEN(X, 19)
ALL(KERNEL)
#define POINTER(i) {kernel_##i, kernel_out_##i},
static sop_kernel *const kernels[OPS][2] = {ALL(POINTER)};
/* clang-format on */

SOP_API const char *sop_torch_line(int32_t i);
SOP_API const char *sop_torch_load(void);
SOP_API const char *sop_torch_register(int32_t devices);
SOP_API int64_t sop_torch_plans(void);
SOP_API const char *sop_torch_load_plugin(int32_t device, const char *path);
SOP_API void sop_torch_trace(void (*fn)(const char *op, const char *row));

/** Line i of the table, of those whose operator the library has, NULL past the last: what Python makes schemas and fakes of. */
const char *sop_torch_line(int32_t i)
{
    return i < n_ops ? lines[i] : NULL;
}

/** Find PyTorch's functions and read the table. NULL, or what is wrong. */
const char *sop_torch_load(void)
{
    static char text[TEXT];
    const char *why = sop_shim_load();
    if (why) {
        (void)snprintf(text, sizeof text, "this PyTorch has no %s", why);
        return text;
    }
    for (int32_t i = 0; i < TYPES; i++) torch_type[i] = (*types[i].torch)();
    torch_cpu = sop_shim.cpu();
    for (int32_t i = 0; sop_torch_lines[i]; i++) {
        if (n_ops == OPS) return "the table has more lines than there are kernels";
        if (sop_torch_parse(sop_torch_lines[i], &ops[n_ops], &why)) {
            lines[n_ops++] = sop_torch_lines[i];
        } else if (why) {
            (void)snprintf(text, sizeof text, "%s: %.300s", why, sop_torch_lines[i]);
            return text;
        }
    }
    return NULL;
}

/** Register the kernels of every line, whose schemas there must be by now, for a process that sees so
 * many devices of CUDA. NULL, or what is wrong. */
const char *sop_torch_register(int32_t devices)
{
    n_devices = devices;
    /* The meaning of values on the stack is that of this version's headers. */
    const uint64_t version = (uint64_t)2 << 56 | (uint64_t)10 << 48;
    const char *const keys[] = {"CPU", "CUDA"};
    for (int32_t k = 0; k < 2; k++) {
        void *library; /* as long as the process */
        if (sop_shim.library_impl("superop", keys[k], "superop", 1, &library))
            return "PyTorch refused the library superop";
        for (int32_t i = 0; i < n_ops; i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s", ops[i].name);
            if (sop_shim.impl(library, name, kernels[i][0], version)) return ops[i].name;
            (void)snprintf(name, sizeof name, "%s.out", ops[i].name);
            if (ops[i].n_outs && sop_shim.impl(library, name, kernels[i][1], version))
                return ops[i].name;
        }
    }
    return NULL;
}

/** Plans that are kept. */
int64_t sop_torch_plans(void)
{
    return sop_torch_kept();
}

/** Rows of a shared object, for the CPU (-1) or a device of CUDA. NULL, or what is wrong. */
const char *sop_torch_load_plugin(int32_t device, const char *path)
{
    return sop_torch_plugin(device, path) == SOP_OK ? NULL : sop_last_error();
}

/** Tell fn the row of every call of this thread, until NULL is given. */
void sop_torch_trace(void (*fn)(const char *op, const char *row))
{
    hear = fn;
}
