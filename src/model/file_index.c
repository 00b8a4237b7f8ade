#include "model/file_index.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/status.h"

enum {
    CHUNK_BYTES = 64 << 10,
    /* A table that is half full keeps its longest run near 4 ln n = 56 for 2^20 names; only names that
     * were chosen to collide pass this, and they would make opening a file quadratic. */
    MAX_PROBES = 512
};

/* What take() gives out comes from a list of blocks; larger wishes get a block of their own. */
struct sop_file_chunk {
    struct sop_file_chunk *next;
    size_t used, size;
};

sop_file *sop_file_create(void)
{
    sop_file *f = calloc(1, sizeof *f);
    if (!f) {
        (void)sop_fail(SOP_E_NOMEM, "a file's index of %zu bytes", sizeof *f);
        return NULL;
    }
    return f;
}

void sop_file_close(sop_file *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n_maps; i++) {
        (void)munmap(f->maps[i].base, f->maps[i].size);
        (void)close(f->maps[i].fd);
    }
    if (f->ring) (void)munmap(f->ring, f->ring_bytes);
    while (f->head) {
        struct sop_file_chunk *next = f->head->next;
        free(f->head);
        f->head = next;
    }
    free(f->maps);
    free(f->tensors);
    free(f->metas);
    free(f->tensor_slots.slot);
    free(f->meta_slots.slot);
    free(f);
}

void *sop_file_take(sop_file *f, uint64_t bytes)
{
    struct sop_file_chunk *c = f->head;
    const uint64_t room = (bytes + 7) & ~UINT64_C(7);
    if (!c || room < bytes || room > c->size - c->used) {
        const uint64_t size = room > CHUNK_BYTES ? room : CHUNK_BYTES;
        c = room < bytes || size > PTRDIFF_MAX ? NULL : calloc(1, sizeof *c + (size_t)size);
        if (!c) {
            (void)sop_fail(SOP_E_NOMEM, "a file's index: %" PRIu64 " bytes more", bytes);
            return NULL;
        }
        c->size = (size_t)size;
        /* a large one is full at once: the chunk before it stays in use */
        struct sop_file_chunk **at = f->head && room > CHUNK_BYTES ? &f->head->next : &f->head;
        c->next = *at;
        *at = c;
    }
    void *p = (char *)(c + 1) + c->used;
    c->used += (size_t)room;
    return p;
}

char *sop_file_take_str(sop_file *f, const char *s, size_t n)
{
    char *p = sop_file_take(f, (uint64_t)n + 1);
    if (p) memcpy(p, s, n);
    return p;
}

/* Room for one more in an array; NULL with the sentence. */
static void *grow(void *array, size_t n, size_t *cap, size_t each)
{
    if (n < *cap) return array;
    const size_t more = *cap ? 2 * *cap : 64;
    void *p = realloc(array, more * each);
    if (!p) {
        (void)sop_fail(SOP_E_NOMEM, "a file's index: %zu entries of %zu bytes", more, each);
        return NULL;
    }
    *cap = more;
    return p;
}

sop_file_tensor_entry *sop_file_add_tensor(sop_file *f)
{
    void *p = grow(f->tensors, f->n_tensors, &f->cap_tensors, sizeof *f->tensors);
    if (!p) return NULL;
    f->tensors = p;
    sop_file_tensor_entry *t = &f->tensors[f->n_tensors++];
    memset(t, 0, sizeof *t);
    return t;
}

sop_meta *sop_file_add_meta(sop_file *f)
{
    void *p = grow(f->metas, f->n_metas, &f->cap_metas, sizeof *f->metas);
    if (!p) return NULL;
    f->metas = p;
    sop_meta *m = &f->metas[f->n_metas++];
    memset(m, 0, sizeof *m);
    return m;
}

sop_status sop_file_map_in(sop_file *f, const char *path)
{
    struct stat st;
    void *p = grow(f->maps, f->n_maps, &f->cap_maps, sizeof *f->maps);
    char *name = sop_file_take_str(f, path, strlen(path));
    if (p) f->maps = p;
    if (!p || !name) return SOP_E_NOMEM;
    /* without blocking, so that a pipe in a file's place cannot hang us */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)sop_fail(SOP_E_IO, "%s: %m", path);
        if (fd >= 0) (void)close(fd);
        return SOP_E_IO;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        (void)close(fd);
        return sop_fail(SOP_E_IO, "%s: %s", path, S_ISREG(st.st_mode) ? "empty" : "not a file");
    }
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        (void)sop_fail(SOP_E_IO, "%s: mapping %lld bytes: %m", path, (long long)st.st_size);
        (void)close(fd);
        return SOP_E_IO;
    }
    f->maps[f->n_maps++] = (sop_file_map){name, fd, p, (size_t)st.st_size};
    return SOP_OK;
}

bool sop_file_shape(sop_tensor *t, int32_t ndim, const uint64_t *dims, uint64_t block,
                    uint64_t *blocks)
{
    uint64_t stride = 1;
    bool fits = true, empty = false;
    t->ndim = ndim;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        /* strides count elements; in block formats all but the last count blocks */
        const uint64_t n = i == ndim - 1 ? dims[i] / block : dims[i];
        t->shape[i] = (int64_t)dims[i];
        t->stride[i] = (int64_t)stride;
        empty = empty || n == 0;
        fits = fits && dims[i] <= INT64_MAX &&
               !__builtin_mul_overflow(stride, n ? n : 1, &stride) && stride <= INT64_MAX;
    }
    *blocks = empty ? 0 : stride;
    return fits;
}

void sop_file_point(sop_tensor *t, const uint8_t *data, uint64_t bytes)
{
    const union {
        const uint8_t *c;
        void *v;
    } u = {data};
    t->data = u.v;
    t->bytes = (size_t)bytes;
}

bool sop_file_name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) return false;
    return true;
}

static const char *path_of(const sop_file *f, int32_t map)
{
    return (size_t)map < f->n_maps ? f->maps[map].path : "memory";
}

static const char *name_at(const sop_file *f, const sop_file_slots *s, uint32_t i)
{
    return s == &f->tensor_slots ? f->tensors[i].name : f->metas[i].key;
}

/* The slot that holds name, or the free one where it would be; size when neither is near. */
static size_t slot_of(const sop_file *f, const sop_file_slots *s, const char *name)
{
    const size_t hash = sop_hash(name, strlen(name), 0);
    for (size_t k = 0; k < MAX_PROBES; k++) {
        const size_t i = (hash + k) & s->mask;
        if (!s->slot[i] || strcmp(name_at(f, s, s->slot[i] - 1), name) == 0) return i;
    }
    return s->mask + 1;
}

static sop_status seal(const sop_file *f, sop_file_slots *s, size_t n)
{
    const bool tensors = s == &f->tensor_slots;
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    free(s->slot);
    s->slot = calloc(size + 1, sizeof *s->slot); /* the last one stays free */
    if (!s->slot) return sop_fail(SOP_E_NOMEM, "a file's index: %zu slots", size);
    s->mask = size - 1;
    for (uint32_t i = 0; i < n; i++) {
        const char *name = name_at(f, s, i);
        const size_t at = slot_of(f, s, name);
        if (at == size)
            return sop_fail(SOP_E_FORMAT, "%s: its names were made to collide", path_of(f, 0));
        if (s->slot[at])
            return sop_fail(SOP_E_FORMAT, "%s: %s %s stands there twice",
                            path_of(f, tensors ? f->tensors[i].map : 0), tensors ? "tensor" : "key",
                            name);
        s->slot[at] = i + 1;
    }
    return SOP_OK;
}

sop_status sop_file_seal(sop_file *f)
{
    SOP_TRY(seal(f, &f->tensor_slots, f->n_tensors));
    return seal(f, &f->meta_slots, f->n_metas);
}

const sop_file_tensor_entry *sop_file_find_tensor(const sop_file *f, const char *name)
{
    const uint32_t i = f->tensor_slots.slot[slot_of(f, &f->tensor_slots, name)];
    return i ? &f->tensors[i - 1] : NULL;
}

const sop_meta *sop_file_find_meta(const sop_file *f, const char *key)
{
    const uint32_t i = f->meta_slots.slot[slot_of(f, &f->meta_slots, key)];
    return i ? &f->metas[i - 1] : NULL;
}

bool sop_meta_i64(const sop_meta *m, int64_t i, int64_t *out)
{
#define READ(number, type) \
    case number: { \
        type v; \
        memcpy(&v, (const char *)m->data + (size_t)i * sizeof v, sizeof v); \
        *out = (int64_t)v; \
        return true; \
    }
    uint64_t u;
    switch (m->type) {
        READ(SOP_META_U8, uint8_t)
        READ(SOP_META_I8, int8_t)
        READ(SOP_META_U16, uint16_t)
        READ(SOP_META_I16, int16_t)
        READ(SOP_META_U32, uint32_t)
        READ(SOP_META_I32, int32_t)
        READ(SOP_META_I64, int64_t)
    case SOP_META_U64:
        memcpy(&u, (const char *)m->data + (size_t)i * sizeof u, sizeof u);
        if (u > INT64_MAX) return false;
        *out = (int64_t)u;
        return true;
    default: return false;
    }
#undef READ
}

bool sop_meta_f64(const sop_meta *m, int64_t i, double *out)
{
    const char *at = (const char *)m->data + (size_t)i * (m->type == SOP_META_F32 ? 4 : 8);
    int64_t whole;
    uint64_t large;
    float f;
    if (m->type == SOP_META_F64) {
        memcpy(out, at, sizeof *out);
    } else if (m->type == SOP_META_F32) {
        memcpy(&f, at, sizeof f);
        *out = (double)f;
    } else if (sop_meta_i64(m, i, &whole)) {
        *out = (double)whole;
    } else if (m->type == SOP_META_U64) {
        memcpy(&large, at, sizeof large);
        *out = (double)large;
    } else {
        return false;
    }
    return true;
}
