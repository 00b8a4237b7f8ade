/* Gemma 3, text: norms of q, k and of what each block adds; embeddings scaled by sqrt(d); five layers
 * with a window and rope of their own to one that sees all. A GGUF's norm weights hold the 1 +. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"

static sop_status windows(const sop_file *f, sop_params *p)
{
    int64_t window = 512, pattern = 6;
    (void)sop_params_i64(f, "gemma3", "attention.sliding_window", "sliding_window", &window);
    (void)sop_params_i64(f, "gemma3", "attention.sliding_window_pattern", "sliding_window_pattern",
                         &pattern);
    const int64_t n = sop_file_array(f, "layer_types");
    if (n >= 0 && n != p->layers)
        return sop_fail(SOP_E_FORMAT, "gemma3: layer_types has %lld entries for %lld layers",
                        (long long)n, (long long)p->layers);
    if (window < 1 || pattern < 1)
        return sop_fail(SOP_E_FORMAT, "gemma3: a window of %lld, a pattern of %lld",
                        (long long)window, (long long)pattern);
    for (int64_t l = 0; l < p->layers; l++) {
        const char *type = n >= 0 ? sop_file_array_str(f, "layer_types", l, NULL) : NULL;
        const bool local =
            n >= 0 ? type && strcmp(type, "sliding_attention") == 0 : (l + 1) % pattern != 0;
        p->window[l] = local ? window : 0;
        p->rope_of[l] = local;
    }
    return SOP_OK;
}

static sop_status params(const sop_file *f, sop_params *p)
{
    const bool gguf = sop_file_kind(f) == SOP_FILE_GGUF;
    double local_base = 10000, scalar = 0, cap = 0;
    p->qk_norm = p->post_norm = true;
    p->act = SOP_ACT_GELU_TANH;
    p->norm_offset = gguf ? 0 : 1;
    p->embed_scale = sqrtf((float)p->dim);
    if (gguf) {
        (void)sop_params_f64(f, "gemma3", "rope.freq_base_swa", NULL, &local_base);
    } else {
        double base = 1e6;
        (void)sop_file_f64(f, "rope_theta", &base);
        (void)sop_file_f64(f, "rope_local_base_freq", &local_base);
        p->rope[0].base = base;
        SOP_TRY(sop_params_rope_hf(f, "rope_parameters.full_attention", p, &p->rope[0]));
        (void)sop_file_f64(f, "rope_parameters.sliding_attention.rope_theta", &local_base);
        if (sop_file_f64(f, "final_logit_softcapping", &cap) && cap > 0)
            return sop_fail(SOP_E_UNSUPPORTED, "gemma3: final_logit_softcapping is %g", cap);
        (void)sop_file_f64(f, "attn_logit_softcapping", &cap);
        p->cap = (float)cap;
        if (sop_file_f64(f, "query_pre_attn_scalar", &scalar) && scalar > 0)
            p->scale = (float)(1 / sqrt(scalar));
    }
    p->rope[1] = (sop_rope_scaling){.base = local_base};
    return windows(f, p);
}

const sop_arch sop_arch_gemma3 = {"gemma3", params};
