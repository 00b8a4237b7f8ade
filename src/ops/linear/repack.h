/* ops/linear/repack.h: weights of 8 and 4 bits, as checkpoints have them, to the block formats that
 * linear reads (dequant.c draws them). Exact: each weight is the same number before and after.
 *
 * n is rows of the weight (outputs), k its columns (inputs); k and groups are multiples of 128. Words
 * are little-endian u32, element i in bits 4 i to 4 i + 3. */
#ifndef OPS_LINEAR_REPACK_H
#define OPS_LINEAR_REPACK_H

#include "sop/types.h"

/** Bytes q [n, k], i8 or e4m3, with f32 scales: w[i,c] = scales[i / tall, c / wide] * q[i,c].
 *
 * dtype     SOP_I8_128 or SOP_F8_128
 * tall      rows that share a scale: 1; 128 for blocks of 128 x 128; n for one of all
 * wide      columns that share it, a multiple of 128: k for a scale a row
 * scales    [ceil(n / tall), ceil(k / wide)]
 * out       n * sop_dtype_row_bytes(dtype, k) bytes
 *
 * SOP_E_SHAPE, and SOP_E_FORMAT where an e4m3 code means NaN. */
SOP_MUST_USE sop_status sop_repack_8(int32_t dtype, const uint8_t *q, const float *scales,
                                     int64_t n, int64_t k, int64_t tall, int64_t wide, void *out);

/* The checkpoints of 4 bits; w[i,c] = scale[c / group, i] (q[c,i] - zero[c / group, i]).
 *
 *            q                                             zeros [k / group, n / 8]
 *   AWQ      [k, n / 8]: element e of word (c, j) is       as q
 *            row 8 j + (0 2 4 6 1 3 5 7)[e], column c
 *   GPTQ     [k / 8, n]: element e of word (j, i) is       element e of word (g, j) is row
 *            row i, column 8 j + e                         8 j + e, less 1
 *   GPTQ_V2  as GPTQ                                       as GPTQ, itself
 *   ROWS     [n, k / 8]: element e of word (i, j) is       none: 8
 *            row i, column 8 j + e */
typedef enum sop_int4_layout {
    SOP_INT4_AWQ,
    SOP_INT4_GPTQ,
    SOP_INT4_GPTQ_V2,
    SOP_INT4_ROWS
} sop_int4_layout;

/** Such a weight to SOP_I4_128.
 *
 * q, zeros    the words
 * scales      [k / group, n] f16; of ROWS [n, k / group]
 * group_of    [k] the group of each column (g_idx), NULL for c / group; must be that
 * out         n * sop_dtype_row_bytes(SOP_I4_128, k) bytes
 *
 * SOP_E_SHAPE, and SOP_E_UNSUPPORTED where a column's group is another one. */
SOP_MUST_USE sop_status sop_repack_int4(sop_int4_layout layout, const uint32_t *q,
                                        const uint32_t *zeros, const uint16_t *scales,
                                        const int32_t *group_of, int64_t n, int64_t k,
                                        int64_t group, void *out);

#endif
