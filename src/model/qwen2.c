/* Qwen2 and Qwen2.5: biases on q, k and v; some configurations give the upper layers a window. */
#include "model/arch.h"

static sop_status params(const sop_file *f, sop_params *p)
{
    bool windowed = false;
    int64_t window = 0, from = 0;
    if (sop_file_bool(f, "use_sliding_window", &windowed) && windowed &&
        sop_file_i64(f, "sliding_window", &window) && window > 0) {
        from = 28;
        (void)sop_file_i64(f, "max_window_layers", &from);
        for (int64_t l = from < 0 ? 0 : from; l < p->layers; l++) p->window[l] = window;
    }
    return SOP_OK;
}

const sop_arch sop_arch_qwen2 = {"qwen2", params};
