/* ops/linear/acts.h: activations as integers, a scale for each 32 of a token.
 *
 *     8 bits:  x = d q,  |q| <= 127;     16 bits: x = d q,  |q| <= 16319, q = 128 high + low
 *
 * Tokens stand in tiles (sop_tile_width), interleaved by quads of k, so that a kernel reads one stream.
 * Of the tile of w tokens that begins at token t, with element i of token t + r in quad i / 4, group
 * i / 16, block i / 32:
 *
 *     q8 q16 high low [t * k + (quad * w + r) * 4 + i % 4]
 *     d8 s8 d16       [t * k/32 + block * w + r]      s8 = d * (sum of the block's q)
 *     sum16           [t * k/16 + group * w + r]      sums of 16 q16
 *
 * A block with a NaN or an infinity has such a scale, so all that it meets becomes not finite. */
#ifndef OPS_LINEAR_ACTS_H
#define OPS_LINEAR_ACTS_H

#include "ops/linear/panels.h"

enum {
    SOP_ACTS_8 = 1,
    SOP_ACTS_16 = 2,   /* q16 */
    SOP_ACTS_SPLIT = 4 /* high, low, sum16 */
};

typedef struct sop_acts {
    int64_t k, widest;
    uint32_t kinds;
    int8_t *q8, *high, *low;
    int16_t *q16;
    int32_t *sum16;
    float *d8, *s8, *d16;
} sop_acts;

/* Scratch for all tokens, and pointers into it. k is a multiple of 32. */
size_t sop_acts_bytes(int64_t tokens, int64_t k, uint32_t kinds);
void sop_acts_init(sop_acts *a, int64_t tokens, int64_t k, uint32_t kinds, int64_t widest,
                   void *scratch);

/* Quantise all tokens of x, on the queue's workers. AVX2. */
void sop_acts_fill(const sop_acts *a, const sop_call *call, int64_t tokens);

#endif
