/* ops/linear/pack.h: SOP_LAYOUT_PANEL16, weights in panels of 16 rows.
 *
 * A panel is one contiguous stream: for each block along k, the scales of the 16 rows, then their
 * quants, so that a step of a kernel feeds all lanes of a register with one load and shares each
 * value of x. The same bytes serve one token and a thousand. A quad is 4 consecutive k of all rows, 64
 * bytes [16 rows][4]; a pair is two k of all rows, [16 rows][2]. Bytes of 16 rows of a block:
 *
 *   q8_0   544  f16 d[16] | i8 8 quads
 *   q4_0   288  f16 d[16] | nibbles
 *   q4_1   320  f16 d[16], m[16] | nibbles
 *   q5_0   352  f16 d[16] | fifth | nibbles
 *   q5_1   384  f16 d[16], m[16] | fifth | nibbles
 *   q4_k  2368  f16 d[16], dmin[16] | u8 s[8][16], t[8][16] | 8 of (nibbles)
 *   q5_k  2880  f16 d[16], dmin[16] | u8 s[8][16], t[8][16] | 8 of (fifth | nibbles)
 *   q6_k  3360  f16 d[16] | i8 s[16][16] | 16 of (low 0 1, low 2 3, high), a group of 16 k each
 *   f32   2048  [32 k][16];  f16 1024 the same
 *   bf16  1024  [8 quads] of (pair k, k+2 | pair k+1, k+3)
 *
 *   nibbles 256 = 4 of 64 bytes; the low 4 bits of number t are quad t, the high ones quad t + 4
 *   fifth    64 = bit t of each byte is bit 4 of quad t
 *   low a b  64 = the low 4 bits of quads a and b;  high: bits 2t, 2t + 1 are bits 4, 5 of quad t
 *
 * The size is the original's, q4_k 2.8 % more. Rows are padded to 16 and k of plain types to 32 with
 * zeros. */
#ifndef OPS_LINEAR_PACK_H
#define OPS_LINEAR_PACK_H

#include "sop/desc.h"

enum { SOP_PANEL_ROWS = 16 };

/* k of one block of a panel, and bytes of 16 rows of it: 0 where the format has no panels. */
int64_t sop_panel_block(int32_t dtype);
size_t sop_panel_block_bytes(int32_t dtype);
/* Bytes of a panel of k. */
size_t sop_panel_bytes(int32_t dtype, int64_t k);

size_t sop_linear_packed_bytes(const void *desc, int32_t role, uint32_t layout);
void sop_linear_pack(const void *desc, int32_t role, uint32_t layout, const void *plain, void *out,
                     int64_t begin, int64_t end);

#endif
