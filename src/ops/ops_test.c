/* Every op keeps the rules of the contract that no kernel test would notice. */
#include "ops/ops.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/test.h"

enum { MOST_DESC = 1024 };

typedef union desc {
    unsigned char bytes[MOST_DESC];
    int64_t extent;
} desc;

static bool parse_case(const sop_op *op, const char *text, desc *d)
{
    memset(d, 0, sizeof *d);
    if (sop_desc_parse(op, text, d) == SOP_OK) return true;
    printf("%s: %s: %s\n", op->name, text, sop_last_error());
    return false;
}

static void every_op_of_the_map_is_there_under_its_name(void)
{
    const sop_op *const *op = sop_ops();
#define X(op_name) \
    CHECK(*op == &sop_op_##op_name && strcmp((*op)->name, #op_name) == 0); \
    CHECK((*op)->desc_bytes == sizeof(sop_##op_name##_desc)); \
    if (*op) op++;
    SOP_OP_MAP(X)
    SOP_GRAD_OP_MAP(X)
#undef X
    CHECK(*op == &sop_op_advance && !op[1]); /* whose desc is no user's */
}

static void the_last_row_is_the_reference_and_takes_every_case(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++) {
        const sop_op *op = *o;
        const sop_row *last = &op->rows[op->n_rows - 1];
        CHECK((last->traits & SOP_ROW_REFERENCE) && last->device == SOP_DEVICE_CPU);
        CHECK(last->needs == 0 && !last->prepare);
        for (int32_t r = 0; r + 1 < op->n_rows; r++)
            CHECK(!(op->rows[r].traits & SOP_ROW_REFERENCE));
        for (const char *const *text = op->cases; *text; text++) {
            desc d;
            CHECK(parse_case(op, *text, &d));
            CHECK(!last->refuse || !last->refuse(&d));
        }
    }
}

static void a_desc_survives_print_and_parse_and_completing_twice(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++)
        for (const char *const *text = (*o)->cases; *text; text++) {
            desc d, again;
            char printed[2048];
            CHECK(parse_case(*o, *text, &d));
            sop_desc_print(*o, &d, printed, sizeof printed);
            CHECK(parse_case(*o, printed, &again));
            if (memcmp(&d, &again, (*o)->desc_bytes) != 0)
                printf("%s: %s became %s\n", (*o)->name, *text, printed);
            CHECK(memcmp(&d, &again, (*o)->desc_bytes) == 0);
            (*o)->complete(&again);
            CHECK(memcmp(&d, &again, (*o)->desc_bytes) == 0);
        }
}

static bool some_operand_is_f64(const sop_op *op, const desc *d)
{
    for (int32_t role = 0; role < op->n_roles; role++) {
        sop_tensor v;
        op->view(d, role, &v);
        if (v.dtype == SOP_F64) return true;
    }
    return false;
}

/* On an NVIDIA card nothing stands behind it: the reference is the CPU's. */
static void a_floor_row_of_the_card_takes_every_case(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++) {
        const sop_op *op = *o;
        const sop_row *floor = NULL;
        char name[64];
        (void)snprintf(name, sizeof name, "%s_cuda", op->name);
        for (int32_t r = 0; r < op->n_rows; r++)
            if (op->rows[r].device == SOP_DEVICE_CUDA) floor = &op->rows[r];
        if (!floor) {
            SKIP(name, "superop was built without CUDA");
            return;
        }
        if (strcmp(floor->name, name) != 0) printf("%s: the last row is %s\n", name, floor->name);
        CHECK(strcmp(floor->name, name) == 0 && !floor->needs && !floor->prepare);
        for (const char *const *text = op->cases; *text; text++) {
            desc d;
            CHECK(parse_case(op, *text, &d));
            const char *why = floor->refuse ? floor->refuse(&d) : NULL;
            if (why && !some_operand_is_f64(op, &d)) printf("%s, %s: %s\n", name, *text, why);
            CHECK(!why || some_operand_is_f64(op, &d));
        }
    }
}

/* Or nothing would prove it. */
static void every_row_takes_some_case(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++)
        for (int32_t r = 0; r < (*o)->n_rows; r++) {
            const sop_row *row = &(*o)->rows[r];
            int n = 0;
            for (const char *const *text = (*o)->cases; *text; text++) {
                desc d;
                n += parse_case(*o, *text, &d) && (!row->refuse || !row->refuse(&d));
            }
            if (!n) printf("no case is for %s\n", row->name);
            CHECK(n > 0);
        }
}

static void names_are_unique_and_rows_are_whole(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++) {
        const sop_op *op = *o;
        CHECK(op->size == sizeof *op && op->desc_bytes <= MOST_DESC && sop_op_find(op->name) == op);
        CHECK(op->desc_bytes % 8 == 0 && op->n_roles >= 2 && op->cost && op->reference);
        for (int32_t r = 0; r < op->n_rows; r++) {
            const sop_row *row = &op->rows[r];
            CHECK(row->size == sizeof *row && row->run && row->route);
            CHECK(strncmp(row->name, op->name, strlen(op->name)) == 0);
            for (const sop_op *const *p = sop_ops(); *p; p++)
                for (int32_t k = 0; k < (*p)->n_rows; k++)
                    CHECK(&(*p)->rows[k] == row || strcmp((*p)->rows[k].name, row->name) != 0);
        }
    }
}

static void a_gradient_is_an_op_of_the_library(void)
{
    int n = 0;
    for (const sop_op *const *o = sop_ops(); *o; o++) {
        if (!(*o)->backward) continue;
        CHECK(sop_op_find((*o)->backward) != NULL);
        n++;
    }
    CHECK(n >= 8);
}

/* A type that a fast row does not know must be refused, never read as another: each DTYPE field alone
 * is set to f64, which no fast row takes. */
static void fast_rows_refuse_a_type_they_do_not_know(void)
{
    for (const sop_op *const *o = sop_ops(); *o; o++) {
        const sop_op *op = *o;
        for (int32_t f = 0; f < op->n_fields; f++) {
            if (op->fields[f].kind != SOP_FIELD_DTYPE) continue;
            desc d;
            CHECK(parse_case(op, op->cases[1], &d));
            const int32_t f64 = SOP_F64;
            memcpy(d.bytes + op->fields[f].offset, &f64, sizeof f64);
            if (op->check(&d) != SOP_OK) continue; /* nobody gets to see it */
            if (!some_operand_is_f64(op, &d)) continue;
            for (int32_t r = 0; r < op->n_rows; r++) {
                const sop_row *row = &op->rows[r];
                if (row->traits & SOP_ROW_REFERENCE) continue;
                if (!row->refuse || !row->refuse(&d))
                    printf("%s takes %s=f64\n", row->name, op->fields[f].key);
                CHECK(row->refuse && row->refuse(&d));
            }
        }
    }
}

int main(void)
{
    RUN(every_op_of_the_map_is_there_under_its_name);
    RUN(the_last_row_is_the_reference_and_takes_every_case);
    RUN(a_floor_row_of_the_card_takes_every_case);
    RUN(every_row_takes_some_case);
    RUN(a_desc_survives_print_and_parse_and_completing_twice);
    RUN(names_are_unique_and_rows_are_whole);
    RUN(a_gradient_is_an_op_of_the_library);
    RUN(fast_rows_refuse_a_type_they_do_not_know);
    return test_report();
}
