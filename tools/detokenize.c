/* superop detokenize: token ids to text. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *o_model;
static bool o_special, o_json;

/* All of the text, as it would stream. */
static int decode(const sop_tokenizer *t, const int32_t *ids, size_t n, FILE *out)
{
    const size_t cap = sop_detok_room(t);
    char *text = malloc(cap);
    sop_detok d;
    sop_status s = SOP_OK;
    if (!text) return cli_fail(CLI_FAILED, "out of memory for %zu bytes", cap);
    sop_detok_init(&d, t, o_special);
    for (size_t i = 0; i <= n && s == SOP_OK; i++) {
        size_t bytes = 0;
        s = sop_detok_push(&d, i < n ? ids[i] : -1, text, cap, &bytes);
        if (s == SOP_OK) (void)fwrite(text, 1, bytes, out);
    }
    free(text);
    return s == SOP_OK ? CLI_OK : cli_status(s);
}

/* "1 2,3" and words like it; *ids grows. */
static int read_ids(const char *text, int32_t vocab, int32_t **ids, size_t *n)
{
    static const char gaps[] = " \t\r\n,[]";
    for (text += strspn(text, gaps); *text; text += strspn(text, gaps)) {
        char *end;
        const long id = strtol(text, &end, 10);
        if (end == text || (*end && !strchr(gaps, *end)))
            return cli_fail(CLI_USAGE, "'%.20s' is not a token id", text);
        if (id < 0 || id >= vocab)
            return cli_fail(CLI_USAGE, "token id %ld is outside the vocabulary of %d", id, vocab);
        int32_t *grown = realloc(*ids, (*n + 1) * sizeof **ids);
        if (!grown) return cli_fail(CLI_FAILED, "out of memory for %zu tokens", *n);
        *ids = grown;
        (*ids)[(*n)++] = (int32_t)id;
        text = end;
    }
    return CLI_OK;
}

static int print_text(const sop_tokenizer *t, const int32_t *ids, size_t n)
{
    if (!o_json) {
        const int code = decode(t, ids, n, stdout);
        putchar('\n');
        return code;
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return cli_fail(CLI_FAILED, "out of memory");
    const int code = decode(t, ids, n, f);
    (void)fclose(f);
    if (!code) {
        json_t *o = json_object();
        json_object_set_new(o, "text", json_stringn(text, bytes));
        cli_print_json(o);
    }
    free(text);
    return code;
}

static int detokenize_run(int n_args, char **args)
{
    char path[CLI_PATH], *text = NULL;
    sop_tokenizer *t = NULL;
    sop_tokenizer_facts facts;
    int32_t *ids = NULL;
    size_t bytes = 0, n = 0;
    int code = cli_model_path(o_model, path, sizeof path);
    if (!code && !n_args) code = cli_read_file("-", &text, &bytes);
    if (code) return code;
    const sop_status s = sop_tokenizer_open(path, &t);
    if (s != SOP_OK) code = cli_status(s);
    if (!code) {
        sop_tokenizer_facts_of(t, &facts);
        if (text) code = read_ids(text, facts.n_vocab, &ids, &n);
        for (int i = 0; i < n_args && !code; i++) code = read_ids(args[i], facts.n_vocab, &ids, &n);
    }
    if (!code) code = print_text(t, ids, n);
    sop_tokenizer_close(t);
    free(ids);
    free(text);
    return code;
}

static const cli_option options[] = {
    {"model", 'm', CLI_TEXT, &o_model, "MODEL", .help = "whose tokenizer", .required = true},
    {"special", 's', CLI_FLAG, &o_special, NULL, .help = "write control tokens too"},
    {"json", 'j', CLI_FLAG, &o_json, NULL, .help = "one object: text"},
};

const cli_verb verb_detokenize = {
    .name = "detokenize",
    .brief = "turn token ids into text",
    .args = "[ID ...]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = -1,
    .examples =
        "  superop detokenize -m smollm2-135m 19556 905\n"
        "  superop tokenize -m smollm2-135m -- 'Hello' | superop detokenize -m smollm2-135m\n",
    .more = "Without ids, they are read from standard input.\n",
    .run = detokenize_run,
};
