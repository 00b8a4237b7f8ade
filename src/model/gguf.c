/* The reader of GGUF.
 *
 *     "GGUF" | u32 version | i64 n_tensors | i64 n_keys
 *     n_keys    x { string key | i32 type | value }
 *     n_tensors x { string name | u32 n_dims | i64 ne[n_dims] | i32 type | u64 offset }
 *     padding to general.alignment, then the tensors' data, each padded to it
 *
 * A string is a u64 length and its bytes; an array an i32 type, a u64 length, the elements.
 * Nothing in the file is believed: every length is compared with the bytes that are left, and
 * memory is taken only for what has been seen. */
#include "model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie");

enum {
    MAX_DIMS = 4,
    MAX_KEY = 65535,         /* the format's own limit */
    MAX_NAME = 63,           /* ggml's, without the zero */
    MAX_VALUE = 1 << 30,     /* bytes of a string, elements of an array */
    MAX_ALIGNMENT = 1 << 20, /* files use 32; pages of any machine fit */
    DEFAULT_ALIGNMENT = 32,  /* the format's */
    MIN_KEY_BYTES = 8 + 4,   /* a key's length and its value's type */
    MIN_INFO_BYTES = 8 + 4 + 4 + 8
};

/* The format's tensor types; what superop cannot compute with has dtype -1 and is only listed.
 * Numbers that are missing here were removed from the format or are not known. */
static const struct tensor_type {
    const char *text;
    int32_t dtype;
    uint32_t elems, bytes; /* of a block */
} tensor_types[] = {
    /* clang-format off */
    [0] = {"F32", SOP_F32, 1, 4},          [1] = {"F16", SOP_F16, 1, 2},
    [2] = {"Q4_0", SOP_Q4_0, 32, 18},      [3] = {"Q4_1", SOP_Q4_1, 32, 20},
    [6] = {"Q5_0", SOP_Q5_0, 32, 22},      [7] = {"Q5_1", SOP_Q5_1, 32, 24},
    [8] = {"Q8_0", SOP_Q8_0, 32, 34},      [9] = {"Q8_1", -1, 32, 36},
    [10] = {"Q2_K", -1, 256, 84},          [11] = {"Q3_K", -1, 256, 110},
    [12] = {"Q4_K", SOP_Q4_K, 256, 144},   [13] = {"Q5_K", SOP_Q5_K, 256, 176},
    [14] = {"Q6_K", SOP_Q6_K, 256, 210},   [15] = {"Q8_K", -1, 256, 292},
    [16] = {"IQ2_XXS", -1, 256, 66},       [17] = {"IQ2_XS", -1, 256, 74},
    [18] = {"IQ3_XXS", -1, 256, 98},       [19] = {"IQ1_S", -1, 256, 50},
    [20] = {"IQ4_NL", -1, 32, 18},         [21] = {"IQ3_S", -1, 256, 110},
    [22] = {"IQ2_S", -1, 256, 82},         [23] = {"IQ4_XS", -1, 256, 136},
    [24] = {"I8", SOP_I8, 1, 1},           [25] = {"I16", -1, 1, 2},
    [26] = {"I32", SOP_I32, 1, 4},         [27] = {"I64", SOP_I64, 1, 8},
    [28] = {"F64", SOP_F64, 1, 8},         [29] = {"IQ1_M", -1, 256, 56},
    [30] = {"BF16", SOP_BF16, 1, 2},       [34] = {"TQ1_0", -1, 256, 54},
    [35] = {"TQ2_0", -1, 256, 66},         [39] = {"MXFP4", -1, 32, 17},
    [40] = {"NVFP4", -1, 64, 36},          [41] = {"Q1_0", -1, 128, 18},
    /* clang-format on */
};

typedef struct reader {
    sop_file *f;
    const char *name;
    const uint8_t *base;
    size_t at, size;
} reader;

static sop_status need(const reader *r, uint64_t bytes, const char *what)
{
    if (bytes <= r->size - r->at) return SOP_OK;
    return sop_fail(SOP_E_FORMAT, "%s: %s at byte %zu needs %" PRIu64 " bytes, %zu are left",
                    r->name, what, r->at, bytes, r->size - r->at);
}

static sop_status take(reader *r, void *out, size_t bytes, const char *what)
{
    SOP_TRY(need(r, bytes, what));
    memcpy(out, r->base + r->at, bytes);
    r->at += bytes;
    return SOP_OK;
}

/* The length and place of a string; r then stands behind it. */
static sop_status string(reader *r, const char *what, uint64_t limit, const char **s, size_t *n)
{
    uint64_t len;
    SOP_TRY(take(r, &len, sizeof len, what));
    if (len > limit)
        return sop_fail(SOP_E_FORMAT, "%s: %s at byte %zu has %" PRIu64 " bytes, at most %" PRIu64,
                        r->name, what, r->at - sizeof len, len, limit);
    SOP_TRY(need(r, len, what));
    *s = (const char *)r->base + r->at;
    *n = (size_t)len;
    r->at += (size_t)len;
    return SOP_OK;
}

static sop_status name_of(reader *r, const char *what, uint64_t limit, const char **out)
{
    const char *s;
    size_t n;
    SOP_TRY(string(r, what, limit, &s, &n));
    if (n == 0)
        return sop_fail(SOP_E_FORMAT, "%s: %s before byte %zu is empty", r->name, what, r->at);
    if (!sop_file_name_ok(s, n))
        return sop_fail(SOP_E_FORMAT, "%s: %s before byte %zu holds a control character", r->name,
                        what, r->at);
    *out = sop_file_take_str(r->f, s, n);
    return *out ? SOP_OK : SOP_E_NOMEM;
}

static size_t number_bytes(int32_t type)
{
    switch (type) {
    case SOP_META_U8:
    case SOP_META_I8:
    case SOP_META_BOOL: return 1;
    case SOP_META_U16:
    case SOP_META_I16: return 2;
    case SOP_META_U32:
    case SOP_META_I32:
    case SOP_META_F32: return 4;
    case SOP_META_U64:
    case SOP_META_I64:
    case SOP_META_F64: return 8;
    default: return 0;
    }
}

/* n strings in a row: looked at once for their lengths, then copied with a zero after each. */
static sop_status strings(reader *r, sop_meta *m)
{
    const size_t begin = r->at;
    const char *s;
    size_t len;
    for (int64_t i = 0; i < m->n; i++) SOP_TRY(string(r, m->key, MAX_VALUE, &s, &len));
    const size_t total = r->at - begin - 8 * (size_t)m->n + (size_t)m->n;
    uint64_t *from = sop_file_take(r->f, 8 * ((uint64_t)m->n + 1));
    char *to = sop_file_take(r->f, total);
    if (!from || !to) return SOP_E_NOMEM;
    m->from = from;
    m->data = to;
    r->at = begin;
    for (int64_t i = 0; i < m->n; i++) {
        SOP_TRY(string(r, m->key, MAX_VALUE, &s, &len));
        memcpy(to + from[i], s, len);
        from[i + 1] = from[i] + len + 1;
    }
    return SOP_OK;
}

static sop_status numbers(reader *r, sop_meta *m)
{
    const size_t each = number_bytes(m->type);
    if (each == 0)
        return sop_fail(SOP_E_FORMAT, "%s: key %s has a value of type %" PRId32 "%s", r->name,
                        m->key, m->type, m->type == SOP_META_ARRAY ? ", an array in an array" : "");
    const uint64_t bytes = each * (uint64_t)m->n; /* n <= MAX_VALUE */
    SOP_TRY(need(r, bytes, m->key));
    void *to = sop_file_take(r->f, bytes);
    if (!to) return SOP_E_NOMEM;
    SOP_TRY(take(r, to, (size_t)bytes, m->key));
    m->data = to;
    for (uint64_t i = 0; m->type == SOP_META_BOOL && i < bytes; i++)
        if (((const uint8_t *)to)[i] > 1)
            return sop_fail(SOP_E_FORMAT, "%s: key %s holds the byte %u as a bool", r->name, m->key,
                            (unsigned)((const uint8_t *)to)[i]);
    return SOP_OK;
}

static sop_status key(reader *r, sop_meta *m)
{
    SOP_TRY(name_of(r, "a key", MAX_KEY, &m->key));
    SOP_TRY(take(r, &m->type, sizeof m->type, m->key));
    m->n = 1;
    if (m->type == SOP_META_ARRAY) {
        uint64_t n;
        m->is_array = true;
        SOP_TRY(take(r, &m->type, sizeof m->type, m->key));
        SOP_TRY(take(r, &n, sizeof n, m->key));
        /* an element has at least one byte, a string eight */
        if (n > MAX_VALUE || n > r->size - r->at)
            return sop_fail(SOP_E_FORMAT,
                            "%s: key %s is an array of %" PRIu64 " elements, %zu bytes are left",
                            r->name, m->key, n, r->size - r->at);
        m->n = (int64_t)n;
    }
    return m->type == SOP_META_STR ? strings(r, m) : numbers(r, m);
}

/* Reads general.alignment wherever it stands among the keys. */
static sop_status alignment_of(const reader *r, const sop_meta *m, uint64_t *alignment)
{
    uint32_t a = 0;
    if (strcmp(m->key, "general.alignment") != 0) return SOP_OK;
    if (m->type != SOP_META_U32 || m->is_array)
        return sop_fail(SOP_E_FORMAT, "%s: general.alignment has type %" PRId32 ", must be u32",
                        r->name, m->type);
    memcpy(&a, m->data, sizeof a);
    if (a == 0 || (a & (a - 1)) != 0 || a > MAX_ALIGNMENT)
        return sop_fail(SOP_E_FORMAT,
                        "%s: general.alignment is %" PRIu32 ", must be a power of two up to %d",
                        r->name, a, MAX_ALIGNMENT);
    *alignment = a;
    return SOP_OK;
}

/* One tensor's name, shape, type and offset; bytes_out is the size of its data. */
static sop_status info(reader *r, sop_file_tensor_entry *t, uint64_t *offset, uint64_t *bytes_out)
{
    uint32_t n_dims, type;
    uint64_t ne[MAX_DIMS] = {1, 1, 1, 1}, dims[MAX_DIMS];
    SOP_TRY(name_of(r, "a tensor's name", MAX_NAME, &t->name));
    SOP_TRY(take(r, &n_dims, sizeof n_dims, t->name));
    if (n_dims > MAX_DIMS)
        return sop_fail(SOP_E_FORMAT, "%s: tensor %s has %" PRIu32 " dimensions, at most %d",
                        r->name, t->name, n_dims, MAX_DIMS);
    SOP_TRY(take(r, ne, n_dims * sizeof *ne, t->name));
    SOP_TRY(take(r, &type, sizeof type, t->name));
    SOP_TRY(take(r, offset, sizeof *offset, t->name));

    if (type >= sizeof tensor_types / sizeof *tensor_types || tensor_types[type].elems == 0)
        return sop_fail(SOP_E_UNSUPPORTED,
                        "%s: tensor %s has type %" PRIu32 ", which is unknown or was removed",
                        r->name, t->name, type);
    const struct tensor_type *ty = &tensor_types[type];
    for (uint32_t i = 0; i < n_dims; i++) {
        if (ne[i] == 0 || ne[i] > INT64_MAX)
            return sop_fail(SOP_E_FORMAT,
                            "%s: tensor %s has dimension %" PRIu32 " = %" PRId64 ", must be >= 1",
                            r->name, t->name, i, (int64_t)ne[i]);
        dims[n_dims - 1 - i] = ne[i];
    }
    if (ne[0] % ty->elems != 0)
        return sop_fail(SOP_E_FORMAT,
                        "%s: tensor %s has rows of %" PRIu64
                        " elements, %s needs a multiple of %" PRIu32,
                        r->name, t->name, ne[0], ty->text, ty->elems);
    uint64_t blocks;
    if (!sop_file_shape(&t->view, (int32_t)n_dims, dims, ty->elems, &blocks) ||
        __builtin_mul_overflow(blocks, (uint64_t)ty->bytes, bytes_out) || *bytes_out > INT64_MAX)
        return sop_fail(SOP_E_FORMAT,
                        "%s: tensor %s [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                        "] of %s overflows 64 bits",
                        r->name, t->name, ne[0], ne[1], ne[2], ne[3], ty->text);
    t->type = ty->text;
    t->view.dtype = ty->dtype;
    return SOP_OK;
}

static sop_status head(reader *r, uint64_t *n_tensors, uint64_t *n_keys)
{
    char magic[4];
    uint32_t version;
    SOP_TRY(take(r, magic, sizeof magic, "the magic"));
    if (memcmp(magic, "GGUF", 4) != 0)
        return sop_fail(SOP_E_FORMAT, "%s: not a GGUF file, it begins with %02x %02x %02x %02x",
                        r->name, (unsigned)r->base[0], (unsigned)r->base[1], (unsigned)r->base[2],
                        (unsigned)r->base[3]);
    SOP_TRY(take(r, &version, sizeof version, "the version"));
    if (version != 0 && (version & 0xffff) == 0)
        return sop_fail(SOP_E_UNSUPPORTED, "%s: a big-endian file (version %" PRIu32 ")", r->name,
                        __builtin_bswap32(version));
    if (version != 2 && version != 3)
        return sop_fail(SOP_E_UNSUPPORTED, "%s: GGUF version %" PRIu32 ", must be 2 or 3", r->name,
                        version);
    SOP_TRY(take(r, n_tensors, sizeof *n_tensors, "the number of tensors"));
    SOP_TRY(take(r, n_keys, sizeof *n_keys, "the number of keys"));
    const uint64_t left = r->size - r->at;
    if (*n_tensors > SOP_FILE_MAX_ENTRIES || *n_tensors > left / MIN_INFO_BYTES)
        return sop_fail(SOP_E_FORMAT,
                        "%s: it says %" PRId64 " tensors, at most %d and %" PRIu64
                        " bytes are left",
                        r->name, (int64_t)*n_tensors, SOP_FILE_MAX_ENTRIES, left);
    if (*n_keys > SOP_FILE_MAX_ENTRIES || *n_keys > left / MIN_KEY_BYTES)
        return sop_fail(SOP_E_FORMAT,
                        "%s: it says %" PRId64 " keys, at most %d and %" PRIu64 " bytes are left",
                        r->name, (int64_t)*n_keys, SOP_FILE_MAX_ENTRIES, left);
    return SOP_OK;
}

/* Gives each tensor its place: the format wants them in order, each at the end of the one before,
 * padded. sizes [n]: offset and bytes of each, from tensor first on. */
static sop_status place(const reader *r, uint64_t alignment, uint64_t (*sizes)[2], uint64_t n,
                        size_t first)
{
    const uint64_t start = (r->at + alignment - 1) & ~(alignment - 1); /* at <= a file's size */
    uint64_t expect = 0;
    for (uint64_t i = 0; i < n; i++) {
        sop_file_tensor_entry *t = &r->f->tensors[first + i];
        const uint64_t offset = sizes[i][0], bytes = sizes[i][1];
        if (offset != expect)
            return sop_fail(SOP_E_FORMAT,
                            "%s: tensor %s lies at offset %" PRIu64 ", must be at %" PRIu64 " (%s)",
                            r->name, t->name, offset, expect, offset < expect ? "overlap" : "gap");
        if (start > r->size || expect > r->size - start || bytes > r->size - start - expect)
            return sop_fail(SOP_E_FORMAT,
                            "%s: tensor %s ends at byte %" PRIu64 ", the file has %zu: %" PRIu64
                            " are missing",
                            r->name, t->name, start + expect + bytes, r->size,
                            start + expect + bytes - r->size);
        sop_file_point(&t->view, r->base + start + expect, bytes);
        expect += (bytes + alignment - 1) & ~(alignment - 1); /* bytes <= size: no overflow */
    }
    return SOP_OK;
}

sop_status sop_gguf_parse(sop_file *f, const uint8_t *bytes, size_t n, const char *name,
                          int32_t map)
{
    reader r = {.f = f, .name = name, .base = bytes, .size = n};
    uint64_t n_tensors = 0, n_keys = 0, alignment = DEFAULT_ALIGNMENT;
    const size_t first = f->n_tensors;
    SOP_TRY(head(&r, &n_tensors, &n_keys));
    for (uint64_t i = 0; i < n_keys; i++) {
        sop_meta *m = sop_file_add_meta(f);
        if (!m) return SOP_E_NOMEM;
        SOP_TRY(key(&r, m));
        SOP_TRY(alignment_of(&r, m, &alignment));
    }

    uint64_t(*sizes)[2] = sop_file_take(f, n_tensors * sizeof *sizes);
    if (!sizes) return SOP_E_NOMEM;
    for (uint64_t i = 0; i < n_tensors; i++) {
        sop_file_tensor_entry *t = sop_file_add_tensor(f);
        if (!t) return SOP_E_NOMEM;
        t->map = map;
        SOP_TRY(info(&r, t, &sizes[i][0], &sizes[i][1]));
    }
    return place(&r, alignment, sizes, n_tensors, first);
}

/* "name-00002-of-00003.gguf": false when path has no such end. prefix is what stands before it. */
static bool split_name(const char *path, int64_t *no, int64_t *count, size_t *prefix)
{
    enum { END = 20 };
    const size_t n = strlen(path);
    const char *end = path + n - END;
    if (n < END || end[0] != '-' || memcmp(end + 6, "-of-", 4) != 0 ||
        strcmp(end + 15, ".gguf") != 0)
        return false;
    *no = *count = 0;
    for (int i = 1; i < 15; i++) {
        int64_t *to = i < 6 ? no : count;
        if (i >= 6 && i < 10) continue;
        if (end[i] < '0' || end[i] > '9') return false;
        *to = *to * 10 + (end[i] - '0');
    }
    *prefix = n - END;
    return true;
}

/* A key of the file that was parsed last, its keys being those from first on; or otherwise. */
static int64_t key_or(const sop_file *f, size_t first, const char *name, int64_t otherwise)
{
    int64_t v = otherwise;
    for (size_t i = first; i < f->n_metas; i++)
        if (strcmp(f->metas[i].key, name) == 0 && !f->metas[i].is_array)
            (void)sop_meta_i64(&f->metas[i], 0, &v);
    return v;
}

static sop_status open_shard(sop_file *f, const char *path, int64_t no, int64_t *count)
{
    const size_t first = f->n_metas;
    SOP_TRY(sop_file_map_in(f, path));
    const sop_file_map *m = &f->maps[f->n_maps - 1];
    SOP_TRY(sop_gguf_parse(f, m->base, m->size, m->path, (int32_t)no));
    const int64_t says = key_or(f, first, "split.count", 1);
    const int64_t says_no = key_or(f, first, "split.no", 0);
    if (no == 0) *count = says > 0 ? says : 1;
    if (no > 0 && (says != *count || says_no != no))
        return sop_fail(SOP_E_FORMAT,
                        "%s: it says shard %" PRId64 " of %" PRId64 ", its name %" PRId64
                        " of %" PRId64,
                        path, says_no + 1, says, no + 1, *count);
    if (no == 0 && *count > 1 && says_no != 0)
        return sop_fail(SOP_E_FORMAT, "%s: shard %" PRId64 " of %" PRId64 ", open the first one",
                        path, says_no + 1, *count);
    if (no > 0) f->n_metas = first; /* the first shard's are the model's */
    return SOP_OK;
}

sop_status sop_gguf_open(sop_file *f, const char *path)
{
    int64_t count = 1, name_no, name_count;
    size_t prefix;
    SOP_TRY(open_shard(f, path, 0, &count));
    if (count == 1) return sop_file_seal(f);
    if (!split_name(path, &name_no, &name_count, &prefix) || name_no != 1 || name_count != count)
        return sop_fail(SOP_E_FORMAT,
                        "%s: the first of %" PRId64
                        " shards, its name must end in -00001-of-%05" PRId64 ".gguf",
                        path, count, count);
    const int64_t total = key_or(f, 0, "split.tensors.count", -1);
    /* The other names are made from the caller's path and a number, never from the file's text. */
    char *shard = sop_file_take_str(f, path, strlen(path));
    if (!shard) return SOP_E_NOMEM;
    for (int64_t no = 1; no < count; no++) {
        char number[24];
        (void)snprintf(number, sizeof number, "-%05" PRId64, no + 1); /* count has five digits */
        memcpy(shard + prefix, number, 6);
        SOP_TRY(open_shard(f, shard, no, &count));
    }
    if (total >= 0 && (uint64_t)total != f->n_tensors)
        return sop_fail(SOP_E_FORMAT,
                        "%s: the shards hold %zu tensors, split.tensors.count says %" PRId64, path,
                        f->n_tensors, total);
    return sop_file_seal(f);
}
