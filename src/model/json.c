#include "model/json.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/status.h"

enum {
    MAX_DEPTH = 32,  /* a config.json has 5 */
    MAX_NUMBER = 128 /* characters; a double's exact shortest form has at most 24 */
};

void sop_json_init(sop_json *j, const char *text, size_t size, const char *name)
{
    *j = (sop_json){.name = name, .text = text, .size = size};
}

void sop_json_finish(sop_json *j)
{
    free(j->buf);
    j->buf = NULL;
}

/* The character at the reader, 0 at the end: no piece of JSON begins or goes on with a zero. */
static char now(const sop_json *j)
{
    return j->at < j->size ? j->text[j->at] : 0;
}

char sop_json_peek(sop_json *j)
{
    char c;
    while ((c = now(j)) == ' ' || c == '\t' || c == '\r' || c == '\n') j->at++;
    return c;
}

static sop_status wrong(const sop_json *j, const char *wanted)
{
    if (j->at >= j->size)
        return sop_fail(SOP_E_FORMAT, "%s: the JSON ends at byte %zu, expected %s", j->name, j->at,
                        wanted);
    return sop_fail(SOP_E_FORMAT, "%s: JSON byte %zu (0x%02x): expected %s", j->name, j->at,
                    (unsigned)(unsigned char)j->text[j->at], wanted);
}

sop_status sop_json_enter(sop_json *j, char open)
{
    if (sop_json_peek(j) != open) return wrong(j, open == '{' ? "an object" : "an array");
    if (++j->depth > MAX_DEPTH)
        return sop_fail(SOP_E_FORMAT, "%s: JSON byte %zu is nested more than %d deep", j->name,
                        j->at, MAX_DEPTH);
    j->at++;
    j->first = true;
    return SOP_OK;
}

sop_status sop_json_next(sop_json *j, char close, bool *more)
{
    const char c = sop_json_peek(j);
    const bool first = j->first;
    j->first = false;
    *more = c != close;
    if (c == close) {
        j->depth--;
    } else if (first) {
        return SOP_OK; /* what stands here is the first member's to check */
    } else if (c != ',') {
        return wrong(j, close == '}' ? "',' or '}'" : "',' or ']'");
    }
    j->at++;
    return SOP_OK;
}

/* Four hexadecimal digits. */
static bool hex4(sop_json *j, int32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char c = now(j);
        if (c >= '0' && c <= '9') {
            *out = *out * 16 + (c - '0');
        } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            *out = *out * 16 + ((c | 0x20) - 'a' + 10);
        } else {
            return false;
        }
    }
    return true;
}

/* What stands behind a backslash, as UTF-8 at to; *n grows by its length. */
static sop_status escape(sop_json *j, char *to, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    const char c = now(j);
    const char *known = c ? strchr(from, c) : NULL;
    int32_t code, low;
    if (known) {
        j->at++;
        to[(*n)++] = plain[known - from];
        return SOP_OK;
    }
    if (c != 'u') return wrong(j, "an escape");
    j->at++;
    if (!hex4(j, &code)) return wrong(j, "a hexadecimal digit");
    if (code >= 0xd800 && code < 0xdc00) {
        if (j->size - j->at < 6 || memcmp(j->text + j->at, "\\u", 2) != 0)
            return wrong(j, "the second half of a surrogate pair");
        j->at += 2;
        if (!hex4(j, &low)) return wrong(j, "a hexadecimal digit");
        if (low < 0xdc00 || low > 0xdfff) return wrong(j, "the second half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code == 0 || (code >= 0xdc00 && code <= 0xdfff)) return wrong(j, "a character before this");
    *n += (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)to + *n);
    return SOP_OK;
}

sop_status sop_json_string(sop_json *j, const char **s, size_t *n)
{
    size_t end, used = 0;
    if (sop_json_peek(j) != '"') return wrong(j, "a string");
    j->at++;
    for (end = j->at; end < j->size && j->text[end] != '"'; end++)
        if (j->text[end] == '\\') end++;
    if (end >= j->size) {
        j->at = j->size;
        return wrong(j, "'\"'");
    }
    /* decoded it is never longer */
    if (end - j->at + 1 > j->cap) {
        const size_t cap = 2 * (end - j->at + 1);
        char *p = realloc(j->buf, cap);
        if (!p) return sop_fail(SOP_E_NOMEM, "%s: a JSON string of %zu bytes", j->name, cap);
        j->buf = p;
        j->cap = cap;
    }
    while (j->at < end) {
        const unsigned char c = (unsigned char)j->text[j->at];
        utf8proc_int32_t code;
        if (c == '\\') {
            j->at++;
            SOP_TRY(escape(j, j->buf, &used));
        } else if (c < 0x20) {
            return wrong(j, "no control character in a string");
        } else {
            const utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)j->text + j->at,
                                                          (utf8proc_ssize_t)(end - j->at), &code);
            if (len < 1) return wrong(j, "UTF-8");
            memcpy(j->buf + used, j->text + j->at, (size_t)len);
            used += (size_t)len;
            j->at += (size_t)len;
        }
    }
    j->at = end + 1;
    j->buf[used] = 0;
    *s = j->buf;
    *n = used;
    return SOP_OK;
}

sop_status sop_json_key(sop_json *j, const char **s, size_t *n)
{
    SOP_TRY(sop_json_string(j, s, n));
    if (sop_json_peek(j) != ':') return wrong(j, "':'");
    j->at++;
    return SOP_OK;
}

static bool digits(sop_json *j)
{
    const size_t begin = j->at;
    while (now(j) >= '0' && now(j) <= '9') j->at++;
    return j->at > begin;
}

sop_status sop_json_number(sop_json *j, bool *whole, int64_t *i, double *d)
{
    char text[MAX_NUMBER + 1];
    (void)sop_json_peek(j);
    const size_t begin = j->at;
    const bool minus = now(j) == '-';
    if (minus) j->at++;
    const bool zero = now(j) == '0';
    if (!digits(j) || (zero && j->at > begin + minus + 1)) return wrong(j, "a number");
    *whole = !(minus && zero);
    if (now(j) == '.') {
        *whole = false;
        j->at++;
        if (!digits(j)) return wrong(j, "a digit");
    }
    if (now(j) == 'e' || now(j) == 'E') {
        *whole = false;
        j->at++;
        if (now(j) == '+' || now(j) == '-') j->at++;
        if (!digits(j)) return wrong(j, "a digit");
    }
    const size_t n = j->at - begin;
    if (n > MAX_NUMBER)
        return sop_fail(SOP_E_FORMAT,
                        "%s: the JSON number at byte %zu has %zu characters, at most %d", j->name,
                        begin, n, MAX_NUMBER);
    memcpy(text, j->text + begin, n);
    text[n] = 0;
    *i = 0;
    for (size_t k = minus; *whole && k < n; k++)
        if (__builtin_mul_overflow(*i, INT64_C(10), i) ||
            __builtin_sub_overflow(*i, (int64_t)(text[k] - '0'), i))
            *whole = false;
    if (*whole && !minus && __builtin_sub_overflow(INT64_C(0), *i, i)) *whole = false;
    /* the program's locale may want a comma */
    *d = strtod_l(text, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0));
    return SOP_OK;
}

sop_status sop_json_word(sop_json *j, char *letter)
{
    static const char *const words[] = {"true", "false", "null"};
    *letter = sop_json_peek(j);
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if (j->size - j->at >= n && memcmp(j->text + j->at, words[i], n) == 0) {
            j->at += n;
            return SOP_OK;
        }
    }
    return wrong(j, "a value");
}

sop_status sop_json_skip(sop_json *j)
{
    const char c = sop_json_peek(j), close = c == '{' ? '}' : ']';
    const char *s;
    size_t n;
    bool more;
    int64_t i;
    double d;
    char letter;
    if (c == '"') return sop_json_string(j, &s, &n);
    if (c == '-' || (c >= '0' && c <= '9')) return sop_json_number(j, &more, &i, &d);
    if (c != '{' && c != '[') return sop_json_word(j, &letter);
    SOP_TRY(sop_json_enter(j, c));
    for (;;) {
        SOP_TRY(sop_json_next(j, close, &more));
        if (!more) return SOP_OK;
        if (c == '{') SOP_TRY(sop_json_key(j, &s, &n));
        SOP_TRY(sop_json_skip(j));
    }
}

sop_status sop_json_end(sop_json *j)
{
    (void)sop_json_peek(j);
    return j->at == j->size ? SOP_OK : wrong(j, "nothing more");
}
