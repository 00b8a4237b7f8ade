/* Angles per position of each pair of channels, rounded to float32 as the models' own code has them:
 * in double a token far from the start would be turned by another angle than in training. */
#include <math.h>

#include "base/status.h"
#include "ops/rope/rope.h"

static sop_status check(const sop_rope_scaling *s, int64_t rot)
{
    if (rot < 0 || rot % 2 != 0)
        return sop_fail(SOP_E_ARG, "rope: rot=%lld, must be even and >= 0", (long long)rot);
    if (!(s->base > 0)) return sop_fail(SOP_E_ARG, "rope: base=%g, must be > 0", s->base);
    if (s->kind < SOP_ROPE_PLAIN || s->kind > SOP_ROPE_LLAMA3)
        return sop_fail(SOP_E_ARG, "rope: there is no scaling of kind %d", (int)s->kind);
    if (s->kind == SOP_ROPE_PLAIN) return SOP_OK;
    if (!(s->factor > 0)) return sop_fail(SOP_E_ARG, "rope: factor=%g, must be > 0", s->factor);
    if (s->kind == SOP_ROPE_LINEAR) return SOP_OK;
    if (!(s->original > 0))
        return sop_fail(SOP_E_ARG, "rope: original context %g, must be > 0", s->original);
    return SOP_OK;
}

static double or_else(double value, double otherwise)
{
    return value != 0 ? value : otherwise;
}

static double llama3(const sop_rope_scaling *s, double inv)
{
    const double low = or_else(s->low_freq, 1), high = or_else(s->high_freq, 4);
    const double length = 6.283185307179586 / inv;
    if (length < s->original / high) return inv;
    if (length > s->original / low) return inv / s->factor;
    const double t = (s->original / length - low) / (high - low);
    return (1 - t) * inv / s->factor + t * inv;
}

/* The pair that turns `turns` times within the original context. */
static double yarn_pair(const sop_rope_scaling *s, int64_t rot, double turns)
{
    return (double)rot * log(s->original / (turns * 6.283185307179586)) / (2 * log(s->base));
}

static double yarn(const sop_rope_scaling *s, int64_t rot, int64_t i, double inv)
{
    double low = floor(yarn_pair(s, rot, or_else(s->beta_fast, 32)));
    double high = ceil(yarn_pair(s, rot, or_else(s->beta_slow, 1)));
    low = fmax(low, 0);
    high = fmin(high, (double)rot - 1);
    if (low == high) high += 0.001; /* as the paper's code has it: no division by zero */
    const double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return inv / s->factor * ramp + inv * (1 - ramp);
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

sop_status sop_rope_freqs(const sop_rope_scaling *s, int64_t rot, float *freqs, float *mscale)
{
    SOP_TRY(check(s, rot));
    for (int64_t i = 0; i < rot / 2; i++) {
        const float exponent = (float)(2 * i) / (float)rot;
        const double inv = (double)(1 / (float)pow(s->base, (double)exponent));
        switch (s->kind) {
        case SOP_ROPE_LINEAR: freqs[i] = (float)(inv / s->factor); break;
        case SOP_ROPE_YARN: freqs[i] = (float)yarn(s, rot, i, inv); break;
        case SOP_ROPE_LLAMA3: freqs[i] = (float)llama3(s, inv); break;
        default: freqs[i] = (float)inv;
        }
    }
    *mscale = 1;
    if (s->kind == SOP_ROPE_YARN) {
        if (s->attention_factor != 0)
            *mscale = (float)s->attention_factor;
        else if (s->mscale != 0 && s->mscale_all_dim != 0)
            *mscale = (float)(yarn_magnitude(s->factor, s->mscale) /
                              yarn_magnitude(s->factor, s->mscale_all_dim));
        else
            *mscale = (float)yarn_magnitude(s->factor, 1);
    }
    return SOP_OK;
}
