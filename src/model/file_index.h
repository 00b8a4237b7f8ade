/* model/file_index.h: what the readers of GGUF and safetensors fill, and file.c answers from.
 * Names and metadata are copies, at most as large as the file's own; only tensors point into the
 * mapping, so a file cut short by others later can hurt tensor reads alone. */
#ifndef MODEL_FILE_INDEX_H
#define MODEL_FILE_INDEX_H

#include "model/file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GGUF's numbers for the types of values; a config.json is kept in the same ones. */
enum {
    SOP_META_U8 = 0,
    SOP_META_I8 = 1,
    SOP_META_U16 = 2,
    SOP_META_I16 = 3,
    SOP_META_U32 = 4,
    SOP_META_I32 = 5,
    SOP_META_F32 = 6,
    SOP_META_BOOL = 7,
    SOP_META_STR = 8,
    SOP_META_ARRAY = 9,
    SOP_META_U64 = 10,
    SOP_META_I64 = 11,
    SOP_META_F64 = 12,
    SOP_META_NULL = 13 /* JSON's null: the key is there, every getter says no */
};

typedef struct sop_meta {
    const char *key;
    int32_t type;     /* SOP_META_* of the value, or of an array's elements */
    bool is_array;    /* else n is 1 */
    int64_t n;        /* elements */
    const void *data; /* numbers as in the file, packed; the bytes of strings, zero after each */
    const uint64_t *from; /* strings: [n + 1] where each begins in data */
} sop_meta;

typedef struct sop_file_tensor_entry {
    const char *name;
    const char *type; /* the file's own word: "IQ4_XS", "F8_E4M3" */
    int32_t map;      /* of which file; 0 is the first */
    sop_tensor view;
} sop_file_tensor_entry;

typedef struct sop_file_map {
    const char *path;
    int fd;
    uint8_t *base; /* read only */
    size_t size;
} sop_file_map;

typedef struct sop_file_slots {
    uint32_t *slot; /* index + 1, or 0: free */
    size_t mask;
} sop_file_slots;

struct sop_file {
    int kind;
    sop_file_map *maps;
    size_t n_maps, cap_maps;
    sop_file_tensor_entry *tensors;
    size_t n_tensors, cap_tensors;
    sop_meta *metas;
    size_t n_metas, cap_metas;
    sop_file_slots tensor_slots, meta_slots;
    struct sop_file_chunk *head; /* what sop_file_take gave out */
    uint8_t *ring;               /* of random numbers, mapped ring_bytes far: synth.c */
    size_t ring_bytes;
    bool lent; /* tensors are somebody else's, on a device that the host may not be able to read */
};

/* 2^20 tensors or keys: many times what any model has, and small enough to sort. */
enum { SOP_FILE_MAX_ENTRIES = 1 << 20 };

/* An empty file, to be sealed before it is read; sop_file_close() frees it. NULL with the sentence. */
sop_file *sop_file_create(void);
/* Zeroed memory, 8-byte aligned, that lives as long as the file; NULL with the sentence. */
void *sop_file_take(sop_file *f, uint64_t bytes);
/* A zero-terminated copy of s [n]. */
char *sop_file_take_str(sop_file *f, const char *s, size_t n);
/* One more entry, zeroed; NULL with the sentence. Valid until the next one is added. */
sop_file_tensor_entry *sop_file_add_tensor(sop_file *f);
sop_meta *sop_file_add_meta(sop_file *f);
/* Makes a view's shape and strides from dims, slowest first, and counts its blocks; false when the
 * product overflows. */
bool sop_file_shape(sop_tensor *t, int32_t ndim, const uint64_t *dims, uint64_t block,
                    uint64_t *blocks);
/* Where a view's data is: a view has no const data, though that of a file must not be written. */
void sop_file_point(sop_tensor *t, const uint8_t *data, uint64_t bytes);
/* A name may be printed: no control characters, so no zero bytes either. */
bool sop_file_name_ok(const char *s, size_t n);
/* Builds the look-up by name, anew each time; SOP_E_FORMAT when a name stands there twice. */
sop_status sop_file_seal(sop_file *f);
/* Element i of a value as an integer or a float; false when it is none. */
bool sop_meta_i64(const sop_meta *m, int64_t i, int64_t *out);
bool sop_meta_f64(const sop_meta *m, int64_t i, double *out);
const sop_meta *sop_file_find_meta(const sop_file *f, const char *key);
const sop_file_tensor_entry *sop_file_find_tensor(const sop_file *f, const char *name);
/* Opens one more file and maps it. */
sop_status sop_file_map_in(sop_file *f, const char *path);

#ifdef __cplusplus
}
#endif

#endif
