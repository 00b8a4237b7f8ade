#include "ops/linear/repack.h"

#include <string.h>

#include "base/status.h"

enum { BLOCK = 128 };

static sop_status check_extents(int64_t n, int64_t k, int64_t wide)
{
    if (n < 0 || k < 0 || k % BLOCK || wide < BLOCK || wide % BLOCK)
        return sop_fail(SOP_E_SHAPE,
                        "repack: n=%lld k=%lld, %lld columns share a scale; k and these must be "
                        "multiples of 128",
                        (long long)n, (long long)k, (long long)wide);
    return SOP_OK;
}

sop_status sop_repack_8(int32_t dtype, const uint8_t *q, const float *scales, int64_t n, int64_t k,
                        int64_t tall, int64_t wide, void *out)
{
    uint8_t *o = out;
    if (dtype != SOP_I8_128 && dtype != SOP_F8_128)
        return sop_fail(SOP_E_ARG, "repack: type %d is neither i8_128 nor f8_128", dtype);
    if (k == 0) return SOP_OK;
    SOP_TRY(check_extents(n, k, wide));
    if (tall < 1) return sop_fail(SOP_E_SHAPE, "repack: tall=%lld, must be > 0", (long long)tall);
    const int64_t across = (k + wide - 1) / wide;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < k; c += BLOCK, q += BLOCK, o += 4 + BLOCK) {
            if (dtype == SOP_F8_128)
                for (int j = 0; j < BLOCK; j++)
                    if ((q[j] & 0x7f) == 0x7f)
                        return sop_fail(SOP_E_FORMAT, "repack: weight [%lld, %lld] is NaN",
                                        (long long)i, (long long)(c + j));
            memcpy(o, &scales[i / tall * across + c / wide], 4);
            memcpy(o + 4, q, BLOCK);
        }
    return SOP_OK;
}

static uint32_t nibble(uint32_t word, int64_t e)
{
    return word >> 4 * e & 15;
}

/* The element of a word of AWQ that holds row 8 j + i: the inverse of 0 2 4 6 1 3 5 7. */
static int64_t awq_place(int64_t i)
{
    return i / 2 + i % 2 * 4;
}

static uint32_t code(sop_int4_layout layout, const uint32_t *q, int64_t n, int64_t k, int64_t i,
                     int64_t c)
{
    if (layout == SOP_INT4_ROWS) return nibble(q[i * (k / 8) + c / 8], c % 8);
    return layout == SOP_INT4_AWQ ? nibble(q[c * (n / 8) + i / 8], awq_place(i % 8))
                                  : nibble(q[c / 8 * n + i], c % 8);
}

static uint32_t zero(sop_int4_layout layout, const uint32_t *zeros, int64_t n, int64_t i, int64_t g)
{
    if (layout == SOP_INT4_ROWS) return 8;
    const uint32_t word = zeros[g * (n / 8) + i / 8];
    if (layout == SOP_INT4_AWQ) return nibble(word, awq_place(i % 8));
    return nibble(word, i % 8) + (layout == SOP_INT4_GPTQ);
}

sop_status sop_repack_int4(sop_int4_layout layout, const uint32_t *q, const uint32_t *zeros,
                           const uint16_t *scales, const int32_t *group_of, int64_t n, int64_t k,
                           int64_t group, void *out)
{
    SOP_TRY(check_extents(n, k, group));
    const int64_t groups = (k + group - 1) / group;
    if (n % 8 && layout != SOP_INT4_ROWS)
        return sop_fail(SOP_E_SHAPE, "repack: n=%lld is not a multiple of 8", (long long)n);
    for (int64_t c = 0; group_of && c < k; c++)
        if (group_of[c] != c / group)
            return sop_fail(SOP_E_UNSUPPORTED,
                            "repack: column %lld is of group %d, must be of %lld: the columns are "
                            "not in the order of their groups",
                            (long long)c, group_of[c], (long long)(c / group));
    /* 128 rows at a time: the words of 128 columns of theirs stay in the nearest cache */
    for (int64_t first = 0; first < n; first += BLOCK)
        for (int64_t c = 0; c < k; c += BLOCK)
            for (int64_t i = first; i < n && i < first + BLOCK; i++) {
                const int64_t g = c / group;
                uint8_t *o = (uint8_t *)out + (i * (k / BLOCK) + c / BLOCK) * (4 + BLOCK / 2);
                memcpy(o, &scales[layout == SOP_INT4_ROWS ? i * groups + g : g * n + i], 2);
                o[2] = (uint8_t)zero(layout, zeros, n, i, g);
                o[3] = 0;
                for (int64_t b = 0; b < BLOCK / 2; b++) { /* byte b: 16 columns apart */
                    const int64_t at = c + b / 16 * 32 + b % 16;
                    o[4 + b] = (uint8_t)(code(layout, q, n, k, i, at) |
                                         code(layout, q, n, k, i, at + 16) << 4);
                }
            }
    return SOP_OK;
}
