/* model/gguf.h: the reader of one GGUF file, version 2 or 3. */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include "model/file_index.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks every byte before the tensor data and that the data is all there, then adds the keys and
 * tensors to f.
 *
 * bytes [n]   the file; the tensors point into it
 * name        of the file, for errors
 * map         its index, kept with each tensor; the keys of any but the first are only checked
 *
 * SOP_E_FORMAT, SOP_E_UNSUPPORTED (version, big-endian, tensor type), SOP_E_NOMEM. */
sop_status sop_gguf_parse(sop_file *f, const uint8_t *bytes, size_t n, const char *name,
                          int32_t map);

/* Opens path and, when it is the first of a split file, its other shards; seals f. */
sop_status sop_gguf_open(sop_file *f, const char *path);

#ifdef __cplusplus
}
#endif

#endif
