/* Every op x row x case of the library through the comparer; prints what failed and why rows were
 * skipped, rows that no case ran, then the count. With arguments: only these ops. Words before them:
 *
 *   cuda       the rows of the card, the first word
 *   small=N    only cases of at most N FLOPs, a million without =N, and a megabyte
 *   row=NAME   only this row
 *   part=I/N   each Nth case from the Ith on, for N processes at once
 *   within=S   for tools that follow each access: one run of a trial, cases with work for a row alone, the
 *              cheapest first, none begun after S seconds. One at least runs, and how many did depends on
 *              the machine
 *   list       no checks: a line for each row, with its operator, name and route
 *
 * Under SOP_CPU_MASK the references are left out: no processor changes them, and they take most of the
 * time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "harness/harness.h"

static int passed, failed, skipped;
static int32_t kind = SOP_DEVICE_CPU; /* whose rows */
static double most_flops;             /* of a small case; 0: all cases */
static const char *only;              /* the name of a row, or NULL */
static int part, parts = 1;           /* of the cases of each operator */
static double within_s;               /* 0: all cases, in their order */
static int listing;

static int is_small(const sop_op *op, const void *desc)
{
    sop_cost cost;
    op->cost(desc, &cost);
    return cost.flops <= most_flops && cost.read_bytes + cost.write_bytes <= 1e6;
}

static int is_wanted(const sop_row *row)
{
    return row->device == kind && (!only || strcmp(row->name, only) == 0);
}

/* Reasons of skips, with how often each came. */
static struct reason {
    char text[160];
    int n;
} reasons[64];

static void count_reason(const char *row, const char *why)
{
    char text[sizeof reasons[0].text];
    (void)snprintf(text, sizeof text, "%s: %.100s", row, why);
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].n && strcmp(reasons[i].text, text) != 0) continue;
        memcpy(reasons[i].text, text, sizeof text);
        reasons[i].n++;
        return;
    }
}

/* The row passed a case: its bit of the op's. */
static uint64_t ran;

static void check_case(sop_checker *c, const sop_op *op, const char *text)
{
    enum { MOST_ROWS = 64 };
    _Alignas(16) char desc[SOP_MOST_DESC_BYTES];
    const sop_row *rows[MOST_ROWS];
    sop_check_result results[MOST_ROWS];
    const int masked = getenv("SOP_CPU_MASK") != NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < op->n_rows && n < MOST_ROWS; i++) {
        if (!is_wanted(&op->rows[i])) continue;
        rows[n++] = &op->rows[i];
        if (!masked || !(op->rows[i].traits & SOP_ROW_REFERENCE)) continue;
        skipped++;
        count_reason(rows[--n]->name, "a reference does not look at the processor");
    }
    sop_status status = sop_desc_parse(op, text, desc);
    if (status == SOP_OK && most_flops > 0 && !is_small(op, desc)) {
        skipped += n;
        return;
    }
    if (status == SOP_OK) status = sop_check(c, op, rows, n, desc, results);
    if (status != SOP_OK) {
        failed++;
        printf("FAILED %s, %s: %s\n", op->name, text, sop_last_error());
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const sop_check_result *r = &results[i];
        switch (r->verdict) {
        case SOP_CHECK_PASS:
            passed++;
            ran |= (uint64_t)1 << (rows[i] - op->rows);
            break;
        case SOP_CHECK_SKIP:
            skipped++;
            count_reason(rows[i]->name, r->why);
            break;
        default: failed++; printf("FAILED %s, %s: %s\n", rows[i]->name, text, r->why);
        }
    }
}

static void print_idle(const sop_op *op)
{
    for (int32_t i = 0; i < op->n_rows && i < 64; i++)
        if (is_wanted(&op->rows[i]) && !(ran >> i & 1))
            printf("no case ran %s\n", op->rows[i].name);
}

/* A case, what it costs and its place. */
struct priced {
    const char *text;
    double cost;
    int at;
};

static int by_cost(const void *a, const void *b)
{
    const struct priced *p = a, *q = b;
    return p->cost != q->cost ? (p->cost > q->cost) - (p->cost < q->cost) : p->at - q->at;
}

/* Whether a wanted row has work at the desc. */
static int is_taken(const sop_op *op, const void *desc)
{
    for (int32_t i = 0; i < op->n_rows; i++)
        if (is_wanted(&op->rows[i]) && !(op->rows[i].refuse && op->rows[i].refuse(desc))) return 1;
    return 0;
}

/* The cheapest cases that cost anything, until the time is up. */
static void check_cheap(sop_checker *c, const sop_op *op)
{
    _Alignas(16) char desc[SOP_MOST_DESC_BYTES];
    const double until = sop_now_s() + within_s;
    struct priced cases[1024];
    size_t n = 0;
    int at = 0;
    for (const char *const *text = op->cases; *text && n < sizeof cases / sizeof *cases; text++) {
        sop_cost cost;
        if (at++ % parts != part || sop_desc_parse(op, *text, desc) != SOP_OK) continue;
        op->cost(desc, &cost);
        if (cost.flops + (double)cost.write_bytes > 0 && is_taken(op, desc))
            cases[n++] =
                (struct priced){*text, cost.flops + cost.read_bytes + cost.write_bytes, at};
    }
    qsort(cases, n, sizeof *cases, by_cost);
    for (size_t i = 0; i < n && (!ran || sop_now_s() < until); i++) {
        const double from = sop_now_s();
        check_case(c, op, cases[i].text);
        printf("%.2f s: %s\n", sop_now_s() - from, cases[i].text);
    }
}

static void list_rows(const sop_op *op)
{
    for (int32_t i = 0; i < op->n_rows; i++)
        if (is_wanted(&op->rows[i]))
            printf("%s %s %s\n", op->name, op->rows[i].name, op->rows[i].route);
}

static int chosen(const char *name, int argc, char **argv)
{
    int hit = argc < 2;
    for (int i = 1; i < argc; i++) hit |= strcmp(argv[i], name) == 0;
    return hit;
}

/* Takes a word that stands before the operators. */
static int is_word(const char *word)
{
    char *of;
    if (strncmp(word, "small", 5) == 0) {
        most_flops = word[5] == '=' ? strtod(word + 6, NULL) : 1e6;
    } else if (strncmp(word, "row=", 4) == 0) {
        only = word + 4;
    } else if (strncmp(word, "part=", 5) == 0) {
        part = (int)strtol(word + 5, &of, 10);
        parts = *of == '/' ? (int)strtol(of + 1, NULL, 10) : 0;
    } else if (strncmp(word, "within=", 7) == 0) {
        within_s = strtod(word + 7, NULL);
    } else if (strcmp(word, "list") == 0) {
        listing = 1;
    } else {
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    sop_checker *c;
    sop_device *card = NULL;
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        kind = SOP_DEVICE_CUDA;
        argc--, argv++;
    }
    while (argc > 1 && is_word(argv[1])) argc--, argv++;
    if (listing) {
        for (const sop_op *const *op = sop_ops(); *op; op++)
            if (chosen((*op)->name, argc, argv)) list_rows(*op);
        return 0;
    }
    if (kind == SOP_DEVICE_CUDA && sop_device_cuda(0, &card) != SOP_OK) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", sop_last_error());
        return 0;
    }
    for (int i = 1; i < argc; i++)
        if (!sop_op_find(argv[i])) {
            printf("FAILED %s: no such operator; other words stand before the operators\n"
                   "0 passed, 1 failed, 0 skipped\n",
                   argv[i]);
            return 1;
        }
    if (parts < 1 || part < 0 || part >= parts) {
        printf("FAILED part=%d/%d: parts are 0 to N - 1 of N\n0 passed, 1 failed, 0 skipped\n",
               part, parts);
        return 1;
    }
    if ((card ? sop_checker_create_on(card, &c) : sop_checker_create(&c)) != SOP_OK) {
        printf("FAILED %s\n0 passed, 1 failed, 0 skipped\n", sop_last_error());
        return 1;
    }
    if (within_s > 0) {
        sop_checker_once(c);
        (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what a tool that is killed had done */
    }
    for (const sop_op *const *op = sop_ops(); *op; op++) {
        if (!chosen((*op)->name, argc, argv)) continue;
        const double from = sop_now_s();
        ran = 0;
        int at = 0;
        if (within_s > 0) check_cheap(c, *op);
        for (const char *const *text = (*op)->cases; within_s == 0 && *text; text++)
            if (at++ % parts == part) check_case(c, *op, *text);
        if (parts == 1) print_idle(*op);
        printf("%s: %.2f s\n", (*op)->name, sop_now_s() - from);
    }
    sop_checker_destroy(c);
    sop_device_destroy(card);
    if (only && !passed && !failed && !skipped) {
        failed++;
        printf("FAILED row=%s: the operators have no such row\n", only);
    }
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons && reasons[i].n; i++)
        printf("skipped %d: %s\n", reasons[i].n, reasons[i].text);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
