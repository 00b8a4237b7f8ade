/* The configuration: a table of keys, and a reader of YAML events that believes nothing else.
 *
 * Types come from the table and not from how a value looks, so that YAML's guesses cannot surprise:
 * `guard: off` is a word, `1e-5` is a number (YAML 1.1 takes it for a text), and `rope: no`, a boolean
 * in 1.1 and a text in 1.2, is refused with that reason. */
#include "sop/config.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <yaml.h>

#include "base/status.h"
#include "base/text.h"

enum kind { SECTION, BOOL, WORD, TYPE, INT, REAL };

struct key {
    const char *path;
    enum kind kind;
    size_t offset, bytes; /* of the member of sop_config */
    double lo, hi, standard;
    const char
        *words; /* of a WORD, a TYPE and a BOOL; the value is the position, of a TYPE the type */
};

#define AT(member) offsetof(sop_config, member), sizeof(((sop_config *)0)->member)
#define NO_MEMBER 0, 0, 0, 0, 0, NULL

/* In the order of the file; a section stands before its keys. Explained in docs/configuration.md,
 * which a test compares with this table. */
/* clang-format off */
static const struct key keys[] = {
    {"engine",                                     SECTION, NO_MEMBER},
    {"engine.modules",                             SECTION, NO_MEMBER},
    {"engine.modules.rope",                        BOOL, AT(modules.rope),         0, 1, 1, "false|true"},
    {"engine.modules.flash_attn",                  BOOL, AT(modules.flash_attn),   0, 1, 1, "false|true"},
    {"engine.modules.ring_attn",                   BOOL, AT(modules.ring_attn),    0, 1, 1, "false|true"},
    {"engine.modules.kv_cache_opt",                BOOL, AT(modules.kv_cache_opt), 0, 1, 1, "false|true"},
    {"engine.thresholds",                          SECTION, NO_MEMBER},
    {"engine.thresholds.min_seq_for_ring",         INT,  AT(thresholds.min_seq_for_ring),         1, 2147483647, 65536, NULL},
    {"engine.thresholds.min_free_mem_for_ring_gb", REAL, AT(thresholds.min_free_mem_for_ring_gb), 0, 1e6, 8, NULL},
    {"engine.thresholds.max_batch_for_tiled",      INT,  AT(thresholds.max_batch_for_tiled),      0, 65536, 4, NULL},
    {"engine.fallback",                            SECTION, NO_MEMBER},
    {"engine.fallback.enable",                     BOOL, AT(fallback.enable),         0, 1, 1, "false|true"},
    {"engine.fallback.max_retries",                INT,  AT(fallback.max_retries),    0, 100, 3, NULL},
    {"engine.fallback.backoff_factor",             REAL, AT(fallback.backoff_factor), 1, 100, 1.5, NULL},
    {"engine.memory_limit_gb",                     REAL, AT(memory_limit_gb), 0, 1e6, 0, NULL},
    {"engine.ctx",                                 INT,  AT(ctx),             0, 2147483647, 0, NULL},
    {"engine.numerics",                            WORD, AT(numerics),        0, 2, SOP_NUMERICS_FAST, "fast|exact|invariant"},
    {"engine.guard",                               WORD, AT(guard),           0, 2, SOP_GUARD_SAMPLE, "off|sample|always"},
    {"engine.kv_dtype",                            TYPE, AT(kv_dtype),        0, 3, 1, "f32|f16|i8|f8"},
    {"engine.kv_host_gb",                          REAL, AT(kv_host_gb),      0, 1e6, 0, NULL},
    {"engine.max_step_tokens",                     INT,  AT(max_step_tokens), 1, 65536, 512, NULL},
    {"engine.threads",                             INT,  AT(threads),         0, 1024, 0, NULL},
};
/* clang-format on */

enum {
    N_KEYS = sizeof keys / sizeof *keys,
    MOST_BYTES = 64 << 10,
    SHOWN = 48,    /* of a text of the file in an error */
    ALLOWED = 256, /* of what a key allows */
};

_Static_assert(SOP_NUMERICS_EXACT == 1 && SOP_NUMERICS_INVARIANT == 2, "positions in words");
_Static_assert(SOP_GUARD_OFF == 0 && SOP_GUARD_ALWAYS == 2, "positions in words");

/* A dot stands for the comma of no locale while a number is read or written. */
struct plain_locale {
    locale_t c, before;
};

static struct plain_locale enter_plain_locale(void)
{
    struct plain_locale l = {.c = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    l.before = uselocale(l.c);
    return l;
}

static void leave_plain_locale(struct plain_locale l)
{
    (void)uselocale(l.before);
    if (l.c) freelocale(l.c);
}

static const char *word_at(const char *words, int position, size_t *n);

/* The type whose text stands at a position of "f32|f16"; -1 after the last. */
static int32_t type_at(const char *words, int position)
{
    char text[8];
    size_t n = 0;
    const char *word = word_at(words, position, &n);
    if (!word) return -1;
    (void)snprintf(text, sizeof text, "%.*s", (int)n, word);
    return sop_dtype_of(text);
}

static void set(sop_config *c, const struct key *k, double value)
{
    void *member = (char *)c + k->offset;
    if (k->kind == TYPE)
        *(int32_t *)member = type_at(k->words, (int)value);
    else if (k->kind == REAL)
        *(double *)member = value;
    else if (k->bytes == sizeof(int64_t))
        *(int64_t *)member = (int64_t)value;
    else
        *(int32_t *)member = (int32_t)value;
}

static double get(const sop_config *c, const struct key *k)
{
    const void *member = (const char *)c + k->offset;
    int32_t type, i = 0;
    if (k->kind == TYPE) {
        while ((type = type_at(k->words, i)) >= 0 && type != *(const int32_t *)member) i++;
        return i;
    }
    if (k->kind == REAL) return *(const double *)member;
    return k->bytes == sizeof(int64_t) ? (double)*(const int64_t *)member
                                       : *(const int32_t *)member;
}

void sop_config_defaults(sop_config *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].kind != SECTION) set(out, &keys[i], keys[i].standard);
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Whether k stands directly under section; NULL is the top. */
static int stands_under(const struct key *k, const char *section)
{
    const size_t n = (size_t)(last_part(k->path) - k->path);
    if (!section) return n == 0;
    return n && strlen(section) == n - 1 && memcmp(section, k->path, n - 1) == 0;
}

/* The word at a position of "a|b|c", and its length; NULL after the last. */
static const char *word_at(const char *words, int position, size_t *n)
{
    for (; position > 0 && words; position--)
        words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
    if (words) *n = strcspn(words, "|");
    return words;
}

/* What stands under a section; NULL is the top. */
static void say_keys(const char *section, char out[ALLOWED])
{
    size_t at = 0;
    for (int i = 0; i < N_KEYS && at < ALLOWED; i++)
        if (stands_under(&keys[i], section))
            at += (size_t)snprintf(out + at, ALLOWED - at, "%s%s", at ? ", " : "",
                                   last_part(keys[i].path));
}

static void say_allowed(const struct key *k, char out[ALLOWED])
{
    size_t at = 0, n = 0;
    const char *word;
    for (int i = 0; at < ALLOWED && (word = word_at(k->words, i, &n)) != NULL; i++)
        at += (size_t)snprintf(out + at, ALLOWED - at, "%s%.*s", i ? ", " : "", (int)n, word);
    if (k->kind == INT)
        (void)snprintf(out, ALLOWED, "a whole number from %.0f to %.0f", k->lo, k->hi);
    if (k->kind == REAL) (void)snprintf(out, ALLOWED, "a number from %g to %g", k->lo, k->hi);
    if (k->kind == SECTION) say_keys(k->path, out);
}

/* A text of the file, short and without control characters. */
static const char *shown(const unsigned char *text, size_t n, char out[SHOWN])
{
    const size_t most = SHOWN - 4;
    size_t cut = n;
    if (n > most) {
        cut = most;
        while (cut > 0 && (text[cut] & 0xc0) == 0x80) cut--; /* not inside a character */
    }
    for (size_t i = 0; i < cut; i++)
        out[i] = text[i] < 0x20 || text[i] == 0x7f ? '?' : (char)text[i];
    memcpy(out + cut, n > most ? "..." : "", n > most ? 4 : 1);
    return out;
}

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the latest; it belongs to the reader */
    const char *name, *text;
    sop_config config;
    size_t line_of[N_KEYS]; /* where a key was seen; 0: not yet */
};

static size_t line(const struct reader *r)
{
    return r->event.start_mark.line + 1;
}

static sop_status next(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return SOP_OK;
    if (p->error == YAML_MEMORY_ERROR)
        return sop_fail(SOP_E_NOMEM, "%s: no memory to read it", r->name);
    size_t at = p->problem_mark.line + 1;
    if (p->error == YAML_READER_ERROR) { /* it reads ahead of its marks */
        at = 1;
        for (size_t i = 0; i < p->problem_offset; i++) at += r->text[i] == '\n';
    }
    return sop_fail(SOP_E_FORMAT, "%s:%zu: not YAML: %s", r->name, at,
                    p->problem ? p->problem : "it ends too early");
}

/* What no part of the file may have. */
static sop_status check_plain(const struct reader *r, const char *path)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_SCALAR_EVENT) anchor = e->data.scalar.anchor, tag = e->data.scalar.tag;
    if (e->type == YAML_MAPPING_START_EVENT)
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
    if (e->type == YAML_SEQUENCE_START_EVENT)
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
    if (anchor || tag || e->type == YAML_ALIAS_EVENT)
        return sop_fail(SOP_E_FORMAT, "%s:%zu: %s: %s are not allowed here; write the value itself",
                        r->name, line(r), path ? path : "the file",
                        tag ? "tags (!...)" : "anchors (&...) and aliases (*...)");
    return SOP_OK;
}

static sop_status unknown_key(const struct reader *r, const char *section)
{
    char text[SHOWN], allowed[ALLOWED];
    const struct key *nearest = NULL;
    (void)shown(r->event.data.scalar.value, r->event.data.scalar.length, text);
    int best = 4 + (int)strlen(text) / 2; /* one edit, and one more for each four letters */
    for (int i = 0; i < N_KEYS; i++) {
        const int far =
            2 * sop_text_distance(text, last_part(keys[i].path)) + !stands_under(&keys[i], section);
        if (far >= best) continue;
        best = far;
        nearest = &keys[i];
    }
    say_keys(section, allowed);
    return sop_fail(SOP_E_FORMAT, "%s:%zu: unknown key \"%s\" under %s%s%s%s; allowed: %s", r->name,
                    line(r), text, section ? section : "the top", nearest ? ", did you mean " : "",
                    nearest ? nearest->path : "", nearest ? "?" : "", allowed);
}

/* The key that the event names. */
static sop_status find_key(struct reader *r, const char *section, int *out)
{
    SOP_TRY(check_plain(r, section));
    if (r->event.type != YAML_SCALAR_EVENT)
        return sop_fail(SOP_E_FORMAT, "%s:%zu: %s: a key is a list or a mapping, must be a word",
                        r->name, line(r), section ? section : "the file");
    const char *word = (const char *)r->event.data.scalar.value;
    for (int i = 0; i < N_KEYS; i++) {
        if (!stands_under(&keys[i], section) || strcmp(last_part(keys[i].path), word) != 0 ||
            strlen(word) != r->event.data.scalar.length)
            continue;
        if (r->line_of[i])
            return sop_fail(SOP_E_FORMAT, "%s:%zu: the key %s stands already in line %zu", r->name,
                            line(r), keys[i].path, r->line_of[i]);
        r->line_of[i] = line(r);
        *out = i;
        return SOP_OK;
    }
    return unknown_key(r, section);
}

enum form { NOT_A_NUMBER, WHOLE, DECIMAL, OTHER_BASE };

/* [-+]? (digits [. digits?]? | . digits) ([eE] [-+]? digits)?, as in YAML 1.2; what 1.1 reads in another
 * base (010, 0x10, 1_000, 1:30) is told apart, since people mean different numbers by it. */
static enum form form_of(const char *t, size_t length)
{
    const char *start = t;
    t += *t == '-' || *t == '+';
    const size_t whole = strspn(t, "0123456789");
    const char *digits = t;
    size_t fraction = 0, dot = 0;
    t += whole;
    if (*t == '.') {
        dot = 1;
        fraction = strspn(++t, "0123456789");
        t += fraction;
    }
    size_t power = 0;
    if (whole + fraction && (*t == 'e' || *t == 'E')) {
        const size_t sign = t[1] == '-' || t[1] == '+';
        power = strspn(t + 1 + sign, "0123456789");
        if (power) t += 1 + sign + power;
    }
    if (whole && strspn(digits, "0123456789abcdefABCDEFxo_:.") == strlen(digits) &&
        (strpbrk(digits, "xo_:") || (whole > 1 && *digits == '0' && !dot && !power)))
        return OTHER_BASE;
    if (whole + fraction == 0 || t != start + length) return NOT_A_NUMBER;
    return dot || power ? DECIMAL : WHOLE;
}

static int is_word_of(const char *text, const char *words)
{
    size_t n;
    const char *word;
    for (int i = 0; (word = word_at(words, i, &n)) != NULL; i++)
        if (strlen(text) == n && strncasecmp(text, word, n) == 0) return 1;
    return 0;
}

/* NULL and the value, or why the event's scalar is none for this key. */
static const char *read_value(const struct reader *r, const struct key *k, double *out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    const size_t length = r->event.data.scalar.length;
    const int quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (!length && !quoted) return "has no value";
    if (strlen(text) != length) return "holds a zero byte";
    if (quoted && k->kind != WORD && k->kind != TYPE) return "is quoted, which makes it a text";
    if (k->words) {
        size_t n;
        const char *word;
        for (int i = 0; (word = word_at(k->words, i, &n)) != NULL; i++) {
            *out = i;
            if (n == length && (k->kind == BOOL ? strncasecmp : strncmp)(word, text, n) == 0)
                return NULL;
        }
        return k->kind == BOOL && is_word_of(text, "y|n|yes|no|on|off")
                   ? "is a boolean in YAML 1.1 and a text in 1.2"
                   : "is not a value of this key";
    }
    const enum form form = form_of(text, length);
    if (form == OTHER_BASE) return "is read in different ways by YAML 1.1 and 1.2";
    if (form == NOT_A_NUMBER) return "is not a number";
    if (form == DECIMAL && k->kind == INT) return "is not a whole number";
    *out = strtod(text, NULL) + 0.0; /* no -0: equal configurations are equal bytes */
    return *out >= k->lo && *out <= k->hi ? NULL : "is out of range";
}

static sop_status read_section(struct reader *r, const char *section);

static sop_status read_key(struct reader *r, const struct key *k)
{
    char allowed[ALLOWED], text[SHOWN];
    const char *why = NULL;
    double value = 0;
    SOP_TRY(next(r));
    SOP_TRY(check_plain(r, k->path));
    const int is_scalar = r->event.type == YAML_SCALAR_EVENT;
    if (k->kind == SECTION) {
        if (r->event.type == YAML_MAPPING_START_EVENT) return read_section(r, k->path);
        if (is_scalar && r->event.data.scalar.length == 0 &&
            r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
            return SOP_OK; /* all of it commented out */
        why = "is no mapping";
    } else if (!is_scalar) {
        why = "is no single value";
    } else {
        why = read_value(r, k, &value);
    }
    if (!why) {
        set(&r->config, k, value);
        return SOP_OK;
    }
    say_allowed(k, allowed);
    if (!is_scalar)
        (void)snprintf(text, sizeof text, "a %s",
                       r->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "mapping");
    else
        (void)shown(r->event.data.scalar.value, r->event.data.scalar.length, text);
    return sop_fail(SOP_E_FORMAT, "%s:%zu: %s: %s%s%s %s; allowed: %s", r->name, line(r), k->path,
                    is_scalar ? "\"" : "", text, is_scalar ? "\"" : "", why, allowed);
}

/* The keys of a mapping, to its end. It recurses as deep as the table, whatever the file does. */
static sop_status read_section(struct reader *r, const char *section)
{
    for (;;) {
        int key = 0;
        SOP_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return SOP_OK;
        SOP_TRY(find_key(r, section, &key));
        SOP_TRY(read_key(r, &keys[key]));
    }
}

static sop_status read_file(struct reader *r)
{
    SOP_TRY(next(r)); /* the stream's start */
    SOP_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return SOP_OK; /* nothing but comments */
    SOP_TRY(next(r));
    SOP_TRY(check_plain(r, NULL));
    if (r->event.type == YAML_MAPPING_START_EVENT)
        SOP_TRY(read_section(r, NULL));
    else if (r->event.type != YAML_SCALAR_EVENT || r->event.data.scalar.length)
        return sop_fail(SOP_E_FORMAT, "%s:%zu: the file is no mapping; it starts with \"engine:\"",
                        r->name, line(r));
    SOP_TRY(next(r)); /* the document's end */
    SOP_TRY(next(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return sop_fail(SOP_E_FORMAT, "%s:%zu: a second document starts here, one is allowed",
                        r->name, line(r));
    return SOP_OK;
}

sop_status sop_config_read(const char *text, size_t bytes, const char *name, sop_config *out)
{
    struct reader r = {.name = name, .text = text};
    if (bytes > MOST_BYTES)
        return sop_fail(SOP_E_LIMIT, "%s: %zu bytes, a configuration has at most %d", name, bytes,
                        MOST_BYTES);
    if (!yaml_parser_initialize(&r.parser))
        return sop_fail(SOP_E_NOMEM, "%s: no memory to read it", name);
    sop_config_defaults(&r.config);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    const struct plain_locale l = enter_plain_locale();
    const sop_status status = read_file(&r);
    leave_plain_locale(l);
    if (status == SOP_OK) *out = r.config;
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}

sop_status sop_config_load(const char *path, sop_config *out)
{
    sop_status status = SOP_OK;
    char *text = malloc(MOST_BYTES + 1);
    if (!text) return sop_fail(SOP_E_NOMEM, "%s: %d bytes to read it", path, MOST_BYTES + 1);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got = fd < 0 ? -1 : 0;
    while (fd >= 0 && n <= MOST_BYTES) {
        got = read(fd, text + n, MOST_BYTES + 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    if (got < 0)
        status = sop_fail(SOP_E_IO, "%s: %s", path, strerror(errno));
    else if (n > MOST_BYTES)
        status = sop_fail(SOP_E_LIMIT, "%s: over %d bytes, a configuration has at most so many",
                          path, MOST_BYTES);
    else
        status = sop_config_read(text, n, path, out);
    if (fd >= 0) (void)close(fd);
    free(text);
    return status;
}

static void say_value(const struct key *k, double value, char out[SHOWN])
{
    size_t n = 0;
    const char *word = k->words ? word_at(k->words, (int)value, &n) : NULL;
    if (word) {
        (void)snprintf(out, SHOWN, "%.*s", (int)n, word);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) { /* the fewest that read back as the same */
        (void)snprintf(out, SHOWN, "%.*g", digits, value);
        if (strtod(out, NULL) == value) return;
    }
}

size_t sop_config_print(const sop_config *config, char *out, size_t cap)
{
    char value[SHOWN], allowed[ALLOWED], row[SHOWN + 2 * ALLOWED];
    size_t n = 0;
    if (cap) out[0] = 0;
    const struct plain_locale l = enter_plain_locale();
    for (int i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];
        int indent = 0;
        for (const char *p = k->path; *p; p++) indent += *p == '.' ? 2 : 0;
        if (k->kind == SECTION) {
            (void)snprintf(row, sizeof row, "%*s%s:\n", indent, "", last_part(k->path));
        } else {
            say_value(k, get(config, k), value);
            say_allowed(k, allowed);
            (void)snprintf(row, sizeof row, "%*s%s: %s # %s\n", indent, "", last_part(k->path),
                           value, allowed);
        }
        const size_t length = strlen(row);
        if (n < cap) (void)snprintf(out + n, cap - n, "%s", row);
        n += length;
    }
    leave_plain_locale(l);
    return n;
}
