/* superop ops: the operators, their variants, and how their shapes are written. */
#include <string.h>

#include "cli.h"
#include "core/cpu.h"

/* What the processor, or the card, must be. */
static const char *needs_of(const sop_row *r)
{
    if (r->device != SOP_DEVICE_CUDA) return sop_cpu_text(r->needs);
    if (r->needs & SOP_CUDA_SM90A) return "sm_90a alone";
    if (r->needs & SOP_CUDA_SM90) return "sm_90";
    return r->needs & SOP_CUDA_SM89 ? "sm_89" : "sm_80";
}

static void print_rows(const sop_op *op)
{
    const uint32_t here = sop_cpu_features();
    for (int i = 0; i < op->n_rows; i++) {
        const sop_row *r = &op->rows[i];
        const char *state = "";
        if (r->device == SOP_DEVICE_CPU && r->needs & ~here) state = "not on this machine";
        if (r->traits & SOP_ROW_REFERENCE) state = "the reference";
        printf("  %-28s %-7s needs %-14s %s\n", r->name, r->route, needs_of(r), state);
    }
}

static void print_whole(const sop_op *op)
{
    static const char *const kinds[] = {"whole number", "whole number", "number", "type", ""};
    printf("%s\n  %s\n\nvariants, best first:\n", op->name, op->formula);
    print_rows(op);
    puts("\nits shape, KEY=VALUE:");
    for (int i = 0; i < op->n_fields; i++) {
        const sop_field *f = &op->fields[i];
        printf("  %-14s %-14s %s\n", f->key, f->kind == SOP_FIELD_WORD ? f->words : kinds[f->kind],
               f->help);
    }
    puts("\nits cases:");
    for (const char *const *c = op->cases; *c; c++) printf("  %s\n", *c);
}

static int ops_run(int n, char **args)
{
    const sop_op *one = NULL;
    if (n) {
        const int code = cli_op(args[0], &one);
        if (code == CLI_OK) print_whole(one);
        return code;
    }
    for (const sop_op *const *op = sop_ops(); *op; op++) {
        printf("%s: %s\n", (*op)->name, (*op)->formula);
        print_rows(*op);
    }
    return CLI_OK;
}

const cli_verb verb_ops = {
    .name = "ops",
    .brief = "list the operators and their variants, or one with its shape's keys",
    .args = "[OP]",
    .least = 0,
    .most = 1,
    .examples = "  superop ops\n"
                "  superop ops rmsnorm\n",
    .run = ops_run,
};
