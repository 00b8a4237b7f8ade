#include "core/op.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"

double sop_unit(int32_t dtype)
{
    switch (dtype) {
    case SOP_F32: return SOP_U32;
    case SOP_F16: return SOP_U16;
    case SOP_BF16: return SOP_UB16;
    default: return 0;
    }
}

double sop_load(const void *data, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case SOP_F32: return (double)((const float *)data)[i];
    case SOP_F16: return (double)sop_f16_to_f32(((const uint16_t *)data)[i]);
    case SOP_BF16: return (double)sop_bf16_to_f32(((const uint16_t *)data)[i]);
    case SOP_F64: return ((const double *)data)[i];
    case SOP_I8: return ((const int8_t *)data)[i];
    case SOP_U8: return ((const uint8_t *)data)[i];
    case SOP_F8: return (double)sop_f8_to_f32(((const uint8_t *)data)[i]);
    case SOP_I32: return ((const int32_t *)data)[i];
    case SOP_I64: return (double)((const int64_t *)data)[i];
    default: return NAN;
    }
}

/* What most of a reference's time would go into, element by element. */
void sop_load_row(const void *data, int32_t dtype, int64_t i, int64_t n, double *out)
{
    switch (dtype) {
    case SOP_F32:
        for (int64_t j = 0; j < n; j++) out[j] = (double)((const float *)data)[i + j];
        break;
    case SOP_F16:
        for (int64_t j = 0; j < n; j++)
            out[j] = (double)sop_f16_to_f32(((const uint16_t *)data)[i + j]);
        break;
    case SOP_BF16:
        for (int64_t j = 0; j < n; j++)
            out[j] = (double)sop_bf16_to_f32(((const uint16_t *)data)[i + j]);
        break;
    case SOP_F8:
        for (int64_t j = 0; j < n; j++)
            out[j] = (double)sop_f8_to_f32(((const uint8_t *)data)[i + j]);
        break;
    default:
        for (int64_t j = 0; j < n; j++) out[j] = sop_load(data, dtype, i + j);
    }
}

void sop_store(void *data, int32_t dtype, int64_t i, double value)
{
    switch (dtype) {
    case SOP_F32: ((float *)data)[i] = (float)value; break;
    /* Two roundings could differ from one by a last bit at a tie; the bound has room for it. */
    case SOP_F16: ((uint16_t *)data)[i] = sop_f32_to_f16((float)value); break;
    case SOP_BF16: ((uint16_t *)data)[i] = sop_f32_to_bf16((float)value); break;
    case SOP_F64: ((double *)data)[i] = value; break;
    case SOP_I8: ((int8_t *)data)[i] = (int8_t)value; break;
    case SOP_U8: ((uint8_t *)data)[i] = (uint8_t)value; break;
    case SOP_F8: ((uint8_t *)data)[i] = sop_f32_to_f8((float)value); break;
    case SOP_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case SOP_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    default: break;
    }
}

void sop_put(const sop_call *call, const sop_judge *judge, int32_t role, int32_t dtype, int64_t at,
             int64_t index, double value, double bound)
{
    if (!judge) {
        sop_store(call->args[role].data, dtype, at, value);
        return;
    }
    if (!judge->value[role]) return;
    judge->value[role][index] = value;
    /* Half the distance of two subnormals, where a share of the value says nothing. */
    judge->bound[role][index] = bound + (1 + 0x1p-10) * sop_unit(dtype) * fabs(value) +
                                (dtype == SOP_F16    ? 0x1p-25
                                 : dtype == SOP_BF16 ? 0x1p-134
                                                     : 0x1p-149);
}

/* Bytes from the first element to the end of the last. */
static size_t span_bytes(const sop_tensor *t)
{
    int64_t last = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0) return 0;
        const int64_t n =
            i == t->ndim - 1 ? (t->shape[i] - 1) / sop_dtype_block(t->dtype) : t->shape[i] - 1;
        last += n * t->stride[i];
    }
    return (size_t)(last + 1) * sop_dtype_bytes(t->dtype);
}

void sop_view1(sop_tensor *out, int32_t dtype, int64_t n)
{
    *out = (sop_tensor){.dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}};
    out->bytes = span_bytes(out);
}

void sop_view2(sop_tensor *out, int32_t dtype, int64_t rows, int64_t cols, int64_t stride)
{
    *out = (sop_tensor){.dtype = dtype, .ndim = 2, .shape = {rows, cols}, .stride = {stride, 1}};
    out->bytes = span_bytes(out);
}

void sop_view3(sop_tensor *out, int32_t dtype, int64_t a, int64_t b, int64_t c, int64_t a_stride,
               int64_t b_stride)
{
    *out = (sop_tensor){
        .dtype = dtype, .ndim = 3, .shape = {a, b, c}, .stride = {a_stride, b_stride, 1}};
    out->bytes = span_bytes(out);
}

uint64_t sop_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Position of word among "a|b|c", or -1. */
static int32_t word_at(const char *words, const char *word, size_t bytes)
{
    for (int32_t i = 0;; i++) {
        const size_t n = strcspn(words, "|");
        if (n == bytes && memcmp(words, word, n) == 0) return i;
        if (!words[n]) return -1;
        words += n + 1;
    }
}

static sop_status field_set(const sop_op *op, const sop_field *f, const char *value, size_t bytes,
                            void *desc)
{
    char text[64], *end;
    void *at = (char *)desc + f->offset;
    if (bytes == 0 || bytes >= sizeof text)
        return sop_fail(SOP_E_ARG, "%s: %s= has no value of 1 to 63 characters", op->name, f->key);
    memcpy(text, value, bytes);
    text[bytes] = 0;
    errno = 0;
    switch (f->kind) {
    case SOP_FIELD_I64:
    case SOP_FIELD_I32: {
        const long long v = strtoll(text, &end, 10);
        if (*end || errno || (f->kind == SOP_FIELD_I32 && v != (int32_t)v))
            return sop_fail(SOP_E_ARG, "%s: %s=%s is not a whole number", op->name, f->key, text);
        if (f->kind == SOP_FIELD_I64)
            *(int64_t *)at = v;
        else
            *(int32_t *)at = (int32_t)v;
        return SOP_OK;
    }
    case SOP_FIELD_F32: {
        const float v = strtof(text, &end);
        if (*end || !isfinite(v))
            return sop_fail(SOP_E_ARG, "%s: %s=%s is not a number", op->name, f->key, text);
        *(float *)at = v + 0.0f; /* -0 and 0 are one desc */
        return SOP_OK;
    }
    case SOP_FIELD_DTYPE: {
        const int32_t v = sop_dtype_of(text);
        if (v < 0) return sop_fail(SOP_E_ARG, "%s: %s=%s is no type", op->name, f->key, text);
        *(int32_t *)at = v;
        return SOP_OK;
    }
    default: {
        const int32_t v = word_at(f->words, text, bytes);
        if (v < 0)
            return sop_fail(SOP_E_ARG, "%s: %s=%s, allowed: %s", op->name, f->key, text, f->words);
        *(int32_t *)at = v;
        return SOP_OK;
    }
    }
}

static sop_status no_such_key(const sop_op *op, const char *key, size_t bytes)
{
    const char *best = NULL;
    int least = 1 << 30;
    char text[64];
    (void)snprintf(text, sizeof text, "%.*s", (int)bytes, key);
    for (int32_t i = 0; i < op->n_fields; i++) {
        const int d = sop_text_distance(text, op->fields[i].key);
        if (d < least) least = d, best = op->fields[i].key;
    }
    return sop_fail(SOP_E_ARG, "%s: no key \"%s\"; nearest is \"%s\"", op->name, text,
                    best ? best : "");
}

sop_status sop_desc_parse(const sop_op *op, const char *text, void *desc)
{
    memset(desc, 0, op->desc_bytes);
    for (const char *p = text; *p;) {
        while (isspace((unsigned char)*p)) p++;
        if (!*p) break;
        const size_t all = strcspn(p, " \t\n"), key = strcspn(p, "=");
        if (key >= all)
            return sop_fail(SOP_E_ARG, "%s: \"%.*s\" is not key=value", op->name, (int)all, p);
        const sop_field *f = NULL;
        for (int32_t i = 0; i < op->n_fields && !f; i++)
            if (strlen(op->fields[i].key) == key && memcmp(op->fields[i].key, p, key) == 0)
                f = &op->fields[i];
        if (!f) return no_such_key(op, p, key);
        SOP_TRY(field_set(op, f, p + key + 1, all - key - 1, desc));
        p += all;
    }
    op->complete(desc);
    return op->check(desc);
}

void sop_desc_print(const sop_op *op, const void *desc, char *out, size_t cap)
{
    size_t n = 0;
    if (cap) out[0] = 0;
    for (int32_t i = 0; i < op->n_fields && n < cap; i++) {
        const sop_field *f = &op->fields[i];
        const void *at = (const char *)desc + f->offset;
        const char *gap = n ? " " : "";
        int wrote = 0;
        switch (f->kind) {
        case SOP_FIELD_I64:
            if (*(const int64_t *)at)
                wrote = snprintf(out + n, cap - n, "%s%s=%lld", gap, f->key,
                                 (long long)*(const int64_t *)at);
            break;
        case SOP_FIELD_I32:
            if (*(const int32_t *)at)
                wrote = snprintf(out + n, cap - n, "%s%s=%d", gap, f->key, *(const int32_t *)at);
            break;
        case SOP_FIELD_F32:
            if (*(const float *)at != 0)
                wrote = snprintf(out + n, cap - n, "%s%s=%.9g", gap, f->key,
                                 (double)*(const float *)at);
            break;
        case SOP_FIELD_DTYPE: {
            const char *t = sop_dtype_text(*(const int32_t *)at);
            wrote = snprintf(out + n, cap - n, "%s%s=%s", gap, f->key, t ? t : "?");
            break;
        }
        default: {
            const char *w = f->words;
            for (int32_t k = *(const int32_t *)at; k > 0; k--) w += strcspn(w, "|") + 1;
            wrote = snprintf(out + n, cap - n, "%s%s=%.*s", gap, f->key, (int)strcspn(w, "|"), w);
        }
        }
        if (wrote > 0) n += (size_t)wrote;
    }
}
