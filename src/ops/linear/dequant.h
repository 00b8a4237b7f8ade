/* ops/linear/dequant.h: weights to floats, whatever their format. Portable and exact. */
#ifndef OPS_LINEAR_DEQUANT_H
#define OPS_LINEAR_DEQUANT_H

#include <stdint.h>

/* Whether the type is one that can be decoded: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k,
 * q5_k, q6_k, i8_128, f8_128, i4_128. */
int sop_dequant_takes(int32_t dtype);

/* n elements (a multiple of the type's block) of such a type, from blocks at any alignment. Each is
 * the float nearest to the format's formula. */
void sop_dequant_row(int32_t dtype, const void *blocks, int64_t n, float *out);

/* One block of a block format, taken apart:
 *
 *     w[i] = d * s[i / group] * (q[i] - zero) + m * t[i / group] */
typedef struct sop_block {
    float d, m; /* as in the file, but m is -dmin in q4_k and q5_k, and 0 where there is none */
    int32_t n, group; /* elements of the block, and of a group of it */
    int32_t zero;
    int16_t s[16], t[16]; /* of each group; 1 and 1 in formats without groups */
    float q[256];         /* as in the file: q8_0 and i8_128 signed, f8_128's numbers, the others
                             from 0 */
} sop_block;
void sop_block_read(int32_t dtype, const void *block, sop_block *out);

#endif
