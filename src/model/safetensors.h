/* model/safetensors.h: the reader of safetensors, and of a Hugging Face folder that holds them. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "model/file_index.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks the header and that the tensors fill the rest of the file exactly, then adds them to f.
 *
 * bytes [n]   the file; the tensors point into it
 * name        of the file, for errors
 * map         its index, kept with each tensor
 *
 * SOP_E_FORMAT, SOP_E_UNSUPPORTED (element type), SOP_E_NOMEM. */
sop_status sop_safetensors_parse(sop_file *f, const uint8_t *bytes, size_t n, const char *name,
                                 int32_t map);

/* Adds a config.json [n] to f's metadata, its keys joined by dots. Arrays of arrays, of objects or
 * of mixed kinds are left out: no model needs them. */
sop_status sop_config_parse(sop_file *f, const char *text, size_t n, const char *name);

/* Opens one file, or a folder with config.json and model.safetensors or its index, and seals f. */
sop_status sop_safetensors_open(sop_file *f, const char *path);
sop_status sop_safetensors_open_folder(sop_file *f, const char *path);

#ifdef __cplusplus
}
#endif

#endif
