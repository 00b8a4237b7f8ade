/* superop: the command. Each verb is a file of its own; this one finds it. */
#include <string.h>

#include "cli.h"

static const cli_verb *const verbs[] = {
    &verb_run, &verb_tokenize, &verb_detokenize, &verb_info, &verb_explain,
    &verb_ops, &verb_check,    &verb_bench,      &verb_tune, &verb_pull,
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] }; /* pointers, as they should be */

static void print_help(void)
{
    puts("superop " SOP_VERSION ": runs language models through super operators\n\n"
         "usage: superop VERB [options]\n");
    for (int i = 0; i < N_VERBS; i++) printf("  %-11s %s\n", verbs[i]->name, verbs[i]->brief);
    puts(
        "  help        this text; superop VERB --help shows a verb's options and examples\n"
        "\nMODEL is a path (a .gguf, or a folder of Hugging Face files) or a name that superop pull\n"
        "fetched. A shape is given the same way to every verb: m=1 n=4608 k=3584 w=bf16\n"
        "\nexit codes:");
#define X(name, value, text) printf("  %3d  %s\n", value, text);
    CLI_EXIT_MAP(X)
#undef X
}

static int dispatch(int argc, char **argv)
{
    const char *names[N_VERBS + 1];
    const char *name = argc > 1 ? argv[1] : "help";
    const bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--version") == 0) {
        puts("superop " SOP_VERSION);
        return CLI_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (help && argc < 3)) {
        print_help();
        return argc > 1 ? CLI_OK : CLI_USAGE;
    }
    if (help) name = argv[2];
    for (int i = 0; i < N_VERBS; i++) {
        char *ask[] = {"--help"};
        names[i] = verbs[i]->name;
        if (strcmp(name, names[i]) == 0)
            return help ? cli_run(verbs[i], 1, ask) : cli_run(verbs[i], argc - 2, argv + 2);
    }
    names[N_VERBS] = "help";
    return cli_unknown("verb", name, names, N_VERBS + 1);
}

int main(int argc, char **argv)
{
    const int code = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        return cli_fail(CLI_FAILED, "cannot write to standard output");
    return code;
}
