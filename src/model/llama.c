/* Llama 2 and 3, and what has their shape. A GGUF of this family holds the rows of q and k permuted,
 * for interleaved rope. */
#include "model/arch.h"

static sop_status params(const sop_file *f, sop_params *p)
{
    int64_t window = 0;
    p->interleaved = sop_file_kind(f) == SOP_FILE_GGUF;
    /* a Mistral is a llama to GGUF */
    if (sop_params_i64(f, "llama", "attention.sliding_window", NULL, &window) && window > 0)
        sop_params_window(p, window);
    return SOP_OK;
}

const sop_arch sop_arch_llama = {"llama", params};
