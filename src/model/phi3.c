/* Phi-3 and Phi-4-mini: a Llama whose q, k, v and gate, up lie in one tensor each, which may rotate part
 * of a head and look back through a window. */
#include "base/status.h"
#include "model/arch.h"

static sop_status params(const sop_file *f, sop_params *p)
{
    sop_tensor t;
    int64_t window = 0;
    double part = 1;
    if (sop_file_tensor(f, "rope_factors_long.weight", &t))
        return sop_fail(SOP_E_UNSUPPORTED,
                        "phi3: rope with factors of its own for long and short contexts");
    (void)sop_params_f64(f, "phi3", NULL, "partial_rotary_factor", &part);
    p->rot = (int64_t)(part * (double)p->rot);
    if (p->rot < 2 || p->rot > p->k || p->rot % 2)
        return sop_fail(SOP_E_FORMAT,
                        "phi3: partial_rotary_factor %g rotates %lld of %lld channels", part,
                        (long long)p->rot, (long long)p->k);
    if (sop_params_i64(f, "phi3", "attention.sliding_window", "sliding_window", &window) &&
        window > 0)
        sop_params_window(p, window);
    return SOP_OK;
}

const sop_arch sop_arch_phi3 = {"phi3", params};
