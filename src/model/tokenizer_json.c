/* model/tokenizer_json.c: Hugging Face's tokenizer.json and the documents beside it. A document is
 * read by position: members may come in any order, so a first look notes where each value stands
 * and leaps over it; what a value holds is checked when it is read. */
#include "model/tokenizer.h"

#include <string.h>

#include "base/status.h"
#include "model/json.h"

enum { MAX_NESTED = 8 }; /* sequences in sequences; files have one */

typedef struct reader {
    sop_json j;
    sop_tokenizer *t;
    sop_buf text; /* the string that was asked for last, with a zero behind */
} reader;

/* ---- finding values; a position of 0 is none ---- */

static sop_status bad(const reader *r, const char *what)
{
    return sop_fail(SOP_E_FORMAT, "%s: %s", r->j.name, what);
}

static sop_status refused(const reader *r, const char *what, const char *which)
{
    return sop_fail(SOP_E_UNSUPPORTED, "%s: the %s '%s' is not known", r->j.name, what, which);
}

static void go(reader *r, size_t at)
{
    r->j.at = at;
    r->j.depth = 0;
    r->j.first = false;
}

/* Over a value, without a look at what it holds. */
static sop_status leap(reader *r)
{
    sop_json *j = &r->j;
    int depth = 0;
    if (!sop_json_peek(j)) return sop_json_skip(j); /* says that the document ends */
    for (; j->at < j->size; j->at++) {
        const char c = j->text[j->at];
        if (c == '"') {
            for (j->at++; j->at < j->size && j->text[j->at] != '"'; j->at++)
                if (j->text[j->at] == '\\') j->at++;
            if (j->at >= j->size) break;
            if (depth == 0) return j->at++, SOP_OK;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return SOP_OK; /* behind a number or word */
            if (--depth == 0) return j->at++, SOP_OK;
        } else if (c == ',' && depth == 0) {
            return SOP_OK;
        }
    }
    return depth == 0 && j->at == j->size ? SOP_OK : bad(r, "the JSON ends inside a value");
}

/* Members of an object that are asked for. found: their positions; inner: of the last one, which
 * is an object itself, found on the way, so that a large one is leapt over only once. */
typedef struct wanted {
    const char *const *keys;
    size_t *found;
    int n;
    const struct wanted *inner;
} wanted;

static sop_status find_all(reader *r, size_t at, const wanted *w)
{
    const char *key;
    size_t bytes;
    bool more;
    memset(w->found, 0, (size_t)w->n * sizeof *w->found);
    go(r, at);
    SOP_TRY(sop_json_enter(&r->j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(&r->j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(&r->j, &key, &bytes));
        const bool object = sop_json_peek(&r->j) == '{';
        int i = 0;
        while (i < w->n && strcmp(w->keys[i], key) != 0) i++;
        if (i < w->n) w->found[i] = r->j.at;
        if (w->inner && i == w->n - 1 && object) {
            SOP_TRY(find_all(r, r->j.at, w->inner));
            r->j.depth = 1;
            r->j.first = false;
        } else {
            SOP_TRY(leap(r));
        }
    }
}

static sop_status find(reader *r, size_t at, const char *const *keys, size_t *found, int n)
{
    return find_all(r, at, &(wanted){keys, found, n, NULL});
}

static sop_status member(reader *r, size_t at, const char *key, size_t *found)
{
    return find(r, at, &key, found, 1);
}

/* Where an array is being read. */
typedef struct cursor {
    size_t at;
    bool first;
} cursor;

static sop_status enter_array(reader *r, size_t at, cursor *c)
{
    go(r, at);
    SOP_TRY(sop_json_enter(&r->j, '['));
    *c = (cursor){r->j.at, true};
    return SOP_OK;
}

/* The position of the array's next element, 0 behind the last. The caller may read elsewhere
 * between two of them. */
static sop_status element(reader *r, cursor *c, size_t *at)
{
    bool more;
    r->j.at = c->at;
    r->j.depth = 1;
    r->j.first = c->first;
    *at = 0;
    SOP_TRY(sop_json_next(&r->j, ']', &more));
    if (!more) return SOP_OK;
    (void)sop_json_peek(&r->j);
    *at = r->j.at;
    SOP_TRY(leap(r));
    *c = (cursor){r->j.at, false};
    return SOP_OK;
}

static char kind_at(reader *r, size_t at)
{
    if (!at) return 'n';
    go(r, at);
    return sop_json_peek(&r->j);
}

/* The string at a position into r->text. */
static sop_status string_at(reader *r, size_t at)
{
    const char *s;
    size_t n;
    go(r, at);
    SOP_TRY(sop_json_string(&r->j, &s, &n));
    r->text.n = 0;
    SOP_TRY(sop_buf_add(&r->text, s, n + 1));
    r->text.n = n;
    return SOP_OK;
}

/* A member that is a string, into r->text; "" when it is absent or null. */
static sop_status string_of(reader *r, size_t object, const char *key)
{
    size_t at;
    SOP_TRY(member(r, object, key, &at));
    if (kind_at(r, at) == '"') return string_at(r, at);
    if (kind_at(r, at) != 'n') return sop_fail(SOP_E_FORMAT, "%s: %s is no string", r->j.name, key);
    r->text.n = 0;
    SOP_TRY(sop_buf_add(&r->text, "", 1));
    r->text.n = 0;
    return SOP_OK;
}

/* true or false; null and no value leave *value as it is. */
static sop_status bool_at(reader *r, size_t at, bool *value)
{
    char letter;
    if (kind_at(r, at) == 'n') return SOP_OK;
    SOP_TRY(sop_json_word(&r->j, &letter));
    *value = letter == 't';
    return SOP_OK;
}

static sop_status bool_of(reader *r, size_t object, const char *key, bool *value)
{
    size_t at;
    SOP_TRY(member(r, object, key, &at));
    return bool_at(r, at, value);
}

static sop_status integer_at(reader *r, size_t at, int64_t *value)
{
    bool whole;
    double d;
    go(r, at);
    SOP_TRY(sop_json_number(&r->j, &whole, value, &d));
    if (!whole) return bad(r, "an id is no integer");
    return SOP_OK;
}

/* ---- components: normalizer, pre_tokenizer, decoder, post_processor ---- */

typedef sop_status component(reader *r, size_t at, const char *type);

/* Calls what for the component at a position; for a Sequence, for each of its parts. */
static sop_status walk(reader *r, size_t at, const char *parts_key, component *what, int depth)
{
    char type[32];
    size_t parts, item;
    cursor c;
    if (kind_at(r, at) == 'n') return SOP_OK;
    if (depth > MAX_NESTED) return bad(r, "sequences are nested too deep");
    SOP_TRY(string_of(r, at, "type"));
    if (r->text.n >= sizeof type) return refused(r, "component", r->text.at);
    memcpy(type, r->text.at, r->text.n + 1);
    if (strcmp(type, "Sequence") != 0) return what(r, at, type);
    SOP_TRY(member(r, at, parts_key, &parts));
    if (!parts) return sop_fail(SOP_E_FORMAT, "%s: a Sequence without %s", r->j.name, parts_key);
    SOP_TRY(enter_array(r, parts, &c));
    for (;;) {
        SOP_TRY(element(r, &c, &item));
        if (!item) return SOP_OK;
        SOP_TRY(walk(r, item, parts_key, what, depth + 1));
    }
}

/* A pattern that is {"String": ...} or {"Regex": ...}, into r->text. */
static sop_status pattern_of(reader *r, size_t object, bool *regex)
{
    static const char *const keys[] = {"String", "Regex"};
    size_t at, found[2];
    SOP_TRY(member(r, object, "pattern", &at));
    if (!at) return bad(r, "a component has no pattern");
    SOP_TRY(find(r, at, keys, found, 2));
    *regex = found[1] != 0;
    if (!found[0] && !found[1]) return bad(r, "a pattern is neither String nor Regex");
    SOP_TRY(string_at(r, found[0] ? found[0] : found[1]));
    if (r->text.n == 0) return bad(r, "a pattern is empty");
    return SOP_OK;
}

static sop_status read_norm(reader *r, size_t at, const char *type)
{
    if (strcmp(type, "NFC") == 0) return sop_tok_norm_add(r->t, SOP_NORM_NFC, "", 0, "", 0);
    if (strcmp(type, "Prepend") == 0) {
        SOP_TRY(string_of(r, at, "prepend"));
        return sop_tok_norm_add(r->t, SOP_NORM_PREPEND, "", 0, r->text.at, r->text.n);
    }
    if (strcmp(type, "Replace") != 0) return refused(r, "normalizer", type);
    bool regex = false;
    sop_buf from = {0};
    SOP_TRY(pattern_of(r, at, &regex));
    if (regex) return refused(r, "normalizer", "Replace of a Regex");
    sop_status status = sop_buf_add(&from, r->text.at, r->text.n);
    if (status == SOP_OK) status = string_of(r, at, "content");
    if (status == SOP_OK)
        status = sop_tok_norm_add(r->t, SOP_NORM_REPLACE, from.at, from.n, r->text.at, r->text.n);
    sop_buf_finish(&from);
    return status;
}

static sop_status behaviour_of(reader *r, size_t at, int *behaviour)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    SOP_TRY(string_of(r, at, "behavior"));
    if (r->text.n == 0) return SOP_OK;
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], r->text.at) == 0) return *behaviour = i, SOP_OK;
    return refused(r, "behavior", r->text.at);
}

static sop_status read_split(reader *r, size_t at, const char *type)
{
    sop_tokenizer *t = r->t;
    sop_tok_split split = {.behaviour = SOP_SPLIT_ISOLATED};
    bool yes = false;
    if (strcmp(type, "ByteLevel") == 0) {
        bool regex = true;
        if (t->byte_level) return refused(r, "pre_tokenizer", "a second ByteLevel");
        t->byte_level = true;
        SOP_TRY(bool_of(r, at, "add_prefix_space", &yes));
        SOP_TRY(bool_of(r, at, "use_regex", &regex));
        if (yes) SOP_TRY(sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_PREFIX}));
        if (regex) SOP_TRY(sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_GPT2}));
        return sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_MAP});
    }
    if (strcmp(type, "Digits") == 0) {
        SOP_TRY(bool_of(r, at, "individual_digits", &yes));
        split.kind = SOP_SPLIT_DIGITS;
        if (!yes) split.behaviour = SOP_SPLIT_JOINED;
        return sop_tok_split_add(t, &split);
    }
    if (strcmp(type, "Punctuation") == 0) {
        split.kind = SOP_SPLIT_PUNCT;
        SOP_TRY(behaviour_of(r, at, &split.behaviour));
        return sop_tok_split_add(t, &split);
    }
    if (strcmp(type, "Split") == 0) {
        SOP_TRY(behaviour_of(r, at, &split.behaviour));
        SOP_TRY(bool_of(r, at, "invert", &split.invert));
        SOP_TRY(pattern_of(r, at, &yes));
        return yes ? sop_tok_split_regex(t, r->text.at, r->text.n, split.behaviour, split.invert)
                   : sop_tok_split_literal(t, r->text.at, r->text.n, split.behaviour, split.invert);
    }
    if (strcmp(type, "Metaspace") != 0) return refused(r, "pre_tokenizer", type);
    bool prefix = true, cut = true;
    SOP_TRY(string_of(r, at, "replacement"));
    if (strcmp(r->text.at, SOP_TOK_SPACE) != 0)
        return refused(r, "replacement of Metaspace", r->text.at);
    SOP_TRY(bool_of(r, at, "add_prefix_space", &prefix));
    SOP_TRY(bool_of(r, at, "split", &cut));
    SOP_TRY(string_of(r, at, "prepend_scheme"));
    split.kind = SOP_SPLIT_SPACES;
    split.prepend = r->text.n == 0 ? (prefix ? SOP_PREPEND_ALWAYS : SOP_PREPEND_NEVER)
                    : strcmp(r->text.at, "always") == 0 ? SOP_PREPEND_ALWAYS
                    : strcmp(r->text.at, "first") == 0  ? SOP_PREPEND_FIRST
                                                        : SOP_PREPEND_NEVER;
    SOP_TRY(sop_tok_split_add(t, &split));
    return cut ? sop_tok_split_literal(t, SOP_TOK_SPACE, 3, SOP_SPLIT_NEXT, false) : SOP_OK;
}

static sop_status read_decoder(reader *r, size_t at, const char *type)
{
    sop_tokenizer *t = r->t;
    bool regex = false, prefix = true;
    int64_t start = 0;
    size_t found;
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "ByteFallback") == 0 ||
        strcmp(type, "Fuse") == 0)
        return SOP_OK;
    if (strcmp(type, "Replace") == 0) {
        SOP_TRY(pattern_of(r, at, &regex));
        const bool space = !regex && strcmp(r->text.at, SOP_TOK_SPACE) == 0;
        SOP_TRY(string_of(r, at, "content"));
        if (!space || strcmp(r->text.at, " ") != 0)
            return refused(r, "decoder", "Replace other than of U+2581 by a space");
        t->spaces_decoded = true;
        return SOP_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        SOP_TRY(member(r, at, "start", &found));
        if (found) SOP_TRY(integer_at(r, found, &start));
        t->strip_first = start > 0;
        return SOP_OK;
    }
    if (strcmp(type, "Metaspace") != 0) return refused(r, "decoder", type);
    SOP_TRY(bool_of(r, at, "add_prefix_space", &prefix));
    SOP_TRY(string_of(r, at, "prepend_scheme"));
    t->strip_first = r->text.n ? strcmp(r->text.at, "never") != 0 : prefix;
    t->spaces_decoded = true;
    return SOP_OK;
}

/* The token that a TemplateProcessing puts before a text is the BOS. */
static sop_status read_post(reader *r, size_t at, const char *type)
{
    size_t single, item, special;
    cursor c;
    if (strcmp(type, "TemplateProcessing") != 0) return SOP_OK; /* others change no ids here */
    SOP_TRY(member(r, at, "single", &single));
    if (!single) return SOP_OK;
    SOP_TRY(enter_array(r, single, &c));
    SOP_TRY(element(r, &c, &item));
    if (!item) return SOP_OK;
    SOP_TRY(member(r, item, "SpecialToken", &special));
    if (!special) return SOP_OK;
    SOP_TRY(string_of(r, special, "id"));
    r->t->bos = sop_tok_find(r->t, r->text.at, r->text.n);
    r->t->add_bos = r->t->bos >= 0;
    return SOP_OK;
}

/* ---- the model ---- */

static sop_status read_vocab(reader *r, size_t at)
{
    const char *text;
    size_t n;
    bool more;
    int64_t id;
    go(r, at);
    SOP_TRY(sop_json_enter(&r->j, '{'));
    for (;;) {
        bool whole;
        double d;
        SOP_TRY(sop_json_next(&r->j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(&r->j, &text, &n));
        SOP_TRY(sop_json_number(&r->j, &whole, &id, &d));
        if (!whole) return bad(r, "an id of the vocab is no integer");
        const bool byte = r->t->byte_fallback && sop_tok_byte(text, n) >= 0;
        SOP_TRY(sop_tok_add(r->t, id, text, n, byte ? SOP_TOKEN_BYTE : SOP_TOKEN_NORMAL, 0, 0));
    }
}

/* One added token: an object with content; id is its own or, in a tokenizer_config, its key. */
static sop_status read_added(reader *r, size_t at, int64_t id)
{
    sop_tokenizer *t = r->t;
    bool special = false, lstrip = false, rstrip = false, word = false, normalized = true;
    size_t found;
    if (id < 0) {
        SOP_TRY(member(r, at, "id", &found));
        if (!found) return bad(r, "an added token has no id");
        SOP_TRY(integer_at(r, found, &id));
    }
    SOP_TRY(bool_of(r, at, "special", &special));
    SOP_TRY(bool_of(r, at, "lstrip", &lstrip));
    SOP_TRY(bool_of(r, at, "rstrip", &rstrip));
    SOP_TRY(bool_of(r, at, "single_word", &word));
    SOP_TRY(bool_of(r, at, "normalized", &normalized));
    SOP_TRY(string_of(r, at, "content"));
    bool plain = false; /* an added token may also be one that merges make */
    if (!special && id >= 0 && id < t->n_vocab) {
        const sop_token *old = t->tokens + id;
        plain = old->plain && old->n_text == r->text.n &&
                memcmp(t->blob.at + old->text, r->text.at, r->text.n) == 0;
    }
    SOP_TRY(sop_tok_add(t, id, r->text.at, r->text.n, special ? SOP_TOKEN_CONTROL : SOP_TOKEN_ADDED,
                        0,
                        (lstrip ? SOP_TOK_LSTRIP : 0) | (rstrip ? SOP_TOK_RSTRIP : 0) |
                            (word ? SOP_TOK_WORD : 0) | (normalized ? SOP_TOK_NORMALIZED : 0)));
    t->tokens[id].plain = plain;
    return SOP_OK;
}

static sop_status read_merge(reader *r, sop_buf *left)
{
    const char *s;
    size_t n;
    bool more;
    sop_json *j = &r->j;
    if (sop_json_peek(j) == '"') {
        SOP_TRY(sop_json_string(j, &s, &n));
        const char *space = memchr(s, ' ', n);
        if (!space) return bad(r, "a merge is not two texts and a space");
        const size_t k = (size_t)(space - s);
        return sop_tok_merge(r->t, s, k, space + 1, n - k - 1);
    }
    SOP_TRY(sop_json_enter(j, '['));
    SOP_TRY(sop_json_next(j, ']', &more));
    if (!more) return bad(r, "a merge is empty");
    SOP_TRY(sop_json_string(j, &s, &n));
    left->n = 0;
    SOP_TRY(sop_buf_add(left, s, n));
    SOP_TRY(sop_json_next(j, ']', &more));
    if (!more) return bad(r, "a merge has one text");
    SOP_TRY(sop_json_string(j, &s, &n));
    SOP_TRY(sop_tok_merge(r->t, left->at, left->n, s, n));
    SOP_TRY(sop_json_next(j, ']', &more));
    return more ? bad(r, "a merge has more than two texts") : SOP_OK;
}

static sop_status read_merges(reader *r, size_t at)
{
    cursor c;
    sop_buf left = {0};
    bool more = true;
    sop_status status = enter_array(r, at, &c);
    while (status == SOP_OK) {
        status = sop_json_next(&r->j, ']', &more);
        if (status != SOP_OK || !more) break;
        status = read_merge(r, &left);
    }
    sop_buf_finish(&left);
    return status;
}

/* A member that must be null, "", 0 or absent. */
static sop_status must_be_empty(reader *r, size_t at, const char *what)
{
    const char c = kind_at(r, at);
    if (c == '"') {
        SOP_TRY(string_at(r, at));
        if (r->text.n) return refused(r, what, r->text.at);
    } else if (c != 'n') {
        bool whole;
        int64_t i;
        double d;
        SOP_TRY(sop_json_number(&r->j, &whole, &i, &d));
        if (d != 0) return refused(r, what, "not 0");
    }
    return SOP_OK;
}

/* Decoder entries of a tokenizer_config that tokenizer.json lacks. */
static sop_status read_added_decoder(reader *r, size_t at)
{
    const char *key;
    size_t n;
    bool more;
    if (kind_at(r, at) == 'n') return SOP_OK;
    go(r, at);
    SOP_TRY(sop_json_enter(&r->j, '{'));
    for (;;) {
        int64_t id = 0;
        SOP_TRY(sop_json_next(&r->j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(&r->j, &key, &n));
        if (n < 1 || n > 9) return bad(r, "a key of added_tokens_decoder is no id");
        for (size_t i = 0; i < n; i++) {
            if (key[i] < '0' || key[i] > '9')
                return bad(r, "a key of added_tokens_decoder is no id");
            id = id * 10 + (key[i] - '0');
        }
        (void)sop_json_peek(&r->j);
        const size_t item = r->j.at;
        SOP_TRY(leap(r));
        const size_t resume = r->j.at;
        if (id >= r->t->n_vocab || r->t->tokens[id].n_text == 0) SOP_TRY(read_added(r, item, id));
        go(r, resume);
        r->j.depth = 1;
    }
}

/* What the chain is called, for people. */
static const char *chain_name(const sop_tokenizer *t)
{
    const sop_tok_split *s = t->splits;
    if (!t->byte_level) return "default";
    if (t->n_splits == 2 && s[0].kind == SOP_SPLIT_DIGITS && s[0].behaviour == SOP_SPLIT_ISOLATED &&
        s[1].kind == SOP_SPLIT_GPT2)
        return "smollm";
    if (t->n_splits != 1) return "custom";
    if (s->kind == SOP_SPLIT_GPT2) return "gpt-2";
    if (s->kind == SOP_SPLIT_WORDS) return s->digits == 1 ? "qwen2" : "llama-bpe";
    return "custom";
}

/* tokenizer.json; config: the reader of tokenizer_config.json, or NULL. */
static sop_status read_tokenizer(reader *r, reader *config)
{
    enum { ADDED, NORM, PRE, POST, DECODER, MODEL, N_TOP };
    enum { TYPE, VOCAB, MERGES, UNK, PREFIX, SUFFIX, DROPOUT, FUSE, FALLBACK, WHOLE, N_MODEL };
    static const char *const top_keys[] = {"added_tokens",   "normalizer", "pre_tokenizer",
                                           "post_processor", "decoder",    "model"};
    static const char *const model_keys[] = {"type",
                                             "vocab",
                                             "merges",
                                             "unk_token",
                                             "continuing_subword_prefix",
                                             "end_of_word_suffix",
                                             "dropout",
                                             "fuse_unk",
                                             "byte_fallback",
                                             "ignore_merges"};
    sop_tokenizer *t = r->t;
    size_t top[N_TOP], model[N_MODEL], item;
    cursor c;
    memset(model, 0, sizeof model);
    SOP_TRY(find_all(r, 0,
                     &(wanted){top_keys, top, N_TOP, &(wanted){model_keys, model, N_MODEL, NULL}}));
    SOP_TRY(sop_json_end(&r->j));
    if (!top[MODEL]) return bad(r, "it has no model");
    if (model[TYPE]) {
        SOP_TRY(string_at(r, model[TYPE]));
        if (strcmp(r->text.at, "BPE") != 0) return refused(r, "model", r->text.at);
    }
    if (!model[VOCAB] || !model[MERGES]) return bad(r, "its model has no vocab or no merges");
    SOP_TRY(must_be_empty(r, model[PREFIX], "continuing_subword_prefix"));
    SOP_TRY(must_be_empty(r, model[SUFFIX], "end_of_word_suffix"));
    SOP_TRY(must_be_empty(r, model[DROPOUT], "dropout"));
    SOP_TRY(bool_at(r, model[FUSE], &t->fuse_unknown));
    SOP_TRY(bool_at(r, model[FALLBACK], &t->byte_fallback));
    SOP_TRY(bool_at(r, model[WHOLE], &t->whole_first));
    SOP_TRY(walk(r, top[NORM], "normalizers", read_norm, 0));
    SOP_TRY(walk(r, top[PRE], "pretokenizers", read_split, 0));
    if (t->n_splits > 0 && t->splits[t->n_splits - 1].kind == SOP_SPLIT_MAP) {
        t->n_splits--; /* no step behind it wants the letters */
        t->mapped = false;
    }
    SOP_TRY(walk(r, top[DECODER], "decoders", read_decoder, 0));
    SOP_TRY(read_vocab(r, model[VOCAB]));
    if (kind_at(r, top[ADDED]) != 'n') {
        SOP_TRY(enter_array(r, top[ADDED], &c));
        for (;;) {
            SOP_TRY(element(r, &c, &item));
            if (!item) break;
            SOP_TRY(read_added(r, item, -1));
        }
    }
    if (config) {
        size_t at;
        SOP_TRY(member(config, 0, "added_tokens_decoder", &at));
        SOP_TRY(read_added_decoder(config, at));
    }
    SOP_TRY(sop_tok_index(t));
    SOP_TRY(read_merges(r, model[MERGES]));
    if (kind_at(r, model[UNK]) == '"') {
        SOP_TRY(string_at(r, model[UNK]));
        t->unknown = t->unk = sop_tok_find(t, r->text.at, r->text.n);
    }
    SOP_TRY(walk(r, top[POST], "processors", read_post, 0));
    const char *pre = chain_name(t);
    return sop_tok_copy(&t->pre, pre, strlen(pre));
}

/* ---- the other documents ---- */

/* A token named in tokenizer_config.json: its text, or an object with content. */
static sop_status read_named(reader *r, size_t at, int32_t *id)
{
    const char c = kind_at(r, at);
    if (c == 'n') return SOP_OK;
    if (c == '{') {
        SOP_TRY(string_of(r, at, "content"));
    } else {
        SOP_TRY(string_at(r, at));
    }
    const int32_t found = sop_tok_find(r->t, r->text.at, r->text.n);
    if (found >= 0) *id = found;
    return SOP_OK;
}

/* A template: a text, or a list of {name, template}, of which "default" or the first counts. */
static sop_status read_template(reader *r, size_t at)
{
    const char kind = kind_at(r, at);
    size_t item;
    cursor c;
    if (kind == 'n') return SOP_OK;
    if (kind == '"') {
        SOP_TRY(string_at(r, at));
        return sop_tok_copy(&r->t->chat_template, r->text.at, r->text.n);
    }
    SOP_TRY(enter_array(r, at, &c));
    for (;;) {
        SOP_TRY(element(r, &c, &item));
        if (!item) return SOP_OK;
        SOP_TRY(string_of(r, item, "name"));
        const bool is_default = strcmp(r->text.at, "default") == 0;
        SOP_TRY(string_of(r, item, "template"));
        if (is_default || !r->t->chat_template)
            SOP_TRY(sop_tok_copy(&r->t->chat_template, r->text.at, r->text.n));
    }
}

static sop_status read_config(reader *r)
{
    enum { BOS, EOS, UNK, PAD, TEMPLATE, COUNT };
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                       "chat_template"};
    size_t at[COUNT];
    SOP_TRY(find(r, 0, keys, at, COUNT));
    SOP_TRY(read_named(r, at[BOS], &r->t->bos));
    SOP_TRY(read_named(r, at[EOS], &r->t->eos));
    SOP_TRY(read_named(r, at[UNK], &r->t->unk));
    SOP_TRY(read_named(r, at[PAD], &r->t->pad));
    SOP_TRY(read_template(r, at[TEMPLATE]));
    return bool_of(r, 0, "add_bos_token", &r->t->add_bos);
}

static sop_status read_end(reader *r, size_t at)
{
    int64_t id;
    SOP_TRY(integer_at(r, at, &id));
    if (r->t->eos < 0 && id >= 0 && id < r->t->n_vocab) r->t->eos = (int32_t)id;
    sop_tok_add_end(r->t, id);
    return SOP_OK;
}

/* eos_token_id, a number or a list: all of them end a reply. */
static sop_status read_ends(reader *r, size_t object)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    size_t at[2], item;
    int64_t id;
    cursor c;
    SOP_TRY(find(r, object, keys, at, 2));
    const char bos = kind_at(r, at[0]), eos = kind_at(r, at[1]);
    if (r->t->bos < 0 && bos >= '0' && bos <= '9') {
        SOP_TRY(integer_at(r, at[0], &id));
        if (id < r->t->n_vocab) r->t->bos = (int32_t)id;
    }
    if (eos == 'n') return SOP_OK;
    if (eos != '[') return read_end(r, at[1]);
    SOP_TRY(enter_array(r, at[1], &c));
    for (;;) {
        SOP_TRY(element(r, &c, &item));
        if (!item) return SOP_OK;
        SOP_TRY(read_end(r, item));
    }
}

static sop_status read_model_config(reader *r)
{
    size_t text;
    SOP_TRY(read_ends(r, 0));
    SOP_TRY(member(r, 0, "text_config", &text));
    return kind_at(r, text) == '{' ? read_ends(r, text) : SOP_OK;
}

static void open_reader(reader *r, sop_tokenizer *t, const char *text, size_t n, const char *name)
{
    *r = (reader){.t = t};
    sop_json_init(&r->j, text, n, name);
}

static void close_reader(reader *r)
{
    sop_json_finish(&r->j);
    sop_buf_finish(&r->text);
}

sop_status sop_tokenizer_of_json(const sop_tok_documents *docs, const char *name,
                                 sop_tokenizer **out)
{
    sop_tokenizer *t;
    reader main, config, generation, model;
    *out = NULL;
    SOP_TRY(sop_tok_create(&t));
    open_reader(&main, t, docs->tokenizer, docs->n_tokenizer, name);
    open_reader(&config, t, docs->tokenizer_config, docs->n_tokenizer_config,
                "tokenizer_config.json");
    open_reader(&generation, t, docs->generation_config, docs->n_generation_config,
                "generation_config.json");
    open_reader(&model, t, docs->config, docs->n_config, "config.json");
    sop_status status = read_tokenizer(&main, docs->tokenizer_config ? &config : NULL);
    if (status == SOP_OK && docs->tokenizer_config) status = read_config(&config);
    if (status == SOP_OK && docs->generation_config) status = read_ends(&generation, 0);
    if (status == SOP_OK && docs->config) status = read_model_config(&model);
    if (status == SOP_OK && docs->chat_template)
        status = sop_tok_copy(&t->chat_template, docs->chat_template, docs->n_chat_template);
    if (status == SOP_OK) status = sop_tok_finish(t);
    close_reader(&main);
    close_reader(&config);
    close_reader(&generation);
    close_reader(&model);
    if (status == SOP_OK) {
        *out = t;
    } else {
        sop_tokenizer_close(t);
    }
    return status;
}

sop_status sop_tokenizer_parse_json(const char *bytes, size_t n, sop_tokenizer **out)
{
    return sop_tokenizer_of_json(&(sop_tok_documents){.tokenizer = bytes, .n_tokenizer = n},
                                 "tokenizer.json", out);
}
