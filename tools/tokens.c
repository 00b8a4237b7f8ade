/* Token ids as the verbs that deal with text share them. */
#include <stdlib.h>

#include "cli.h"

int cli_encode(const sop_tokenizer *t, const char *text, size_t bytes, bool special, int32_t **ids,
               size_t *n)
{
    *ids = NULL;
    sop_status s = sop_tokenizer_encode(t, text, bytes, special, NULL, 0, n);
    if (s == SOP_OK) {
        *ids = malloc((*n + 1) * sizeof **ids);
        if (!*ids) return cli_fail(CLI_FAILED, "out of memory for %zu tokens", *n);
        s = sop_tokenizer_encode(t, text, bytes, special, *ids, *n, n);
    }
    if (s == SOP_OK) return CLI_OK;
    free(*ids);
    *ids = NULL;
    return cli_status(s);
}

json_t *cli_json_ids(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

void cli_print_json(json_t *o)
{
    (void)json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(o);
}
