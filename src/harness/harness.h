/* harness/harness.h: is a row right, and how fast is it. The one comparer; results are data, printing
 * is the caller's. */
#ifndef HARNESS_HARNESS_H
#define HARNESS_HARNESS_H

#include "sop/device.h"

/* ---- right ----
 *
 * A row runs at one desc in several trials, each with another family of values (uniform, normal,
 * outliers, near-cancelling, far from zero), with and without its optional operands, with live absent,
 * about half and 0, aligned to 64 bytes and (types of 2 bytes and more) to one element only, apart and
 * in place. In each:
 *
 * - every element that the reference addresses is within the op's bound of the float64 value, or of
 *   the same class when that is not finite; a reference row may only round
 * - every other byte of an output stays as it was: gaps of strides, rows past live, what a PARTIAL
 *   output does not address; a whole output is addressed when live is absent
 * - inputs, and 64 bytes before and after every operand and the scratch, stay as they were; gaps,
 *   scratch and outputs hold NaN before the run, of kinds that differ, so that what reads them, copies
 *   them or leaves them shows
 * - 1, 2 and 3 threads give the same bits; with SOP_ROW_INVARIANT, so do more live rows, tallies aside
 *
 * Live rows are counted along the first extent of the INDEX operands, the least of them, or of
 * operand 0 where there are none. An operation of over 3e7 FLOPs gets the first two trials only. */

typedef enum sop_check_verdict {
    SOP_CHECK_PASS,
    SOP_CHECK_FAIL,
    SOP_CHECK_SKIP /* the row refuses the desc or this machine; why says it */
} sop_check_verdict;

typedef struct sop_check_result {
    int32_t verdict, trials;
    double worst; /* largest error / bound of all elements and trials */
    int32_t role; /* where: this operand, this element of its dense form */
    int64_t index;
    double got, want, bound;
    char why[256]; /* of a skip, or the first fault; else "" */
} sop_check_result;

typedef struct sop_checker sop_checker; /* CPU devices with 1, 2 and 3 threads */
sop_status sop_checker_create(sop_checker **out);
/* The rows of another device instead: three runs give the same bits. d outlives the checker. */
sop_status sop_checker_create_on(sop_device *d, sop_checker **out);
/* From here on one run of each trial: under a tool that follows each access the others show no more. */
void sop_checker_once(sop_checker *c);
void sop_checker_destroy(sop_checker *c);

/* Check rows [n_rows] of op at one desc; results [n_rows]. SOP_E_NOMEM and SOP_E_INTERNAL (a broken
 * contract) are returned, a faulty row is a result. */
sop_status sop_check(sop_checker *c, const sop_op *op, const sop_row *const *rows, int32_t n_rows,
                     const void *desc, sop_check_result *results);

/* ---- fast ----
 *
 * Rows are timed side by side at one desc: random data (never zeros), a set of operands for each call
 * out of more sets than the last-level cache holds, warm-up until two medians agree within 2 %, then
 * rounds in the order ABBA or BAAB, by chance. A sample is as many calls as take 50 us; on a card it is
 * a graph of as many as take 4 ms, which pass through all sets when that takes at most 16 ms. Planning
 * is not timed. Optional operands of the caller's choice are absent, as is LIVE. */

/* What the machine can do at most with a device's threads, measured in this process: under half a
 * second the first time, a second on a card, then known. */
typedef struct sop_ceilings {
    double read_bytes_s;
    double f32_flops_s,
        i8_ops_s;         /* of a card both are those of 16-bit products, summed in f32, by the
                                   * fastest row of linear for many tokens */
    size_t rotated_bytes; /* memory that the reading went through */
} sop_ceilings;
sop_status sop_ceilings_of(sop_device *d, sop_ceilings *out);

/* How much memory is rotated through: 4 times the last-level cache (of a card its L2), at least 64 MiB, at most 256 MiB:
 * where that is less than the cache, as on a host with 300 MiB of it, so is "cold". */
size_t sop_rotation_bytes(const sop_device *d);

typedef enum sop_roof { SOP_ROOF_READ, SOP_ROOF_F32, SOP_ROOF_I8, SOP_ROOF_PRODUCTS } sop_roof;

typedef struct sop_bench_result {
    int32_t n;                     /* samples; 0: not timed, why says it */
    int32_t calls;                 /* in a sample */
    double min_s, median_s, p95_s; /* of one call: best machine, decision, tail */
    double bytes_s, flops_s;       /* of the op's cost, at the median */
    double share;                  /* of the roof that binds, at the median */
    sop_roof roof;
    int32_t invalid; /* share is over 1.05: something was not measured */
    int32_t sets;    /* of operands that the calls went through */
    char why[256];
} sop_bench_result;

/* Time rows [n_rows] within about this many seconds (0: 1), warm-up included. results [n_rows].
 * SOP_E_NOMEM, and what a row returned that failed. */
sop_status sop_bench(sop_device *d, const sop_op *op, const sop_row *const *rows, int32_t n_rows,
                     const void *desc, double seconds, sop_bench_result *results);

/* The same without roofs, for who compares rows alone. live: what the LIVE operand says, as in a step
 * of a class whose bound it is under; -1: there is none. The cost, and so the rates, are of all rows. */
sop_status sop_time_rows(sop_device *d, const sop_op *op, const sop_row *const *rows,
                         int32_t n_rows, const void *desc, int64_t live, double seconds,
                         sop_bench_result *results);

/* The largest desc and number of roles that the harness handles. */
enum { SOP_MOST_DESC_BYTES = 1024, SOP_MOST_ROLES = 16 };

#endif
