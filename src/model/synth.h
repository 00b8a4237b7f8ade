/* model/synth.h: "synth:qwen2-7b", a model of random numbers in a known shape, for measuring without a
 * file. */
#ifndef MODEL_SYNTH_H
#define MODEL_SYNTH_H

#include "base/texts.h"
#include "model/file_index.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the numbers: a prime number of pages. */
enum { SOP_SYNTH_RING = 2039 * 4096 };

extern const sop_text sop_synth_shapes[]; /* bench/shapes */

/* Whether a model's path is such a name. */
bool sop_synth_is(const char *path);

/* Fills f as a Hugging Face folder would, and seals it.
 *
 * path   synth:SHAPE or synth:SHAPE:DTYPE; SHAPE is one of bench/shapes, or the path of a config.json;
 *        DTYPE bf16, f16 or f32, else what the shape says
 *
 * SOP_E_NOT_FOUND lists the shapes; SOP_E_FORMAT, SOP_E_IO, SOP_E_NOMEM. */
sop_status sop_synth_open(sop_file *f, const char *path);

#ifdef __cplusplus
}
#endif

#endif
