/* model/quant.h: matrices that a Hugging Face folder holds as numbers of 8 or 4 bits and their scales,
 * in several tensors, made into one of the block formats that linear reads (ops/linear/repack.h). No
 * weight's number changes: what has no exact form here is refused.
 *
 *   AWQ, GPTQ  NAME.qweight, .qzeros, .scales, .g_idx (GPTQ)     -> i4_128
 *   packed     NAME.weight_packed, .weight_scale (compressed-tensors' pack-quantized) -> i4_128
 *   int8, fp8  NAME.weight (I8, F8_E4M3), .weight_scale_inv or    -> i8_128, f8_128
 *              .weight_scale: one, one a row, or one a block */
#ifndef MODEL_QUANT_H
#define MODEL_QUANT_H

#include <stdbool.h>

#include "model/file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SOP_QUANT_NONE, SOP_QUANT_AWQ, SOP_QUANT_GPTQ, SOP_QUANT_PACKED, SOP_QUANT_8 };

/* What config.json's quantization_config says. */
typedef struct sop_quant {
    int32_t method;
    int64_t group;         /* of 4 bits: columns that share a scale; -1: all */
    int64_t tall, wide;    /* fp8 in blocks: rows and columns that share a scale; 0: no blocks */
    bool symmetric;        /* GPTQ: zero is 8, whatever the file holds */
    bool zeros_themselves; /* GPTQ v2: a zero stands as it is, not less 1 */
    bool act_order;        /* GPTQ: columns in the order of their activations */
} sop_quant;

/* SOP_E_UNSUPPORTED and SOP_E_FORMAT name the key and its value. All 0 for other files. */
sop_status sop_quant_config(const sop_file *f, sop_quant *out);

/* Whether NAME.weight is there as such a matrix. out: its shape and the type it would be made into;
 * no data. */
bool sop_quant_find(const sop_file *f, const sop_quant *q, const char *name, sop_tensor *out);

/* Makes it, if sop_quant_find() did find it. own: the blocks, to be freed by the caller.
 *
 * SOP_E_FORMAT when a part is missing or has another shape; SOP_E_UNSUPPORTED with the numbers for
 * what the block formats cannot say; SOP_E_NOMEM. */
sop_status sop_quant_read(const sop_file *f, const sop_quant *q, const char *name, void **own);

#ifdef __cplusplus
}
#endif

#endif
