/* What the tests of tokenizers share: a tokenizer.json of a few hundred tokens, made in memory. */
#ifndef MODEL_TOKENIZER_TEST_H
#define MODEL_TOKENIZER_TEST_H

#include "model/file_test.h"
#include "model/tokenizer.h"

#define G "\xC4\xA0" /* the letter of the byte-level alphabet that stands for a space */
#define U SOP_TOK_SPACE

static void put_json(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if (*s == '\n') {
            fputs("\\n", f);
        } else {
            fputc(*s, f);
        }
    }
    fputc('"', f);
}

typedef struct made {
    const char *normalizer, *pre, *decoder, *post, *added; /* JSON, NULL: null */
    const char *model;         /* more members of the model: "\"ignore_merges\":true," */
    const char *const *tokens; /* behind the 256 letters, or all there are; NULL ends it */
    const char *const *merges; /* "left right" */
    bool letters, pairs;       /* pairs: merges as arrays */
} made;

/* A tokenizer.json; free it. Ids are the places: with letters, id b is byte b. */
static char *make_json(const made *m, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f) abort();
    fprintf(f,
            "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
            "\"decoder\":%s,\"model\":{\"type\":\"BPE\",%s\"vocab\":{",
            m->added ? m->added : "[]", m->normalizer ? m->normalizer : "null",
            m->pre ? m->pre : "null", m->post ? m->post : "null", m->decoder ? m->decoder : "null",
            m->model ? m->model : "");
    int id = 0;
    for (; m->letters && id < 256; id++) {
        const unsigned c = sop_tok_letter[id];
        char letter[3] = {(char)c};
        if (c >= 0x80) letter[0] = (char)(0xC0 | c >> 6), letter[1] = (char)(0x80 | (c & 63));
        fputs(id ? "," : "", f);
        put_json(f, letter);
        fprintf(f, ":%d", id);
    }
    for (int i = 0; m->tokens && m->tokens[i]; i++, id++) {
        fputs(id ? "," : "", f);
        put_json(f, m->tokens[i]);
        fprintf(f, ":%d", id);
    }
    fputs("},\"merges\":[", f);
    for (int i = 0; m->merges && m->merges[i]; i++) {
        char left[64];
        const char *space = strchr(m->merges[i], ' ');
        fputs(i ? "," : "", f);
        if (!m->pairs) {
            put_json(f, m->merges[i]);
            continue;
        }
        snprintf(left, sizeof left, "%.*s", (int)(space - m->merges[i]), m->merges[i]);
        fputc('[', f);
        put_json(f, left);
        fputc(',', f);
        put_json(f, space + 1);
        fputc(']', f);
    }
    fputs("]}}", f);
    if (fclose(f) != 0) abort();
    return text;
}

static inline sop_tokenizer *open_made(const made *m)
{
    size_t n;
    sop_tokenizer *t;
    char *json = make_json(m, &n);
    if (sop_tokenizer_parse_json(json, n, &t) != SOP_OK) {
        printf("%s\n%s\n", sop_last_error(), json);
        abort();
    }
    free(json);
    return t;
}

/* Are the tokens of text, with | between them, cut? */
static inline int cuts(const sop_tokenizer *t, bool special, const char *text, const char *cut)
{
    int32_t ids[256];
    char got[1024];
    size_t n = 0, m = 0, bytes;
    if (sop_tokenizer_encode(t, text, strlen(text), special, ids, 256, &n) != SOP_OK || n > 256)
        return 0;
    for (size_t i = 0; i < n; i++) {
        const char *piece = sop_tokenizer_piece(t, ids[i], true, &bytes);
        m += (size_t)snprintf(got + m, sizeof got - m, "%s%.*s", i ? "|" : "", (int)bytes, piece);
    }
    got[m] = 0;
    if (strcmp(got, cut) == 0) return 1;
    printf("'%s' is cut '%s', not '%s'\n", text, got, cut);
    return 0;
}

#define BYTE_LEVEL(regex) \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" regex "}"
#define SPLIT(regex) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"," \
    "\"invert\":false}"
#define CHAIN(...) "{\"type\":\"Sequence\",\"pretokenizers\":[" __VA_ARGS__ "]}"
#define WORDS(number) \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" number \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define PRE_GPT2 BYTE_LEVEL("true")
#define PRE_SMOLLM CHAIN("{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL("true"))
#define PRE_QWEN2 CHAIN(SPLIT(WORDS("\\\\p{N}")) "," BYTE_LEVEL("false"))
#define PRE_LLAMA3 CHAIN(SPLIT(WORDS("\\\\p{N}{1,3}")) "," BYTE_LEVEL("false"))
#define PRE_FALCON \
    CHAIN("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}," BYTE_LEVEL( \
        "true") ",{\"type\":\"Digits\",\"individual_digits\":false}," SPLIT("[0-9][0-9][0-9]"))

#define ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"
#define SPECIAL ",\"special\":true,\"normalized\":false"
#define PLAIN ",\"special\":false,\"normalized\":false"

#endif
