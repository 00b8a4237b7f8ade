/* model/unicode.h: what a code point is, UTF-8 that may be broken, and composed form (NFC). */
#ifndef MODEL_UNICODE_H
#define MODEL_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include "sop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bits of sop_unicode_bits; tests/make_unicode.py writes the table. */
enum {
    SOP_UNI_LETTER = 1,   /* \p{L} */
    SOP_UNI_NUMBER = 2,   /* \p{N} */
    SOP_UNI_SPACE = 4,    /* White_Space, the \s of the regexes */
    SOP_UNI_MARK = 8,     /* \p{M} */
    SOP_UNI_PUNCT = 16,   /* \p{P}, and the ASCII symbols */
    SOP_UNI_NUMERIC = 32, /* \p{N} of a newer Unicode: see the generator */
    SOP_UNI_NFC = 64      /* a text with such a code point may not be in composed form */
};

/* Two levels: bits of c = sop_unicode_bits[sop_unicode_page[c / 128] * 128 + c % 128]. */
extern const uint16_t sop_unicode_page[8704];
extern const uint8_t sop_unicode_bits[28928];

static inline uint32_t sop_unicode(uint32_t c)
{
    return sop_unicode_bits[(uint32_t)sop_unicode_page[c >> 7] * 128 + (c & 127)];
}

/* The code point at s of valid UTF-8; bytes: how many it takes. */
static inline uint32_t sop_utf8_read(const char *s, size_t *bytes)
{
    const uint8_t *u = (const uint8_t *)s;
    if (u[0] < 0x80) return *bytes = 1, u[0];
    if (u[0] < 0xE0) return *bytes = 2, (u[0] & 31u) << 6 | (u[1] & 63u);
    if (u[0] < 0xF0) return *bytes = 3, (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u);
    *bytes = 4;
    return (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
}

/* One step through bytes that may be broken. k > 0: a code point of k bytes; k < 0: -k bytes that
 * one U+FFFD stands for; 0: the n bytes are the beginning of a code point. n > 0. */
int sop_utf8_step(const char *s, size_t n);

/* How many bytes from s on are whole UTF-8. */
size_t sop_utf8_valid(const char *s, size_t n);

/* Bytes that grow. It owns its memory; start with {0}, end with sop_buf_finish(). */
typedef struct sop_buf {
    char *at;
    size_t n, cap;
} sop_buf;

/* Room for that many more; at is a place from then on, even for none. */
sop_status sop_buf_room(sop_buf *t, size_t more);
sop_status sop_buf_add(sop_buf *t, const char *s, size_t n);
void sop_buf_finish(sop_buf *t);

/* Append s with U+FFFD where it is broken, in the places and the number of Python's
 * bytes.decode(errors="replace"). */
sop_status sop_utf8_repair(const char *s, size_t n, sop_buf *out);

/* How many bytes from s on are surely in composed form already; s is whole UTF-8. */
size_t sop_nfc_sure(const char *s, size_t n);

/* Append the composed form of s, which is whole UTF-8. O(n log n) whatever marks follow each
 * other. scratch keeps its memory for the next call. */
sop_status sop_nfc(const char *s, size_t n, sop_buf *scratch, sop_buf *out);

#ifdef __cplusplus
}
#endif

#endif
