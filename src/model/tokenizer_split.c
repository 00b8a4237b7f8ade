/* model/tokenizer_split.c: the pre-tokenizer. Each step of a chain cuts a piece into pieces and
 * hands them to the next; behind the last step they are words. Merges never cross words. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer.h"

#include <pcre2.h>
#include <string.h>

#include "base/status.h"

enum { L = SOP_UNI_LETTER, N = SOP_UNI_NUMBER, S = SOP_UNI_SPACE };

/* The bits of the character at s, and its bytes. */
static inline uint32_t bits_at(const char *s, size_t *bytes)
{
    const uint8_t b = (uint8_t)*s;
    if (b < 0x80) return *bytes = 1, sop_unicode_bits[b]; /* the table's first block */
    return sop_unicode(sop_utf8_read(s, bytes));
}

/* Where the run of characters whose bits under mask are want ends. */
static inline size_t run(const char *s, size_t i, size_t n, uint32_t mask, uint32_t want)
{
    for (size_t k; i < n && (bits_at(s + i, &k) & mask) == want; i += k) {
    }
    return i;
}

/* \s+(?!\S)|\s+ where a run of spaces begins: all of it at the end of the piece, else all but the
 * last character, which goes with what follows; newlines: up to the last one, \s*[\r\n]+. */
static size_t spaces(const char *s, size_t i, size_t n, bool newlines)
{
    size_t end = i, last = i, newline = 0;
    for (size_t k; end < n && (bits_at(s + end, &k) & S); end += k) {
        last = end;
        if (s[end] == '\n' || s[end] == '\r') newline = end + 1;
    }
    if (newlines && newline) return newline;
    return end == n || last == i ? end : last;
}

/* Bytes of 's 't 'm 'd 're 've 'll at s, or 0. any: in upper case too, and U+017F for s. */
static size_t contraction(const char *s, size_t n, bool any)
{
    if (n < 2) return 0;
    const char fold = any ? 0x20 : 0;
    const char a = (char)(s[1] | fold), b = n > 2 ? (char)(s[2] | fold) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    if (any && n > 2 && memcmp(s + 1, "\xC5\xBF", 2) == 0) return 3;
    return 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_gpt2(const char *s, size_t i, size_t n)
{
    size_t k;
    if (s[i] == '\'') {
        k = contraction(s + i, n - i, false);
        if (k) return i + k;
    }
    const size_t j = i + (s[i] == ' ');
    if (j < n) {
        const uint32_t bits = bits_at(s + j, &k) & (L | N | S);
        if (bits == L) return run(s, j + k, n, L, L);
        if (bits == N) return run(s, j + k, n, N, N);
        if (bits == 0) return run(s, j + k, n, L | N | S, 0);
    }
    return spaces(s, i, n, false);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}
 * | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t next_words(const char *s, size_t i, size_t n, int digits)
{
    size_t k, k2;
    const uint32_t bits = bits_at(s + i, &k) & (L | N | S);
    if (bits == L) return run(s, i + k, n, L, L);
    if (s[i] == '\'') {
        k2 = contraction(s + i, n - i, true);
        if (k2) return i + k2;
    }
    if (bits == N) {
        size_t end = i + k;
        for (int d = 1; d < digits && end < n && (bits_at(s + end, &k) & N); d++) end += k;
        return end;
    }
    if (s[i] != '\r' && s[i] != '\n' && i + k < n && (bits_at(s + i + k, &k2) & L))
        return run(s, i + k + k2, n, L, L);
    const size_t j = i + (s[i] == ' ');
    if (j < n && !(bits_at(s + j, &k2) & (L | N | S))) {
        size_t end = run(s, j + k2, n, L | N | S, 0);
        while (end < n && (s[end] == '\r' || s[end] == '\n')) end++;
        return end;
    }
    return spaces(s, i, n, true);
}

/* ---- cutting at matches ---- */

/* Puts matches and what lies between them together as behaviour says. */
typedef struct fold {
    sop_encoder *e;
    const sop_tok_split *split;
    int next; /* step */
    const char *s;
    bool first, any, last_match;
    size_t from, to;
} fold;

static sop_status fold_give(fold *f)
{
    if (!f->any || f->from == f->to) return SOP_OK;
    return sop_encoder_split(f->e, f->next, f->s + f->from, f->to - f->from,
                             f->first && f->from == 0);
}

static sop_status fold_span(fold *f, size_t from, size_t to, bool match)
{
    match = match != f->split->invert;
    bool join = false;
    switch (f->split->behaviour) {
    case SOP_SPLIT_PREVIOUS: join = match && !f->last_match; break;
    case SOP_SPLIT_NEXT: join = !match && f->last_match; break;
    case SOP_SPLIT_JOINED: join = match == f->last_match; break;
    default: break;
    }
    f->last_match = match;
    if (join && f->any) {
        f->to = to;
        return SOP_OK;
    }
    SOP_TRY(fold_give(f));
    f->from = from;
    f->to = to;
    f->any = !(match && f->split->behaviour == SOP_SPLIT_REMOVED);
    return SOP_OK;
}

/* The regex's first match from at on, if there is one. */
static sop_status match_regex(sop_encoder *e, const pcre2_code *code, const char *s, size_t n,
                              size_t at, size_t *from, size_t *to, bool *found)
{
    if (!e->match) {
        e->match = pcre2_match_data_create(1, NULL);
        if (!e->match) return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for a regex");
    }
    pcre2_match_context *limits = e->t->regex_limits;
    int rc = pcre2_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, e->match, limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         limits);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return SOP_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for a regex");
    if (rc < 0)
        return sop_fail(SOP_E_LIMIT,
                        "tokenizer: the pre-tokenizer's regex gives up at byte %zu of "
                        "%zu (PCRE2 error %d)",
                        at, n, rc);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(e->match);
    *from = span[0];
    *to = span[1];
    return SOP_OK;
}

static sop_status cut_regex(fold *f, size_t n)
{
    size_t done = 0, at = 0, from = 0, to = 0, k;
    bool found = false, empty_ok = true; /* an empty match right behind a match does not count */
    while (at <= n) {
        SOP_TRY(match_regex(f->e, f->split->regex, f->s, n, at, &from, &to, &found));
        if (!found) break;
        if (from < done) from = done; /* \K in a lookbehind can turn them round */
        if (to < from) to = from;
        if (from == to && to == done && !empty_ok) {
            if (at >= n) break;
            (void)sop_utf8_read(f->s + at, &k);
            at += k;
            continue;
        }
        if (done < from) SOP_TRY(fold_span(f, done, from, false));
        SOP_TRY(fold_span(f, from, to, true));
        done = at = to;
        empty_ok = false;
    }
    return done < n ? fold_span(f, done, n, false) : SOP_OK;
}

static sop_status cut_literal(fold *f, size_t n)
{
    const sop_buf *what = &f->split->literal;
    size_t done = 0;
    for (;;) {
        const char *hit = memmem(f->s + done, n - done, what->at, what->n);
        if (!hit) break;
        const size_t from = (size_t)(hit - f->s);
        if (done < from) SOP_TRY(fold_span(f, done, from, false));
        SOP_TRY(fold_span(f, from, from + what->n, true));
        done = from + what->n;
    }
    return done < n ? fold_span(f, done, n, false) : SOP_OK;
}

/* Each character with one of the bits is a match. */
static sop_status cut_bits(fold *f, size_t n, uint32_t mask)
{
    size_t done = 0;
    for (size_t i = 0, k; i < n; i += k) {
        if (!(bits_at(f->s + i, &k) & mask)) continue;
        if (done < i) SOP_TRY(fold_span(f, done, i, false));
        SOP_TRY(fold_span(f, i, i + k, true));
        done = i + k;
    }
    return done < n ? fold_span(f, done, n, false) : SOP_OK;
}

/* ---- steps that change the text ---- */

static sop_status map_bytes(const char *s, size_t n, sop_buf *out)
{
    SOP_TRY(sop_buf_room(out, 2 * n)); /* a letter has up to two bytes */
    for (size_t i = 0; i < n; i++) {
        const uint32_t c = sop_tok_letter[(uint8_t)s[i]];
        if (c >= 0x80) out->at[out->n++] = (char)(0xC0 | c >> 6);
        out->at[out->n++] = (char)(c < 0x80 ? c : 0x80 | (c & 63));
    }
    return SOP_OK;
}

static sop_status mark_spaces(const sop_tok_split *split, const char *s, size_t n, bool first,
                              sop_buf *out)
{
    const bool has = s[0] == ' ' || (n >= 3 && memcmp(s, SOP_TOK_SPACE, 3) == 0);
    if (!has &&
        (split->prepend == SOP_PREPEND_ALWAYS || (split->prepend == SOP_PREPEND_FIRST && first)))
        SOP_TRY(sop_buf_add(out, SOP_TOK_SPACE, 3));
    for (size_t i = 0, j; i < n; i = j + 1) {
        const char *space = memchr(s + i, ' ', n - i);
        j = space ? (size_t)(space - s) : n;
        SOP_TRY(sop_buf_add(out, s + i, j - i));
        if (space) SOP_TRY(sop_buf_add(out, SOP_TOK_SPACE, 3));
    }
    return SOP_OK;
}

/* ---- the chain ---- */

static sop_status word_of(sop_encoder *e, const char *s, size_t n)
{
    if (!e->t->mapped) return sop_encoder_word(e, s, n);
    sop_buf *word = e->buffer + SOP_BUFFER_WORD;
    word->n = 0;
    SOP_TRY(sop_buf_room(word, n));
    if (!sop_tok_unmap(s, n, word->at, &n))
        return sop_fail(SOP_E_INTERNAL, "tokenizer: a step cut a letter in two");
    return sop_encoder_word(e, word->at, n);
}

sop_status sop_encoder_split(sop_encoder *e, int step, const char *s, size_t n, bool first)
{
    if (n == 0) return SOP_OK;
    if (step == e->t->n_splits) return word_of(e, s, n);
    const sop_tok_split *split = e->t->splits + step;
    sop_buf *out = e->buffer + SOP_BUFFER_STEP + step;
    fold f = {.e = e, .split = split, .next = step + 1, .s = s, .first = first};
    out->n = 0;
    switch (split->kind) {
    case SOP_SPLIT_GPT2:
    case SOP_SPLIT_WORDS:
        for (size_t i = 0, j; i < n; i = j) {
            j = split->kind == SOP_SPLIT_GPT2 ? next_gpt2(s, i, n)
                                              : next_words(s, i, n, split->digits);
            SOP_TRY(sop_encoder_split(e, step + 1, s + i, j - i, first && i == 0));
        }
        return SOP_OK;
    case SOP_SPLIT_REGEX: SOP_TRY(cut_regex(&f, n)); return fold_give(&f);
    case SOP_SPLIT_LITERAL: SOP_TRY(cut_literal(&f, n)); return fold_give(&f);
    case SOP_SPLIT_DIGITS: SOP_TRY(cut_bits(&f, n, SOP_UNI_NUMERIC)); return fold_give(&f);
    case SOP_SPLIT_PUNCT: SOP_TRY(cut_bits(&f, n, SOP_UNI_PUNCT)); return fold_give(&f);
    case SOP_SPLIT_PREFIX:
        if (s[0] == ' ') return sop_encoder_split(e, step + 1, s, n, first);
        SOP_TRY(sop_buf_add(out, " ", 1));
        SOP_TRY(sop_buf_add(out, s, n));
        break;
    case SOP_SPLIT_MAP: SOP_TRY(map_bytes(s, n, out)); break;
    case SOP_SPLIT_SPACES: SOP_TRY(mark_spaces(split, s, n, first, out)); break;
    }
    return sop_encoder_split(e, step + 1, out->at, out->n, first);
}
