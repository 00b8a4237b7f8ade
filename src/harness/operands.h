/* harness/operands.h: what a call gets: walking a view, random content for it, which rows take a desc.
 * The room's own. */
#ifndef HARNESS_OPERANDS_H
#define HARNESS_OPERANDS_H

#include "sop/device.h"

/* What lies where nothing may be read or written, two bytes again and again: around inputs, in their
 * gaps and in scratch; around outputs. NaN as f32, f16, bf16 and f64, nonsense as an integer. Two of
 * them, so that a copy from around an input to around an output shows. */
enum { SOP_POISON = 0xfff5, SOP_POISON_OUT = 0xfffa };
void sop_poison(void *data, size_t bytes, int32_t poison);

/* What an element of an output holds until it is written, in its lowest bytes: a signalling NaN, which
 * no arithmetic gives; a far negative integer, of bytes -128. A u8 has no value to spare. */
uint64_t sop_unwritten(int32_t dtype);

/* Blocks of a view (elements of a plain type) in dense order, and where block i lies. */
int64_t sop_view_blocks(const sop_tensor *v);
int64_t sop_view_at(const sop_tensor *v, int64_t i);

/* Families of values: each hides other faults, so a row must be right on all. */
typedef enum sop_family {
    SOP_FAMILY_UNIFORM,    /* [0, 1): nothing cancels, a dropped term shows little */
    SOP_FAMILY_NORMAL,     /* mean 0, deviation 1 */
    SOP_FAMILY_OUTLIERS,   /* normal, 1 of 64 times 300, cut off at 1000 */
    SOP_FAMILY_CANCELLING, /* neighbours are negatives of each other up to 1e-3 */
    SOP_FAMILY_FAR         /* [1000, 1001): what matters is a small part of each value */
} sop_family;

/* Fill the view's elements; gaps stay. Block formats get random valid blocks: finite scales near
 * 1/64, any codes but NaN. Integers get 0, e4m3 such values up to 448. The same for the same seed. */
void sop_fill(const sop_tensor *v, sop_family family, uint64_t seed);

/* Whether an optional operand may be left out although the view offers it: only when the desc has no
 * say in it, which shows in the empty desc. */
int32_t sop_droppable(const sop_op *op, int32_t role);

/* Why a row does not run at a desc on this device, or NULL. text [64] may hold it, or
 * sop_last_error(): a row that has to prepare is asked whether it can. */
const char *sop_row_refusal(sop_device *d, const sop_row *row, const void *desc, char *text);

/* Whether the row wants weights in a layout that they do not lie in. */
int32_t sop_row_packs(const sop_row *row);

#endif
