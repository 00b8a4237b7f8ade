/* model/tokenizer.c: open, encode, decode. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer.h"

#include <fcntl.h>
#include <limits.h>
#include <pcre2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

enum {
    MAX_TEXT = 1 << 30,     /* bytes of a text: positions in a word are 32 bits */
    MAX_DOCUMENT = 1 << 28, /* bytes of a tokenizer.json; Gemma 3's has 33 million */
    GROWTH = 3,             /* times its length, */
    MAX_PREFIX = 1 << 12,   /* and these bytes: how far a normaliser may lengthen a text */
    KEEP_BYTES = 4 << 20    /* of all buffers, from one call to the next */
};

struct sop_tok_pool {
    _Atomic(sop_encoder *) spare[SOP_TOK_POOL];
};

/* ---- opening ---- */

/* A file's bytes with a zero behind; NULL and SOP_OK when there is no such file and it is optional. */
static sop_status slurp(const char *path, bool optional, char **bytes, size_t *n)
{
    struct stat st;
    sop_status status = SOP_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && optional) return SOP_OK;
    if (fd < 0) return sop_fail(SOP_E_IO, "%s: cannot be opened: %m", path);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = sop_fail(SOP_E_IO, "%s: not a file", path);
    } else if (st.st_size > MAX_DOCUMENT) {
        status = sop_fail(SOP_E_LIMIT, "%s: %lld bytes, at most %d", path, (long long)st.st_size,
                          MAX_DOCUMENT);
    } else {
        const size_t size = (size_t)st.st_size;
        char *p = malloc(size + 1);
        size_t got = 0;
        ssize_t r = 1;
        while (p && got < size && (r = read(fd, p + got, size - got)) > 0) got += (size_t)r;
        if (!p) {
            status = sop_fail(SOP_E_NOMEM, "%s: no memory for %zu bytes", path, size + 1);
        } else if (r < 0) {
            status = sop_fail(SOP_E_IO, "%s: cannot be read: %m", path);
            free(p);
        } else {
            p[got] = 0;
            *bytes = p;
            *n = got;
        }
    }
    close(fd);
    return status;
}

/* The documents of a folder, dir [n_dir] with its slash or nothing; path: for errors. */
static sop_status open_json(const char *dir, size_t n_dir, const char *slash, const char *main_name,
                            const char *path, sop_tokenizer **out)
{
    const char *const names[] = {main_name, "tokenizer_config.json", "generation_config.json",
                                 "config.json", "chat_template.jinja"};
    enum { COUNT = sizeof names / sizeof *names };
    char *bytes[COUNT] = {0};
    size_t n[COUNT] = {0};
    sop_status status = SOP_OK;
    for (int i = 0; i < COUNT && status == SOP_OK; i++) {
        char file[PATH_MAX];
        const int len = snprintf(file, sizeof file, "%.*s%s%s", (int)n_dir, dir, slash, names[i]);
        status = len < (int)sizeof file
                     ? slurp(file, i > 0, bytes + i, n + i)
                     : sop_fail(SOP_E_ARG, "%s: a path of %d characters", path, len);
    }
    if (status == SOP_OK) {
        const sop_tok_documents docs = {bytes[0], bytes[1], bytes[2], bytes[3], bytes[4],
                                        n[0],     n[1],     n[2],     n[3],     n[4]};
        status = sop_tokenizer_of_json(&docs, path, out);
    }
    for (int i = 0; i < COUNT; i++) free(bytes[i]);
    return status;
}

sop_status sop_tokenizer_open(const char *path, sop_tokenizer **out)
{
    if (!out) return sop_fail(SOP_E_ARG, "tokenizer open: out is NULL");
    *out = NULL;
    if (!path) return sop_fail(SOP_E_ARG, "tokenizer open: path is NULL");
    struct stat st;
    const size_t n = strlen(path);
    if (stat(path, &st) != 0) return sop_fail(SOP_E_IO, "%s: cannot be opened: %m", path);
    if (S_ISDIR(st.st_mode)) return open_json(path, n, "/", "tokenizer.json", path, out);
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        const char *slash = strrchr(path, '/');
        const size_t n_dir = slash ? (size_t)(slash - path) + 1 : 0;
        return open_json(path, n_dir, "", path + n_dir, path, out);
    }
    sop_file *f;
    SOP_TRY(sop_file_open(path, &f));
    const sop_status status = sop_tokenizer_of_file(f, path, out);
    sop_file_close(f);
    return status;
}

sop_status sop_tok_create(sop_tokenizer **out)
{
    sop_tokenizer *t = calloc(1, sizeof *t);
    struct sop_tok_pool *pool = calloc(1, sizeof *pool);
    *out = t;
    if (!t || !pool) {
        free(t);
        free(pool);
        *out = NULL;
        return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for %zu bytes", sizeof *t);
    }
    t->pool = pool;
    t->bos = t->eos = t->eot = t->unk = t->pad = t->unknown = -1;
    for (int i = 0; i < 256; i++) t->byte_id[i] = -1;
    return SOP_OK;
}

void sop_tokenizer_close(sop_tokenizer *t)
{
    if (!t) return;
    for (int i = 0; t->pool && i < SOP_TOK_POOL; i++) sop_encoder_destroy(t->pool->spare[i]);
    for (int i = 0; i < t->n_norms; i++) {
        sop_buf_finish(&t->norms[i].from);
        sop_buf_finish(&t->norms[i].to);
    }
    for (int i = 0; i < t->n_splits; i++) {
        sop_buf_finish(&t->splits[i].literal);
        pcre2_code_free(t->splits[i].regex);
    }
    pcre2_match_context_free(t->regex_limits);
    sop_buf_finish(&t->blob);
    free(t->pool);
    free(t->tokens);
    free(t->slots);
    free(t->power);
    free(t->pairs);
    free(t->joints);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    free(t->pre);
    free(t->chat_template);
    free(t->chat.system_text);
    free(t);
}

/* ---- encoders ---- */

void sop_encoder_destroy(sop_encoder *e)
{
    if (!e) return;
    for (int i = 0; i < SOP_ENCODER_BUFFERS; i++) sop_buf_finish(e->buffer + i);
    pcre2_match_data_free(e->match);
    free(e->cache);
    free(e->ids);
    free(e);
}

sop_status sop_encoder_take(const sop_tokenizer *t, sop_encoder **out)
{
    sop_encoder *e = NULL;
    for (int i = 0; !e && i < SOP_TOK_POOL; i++) e = atomic_exchange(&t->pool->spare[i], NULL);
    if (!e) e = calloc(1, sizeof *e);
    if (!e) return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for %zu bytes", sizeof *e);
    e->t = t;
    e->n_ids = 0;
    *out = e;
    return SOP_OK;
}

void sop_encoder_give(sop_encoder *e)
{
    size_t kept = e->cap_ids * sizeof *e->ids;
    for (int i = 0; i < SOP_ENCODER_BUFFERS; i++) kept += e->buffer[i].cap;
    /* A huge text's buffers are not kept for the small ones that follow. */
    for (int i = 0; kept <= KEEP_BYTES && i < SOP_TOK_POOL; i++) {
        sop_encoder *none = NULL;
        if (atomic_compare_exchange_strong(&e->t->pool->spare[i], &none, e)) return;
    }
    sop_encoder_destroy(e);
}

/* ---- from text to words ---- */

/* A file's normaliser may not blow a text up: spaces and composed forms treble it at most. */
static sop_status grown(size_t n, size_t from)
{
    if (n / GROWTH <= from + MAX_PREFIX) return SOP_OK;
    return sop_fail(SOP_E_LIMIT, "tokenizer: the normalizer makes over %zu bytes of %zu", n, from);
}

static sop_status replace(const sop_tok_norm *norm, const char *s, size_t n, sop_buf *out)
{
    size_t i = 0;
    for (;;) {
        const char *hit = memmem(s + i, n - i, norm->from.at, norm->from.n);
        const size_t at = hit ? (size_t)(hit - s) : n;
        SOP_TRY(sop_buf_add(out, s + i, at - i));
        if (!hit) return SOP_OK;
        SOP_TRY(sop_buf_add(out, norm->to.at, norm->to.n));
        SOP_TRY(grown(out->n, n));
        i = at + norm->from.n;
    }
}

sop_status sop_tok_normalize(const sop_tokenizer *t, sop_buf two[2], sop_buf *scratch,
                             const char **s, size_t *n)
{
    const size_t from = *n;
    int which = 0;
    for (int i = 0; i<t->n_norms && * n> 0; i++) {
        const sop_tok_norm *norm = t->norms + i;
        sop_buf *out = two + which;
        out->n = 0;
        switch (norm->kind) {
        case SOP_NORM_NFC:
            if (sop_nfc_sure(*s, *n) == *n) continue;
            SOP_TRY(sop_nfc(*s, *n, scratch, out));
            break;
        case SOP_NORM_PREPEND:
            SOP_TRY(sop_buf_add(out, norm->to.at, norm->to.n));
            SOP_TRY(sop_buf_add(out, *s, *n));
            break;
        case SOP_NORM_REPLACE: SOP_TRY(replace(norm, *s, *n, out)); break;
        }
        SOP_TRY(grown(out->n, from));
        which = !which;
        *s = out->at;
        *n = out->n;
    }
    return SOP_OK;
}

/* Is the character that ends at s + i (before) or begins there part of a word? */
static bool word_at(const char *s, size_t n, size_t i, bool before)
{
    if (before ? i == 0 : i == n) return false;
    if (before) do
            i--;
        while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80);
    size_t k;
    const uint32_t c = sop_utf8_read(s + i, &k);
    return c == '_' || (sop_unicode(c) & (SOP_UNI_LETTER | SOP_UNI_MARK | SOP_UNI_NUMBER));
}

static size_t spaces_before(const char *s, size_t i)
{
    while (i > 0) {
        size_t p = i, k;
        do p--;
        while (p > 0 && ((uint8_t)s[p] & 0xC0) == 0x80);
        if (!(sop_unicode(sop_utf8_read(s + p, &k)) & SOP_UNI_SPACE)) break;
        i = p;
    }
    return i;
}

static size_t spaces_after(const char *s, size_t n, size_t i)
{
    for (size_t k; i < n && (sop_unicode(sop_utf8_read(s + i, &k)) & SOP_UNI_SPACE);) i += k;
    return i;
}

static sop_status added_in(sop_encoder *e, bool raw, const char *s, size_t n, bool special,
                           bool first);

/* What lies between added tokens. */
static sop_status between(sop_encoder *e, bool raw, const char *s, size_t n, bool special,
                          bool first)
{
    if (raw) {
        SOP_TRY(sop_tok_normalize(e->t, e->buffer + SOP_BUFFER_NORMAL,
                                  e->buffer + SOP_BUFFER_SCRATCH, &s, &n));
        if (e->t->normalized.n) return added_in(e, false, s, n, special, first);
    }
    return sop_encoder_split(e, 0, s, n, first);
}

/* Cut at added tokens: leftmost, then longest. A special one that is to be read as text still
 * hides others inside it, as in Hugging Face's. */
static sop_status added_in(sop_encoder *e, bool raw, const char *s, size_t n, bool special,
                           bool first)
{
    const sop_trie *trie = raw ? &e->t->raw : &e->t->normalized;
    size_t done = 0, i = 0;
    while (i < n) {
        size_t bytes;
        const int32_t id =
            trie->root[(uint8_t)s[i]] ? sop_trie_match(trie, s + i, n - i, &bytes) : -1;
        if (id < 0) {
            i++;
            continue;
        }
        const sop_token *token = e->t->tokens + id;
        size_t from = i, to = i + bytes;
        i = to;
        if (token->kind == SOP_TOKEN_CONTROL && !special) continue;
        if ((token->flags & SOP_TOK_WORD) &&
            (word_at(s, n, from, true) || word_at(s, n, to, false)))
            continue;
        if (token->flags & SOP_TOK_LSTRIP) from = spaces_before(s, from);
        if (token->flags & SOP_TOK_RSTRIP) to = spaces_after(s, n, to);
        if (from > done)
            SOP_TRY(between(e, raw, s + done, from - done, special, first && done == 0));
        SOP_TRY(sop_encoder_id(e, id));
        done = to;
    }
    if (done >= n) return SOP_OK;
    return between(e, raw, s + done, n - done, special, first && done == 0);
}

sop_status sop_encoder_text(sop_encoder *e, const char *text, size_t n, bool special, bool first)
{
    if (n <= MAX_TEXT && sop_utf8_valid(text, n) != n) {
        sop_buf *repaired = e->buffer + SOP_BUFFER_REPAIRED;
        repaired->n = 0;
        SOP_TRY(sop_utf8_repair(text, n, repaired));
        text = repaired->at;
        n = repaired->n;
    }
    if (n > MAX_TEXT)
        return sop_fail(SOP_E_LIMIT, "tokenizer encode: %zu bytes, at most %d", n, MAX_TEXT);
    return added_in(e, true, text, n, special, first);
}

sop_status sop_tokenizer_encode(const sop_tokenizer *t, const char *text, size_t bytes,
                                bool special, int32_t *ids, size_t cap, size_t *n)
{
    if (!t || !n || (!text && bytes) || (!ids && cap))
        return sop_fail(SOP_E_ARG, "tokenizer encode: %s is NULL",
                        !t               ? "the tokenizer"
                        : !n             ? "n"
                        : !text && bytes ? "text"
                                         : "ids");
    *n = 0;
    sop_encoder *e;
    SOP_TRY(sop_encoder_take(t, &e));
    const sop_status status = sop_encoder_text(e, text, bytes, special, true);
    if (status == SOP_OK) {
        *n = e->n_ids;
        if (cap && *n) memcpy(ids, e->ids, (*n < cap ? *n : cap) * sizeof *ids);
    }
    sop_encoder_give(e);
    return status;
}

/* ---- decoding ---- */

const char *sop_tokenizer_piece(const sop_tokenizer *t, int32_t id, bool special, size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || id >= t->n_vocab) return "";
    const sop_token *token = t->tokens + id;
    if (!special && (token->kind == SOP_TOKEN_CONTROL || token->kind == SOP_TOKEN_UNUSED))
        return "";
    *bytes = token->n_piece;
    return t->blob.at + token->piece;
}

void sop_detok_init(sop_detok *d, const sop_tokenizer *t, bool special)
{
    *d = (sop_detok){.tokenizer = t, .special = special};
}

size_t sop_detok_room(const sop_tokenizer *t)
{
    return 4 * (size_t)t->longest_piece + 8;
}

/* Writes what is whole of s, U+FFFD for what cannot become so, and holds back the beginning of a
 * character unless this is the end. room is enough: 3 bytes for each of s. */
static size_t detok_write(sop_detok *d, const char *s, size_t n, bool end, char *out)
{
    size_t i = 0, m = 0;
    d->n_held = 0;
    while (i < n) {
        const size_t whole = sop_utf8_valid(s + i, n - i);
        memcpy(out + m, s + i, whole);
        i += whole;
        m += whole;
        if (i == n) break;
        const int k = sop_utf8_step(s + i, n - i);
        if (k == 0 && !end) {
            while (i < n) d->held[d->n_held++] = s[i++];
            break;
        }
        for (int b = 0; b < 3; b++) out[m++] = "\xEF\xBF\xBD"[b];
        i = k == 0 ? n : i + (size_t)-k;
    }
    return m;
}

sop_status sop_detok_push(sop_detok *d, int32_t id, char *out, size_t cap, size_t *n)
{
    const sop_tokenizer *t = d->tokenizer;
    size_t bytes = 0, m = 0;
    const char *piece = id == -1 ? "" : sop_tokenizer_piece(t, id, d->special != 0, &bytes);
    if (bytes && !d->started && t->strip_first && piece[0] == ' ') piece++, bytes--, d->started = 1;
    const size_t most = 3 * (bytes + 1) + 1; /* each byte U+FFFD, and what is held another */
    if (cap < most)
        return sop_fail(SOP_E_LIMIT, "detok: room for %zu bytes, token %d may need %zu", cap, id,
                        most);
    if (bytes) d->started = 1;
    if (d->n_held && (bytes || id == -1)) {
        /* The held beginning and as much of the piece as finishes it; then the piece's rest. */
        char seam[8];
        size_t n_seam = (size_t)d->n_held;
        memcpy(seam, d->held, n_seam);
        while (bytes && n_seam < 4 && ((uint8_t)*piece & 0xC0) == 0x80 &&
               sop_utf8_step(seam, n_seam) == 0)
            seam[n_seam++] = *piece++, bytes--;
        m = detok_write(d, seam, n_seam, id == -1 || bytes, out);
    }
    if (bytes) m += detok_write(d, piece, bytes, false, out + m);
    out[m] = 0;
    *n = m;
    return SOP_OK;
}

/* ---- facts ---- */

void sop_tokenizer_facts_of(const sop_tokenizer *t, sop_tokenizer_facts *facts)
{
    *facts = (sop_tokenizer_facts){.n_vocab = t->n_vocab,
                                   .bos = t->bos,
                                   .eos = t->eos,
                                   .eot = t->eot,
                                   .unk = t->unk,
                                   .pad = t->pad,
                                   .add_bos = t->add_bos && t->bos >= 0,
                                   .family = t->byte_level ? "bpe" : "spm",
                                   .pre = t->pre ? t->pre : "",
                                   .chat_template = t->chat_template};
}

bool sop_tokenizer_is_end(const sop_tokenizer *t, int32_t id)
{
    for (int32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return true;
    return false;
}

int32_t sop_tokenizer_id(const sop_tokenizer *t, const char *text)
{
    char marked[1024]; /* a token with spaces that is longer than this third is not found */
    const size_t n = strlen(text);
    const int32_t id = sop_tok_find(t, text, n);
    if (id >= 0 || !t->spaces_decoded || n > sizeof marked / 3) return id;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const bool space = text[i] == ' ';
        memcpy(marked + m, space ? SOP_TOK_SPACE : text + i, space ? 3 : 1);
        m += space ? 3 : 1;
    }
    return sop_tok_find(t, marked, m);
}
