/* superop info: what stands in a model file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "model/file.h"

static bool o_tensors;

/* At most this much of a text or an array is shown. */
enum { MOST_TEXT = 80, MOST_ITEMS = 6 };

static void print_text(const char *text, size_t bytes)
{
    putchar('"');
    size_t end = bytes < MOST_TEXT ? bytes : MOST_TEXT;
    while (end < bytes && end > 0 && (text[end] & 0xc0) == 0x80) end--; /* whole characters */
    for (size_t i = 0; i < end; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 32 || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    printf(end < bytes ? "\"... (%zu bytes)" : "\"", bytes);
}

static void print_array(const sop_file *f, const char *key, int64_t n)
{
    printf("[");
    for (int64_t i = 0; i < n && i < MOST_ITEMS; i++) {
        size_t bytes = 0;
        int64_t whole = 0;
        double real = 0;
        const char *text = sop_file_array_str(f, key, i, &bytes);
        if (i) printf(", ");
        if (text)
            print_text(text, bytes);
        else if (sop_file_array_i64(f, key, i, &whole))
            printf("%" PRId64, whole);
        else if (sop_file_array_f64(f, key, i, &real))
            printf("%g", real);
        else
            printf("?");
    }
    if (n > MOST_ITEMS) printf(", ... %" PRId64 " of them", n);
    printf("]");
}

static void print_key(const sop_file *f, const char *key)
{
    size_t bytes = 0;
    int64_t whole = 0;
    double real = 0;
    bool yes = false;
    const int64_t n = sop_file_array(f, key);
    const char *text = sop_file_str(f, key, &bytes);
    printf("  %-42s ", key);
    if (n >= 0)
        print_array(f, key, n);
    else if (text)
        print_text(text, bytes);
    else if (sop_file_bool(f, key, &yes))
        printf("%s", yes ? "true" : "false");
    else if (sop_file_i64(f, key, &whole))
        printf("%" PRId64, whole);
    else if (sop_file_f64(f, key, &real))
        printf("%g", real);
    else
        printf("?");
    putchar('\n');
}

/* How many tensors and bytes there are of each type. */
typedef struct tally {
    const char *type;
    int64_t tensors, elements;
    size_t bytes;
} tally;

static void print_tensors(const sop_file *f)
{
    tally of[64] = {{0}};
    int n_types = 0;
    const int64_t n = sop_file_n_tensors(f);
    for (int64_t i = 0; i < n; i++) {
        const char *name = sop_file_tensor_name(f, i), *type = sop_file_tensor_type(f, name);
        sop_tensor t = {.ndim = 0};
        int64_t elements = 1;
        int k = 0;
        if (!sop_file_tensor(f, name, &t)) continue;
        if (o_tensors) printf("  %-44s %-7s [", name, type);
        for (int d = 0; d < t.ndim; d++) {
            elements *= t.shape[d];
            if (o_tensors) printf("%s%" PRId64, d ? ", " : "", t.shape[d]);
        }
        if (o_tensors) puts("]");
        while (k < n_types && strcmp(of[k].type, type) != 0) k++;
        if (k == CLI_N(of)) continue;
        if (k == n_types) of[n_types++].type = type;
        of[k].tensors++;
        of[k].elements += elements;
        of[k].bytes += t.bytes;
    }
    printf("%" PRId64 " tensors:\n", n);
    for (int k = 0; k < n_types; k++)
        printf("  %-7s %5" PRId64 " tensors %13" PRId64 " weights %8.1f MB\n", of[k].type,
               of[k].tensors, of[k].elements, (double)of[k].bytes / 1e6);
}

static int info_run(int n, char **args)
{
    char path[CLI_PATH];
    sop_file *f = NULL;
    const int code = cli_model_path(args[0], path, sizeof path);
    (void)n;
    if (code) return code;
    const sop_status s = sop_file_open(path, &f);
    if (s != SOP_OK) return cli_status(s);
    printf("%s: %s, %.1f MB\n", path,
           sop_file_kind(f) == SOP_FILE_GGUF ? "GGUF" : "Hugging Face safetensors",
           (double)sop_file_mapped_bytes(f) / 1e6);
    for (int64_t i = 0; i < sop_file_n_keys(f); i++) print_key(f, sop_file_key(f, i));
    print_tensors(f);
    sop_file_close(f);
    return CLI_OK;
}

static const cli_option options[] = {
    {"tensors", 0, CLI_FLAG, &o_tensors, NULL, .help = "list every tensor with its shape"},
};

const cli_verb verb_info = {
    .name = "info",
    .brief = "show what stands in a model file",
    .args = "FILE",
    .options = options,
    .n_options = CLI_N(options),
    .least = 1,
    .most = 1,
    .examples = "  superop info smollm2-135m\n"
                "  superop info model.gguf --tensors\n",
    .run = info_run,
};
