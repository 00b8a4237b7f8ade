/* Qwen3: each head's q and k are normalised; the head size is its own. */
#include "model/arch.h"

static sop_status params(const sop_file *f, sop_params *p)
{
    p->qk_norm = true;
    return sop_arch_qwen2.params(f, p); /* windows are said the same way */
}

const sop_arch sop_arch_qwen3 = {"qwen3", params};
