/* model/file.h: a weight file (GGUF v2/v3, or a Hugging Face folder of safetensors), mapped and
 * parsed into a checked index before any pointer is handed out. No tensor is copied; names and
 * metadata are.
 *
 * Everything the headers say is compared with the files' sizes when they are opened, so nothing
 * that is short, overlaps or overflows is ever mapped to a tensor. What cannot be guarded: a file
 * that someone else cuts after that raises SIGBUS when the lost part of a tensor is read. Replace
 * a model by renaming a new file over it, never by writing into it. */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include <stdbool.h>

#include "sop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_file sop_file;

enum { SOP_FILE_GGUF, SOP_FILE_HF };

/* path: a .gguf (the first shard of a split one opens all), a folder with config.json and
 * *.safetensors, one .safetensors, or a model of random numbers (synth.h). SOP_E_IO, SOP_E_FORMAT with the name and the numbers,
 * SOP_E_UNSUPPORTED (version, type), SOP_E_NOMEM. */
sop_status sop_file_open(const char *path, sop_file **out);
void sop_file_close(sop_file *f);
int sop_file_kind(const sop_file *f);

/* A tensor as the file holds it; shape [0] is the slowest, as in C: a GGUF's ne reversed.
 * data is into the mapping and has no promised alignment; never write to it. dtype is -1 for a type
 * that superop cannot compute with, which is an error only for who needs that tensor.
 * false: no such name. */
bool sop_file_tensor(const sop_file *f, const char *name, sop_tensor *out);
/* The file's own word for its type, "IQ4_XS", "F8_E4M3", for such an error; NULL: no such name. */
const char *sop_file_tensor_type(const sop_file *f, const char *name);
int64_t sop_file_n_tensors(const sop_file *f);
const char *sop_file_tensor_name(const sop_file *f, int64_t i);
size_t sop_file_mapped_bytes(const sop_file *f);
/* The bytes after which every matrix repeats itself, of a model of random numbers; 0 of a file. */
size_t sop_file_period(const sop_file *f);
/* Whether tensors lie on a device, as somebody else's, and are not to be read here. */
bool sop_file_lent(const sop_file *f);

/* Metadata. GGUF: its key-value pairs by their own names. HF: config.json, keys joined by dots
 * ("rope_parameters.rope_theta"; what stands in "text_config" is found without that prefix).
 * Each getter returns false when the key is absent or has another type (an integer is given as a
 * float too); out is then untouched. Strings live as long as the file, zero-terminated. */
bool sop_file_i64(const sop_file *f, const char *key, int64_t *out);
bool sop_file_f64(const sop_file *f, const char *key, double *out);
bool sop_file_bool(const sop_file *f, const char *key, bool *out);
const char *sop_file_str(const sop_file *f, const char *key, size_t *bytes);
/* Arrays: length, then elements. -1 when there is no such array. */
int64_t sop_file_array(const sop_file *f, const char *key);
bool sop_file_array_i64(const sop_file *f, const char *key, int64_t i, int64_t *out);
bool sop_file_array_f64(const sop_file *f, const char *key, int64_t i, double *out);
const char *sop_file_array_str(const sop_file *f, const char *key, int64_t i, size_t *bytes);
/* The metadata keys in the file's order, for `superop info`. */
int64_t sop_file_n_keys(const sop_file *f);
const char *sop_file_key(const sop_file *f, int64_t i);

/* Tell the kernel that a tensor's pages are not needed soon (they stay on disk). */
void sop_file_forget(const sop_file *f, const sop_tensor *t);

#ifdef __cplusplus
}
#endif

#endif
