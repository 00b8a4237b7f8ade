/* The reference: the formula in its own order, in double. Read this first.
 *
 * How far a right row may be from it, with w = d s (q - zero) + m t:
 *
 * - Summing k products in float32, in any order: each addition is off by u of a partial sum, itself at
 *   most A = sum of |x| (|d s (q - zero)| + |m t|): a row may sum the two parts apart. One that
 *   quantises x may do so with the zero too; its A is the sum of |x| (|d s| (|q| + zero) + |m t|). The
 *   worst case is k u A. Roundings of one sum are no more alike than coin tosses, and then
 *   8 sqrt(k) u A is passed with a probability below 1e-13 (Higham and Mary, "A New Approach to
 *   Probabilistic Rounding Error Analysis", 2019, theorem 2.4, with lambda = 8). 8 more steps are for
 *   decoding w, scaling, bias. Where results are subnormal, a step is off by up to 2^-150;
 *   a row that quantises x may drop them, 2^-126.
 * - A row that quantises x (SOP_ROW_QUANT_X) takes each x for one at most half a step away; a step is
 *   1/127 of the largest |x| among 32 (256 for formats with such blocks). That is h sum |w| over the
 *   block. bfloat16 for both x and w is inside: (1 + 2^-9)^2 - 1 < 1/254. 2^-10 more is for the
 *   division that makes the step. Values below 2^-126 may count as zero.
 * - Codes (f8) are taken as they are by every row. Such a row's sums of 128 products of codes are the
 *   tensor cores', who cut each of 32 and what they are added to at some 13 bits of the largest. On an H200
 *   sums of normal numbers are off by 2^-15 A, with outliers by 2^-12.5: 2^-10 A is let pass. */
#include <math.h>
#include <stdlib.h>

#include "core/op.h"
#include "ops/f64.h"
#include "ops/linear/dequant.h"
#include "ops/linear/linear.h"

enum { TOKENS = 64 }; /* sums held at once for a row of w */

struct job {
    const sop_call *call;
    const sop_judge *judge;
    int32_t j;
    int64_t at; /* first column of y */
};

/* One block of a row: w, and the magnitudes a that are summed. Plain types come 32 at a time. */
static void read_w(int32_t dtype, const uint8_t *blocks, int64_t k0, int64_t n, int32_t quant,
                   double *w, double *a)
{
    sop_block o;
    if (sop_dtype_block(dtype) == 1) {
        sop_load_row(blocks, dtype, k0, n, w);
        for (int64_t i = 0; i < n; i++) a[i] = fabs(w[i]);
        return;
    }
    sop_block_read(dtype, blocks + (size_t)(k0 / n) * sop_dtype_bytes(dtype), &o);
    for (int64_t i = 0; i < n; i++) {
        const double ds = (double)o.d * o.s[i / o.group], mt = (double)o.m * o.t[i / o.group];
        const double q = (double)o.q[i], zero = o.zero;
        w[i] = ds * (q - zero) + mt;
        a[i] = fabs(ds) * (quant ? fabs(q) + zero : fabs(q - zero)) + fabs(mt);
    }
}

/* Half a step of a row that quantises n values of x. */
static double half_step(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most / 254 * (1 + 0x1p-10) + 0x1p-126;
}

/* What is summed for one token, of w x: itself, magnitudes, what half a step h of x is off by. */
struct sums {
    double sum, size, step;
};

static void add_block(struct sums *to, const double *w, const double *x, int64_t n)
{
    double sum = to->sum;
    for (int64_t c = 0; c < n; c++) sum += w[c] * x[c];
    to->sum = sum;
}

static void add_bound(struct sums *to, const double *w, const double *a, const double *x, int64_t n,
                      double h)
{
    double size = 0, step = 0;
    for (int64_t c = 0; c < n; c++) {
        size += a[c] * (fabs(x[c]) + h);
        step += fabs(w[c]);
    }
    to->size += size;
    to->step += step * h;
}

static void one_row(const struct job *job, int64_t i, int64_t t0, int64_t t1)
{
    const sop_linear_desc *d = job->call->desc;
    const int32_t j = job->j, dtype = d->w_dtype[j];
    const void *bias = d->bias >> j & 1 ? job->call->args[SOP_LINEAR_B0 + j].data : NULL;
    const int64_t block = sop_dtype_block(dtype) > 1 ? sop_dtype_block(dtype) : 32;
    const uint8_t *blocks = (const uint8_t *)job->call->args[SOP_LINEAR_W0 + j].data +
                            (size_t)(i * d->w_stride[j]) * sop_dtype_bytes(dtype);
    const float *scale = job->call->args[SOP_LINEAR_X_SCALE].data;
    const double b = bias ? sop_load(bias, sop_param_dtype(d->x_dtype), i) : 0;
    const int32_t rough = job->judge && (job->judge->traits & SOP_ROW_QUANT_X);
    const int32_t quant = rough && d->x_dtype != SOP_F8, codes = rough && !quant;
    const double k = (double)d->k, gamma = (fmin(k, 8 * sqrt(k)) + 8) * SOP_U32;
    struct sums sums[TOKENS] = {0};
    double w[256], a[256], x[256];
    for (int64_t k0 = 0; k0 < d->k; k0 += block) {
        const int64_t n = d->k - k0 < block ? d->k - k0 : block;
        read_w(dtype, blocks, k0, n, quant, w, a);
        for (int64_t t = t0; t < t1; t++) {
            sop_load_row(job->call->args[SOP_LINEAR_X].data, d->x_dtype, t * d->x_stride + k0, n,
                         x);
            add_block(&sums[t - t0], w, x, n);
            if (job->judge) add_bound(&sums[t - t0], w, a, x, n, quant ? half_step(x, n) : 0);
        }
    }
    for (int64_t t = t0; t < t1; t++) {
        const int64_t width = d->n[0] + d->n[1] + d->n[2];
        const double s = d->x_dtype == SOP_F8 && scale ? (double)scale[t] : 1;
        const struct sums *of = &sums[t - t0];
        sop_put(job->call, job->judge, SOP_LINEAR_Y, d->y_dtype, t * d->y_stride + job->at + i,
                t * width + job->at + i, s * of->sum + b,
                gamma * (s * of->size + fabs(b)) + (codes ? 0x1p-10 * s * of->size : of->step) +
                    k * (quant ? 0x1p-126 : fmax(s, 1) * 0x1p-149));
    }
}

static void some_rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct job *job = arg;
    const sop_linear_desc *d = job->call->desc;
    const int64_t tokens = sop_live(job->call, SOP_LINEAR_LIVE, d->tokens);
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t t = 0; t < tokens; t += TOKENS)
            one_row(job, i, t, t + TOKENS < tokens ? t + TOKENS : tokens);
}

sop_status sop_linear_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_linear_desc *d = call->desc;
    struct job job = {call, judge, 0, 0};
    for (; job.j < 3; job.at += d->n[job.j++])
        sop_parallel(call->queue, d->n[job.j], 8, some_rows, &job);
    return SOP_OK;
}

sop_status sop_linear_ref(const sop_call *call)
{
    return sop_linear_reference(call, NULL);
}
