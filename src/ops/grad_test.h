/* ops/grad_test.h: a gradient against differences of the forward operator, both by their references in
 * double. With weights g on its results, the forward operator is one function f of all its inputs, and its
 * gradient is what the backward one makes of g as dy. */
#ifndef OPS_GRAD_TEST_H
#define OPS_GRAD_TEST_H

#include <math.h>

#include "base/test.h"
#include "core/op.h"
#include "ops/call_test.h"

/* f, by a call of the forward operator. */
typedef struct grad_fn {
    const sop_op *op;
    const void *desc;
    const sop_operand *args;
    int32_t out[2];     /* roles of its results; the second -1 without one */
    const double *g[2]; /* what their elements count, in the order of the dense ones */
} grad_fn;

static inline sop_operand grad_operand(double *data, int64_t n)
{
    return (sop_operand){data, (size_t)n * sizeof *data};
}

/* n normal numbers, the same for the same seed. */
static inline void grad_fill(double *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += (double)(sop_random(&seed) >> 11) * 0x1p-53;
        x[i] = sum;
    }
}

static inline sop_status grad_run(const sop_op *op, const void *desc, const sop_operand *args)
{
    return run_row(op, &op->rows[op->n_rows - 1], desc, args, 1);
}

static inline double grad_value(const grad_fn *f)
{
    double sum = 0;
    CHECK(grad_run(f->op, f->desc, f->args) == SOP_OK);
    for (int k = 0; k < 2 && f->out[k] >= 0; k++) {
        const sop_operand *y = &f->args[f->out[k]];
        for (size_t i = 0; i < y->bytes / sizeof(double); i++)
            sum += f->g[k][i] * ((const double *)y->data)[i];
    }
    return sum;
}

/* Whether want [n] are the derivatives of f by x [n], which is among its inputs: central differences of a
 * step h are off by h^2 of the third derivative, and by 2^-52 / h of f. */
static inline void grad_check(const grad_fn *f, double *x, const double *want, int64_t n)
{
    const double h = 1e-4;
    for (int64_t i = 0; i < n; i++) {
        const double at = x[i];
        x[i] = at + h;
        const double more = grad_value(f);
        x[i] = at - h;
        const double slope = (more - grad_value(f)) / (2 * h);
        x[i] = at;
        const int same = fabs(slope - want[i]) <= 1e-6 * (1 + fabs(want[i]));
        CHECK(same);
        if (same) continue;
        printf("element %lld: %.12g, differences say %.12g\n", (long long)i, want[i], slope);
        return;
    }
}

#endif
