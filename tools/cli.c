#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

static const char *verb_name = "";

#undef cli_fail
#undef cli_status
#undef cli_unknown
int cli_fail(int code, const char *fmt, ...)
{
    va_list ap;
    (void)fflush(stdout);
    fprintf(stderr, "superop%s%s: ", *verb_name ? " " : "", verb_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return code;
}

int cli_status(sop_status s)
{
    int code = CLI_FAILED;
    if (s == SOP_E_ARG || s == SOP_E_SHAPE) code = CLI_USAGE;
    if (s == SOP_E_IO || s == SOP_E_FORMAT || s == SOP_E_NOT_FOUND) code = CLI_INPUT;
    return cli_fail(code, "%s", sop_last_error());
}

int cli_unknown(const char *what, const char *given, const char *const *known, int n)
{
    const char *best = NULL;
    int least = (int)strlen(given) / 3 + 2; /* further away is another word, not a slip */
    for (int i = 0; i < n; i++) {
        const int d = sop_text_distance(given, known[i]);
        if (d < least) least = d, best = known[i];
    }
    if (best)
        return cli_fail(CLI_USAGE, "there is no %s '%s'; did you mean '%s'?", what, given, best);
    return cli_fail(CLI_USAGE, "there is no %s '%s'", what, given);
}

/* --- options --- */

static int words_place(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (int i = 0; n && *words; i++) {
        const size_t len = strcspn(words, "|");
        if (len == n && memcmp(words, word, n) == 0) return i;
        words += len + (words[len] == '|');
    }
    return -1;
}

static int set(const cli_option *o, const char *given, const char *value)
{
    char *end = NULL;
    errno = 0;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)o->at = true; return CLI_OK;
    case CLI_TEXT: *(const char **)o->at = value; return CLI_OK;
    case CLI_INT: {
        const long long v = strtoll(value, &end, 10);
        if (end == value || *end || errno || (double)v < o->lo || (double)v > o->hi)
            return cli_fail(CLI_USAGE, "%s is '%s', must be a whole number from %.0f to %.0f",
                            given, value, o->lo, o->hi);
        *(int64_t *)o->at = v;
        return CLI_OK;
    }
    case CLI_REAL: {
        const double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v) || v < o->lo || v > o->hi)
            return cli_fail(CLI_USAGE, "%s is '%s', must be a number from %g to %g", given, value,
                            o->lo, o->hi);
        *(double *)o->at = v;
        return CLI_OK;
    }
    case CLI_WORD: {
        const int place = words_place(o->value, value);
        if (place < 0)
            return cli_fail(CLI_USAGE, "%s is '%s', must be one of %s", given, value, o->value);
        *(int32_t *)o->at = place;
        return CLI_OK;
    }
    }
    return CLI_FAILED;
}

static const cli_option *find(const cli_verb *v, const char *name, size_t len)
{
    for (int i = 0; i < v->n_options; i++) {
        const cli_option *o = &v->options[i];
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) return o;
        if (len == 1 && o->letter == *name) return o;
    }
    return NULL;
}

static int unknown_option(const cli_verb *v, const char *given)
{
    char names[64][32];
    const char *known[64];
    int n = 0;
    for (; n < v->n_options && n < 63; n++) {
        (void)snprintf(names[n], sizeof names[n], "--%s", v->options[n].name);
        known[n] = names[n];
    }
    known[n++] = "--help";
    return cli_unknown("option", given, known, n);
}

static void print_option(const cli_option *o)
{
    char left[64];
    const char dash[] = {'-', o->letter, ',', ' ', 0};
    (void)snprintf(left, sizeof left, "%s--%s%s%s", o->letter ? dash : "    ", o->name,
                   o->kind == CLI_FLAG ? "" : " ", o->kind == CLI_FLAG ? "" : o->value);
    printf("  %-30s  %s\n", left, o->help);
}

static void print_help(const cli_verb *v)
{
    printf("superop %s: %s\n\nusage: superop %s", v->name, v->brief, v->name);
    for (int i = 0; i < v->n_options; i++)
        if (v->options[i].required) printf(" -%c %s", v->options[i].letter, v->options[i].value);
    printf(" [options]%s%s\n\n", *v->args ? " " : "", v->args);
    for (int i = 0; i < v->n_options; i++) print_option(&v->options[i]);
    printf("  %-30s  %s\n", "-h, --help", "this text");
    printf("\nexamples:\n%s", v->examples);
    if (v->more) printf("\n%s", v->more);
}

int cli_run(const cli_verb *v, int argc, char **argv)
{
    int n = 0; /* the arguments that are no options move to the front of argv */
    bool given[64] = {false}, options_end = false;
    verb_name = v->name;
    for (int i = 0; i < argc; i++) {
        char *a = argv[i];
        if (options_end || a[0] != '-' || !a[1]) {
            argv[n++] = a;
            continue;
        }
        if (strcmp(a, "--") == 0) {
            options_end = true;
            continue;
        }
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            print_help(v);
            return CLI_OK;
        }
        const bool is_long = a[1] == '-';
        const char *name = a + 1 + is_long;
        const char *equals = is_long ? strchr(name, '=') : NULL;
        const cli_option *o = find(v, name, equals ? (size_t)(equals - name) : strlen(name));
        if (!o || (!is_long && name[1])) return unknown_option(v, a);
        const char *value = equals ? equals + 1 : NULL;
        if (o->kind == CLI_FLAG && value)
            return cli_fail(CLI_USAGE, "--%s takes no value", o->name);
        if (o->kind != CLI_FLAG && !value) {
            if (++i == argc) return cli_fail(CLI_USAGE, "%s needs a value: %s", a, o->value);
            value = argv[i];
        }
        const int code = set(o, a, value);
        if (code) return code;
        given[o - v->options] = true;
    }
    for (int i = 0; i < v->n_options; i++)
        if (v->options[i].required && !given[i])
            return cli_fail(CLI_USAGE, "-%c %s is missing; superop %s --help shows examples",
                            v->options[i].letter, v->options[i].value, v->name);
    if (n < v->least || (v->most >= 0 && n > v->most))
        return cli_fail(CLI_USAGE, "%d argument%s given; usage: superop %s [options]%s%s", n,
                        n == 1 ? "" : "s", v->name, *v->args ? " " : "", v->args);
    return v->run(n, argv);
}

/* --- operators and their shapes --- */

int cli_op(const char *name, const sop_op **out)
{
    const char *names[64];
    int n = 0;
    *out = sop_op_find(name);
    if (*out) return CLI_OK;
    for (const sop_op *const *op = sop_ops(); *op && n < 64; op++) names[n++] = (*op)->name;
    return cli_unknown("operator", name, names, n);
}

int32_t cli_device_kind(int32_t word)
{
    return word ? SOP_DEVICE_CUDA : SOP_DEVICE_CPU;
}

sop_status cli_device(int32_t word, sop_device **out)
{
    *out = NULL;
    return word ? sop_device_cuda(0, out) : SOP_OK;
}

/* Weights can be read in every layout. */
static void any_layout(const sop_op *op, void *desc)
{
    for (int32_t i = 0; i < op->n_fields; i++) {
        const sop_field *f = &op->fields[i];
        uint32_t *bits = (uint32_t *)((char *)desc + f->offset);
        if (strncmp(f->key, "layouts", 7) != 0 || *bits != SOP_LAYOUT_PLAIN) continue;
        *bits = SOP_LAYOUT_PLAIN | SOP_LAYOUT_PANEL16;
        if (op->check(desc) != SOP_OK) *bits = SOP_LAYOUT_PLAIN;
    }
}

int cli_desc(const sop_op *op, int n, char **args, bool packed, void **desc)
{
    size_t bytes = 1;
    for (int i = 0; i < n; i++) bytes += strlen(args[i]) + 1;
    char *text = malloc(bytes), *end = text;
    *desc = calloc(1, op->desc_bytes);
    if (!text || !*desc) {
        free(text);
        free(*desc);
        *desc = NULL;
        return cli_fail(CLI_FAILED, "out of memory for a shape of %zu bytes", bytes);
    }
    for (int i = 0; i < n; i++) end += sprintf(end, "%s ", args[i]);
    *end = 0;
    const sop_status s = sop_desc_parse(op, text, *desc);
    if (s == SOP_OK && packed && !strstr(text, "layouts")) any_layout(op, *desc);
    free(text);
    if (s == SOP_OK) return CLI_OK;
    free(*desc);
    *desc = NULL;
    return cli_status(s);
}

/* --- files --- */

int cli_read_file(const char *path, char **out, size_t *bytes)
{
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    size_t cap = 0, n = 0;
    char *text = NULL;
    if (!f) return cli_fail(CLI_INPUT, "cannot read %s: %s", path, strerror(errno));
    do {
        char *grown = n + 1 < cap ? text : realloc(text, cap = 2 * cap + 4096);
        if (!grown) {
            free(text);
            if (!standard) (void)fclose(f);
            return cli_fail(CLI_FAILED, "out of memory at byte %zu of %s", n, path);
        }
        text = grown;
        n += fread(text + n, 1, cap - 1 - n, f);
    } while (!feof(f) && !ferror(f));
    const bool bad = ferror(f) != 0;
    const int why = errno;
    if (!standard) (void)fclose(f);
    if (bad) {
        free(text);
        return cli_fail(CLI_INPUT, "cannot read %s: %s", path, strerror(why));
    }
    text[n] = 0;
    *out = text;
    *bytes = n;
    return CLI_OK;
}

/* --- progress --- */

void cli_progress_start(cli_progress *p, const char *what)
{
    *p = (cli_progress){what, sop_now_s(), 0, false};
}

/* Whether a new line is due: on a terminal, after two seconds, then ten times a second. */
static bool due(cli_progress *p)
{
    const double now = sop_now_s();
    if (now - p->start < 2 || now - p->last < 0.1 || !isatty(STDERR_FILENO)) return false;
    p->last = now;
    p->shown = true;
    return true;
}

static void bar(const cli_progress *p, double share)
{
    enum { WIDTH = 24 };
    char cells[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) cells[i] = i < (int)(share * WIDTH) ? '#' : '.';
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f %% ", p->what, cells, 100 * share);
}

void cli_progress_bytes(cli_progress *p, uint64_t done, uint64_t total)
{
    if (!due(p)) return;
    const double mb = (double)done / 1e6, rate = mb / (p->last - p->start);
    if (total) {
        bar(p, done < total ? (double)done / (double)total : 1);
        fprintf(stderr, " %.1f of %.1f MB, %.1f MB/s \033[K", mb, (double)total / 1e6, rate);
    } else {
        fprintf(stderr, "\r%s  %.1f MB, %.1f MB/s \033[K", p->what, mb, rate);
    }
}

void cli_progress_count(cli_progress *p, int64_t done, int64_t total, const char *now)
{
    if (!due(p)) return;
    bar(p, total > 0 ? (double)done / (double)total : 0);
    fprintf(stderr, " %lld of %lld  %.40s\033[K", (long long)done, (long long)total, now);
}

void cli_progress_end(cli_progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
