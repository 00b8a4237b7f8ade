/* Portable: each row of the weight is decoded 256 columns at a time and runs past all tokens; a sum
 * has 8 parts, which compilers turn into vectors. Codes of x are decoded where they are met. */
#include "core/op.h"
#include "ops/linear/dequant.h"
#include "ops/linear/dot.h"
#include "ops/linear/linear.h"

enum { COLUMNS = 256, TOKENS = 16 };

const char *sop_linear_c_refuse(const void *desc)
{
    const sop_linear_desc *d = desc;
    if ((d->x_dtype != SOP_F32 && d->x_dtype != SOP_F8) || d->y_dtype != SOP_F32)
        return "x is neither f32 nor f8, or y is not f32";
    for (int32_t j = 0; j < 3; j++)
        if (d->n[j] && !(d->layouts[j] & SOP_LAYOUT_PLAIN)) return "a weight is not in plain rows";
    return NULL;
}

struct job {
    const sop_call *call;
    int32_t j;
    int64_t at, tokens;
};

/* n values of x from place at: where they lie, or decoded into space. */
static const float *floats(const void *x, int32_t dtype, int64_t at, int64_t n, float *space)
{
    if (dtype == SOP_F32) return (const float *)x + at;
    for (int64_t i = 0; i < n; i++) space[i] = sop_f8_to_f32(((const uint8_t *)x)[at + i]);
    return space;
}

static void some_rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_linear_desc *d = job->call->desc;
    const void *x = job->call->args[SOP_LINEAR_X].data;
    const float *x_scale = d->x_dtype == SOP_F8 ? job->call->args[SOP_LINEAR_X_SCALE].data : NULL;
    const float *bias = d->bias >> job->j & 1 ? job->call->args[SOP_LINEAR_B0 + job->j].data : NULL;
    const int32_t dtype = d->w_dtype[job->j];
    const int64_t block = sop_dtype_block(dtype);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *row = (const uint8_t *)job->call->args[SOP_LINEAR_W0 + job->j].data +
                             (size_t)(i * d->w_stride[job->j]) * sop_dtype_bytes(dtype);
        for (int64_t t0 = 0; t0 < job->tokens; t0 += TOKENS) {
            const int64_t n = job->tokens - t0 < TOKENS ? job->tokens - t0 : TOKENS;
            float sum[TOKENS][SOP_DOT_PARTS] = {{0}}, w[COLUMNS];
            for (int64_t k0 = 0; k0 < d->k; k0 += COLUMNS) {
                const int64_t kn = d->k - k0 < COLUMNS ? d->k - k0 : COLUMNS;
                sop_dequant_row(dtype, row + (size_t)(k0 / block) * sop_dtype_bytes(dtype), kn, w);
                for (int64_t t = 0; t < n; t++) {
                    float space[COLUMNS];
                    sop_dot(floats(x, d->x_dtype, (t0 + t) * d->x_stride + k0, kn, space), w, kn,
                            sum[t]);
                }
            }
            for (int64_t t = 0; t < n; t++) {
                const float y = sop_dot_sum(sum[t]) * (x_scale ? x_scale[t0 + t] : 1);
                ((float *)job->call->args[SOP_LINEAR_Y]
                     .data)[(t0 + t) * d->y_stride + job->at + i] = bias ? y + bias[i] : y;
            }
        }
    }
}

sop_status sop_linear_c(const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    struct job job = {call, 0, 0, sop_live(call, SOP_LINEAR_LIVE, d->tokens)};
    for (; job.j < 3; job.at += d->n[job.j++])
        sop_parallel(call->queue, d->n[job.j], 16, some_rows, &job);
    return SOP_OK;
}
