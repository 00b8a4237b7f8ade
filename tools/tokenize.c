/* superop tokenize: text to token ids. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *o_model;
static bool o_special, o_json;

/* The bytes of each token; what is not UTF-8 by itself is written as its hexadecimal bytes. */
static json_t *json_pieces(const sop_tokenizer *t, const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        const char *piece = sop_tokenizer_piece(t, ids[i], true, &bytes);
        json_t *text = piece ? json_stringn(piece, bytes) : json_string("");
        if (piece && !text) {
            char hex[3 * 64 + 1] = "", *end = hex;
            for (size_t k = 0; k < bytes && k < 64; k++)
                end += sprintf(end, "<%02X>", (unsigned char)piece[k]);
            text = json_string(hex);
        }
        json_array_append_new(list, text);
    }
    return list;
}

static int tokenize_run(int n_args, char **args)
{
    char path[CLI_PATH], *text = NULL;
    sop_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t bytes = 0, n = 0;
    int code = cli_model_path(o_model, path, sizeof path);
    if (!code && !n_args) code = cli_read_file("-", &text, &bytes);
    if (code) return code;
    const sop_status s = sop_tokenizer_open(path, &t);
    if (s != SOP_OK) code = cli_status(s);
    if (!code)
        code = cli_encode(t, n_args ? args[0] : text, n_args ? strlen(args[0]) : bytes, o_special,
                          &ids, &n);
    if (!code && o_json) {
        json_t *o = json_object();
        json_object_set_new(o, "ids", cli_json_ids(ids, n));
        json_object_set_new(o, "pieces", json_pieces(t, ids, n));
        cli_print_json(o);
    } else if (!code) {
        for (size_t i = 0; i < n; i++) printf(i ? " %d" : "%d", ids[i]);
        putchar('\n');
    }
    sop_tokenizer_close(t);
    free(ids);
    free(text);
    return code;
}

static const cli_option options[] = {
    {"model", 'm', CLI_TEXT, &o_model, "MODEL", .help = "whose tokenizer", .required = true},
    {"special", 's', CLI_FLAG, &o_special, NULL,
     .help = "the text of a special token becomes that token"},
    {"json", 'j', CLI_FLAG, &o_json, NULL, .help = "one object: ids and pieces"},
};

const cli_verb verb_tokenize = {
    .name = "tokenize",
    .brief = "turn text into token ids, without BOS",
    .args = "[--] [TEXT]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = 1,
    .examples = "  superop tokenize -m smollm2-135m -- 'Hello world'\n"
                "  superop tokenize -m smollm2-135m --special -- '<|im_start|>user'\n"
                "  superop tokenize -m smollm2-135m --json <letter.txt\n",
    .more = "Without TEXT, it is read from standard input.\n",
    .run = tokenize_run,
};
