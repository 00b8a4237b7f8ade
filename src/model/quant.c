#include "model/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "core/f16.h"
#include "ops/linear/dequant.h"
#include "ops/linear/repack.h"

enum { BLOCK = 128 };

static const char *key(const char *last, char buf[128])
{
    (void)snprintf(buf, 128, "quantization_config.%s", last);
    return buf;
}

static const char *word(const sop_file *f, const char *last, const char *otherwise)
{
    char buf[128];
    const char *found = sop_file_str(f, key(last, buf), NULL);
    return found ? found : otherwise;
}

static bool number(const sop_file *f, const char *last, int64_t *out)
{
    char buf[128];
    return sop_file_i64(f, key(last, buf), out);
}

static void flag(const sop_file *f, const char *last, bool *out)
{
    char buf[128];
    (void)sop_file_bool(f, key(last, buf), out);
}

static sop_status check_group(const char *method, int64_t group)
{
    if (group == -1 || (group >= BLOCK && group % BLOCK == 0)) return SOP_OK;
    return sop_fail(SOP_E_UNSUPPORTED, "%s: groups of %lld columns, superop takes multiples of %d",
                    method, (long long)group, BLOCK);
}

static sop_status check_bits(const char *method, int64_t bits)
{
    return bits == 4 ? SOP_OK
                     : sop_fail(SOP_E_UNSUPPORTED, "%s: weights of %lld bits, superop takes 4",
                                method, (long long)bits);
}

static sop_status config_4(const sop_file *f, const char *method, sop_quant *out)
{
    int64_t bits = 4;
    if (!number(f, "bits", &bits)) (void)number(f, "w_bit", &bits);
    SOP_TRY(check_bits(method, bits));
    if (!number(f, "group_size", &out->group) && !number(f, "q_group_size", &out->group))
        return sop_fail(SOP_E_FORMAT, "%s: quantization_config has no group_size", method);
    SOP_TRY(check_group(method, out->group));
    if (out->method == SOP_QUANT_AWQ) {
        const char *version = word(f, "version", "gemm");
        if (strcasecmp(version, "gemm") != 0)
            return sop_fail(SOP_E_UNSUPPORTED, "awq: version \"%s\", superop takes gemm", version);
        return SOP_OK;
    }
    const char *format = word(f, "checkpoint_format", "gptq");
    out->zeros_themselves = strcmp(format, "gptq_v2") == 0;
    if (!out->zeros_themselves && strcmp(format, "gptq") != 0)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "gptq: checkpoint_format \"%s\", superop takes gptq and gptq_v2", format);
    flag(f, "sym", &out->symmetric);
    flag(f, "desc_act", &out->act_order);
    return SOP_OK;
}

/* The first group of compressed-tensors: superop takes files in which it is the only kind of 4 bits. */
#define GROUP "config_groups.group_0.weights."

static sop_status config_packed(const sop_file *f, const char *method, sop_quant *out)
{
    int64_t bits = 4;
    bool symmetric = true;
    out->method = SOP_QUANT_PACKED;
    out->group = -1;
    (void)number(f, GROUP "num_bits", &bits);
    (void)number(f, GROUP "group_size", &out->group);
    flag(f, GROUP "symmetric", &symmetric);
    SOP_TRY(check_bits(method, bits));
    if (!symmetric)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "%s: pack-quantized with zero points, superop takes "
                        "symmetric groups",
                        method);
    return check_group(method, out->group);
}

/* Rows and columns of a block, where there are blocks. */
static sop_status config_8(const sop_file *f, const char *method, sop_quant *out)
{
    static const char *const names[] = {"weight_block_size", GROUP "block_structure"};
    char buf[128];
    const char *format = word(f, "format", "float-quantized");
    if (strcmp(format, "pack-quantized") == 0) return config_packed(f, method, out);
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "int-quantized") != 0 &&
        strcmp(format, "naive-quantized") != 0)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "%s: format \"%s\", superop takes float-quantized, int-quantized and "
                        "pack-quantized",
                        method, format);
    for (int i = 0; i < 2; i++) {
        if (sop_file_array(f, key(names[i], buf)) < 0) continue;
        if (sop_file_array(f, buf) != 2 || !sop_file_array_i64(f, buf, 0, &out->tall) ||
            !sop_file_array_i64(f, buf, 1, &out->wide) || out->tall < 1 || out->wide < 1)
            return sop_fail(SOP_E_FORMAT, "%s: %s is not two whole numbers above 0", method, buf);
        if (out->wide % BLOCK)
            return sop_fail(SOP_E_UNSUPPORTED,
                            "%s: blocks of %lld rows and %lld columns, the columns must be a "
                            "multiple of %d",
                            method, (long long)out->tall, (long long)out->wide, BLOCK);
        break;
    }
    return SOP_OK;
}

sop_status sop_quant_config(const sop_file *f, sop_quant *out)
{
    static const struct {
        const char *name;
        int32_t method;
    } methods[] = {{"awq", SOP_QUANT_AWQ},
                   {"gptq", SOP_QUANT_GPTQ},
                   {"fp8", SOP_QUANT_8},
                   {"fbgemm_fp8", SOP_QUANT_8},
                   {"compressed-tensors", SOP_QUANT_8}};
    *out = (sop_quant){.method = SOP_QUANT_NONE};
    const char *method = word(f, "quant_method", NULL);
    if (sop_file_kind(f) != SOP_FILE_HF || !method) return SOP_OK;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i].name) == 0) out->method = methods[i].method;
    if (!out->method)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "config.json: quant_method \"%s\", superop takes awq, gptq, fp8, "
                        "fbgemm_fp8 and compressed-tensors",
                        method);
    return out->method == SOP_QUANT_8 ? config_8(f, method, out) : config_4(f, method, out);
}

/* "a.weight" and "qzeros": the tensor a.qzeros, full being its name. */
static bool part(const sop_file *f, const char *name, const char *last, char full[192],
                 sop_tensor *out)
{
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".weight") != 0) return false;
    (void)snprintf(full, 192, "%.*s.%s", (int)(dot - name), name, last);
    return sop_file_tensor(f, full, out);
}

static bool is_8(const sop_file *f, const char *name, sop_tensor *t)
{
    return sop_file_tensor(f, name, t) && t->ndim == 2 &&
           (t->dtype == SOP_I8 || t->dtype == SOP_F8);
}

/* The part of 4-bit weights that holds the codes. */
static const char *codes_of(const sop_quant *q)
{
    return q->method == SOP_QUANT_PACKED ? "weight_packed" : "qweight";
}

bool sop_quant_find(const sop_file *f, const sop_quant *q, const char *name, sop_tensor *out)
{
    char full[192];
    sop_tensor t;
    *out = (sop_tensor){.ndim = 2};
    if (is_8(f, name, &t)) {
        out->dtype = t.dtype == SOP_I8 ? SOP_I8_128 : SOP_F8_128;
        out->shape[0] = t.shape[0];
        out->shape[1] = t.shape[1];
        return true;
    }
    if (q->method == SOP_QUANT_NONE || q->method == SOP_QUANT_8 || sop_file_tensor(f, name, &t) ||
        !part(f, name, codes_of(q), full, &t) || t.ndim != 2)
        return false;
    out->dtype = SOP_I4_128;
    const bool rows = q->method == SOP_QUANT_PACKED, awq = q->method == SOP_QUANT_AWQ;
    out->shape[0] = rows ? t.shape[0] : awq ? 8 * t.shape[1] : t.shape[1];
    out->shape[1] = rows ? 8 * t.shape[1] : awq ? t.shape[0] : 8 * t.shape[0];
    return true;
}

/* Floats of a tensor of scales; the caller frees them. */
static sop_status floats_of(const char *full, const sop_tensor *t, int64_t n, float **out)
{
    if (t->dtype != SOP_F32 && t->dtype != SOP_F16 && t->dtype != SOP_BF16)
        return sop_fail(SOP_E_UNSUPPORTED, "the tensor %s is not f32, f16 or bf16", full);
    *out = malloc((size_t)(n ? n : 1) * sizeof **out);
    if (!*out) return sop_fail(SOP_E_NOMEM, "%s: %lld scales", full, (long long)n);
    sop_dequant_row(t->dtype, t->data, n, *out);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite((*out)[i]))
            return sop_fail(SOP_E_FORMAT, "the tensor %s: scale %lld is %g", full, (long long)i,
                            (double)(*out)[i]);
    return SOP_OK;
}

/* What repacking refused, with the tensor's name. */
static sop_status named(sop_status status, const char *name)
{
    char why[256];
    (void)snprintf(why, sizeof why, "%s", sop_last_error());
    return sop_fail(status, "the tensor %s: %s", name, why);
}

static sop_status make(int32_t dtype, int64_t n, int64_t k, const char *name, void **own)
{
    const size_t bytes = (size_t)n * sop_dtype_row_bytes(dtype, k);
    *own = malloc(bytes ? bytes : 1);
    return *own ? SOP_OK : sop_fail(SOP_E_NOMEM, "%s: %zu bytes of blocks", name, bytes);
}

/* How many rows and columns share one of the scales s. */
static sop_status spread(const sop_quant *q, const char *name, const sop_tensor *t,
                         const sop_tensor *s, int64_t *tall, int64_t *wide)
{
    const int64_t n = t->shape[0], k = t->shape[1];
    const int64_t rows = s->ndim ? s->shape[0] : 1, cols = s->ndim > 1 ? s->shape[1] : 1;
    *tall = 1;
    *wide = k;
    if (s->ndim <= 2 && cols == 1 && rows == 1) *tall = n;
    if (s->ndim <= 2 && cols == 1 && (rows == 1 || rows == n)) return SOP_OK;
    if (s->ndim == 2 && q->tall && rows == (n + q->tall - 1) / q->tall &&
        cols == (k + q->wide - 1) / q->wide) {
        *tall = q->tall;
        *wide = q->wide;
        return SOP_OK;
    }
    return sop_fail(SOP_E_FORMAT,
                    "the tensor %s is [%lld, %lld] and has scales [%lld, %lld], must be one, one a "
                    "row, or one for each block of %lld rows and %lld columns",
                    name, (long long)n, (long long)k, (long long)rows, (long long)cols,
                    (long long)q->tall, (long long)q->wide);
}

static sop_status read_8(const sop_file *f, const sop_quant *q, const char *name,
                         const sop_tensor *t, void **own)
{
    const int32_t dtype = t->dtype == SOP_I8 ? SOP_I8_128 : SOP_F8_128;
    const int64_t n = t->shape[0], k = t->shape[1];
    char full[192];
    sop_tensor s, zeros;
    int64_t tall, wide;
    float *scales = NULL;
    if (part(f, name, "weight_zero_point", full, &zeros))
        for (size_t i = 0; i < zeros.bytes; i++)
            if (((const uint8_t *)zeros.data)[i])
                return sop_fail(SOP_E_UNSUPPORTED,
                                "the tensor %s has a zero point other than 0, the 8-bit formats "
                                "have none",
                                full);
    if (k % BLOCK)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "the tensor %s: rows of %lld numbers of 8 bits, superop takes multiples of "
                        "%d",
                        name, (long long)k, BLOCK);
    if (!part(f, name, "weight_scale_inv", full, &s) && !part(f, name, "weight_scale", full, &s))
        return sop_fail(SOP_E_FORMAT,
                        "the tensor %s is %s and has neither weight_scale_inv nor weight_scale",
                        name, sop_file_tensor_type(f, name));
    SOP_TRY(spread(q, name, t, &s, &tall, &wide));
    int64_t count = 1;
    for (int32_t i = 0; i < s.ndim; i++) count *= s.shape[i];
    sop_status status = floats_of(full, &s, count, &scales);
    if (status == SOP_OK) status = make(dtype, n, k, name, own);
    if (status == SOP_OK) {
        status = sop_repack_8(dtype, t->data, scales, n, k, tall, wide, *own);
        if (status != SOP_OK) status = named(status, name);
    }
    free(scales);
    return status;
}

/* The words of a part, at their alignment. copy: to be freed, or NULL. */
static sop_status words(const sop_file *f, const char *name, const char *last, int64_t rows,
                        int64_t cols, const uint32_t **out, void **copy)
{
    char full[192];
    sop_tensor t;
    if (!part(f, name, last, full, &t))
        return sop_fail(SOP_E_FORMAT, "the tensor %s is missing", full);
    const int64_t r = t.ndim == 2 ? t.shape[0] : 1, c = t.ndim ? t.shape[t.ndim - 1] : 0;
    if (t.ndim > 2 || r != rows || c != cols || t.dtype != SOP_I32)
        return sop_fail(SOP_E_FORMAT, "the tensor %s is %s [%lld, %lld], must be I32 [%lld, %lld]",
                        full, sop_file_tensor_type(f, full), (long long)r, (long long)c,
                        (long long)rows, (long long)cols);
    *out = t.data;
    if ((uintptr_t)t.data % 4 == 0) return SOP_OK;
    *copy = malloc(t.bytes);
    if (!*copy) return sop_fail(SOP_E_NOMEM, "%s: an aligned copy of %zu bytes", full, t.bytes);
    memcpy(*copy, t.data, t.bytes);
    *out = *copy;
    return SOP_OK;
}

/* Scales of int4 blocks are f16; files have also others, which mostly are numbers of f16. */
static sop_status halves(const sop_file *f, const char *name, const char *last, int64_t groups,
                         int64_t n, uint16_t **out)
{
    char full[192];
    sop_tensor t;
    float *scales = NULL;
    if (!part(f, name, last, full, &t) || t.ndim != 2 || t.shape[0] != groups || t.shape[1] != n)
        return sop_fail(SOP_E_FORMAT, "the tensor %s is missing or not [%lld, %lld]", full,
                        (long long)groups, (long long)n);
    sop_status status = floats_of(full, &t, groups * n, &scales);
    *out = malloc((size_t)(groups * n + 1) * sizeof **out);
    if (!*out && status == SOP_OK) status = sop_fail(SOP_E_NOMEM, "%s: scales", full);
    for (int64_t i = 0; status == SOP_OK && i < groups * n; i++) {
        (*out)[i] = sop_f32_to_f16(scales[i]);
        if (sop_f16_to_f32((*out)[i]) != scales[i])
            status = sop_fail(SOP_E_UNSUPPORTED, "the tensor %s: scale %lld is %.9g, no f16", full,
                              (long long)i, (double)scales[i]);
    }
    free(scales);
    return status;
}

/* What the zeros of a GPTQ file mean. A file that says "sym" means 8, under either convention. In v1 a
 * zero of 0 wrapped to the 15 that 16 would have: its readers differ. */
static sop_status zeros_of(const sop_quant *q, const char *name, const uint32_t *zeros, int64_t n,
                           sop_int4_layout *out)
{
    *out = q->method == SOP_QUANT_AWQ      ? SOP_INT4_AWQ
           : q->method == SOP_QUANT_PACKED ? SOP_INT4_ROWS
           : q->zeros_themselves           ? SOP_INT4_GPTQ_V2
                                           : SOP_INT4_GPTQ;
    if (q->method != SOP_QUANT_GPTQ || n == 0) return SOP_OK;
    if (q->symmetric) *out = (zeros[0] & 15) == 8 ? SOP_INT4_GPTQ_V2 : SOP_INT4_GPTQ;
    for (int64_t i = 0; i < 8 * n; i++) {
        const uint32_t z = zeros[i / 8] >> 4 * (i % 8) & 15;
        if (q->symmetric && z != (*out == SOP_INT4_GPTQ_V2 ? 8u : 7u))
            return sop_fail(SOP_E_FORMAT,
                            "the tensor %s: sym is true and the zero point %lld is stored as %u, "
                            "must be 7 or 8 in all",
                            name, (long long)i, z);
        if (*out == SOP_INT4_GPTQ && z == 15)
            return sop_fail(SOP_E_UNSUPPORTED,
                            "the tensor %s: the zero point %lld is stored as 15, which is 0 or 16 "
                            "less 1; gptq_v2 can say which",
                            name, (long long)i);
    }
    return SOP_OK;
}

static sop_status read_4(const sop_file *f, const sop_quant *q, const char *name, int64_t n,
                         int64_t k, void **own)
{
    const bool awq = q->method == SOP_QUANT_AWQ, rows = q->method == SOP_QUANT_PACKED;
    const int64_t group = q->group > 0 ? q->group : k;
    const uint32_t *codes = NULL, *zeros = NULL, *order = NULL;
    void *copies[3] = {NULL};
    uint16_t *scales = NULL;
    char full[192];
    sop_tensor t;
    if (k < 1 || k % BLOCK || (n % 8 && !rows))
        return sop_fail(SOP_E_UNSUPPORTED,
                        "the tensor %s is [%lld, %lld] of 4 bits, superop takes rows by 8 and "
                        "columns by %d",
                        name, (long long)n, (long long)k, BLOCK);
    const int64_t groups = (k + group - 1) / group;
    const char *of = rows ? "weight_g_idx" : "g_idx";
    const bool ordered = part(f, name, of, full, &t);
    if (q->act_order && !ordered)
        return sop_fail(SOP_E_UNSUPPORTED, "%s: desc_act is true and %s is missing", name, full);
    sop_int4_layout layout;
    sop_status status = words(f, name, codes_of(q),
                              rows  ? n
                              : awq ? k
                                    : k / 8,
                              rows  ? k / 8
                              : awq ? n / 8
                                    : n,
                              &codes, copies);
    if (status == SOP_OK && !rows)
        status = words(f, name, "qzeros", groups, n / 8, &zeros, copies + 1);
    if (status == SOP_OK && ordered) status = words(f, name, of, 1, k, &order, copies + 2);
    if (status == SOP_OK)
        status = rows ? halves(f, name, "weight_scale", n, groups, &scales)
                      : halves(f, name, "scales", groups, n, &scales);
    if (status == SOP_OK) status = zeros_of(q, name, zeros, groups * (n / 8), &layout);
    if (status == SOP_OK) status = make(SOP_I4_128, n, k, name, own);
    if (status == SOP_OK) {
        status = sop_repack_int4(layout, codes, zeros, scales, (const int32_t *)order, n, k, group,
                                 *own);
        if (status != SOP_OK) status = named(status, name);
    }
    free(scales);
    for (int i = 0; i < 3; i++) free(copies[i]);
    return status;
}

sop_status sop_quant_read(const sop_file *f, const sop_quant *q, const char *name, void **own)
{
    char full[192];
    sop_tensor t, as;
    *own = NULL;
    if (!sop_quant_find(f, q, name, &as))
        return sop_fail(SOP_E_FORMAT, "the tensor %s is missing", name);
    const bool eight = is_8(f, name, &t);
    if (!eight) (void)part(f, name, codes_of(q), full, &t);
    const sop_status status =
        eight ? read_8(f, q, name, &t, own) : read_4(f, q, name, as.shape[0], as.shape[1], own);
    if (status == SOP_OK) {
        sop_file_forget(f, &t);
    } else {
        free(*own);
        *own = NULL;
    }
    return status;
}
