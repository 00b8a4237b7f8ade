/* The reader of safetensors.
 *
 *     u64 N | N bytes of JSON, padded with spaces | the tensors' data
 *     {"__metadata__": {"format": "pt"},
 *      "NAME": {"dtype": "BF16", "shape": [d, d], "data_offsets": [begin, end]}, ...}
 *
 * Offsets count from the end of the JSON. Sorted by begin, the tensors must fill the rest of the
 * file with no gap and no overlap, and each range must be what shape and dtype say. */
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "model/json.h"

enum {
    MAX_HEADER = 100000000, /* the format's own limit */
    MAX_SHARDS = 1024,      /* the largest models have some 200 */
    MAX_KEY = 512           /* of config.json, joined */
};

/* What superop cannot compute with has dtype -1 and is only listed. */
static const struct element {
    const char *text;
    int32_t dtype;
    uint32_t bits;
} elements[] = {
    {"F32", SOP_F32, 32}, {"F16", SOP_F16, 16}, {"BF16", SOP_BF16, 16}, {"F64", SOP_F64, 64},
    {"I8", SOP_I8, 8},    {"U8", SOP_U8, 8},    {"I32", SOP_I32, 32},   {"I64", SOP_I64, 64},
    {"BOOL", -1, 8},      {"I16", -1, 16},      {"U16", -1, 16},        {"U32", -1, 32},
    {"U64", -1, 64},      {"F8_E5M2", -1, 8},   {"F8_E4M3", SOP_F8, 8}, {"F8_E8M0", -1, 8},
    {"F4", -1, 4},        {"F6_E2M3", -1, 6},   {"F6_E3M2", -1, 6},     {"C64", -1, 64},
};

typedef struct range {
    uint64_t begin, end;
    size_t tensor;
} range;

static sop_status natural(sop_json *j, const char *tensor, uint64_t *out)
{
    bool whole;
    int64_t i;
    double d;
    SOP_TRY(sop_json_number(j, &whole, &i, &d));
    /* 2^53: what JSON's other readers hold exactly */
    if (!whole || i < 0 || i > INT64_C(1) << 53)
        return sop_fail(SOP_E_FORMAT,
                        "%s: tensor %s has the number %.17g, must be an integer in "
                        "0 .. 2^53",
                        j->name, tensor, whole ? (double)i : d);
    *out = (uint64_t)i;
    return SOP_OK;
}

/* An array of at most max naturals. */
static sop_status naturals(sop_json *j, const char *tensor, const char *what, uint64_t *out,
                           int max, int32_t *n)
{
    bool more;
    *n = 0;
    SOP_TRY(sop_json_enter(j, '['));
    for (;;) {
        SOP_TRY(sop_json_next(j, ']', &more));
        if (!more) return SOP_OK;
        if (*n == max)
            return sop_fail(SOP_E_FORMAT, "%s: tensor %s has more than %d numbers in %s", j->name,
                            tensor, max, what);
        SOP_TRY(natural(j, tensor, &out[(*n)++]));
    }
}

/* The three fields of a tensor, each once, in any order. */
static sop_status entry(sop_json *j, sop_file_tensor_entry *t, range *r)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    const struct element *e = NULL;
    uint64_t dims[SOP_MAX_DIMS] = {0}, at[2] = {0}, bits;
    int32_t ndim = 0, n_at = 0;
    const char *s;
    size_t n;
    int seen = 0;
    bool more;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) break;
        SOP_TRY(sop_json_key(j, &s, &n));
        const int field = strcmp(s, "dtype") == 0          ? DTYPE
                          : strcmp(s, "shape") == 0        ? SHAPE
                          : strcmp(s, "data_offsets") == 0 ? OFFSETS
                                                           : 0;
        if (field == 0 || (seen & field))
            return sop_fail(SOP_E_FORMAT, "%s: tensor %s has %s field before byte %zu", j->name,
                            t->name, field ? "twice the same" : "an unknown", j->at);
        seen |= field;
        if (field == SHAPE) SOP_TRY(naturals(j, t->name, "shape", dims, SOP_MAX_DIMS, &ndim));
        if (field == OFFSETS) SOP_TRY(naturals(j, t->name, "data_offsets", at, 2, &n_at));
        if (field != DTYPE) continue;
        SOP_TRY(sop_json_string(j, &s, &n));
        for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
            if (strcmp(s, elements[i].text) == 0) e = &elements[i];
        if (!e)
            return sop_fail(SOP_E_UNSUPPORTED, "%s: tensor %s has the unknown dtype %.32s", j->name,
                            t->name, sop_file_name_ok(s, n) ? s : "");
    }
    if (seen != (DTYPE | SHAPE | OFFSETS) || n_at != 2)
        return sop_fail(SOP_E_FORMAT, "%s: tensor %s needs dtype, shape and two data_offsets",
                        j->name, t->name);
    if (!sop_file_shape(&t->view, ndim, dims, 1, &bits) ||
        __builtin_mul_overflow(bits, (uint64_t)e->bits, &bits))
        return sop_fail(SOP_E_FORMAT, "%s: the shape of tensor %s overflows 64 bits", j->name,
                        t->name);
    if (at[0] > at[1] || bits % 8 != 0 || bits / 8 != at[1] - at[0])
        return sop_fail(SOP_E_FORMAT,
                        "%s: tensor %s has %" PRIu64 " bits by its shape and %s, its data "
                        "is from byte %" PRIu64 " to %" PRIu64,
                        j->name, t->name, bits, e->text, at[0], at[1]);
    t->type = e->text;
    t->view.dtype = e->dtype;
    r->begin = at[0];
    r->end = at[1];
    return SOP_OK;
}

/* "__metadata__": strings by strings, which say nothing that superop needs. */
static sop_status notes(sop_json *j)
{
    const char *s;
    size_t n;
    bool more;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(j, &s, &n));
        SOP_TRY(sop_json_string(j, &s, &n));
    }
}

static int by_place(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static sop_status place(sop_file *f, const char *name, const uint8_t *data, uint64_t size,
                        range *ranges, size_t n)
{
    uint64_t expect = 0;
    const char *before = "the header";
    if (n > 0) qsort(ranges, n, sizeof *ranges, by_place);
    for (size_t i = 0; i < n; i++) {
        sop_file_tensor_entry *t = &f->tensors[ranges[i].tensor];
        if (ranges[i].begin != expect)
            return sop_fail(SOP_E_FORMAT,
                            "%s: %s between %s and %s: %" PRIu64 " is followed by %" PRIu64, name,
                            ranges[i].begin < expect ? "overlap" : "gap", before, t->name, expect,
                            ranges[i].begin);
        if (ranges[i].end > size)
            return sop_fail(SOP_E_FORMAT,
                            "%s: tensor %s ends at data byte %" PRIu64 ", the file has %" PRIu64
                            ": %" PRIu64 " are missing",
                            name, t->name, ranges[i].end, size, ranges[i].end - size);
        sop_file_point(&t->view, data + expect, ranges[i].end - expect);
        expect = ranges[i].end;
        before = t->name;
    }
    if (expect != size)
        return sop_fail(SOP_E_FORMAT, "%s: %" PRIu64 " bytes follow the last tensor", name,
                        size - expect);
    return SOP_OK;
}

static sop_status header(sop_file *f, sop_json *j, int32_t map, range **ranges)
{
    const size_t first = f->n_tensors;
    size_t cap = 0, n;
    const char *s;
    bool more, noted = false;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) break;
        SOP_TRY(sop_json_key(j, &s, &n));
        if (strcmp(s, "__metadata__") == 0) {
            if (noted)
                return sop_fail(SOP_E_FORMAT, "%s: __metadata__ stands there twice", j->name);
            noted = true;
            SOP_TRY(notes(j));
            continue;
        }
        const size_t i = f->n_tensors - first;
        if (i == SOP_FILE_MAX_ENTRIES)
            return sop_fail(SOP_E_FORMAT, "%s: more than %d tensors", j->name,
                            SOP_FILE_MAX_ENTRIES);
        if (!sop_file_name_ok(s, n) || n == 0)
            return sop_fail(SOP_E_FORMAT,
                            "%s: the tensor's name before byte %zu is empty or holds a "
                            "control character",
                            j->name, j->at);
        if (i == cap) {
            cap = cap ? 2 * cap : 64;
            range *p = realloc(*ranges, cap * sizeof *p);
            if (!p) return sop_fail(SOP_E_NOMEM, "%s: %zu tensors", j->name, cap);
            *ranges = p;
        }
        sop_file_tensor_entry *t = sop_file_add_tensor(f);
        if (!t) return SOP_E_NOMEM;
        t->map = map;
        t->name = sop_file_take_str(f, s, n);
        if (!t->name) return SOP_E_NOMEM;
        SOP_TRY(entry(j, t, &(*ranges)[i]));
        (*ranges)[i].tensor = first + i;
    }
    return sop_json_end(j);
}

sop_status sop_safetensors_parse(sop_file *f, const uint8_t *bytes, size_t n, const char *name,
                                 int32_t map)
{
    const size_t first = f->n_tensors;
    uint64_t len = 0;
    if (n < sizeof len)
        return sop_fail(SOP_E_FORMAT, "%s: %zu bytes, a safetensors file has at least 10", name, n);
    memcpy(&len, bytes, sizeof len);
    if (len < 2 || len > MAX_HEADER || len > n - sizeof len)
        return sop_fail(SOP_E_FORMAT,
                        "%s: a header of %" PRIu64 " bytes, must be 2 .. %d and the file has %zu",
                        name, len, MAX_HEADER, n);
    if (bytes[8] != '{')
        return sop_fail(SOP_E_FORMAT, "%s: the header begins with 0x%02x, must be '{'", name,
                        (unsigned)bytes[8]);
    sop_json j;
    range *ranges = NULL;
    sop_json_init(&j, (const char *)bytes + 8, (size_t)len, name);
    sop_status status = header(f, &j, map, &ranges);
    if (status == SOP_OK)
        status = place(f, name, bytes + 8 + len, n - 8 - len, ranges, f->n_tensors - first);
    sop_json_finish(&j);
    free(ranges);
    return status;
}

/* Where the elements of a config's value go: a scalar is one element. Each is read twice, first
 * for its type and size, then into memory of just that size. */
typedef struct sink {
    int32_t type; /* SOP_META_*; ARRAY when getters could not say what it holds */
    size_t text;  /* bytes of all strings, with a zero after each */
    char *to;     /* NULL while counting */
    uint64_t *from;
} sink;

static sop_status element(sop_json *j, sink *k, int64_t i)
{
    const char c = sop_json_peek(j);
    int32_t type = SOP_META_ARRAY;
    const char *s;
    size_t n;
    bool whole;
    int64_t integer;
    double real;
    char letter;
    if (c == '"') {
        SOP_TRY(sop_json_string(j, &s, &n));
        type = SOP_META_STR;
        k->text += n + 1;
        if (k->to) memcpy(k->to + k->from[i], s, n + 1);
        if (k->to) k->from[i + 1] = k->from[i] + n + 1;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        SOP_TRY(sop_json_number(j, &whole, &integer, &real));
        type = whole ? SOP_META_I64 : SOP_META_F64;
        if (k->to && k->type == SOP_META_I64) memcpy(k->to + 8 * i, &integer, 8);
        if (k->to && k->type == SOP_META_F64) memcpy(k->to + 8 * i, &real, 8);
    } else if (c == '{' || c == '[') {
        SOP_TRY(sop_json_skip(j));
    } else {
        SOP_TRY(sop_json_word(j, &letter));
        type = letter == 'n' ? SOP_META_NULL : SOP_META_BOOL;
        if (k->to) k->to[i] = letter == 't';
    }
    if (k->to) return SOP_OK;
    if (i == 0 || k->type == type) {
        k->type = type;
    } else {
        const bool numbers = (k->type == SOP_META_I64 || k->type == SOP_META_F64) &&
                             (type == SOP_META_I64 || type == SOP_META_F64);
        k->type = numbers ? SOP_META_F64 : SOP_META_ARRAY;
    }
    return SOP_OK;
}

static sop_status elements_of(sop_json *j, bool is_array, sink *k, int64_t *n)
{
    bool more;
    *n = 0;
    if (is_array) SOP_TRY(sop_json_enter(j, '['));
    for (;;) {
        if (is_array) SOP_TRY(sop_json_next(j, ']', &more));
        if (is_array ? !more : *n == 1) return SOP_OK;
        SOP_TRY(element(j, k, (*n)++));
    }
}

/* Reads one value that is no object; it is left out when it is an array of no single type. */
static sop_status value(sop_file *f, sop_json *j, const char *key, size_t key_len)
{
    const bool is_array = sop_json_peek(j) == '[';
    const size_t at = j->at;
    sink k = {.type = SOP_META_I64};
    int64_t n;
    SOP_TRY(elements_of(j, is_array, &k, &n));
    if (k.type == SOP_META_ARRAY || (is_array && k.type == SOP_META_NULL)) return SOP_OK;
    sop_meta *m = sop_file_add_meta(f);
    if (!m) return SOP_E_NOMEM;
    m->key = sop_file_take_str(f, key, key_len);
    k.to = sop_file_take(f, k.type == SOP_META_STR ? k.text : 8 * (uint64_t)n);
    k.from = sop_file_take(f, 8 * ((uint64_t)n + 1));
    if (!m->key || !k.to || !k.from) return SOP_E_NOMEM;
    m->type = k.type;
    m->is_array = is_array;
    m->n = n;
    m->data = k.to;
    m->from = k.from;
    j->at = at;
    return elements_of(j, is_array, &k, &n);
}

/* Reads an object whose members' keys begin with path [used]. */
static sop_status object(sop_file *f, sop_json *j, char *path, size_t used)
{
    const char *s;
    size_t n;
    bool more;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(j, &s, &n));
        if (used + n + 1 > MAX_KEY || !sop_file_name_ok(s, n))
            return sop_fail(SOP_E_FORMAT,
                            "%s: the key before byte %zu holds a control character or "
                            "has more than %d bytes",
                            j->name, j->at, MAX_KEY);
        memcpy(path + used, s, n);
        if (f->n_metas == SOP_FILE_MAX_ENTRIES)
            return sop_fail(SOP_E_FORMAT, "%s: more than %d keys", j->name, SOP_FILE_MAX_ENTRIES);
        if (sop_json_peek(j) == '{') {
            path[used + n] = '.';
            SOP_TRY(object(f, j, path, used + n + 1));
        } else {
            SOP_TRY(value(f, j, path, used + n));
        }
    }
}

sop_status sop_config_parse(sop_file *f, const char *text, size_t n, const char *name)
{
    char path[MAX_KEY];
    sop_json j;
    sop_json_init(&j, text, n, name);
    sop_status status = object(f, &j, path, 0);
    if (status == SOP_OK) status = sop_json_end(&j);
    sop_json_finish(&j);
    return status;
}

static sop_status open_tensors(sop_file *f, const char *path)
{
    SOP_TRY(sop_file_map_in(f, path));
    const sop_file_map *m = &f->maps[f->n_maps - 1];
    return sop_safetensors_parse(f, m->base, m->size, m->path, (int32_t)f->n_maps - 1);
}

static char *join(sop_file *f, const char *folder, const char *name)
{
    const size_t n = strlen(folder), size = n + strlen(name) + 2;
    char *path = sop_file_take(f, size);
    if (path)
        (void)snprintf(path, size, "%s%s%s", folder, n && folder[n - 1] == '/' ? "" : "/", name);
    return path;
}

/* A shard's name comes from the index, so it may name nothing outside the folder. */
static bool shard_name_ok(const char *s, size_t n)
{
    static const char ending[] = ".safetensors";
    const size_t e = sizeof ending - 1;
    return n > e && s[0] != '.' && !memchr(s, '/', n) && sop_file_name_ok(s, n) &&
           strcmp(s + n - e, ending) == 0;
}

/* One line of the index. Once the tensors are sealed it is checked; before, a shard that is new is
 * opened: maps[0] is config.json, maps[1] the index. */
static sop_status weight(sop_file *f, const char *folder, const char *tensor, const char *shard)
{
    const size_t prefix = strlen(f->maps[0].path) - strlen("config.json");
    size_t map = 2;
    while (map < f->n_maps && strcmp(f->maps[map].path + prefix, shard) != 0) map++;
    if (f->tensor_slots.slot) {
        const sop_file_tensor_entry *t = sop_file_find_tensor(f, tensor);
        if (t && (size_t)t->map == map) return SOP_OK;
        return sop_fail(SOP_E_FORMAT, "%s: tensor %s is not in %s", f->maps[1].path, tensor, shard);
    }
    if (map < f->n_maps) return SOP_OK;
    if (map == 2 + MAX_SHARDS)
        return sop_fail(SOP_E_FORMAT, "%s: more than %d shards", f->maps[1].path, MAX_SHARDS);
    const char *path = join(f, folder, shard);
    return path ? open_tensors(f, path) : SOP_E_NOMEM;
}

/* Calls weight() for all of {"metadata": {...}, "weight_map": {TENSOR: SHARD, ...}}. */
static sop_status weights(sop_file *f, sop_json *j, const char *folder)
{
    char tensor[MAX_KEY];
    const char *s;
    size_t n;
    bool more, found = false;
    j->at = 0;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) break;
        SOP_TRY(sop_json_key(j, &s, &n));
        if (strcmp(s, "weight_map") != 0) {
            SOP_TRY(sop_json_skip(j));
            continue;
        }
        found = true;
        SOP_TRY(sop_json_enter(j, '{'));
        for (;;) {
            SOP_TRY(sop_json_next(j, '}', &more));
            if (!more) break;
            SOP_TRY(sop_json_key(j, &s, &n));
            if (n >= sizeof tensor || !sop_file_name_ok(s, n))
                return sop_fail(SOP_E_FORMAT,
                                "%s: a tensor's name of %zu bytes, at most %d, or with "
                                "a control character",
                                j->name, n, MAX_KEY - 1);
            memcpy(tensor, s, n + 1);
            SOP_TRY(sop_json_string(j, &s, &n));
            if (!shard_name_ok(s, n))
                return sop_fail(SOP_E_FORMAT,
                                "%s: tensor %s lies in a file whose name is none of a "
                                "safetensors file in the same folder",
                                j->name, tensor);
            SOP_TRY(weight(f, folder, tensor, s));
        }
    }
    if (!found) return sop_fail(SOP_E_FORMAT, "%s: there is no weight_map", j->name);
    return sop_json_end(j);
}

sop_status sop_safetensors_open(sop_file *f, const char *path)
{
    SOP_TRY(open_tensors(f, path));
    return sop_file_seal(f);
}

sop_status sop_safetensors_open_folder(sop_file *f, const char *path)
{
    const char *config = join(f, path, "config.json"), *one = join(f, path, "model.safetensors");
    const char *index = join(f, path, "model.safetensors.index.json");
    if (!config || !one || !index) return SOP_E_NOMEM;
    SOP_TRY(sop_file_map_in(f, config));
    SOP_TRY(sop_config_parse(f, (const char *)f->maps[0].base, f->maps[0].size, config));
    if (access(one, F_OK) == 0) return sop_safetensors_open(f, one);
    if (access(index, F_OK) != 0)
        return sop_fail(SOP_E_IO, "%s: there is neither model.safetensors nor its index", path);
    SOP_TRY(sop_file_map_in(f, index));
    sop_json j;
    sop_json_init(&j, (const char *)f->maps[1].base, f->maps[1].size, index);
    sop_status status = weights(f, &j, path);
    if (status == SOP_OK) status = sop_file_seal(f);
    if (status == SOP_OK) status = weights(f, &j, path);
    sop_json_finish(&j);
    return status;
}
