/* Mistral: a Llama whose layers may all look back through a window. */
#include "model/arch.h"

static sop_status params(const sop_file *f, sop_params *p)
{
    int64_t window = 0;
    p->interleaved = sop_file_kind(f) == SOP_FILE_GGUF;
    if (sop_params_i64(f, "mistral", "attention.sliding_window", "sliding_window", &window) &&
        window > 0)
        sop_params_window(p, window);
    return SOP_OK;
}

const sop_arch sop_arch_mistral = {"mistral", params};
