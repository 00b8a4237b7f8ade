/* model/unicode.c: broken UTF-8 and composed form. utf8proc knows the decompositions; the order of
 * combining marks is found here, since its own sort takes a square of a run's length. */
#include "model/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/status.h"

int sop_utf8_step(const char *s, size_t n)
{
    const uint8_t *u = (const uint8_t *)s;
    const uint8_t lead = u[0];
    if (lead < 0x80) return 1;
    /* The second byte's range depends on the first: no overlong forms, no surrogates, no more
     * than U+10FFFF. */
    uint8_t lo = 0x80, hi = 0xBF;
    int len;
    if (lead >= 0xC2 && lead <= 0xDF) {
        len = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        len = 3;
        if (lead == 0xE0) lo = 0xA0;
        if (lead == 0xED) hi = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        len = 4;
        if (lead == 0xF0) lo = 0x90;
        if (lead == 0xF4) hi = 0x8F;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) return 0;
        if (u[i] < lo || u[i] > hi) return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return len;
}

/* From i on past ASCII, eight bytes a step. */
static size_t skip_ascii(const char *s, size_t i, size_t n)
{
    uint64_t eight;
    while (i + 8 <= n && (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080u))) i += 8;
    return i;
}

size_t sop_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        i = skip_ascii(s, i, n);
        if (i == n) break;
        const int k = sop_utf8_step(s + i, n - i);
        if (k <= 0) break;
        i += (size_t)k;
    }
    return i;
}

sop_status sop_buf_room(sop_buf *t, size_t more)
{
    if (t->at && more <= t->cap - t->n) return SOP_OK;
    if (more > SIZE_MAX / 2 - t->n)
        return sop_fail(SOP_E_NOMEM, "text: %zu more bytes do not fit", more);
    size_t cap = t->cap ? t->cap * 2 : 256;
    if (cap < t->n + more) cap = t->n + more;
    char *at = realloc(t->at, cap);
    if (!at) return sop_fail(SOP_E_NOMEM, "text: no memory for %zu bytes", cap);
    t->at = at;
    t->cap = cap;
    return SOP_OK;
}

sop_status sop_buf_add(sop_buf *t, const char *s, size_t n)
{
    SOP_TRY(sop_buf_room(t, n));
    if (n) memcpy(t->at + t->n, s, n);
    t->n += n;
    return SOP_OK;
}

void sop_buf_finish(sop_buf *t)
{
    free(t->at);
    *t = (sop_buf){0};
}

sop_status sop_utf8_repair(const char *s, size_t n, sop_buf *out)
{
    size_t i = 0;
    while (i < n) {
        const size_t good = sop_utf8_valid(s + i, n - i);
        SOP_TRY(sop_buf_add(out, s + i, good));
        i += good;
        if (i == n) break;
        const int k = sop_utf8_step(s + i, n - i);
        SOP_TRY(sop_buf_add(out, "\xEF\xBF\xBD", 3));
        i = k == 0 ? n : i + (size_t)-k;
    }
    return SOP_OK;
}

size_t sop_nfc_sure(const char *s, size_t n)
{
    size_t i = 0, last = 0; /* last: where the code point before i begins */
    while (i < n) {
        if ((uint8_t)s[i] < 0xC0) { /* below U+00C0 nothing is composed: but U+0300 may follow */
            last = i;
            i = skip_ascii(s, i + 1, n);
            if (i > last + 1) last = i - 1;
            continue;
        }
        size_t k;
        const uint32_t c = sop_utf8_read(s + i, &k);
        if (sop_unicode(c) & SOP_UNI_NFC) return last;
        last = i;
        i += k;
    }
    return n;
}

/* Stable sort of n code points by combining class; tmp has room for n. */
static void order_marks(int32_t *c, size_t n, int32_t *tmp)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[1 + (uint8_t)utf8proc_get_property(c[i])->combining_class]++;
    for (int k = 1; k < 257; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        tmp[start[(uint8_t)utf8proc_get_property(c[i])->combining_class]++] = c[i];
    memcpy(c, tmp, n * sizeof *c);
}

/* Compose a stretch that may need it. */
static sop_status compose(const char *s, size_t n, sop_buf *scratch, sop_buf *out)
{
    enum { LONGEST = 4 }; /* code points that one decomposes into; Unicode 15: U+1F82 and others */
    size_t points = 0;
    for (size_t i = 0; i < n; i++) points += ((uint8_t)s[i] & 0xC0) != 0x80;
    scratch->n = 0;
    SOP_TRY(sop_buf_room(scratch, points * LONGEST * 2 * sizeof(int32_t)));
    int32_t *c = (int32_t *)(void *)scratch->at, *tmp = c + points * LONGEST;
    size_t len = 0;
    for (size_t i = 0, k; i < n; i += k) {
        const int32_t point = (int32_t)sop_utf8_read(s + i, &k);
        int bound = 0;
        const utf8proc_ssize_t m = utf8proc_decompose_char(
            point, c + len, LONGEST, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
        if (m < 1 || m > LONGEST)
            return sop_fail(SOP_E_INTERNAL, "U+%04X decomposes into %td", (unsigned)point, m);
        len += (size_t)m;
    }
    for (size_t i = 0; i < len;) {
        size_t e = i;
        while (e < len && utf8proc_get_property(c[e])->combining_class) e++;
        if (e - i > 1) order_marks(c + i, e - i, tmp);
        i = e + 1;
    }
    const utf8proc_ssize_t m =
        utf8proc_normalize_utf32(c, (utf8proc_ssize_t)len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m < 0) return sop_fail(SOP_E_INTERNAL, "composing %zu code points failed", len);
    SOP_TRY(sop_buf_room(out, (size_t)m * 4));
    for (utf8proc_ssize_t i = 0; i < m; i++)
        out->n += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out->at + out->n);
    return SOP_OK;
}

sop_status sop_nfc(const char *s, size_t n, sop_buf *scratch, sop_buf *out)
{
    size_t i = 0;
    while (i < n) {
        const size_t sure = sop_nfc_sure(s + i, n - i);
        SOP_TRY(sop_buf_add(out, s + i, sure));
        i += sure;
        if (i == n) break;
        /* From the code point before the doubtful ones to the next that starts anew. */
        size_t e = i, k;
        sop_utf8_read(s + e, &k);
        e += k;
        while (e < n && (sop_unicode(sop_utf8_read(s + e, &k)) & SOP_UNI_NFC)) e += k;
        SOP_TRY(compose(s + i, e - i, scratch, out));
        i = e;
    }
    return SOP_OK;
}
