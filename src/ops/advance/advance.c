/* advance's contract and its variants. */
#include "ops/advance/advance.h"

#include "base/status.h"
#include "core/op.h"
#include "ops/ops.h"

SOP_DESC_IS_PACKED(sop_advance_desc, said_stride);

#define AT(member) offsetof(sop_advance_desc, member)
static const sop_field fields[] = {
    {"rows", AT(rows), SOP_FIELD_I64, NULL, "sequences, one token each"},
    {"groups", AT(groups), SOP_FIELD_I64, NULL, "page tables of a sequence; 1"},
    {"pages", AT(pages), SOP_FIELD_I64, NULL, "entries of a page table; 1"},
    {"page", AT(page), SOP_FIELD_I64, NULL, "tokens of a page; 64"},
    {"steps", AT(steps), SOP_FIELD_I64, NULL, "rows of what was said; 1"},
    {"table_stride", AT(table_stride), SOP_FIELD_I64, NULL, "between tables of a group"},
    {"table_group", AT(table_group), SOP_FIELD_I64, NULL, "between tables of a sequence"},
    {"slots_group", AT(slots_group), SOP_FIELD_I64, NULL, "between slots of a sequence"},
    {"counter_stride", AT(counter_stride), SOP_FIELD_I64, NULL, "between counters"},
    {"said_stride", AT(said_stride), SOP_FIELD_I64, NULL, "between rows of what was said"},
};

static const sop_role roles[SOP_ADVANCE_ROLES] = {
    [SOP_ADVANCE_NEXT] = {"next", SOP_ROLE_INDEX, -1},
    [SOP_ADVANCE_TABLE] = {"table", SOP_ROLE_INDEX, -1},
    [SOP_ADVANCE_POS] = {"pos", SOP_ROLE_INDEX, -1},
    [SOP_ADVANCE_KV_LEN] = {"kv_len", SOP_ROLE_INDEX, -1},
    [SOP_ADVANCE_COUNTER] = {"counter", SOP_ROLE_INDEX, -1},
    [SOP_ADVANCE_COUNT] = {"count", SOP_ROLE_IN, -1},
    [SOP_ADVANCE_LIVE] = {"live", SOP_ROLE_LIVE | SOP_ROLE_OPTIONAL, -1},
    [SOP_ADVANCE_IDS_OUT] = {"ids_out", SOP_ROLE_OUT, -1},
    [SOP_ADVANCE_POS_OUT] = {"pos_out", SOP_ROLE_OUT, SOP_ADVANCE_POS},
    [SOP_ADVANCE_KV_LEN_OUT] = {"kv_len_out", SOP_ROLE_OUT, SOP_ADVANCE_KV_LEN},
    [SOP_ADVANCE_COUNTER_OUT] = {"counter_out", SOP_ROLE_OUT, SOP_ADVANCE_COUNTER},
    [SOP_ADVANCE_SLOTS_OUT] = {"slots_out", SOP_ROLE_OUT, -1},
    [SOP_ADVANCE_SAID_OUT] = {"said_out", SOP_ROLE_OUT | SOP_ROLE_PARTIAL, -1},
    [SOP_ADVANCE_COUNT_OUT] = {"count_out", SOP_ROLE_OUT, SOP_ADVANCE_COUNT},
};

static void complete(void *desc)
{
    sop_advance_desc *d = desc;
    if (!d->groups) d->groups = 1;
    if (!d->pages) d->pages = 1;
    if (!d->page) d->page = 64;
    if (!d->steps) d->steps = 1;
    if (!d->table_stride) d->table_stride = d->pages;
    if (!d->table_group) d->table_group = d->rows * d->table_stride;
    if (!d->slots_group) d->slots_group = d->rows;
    if (!d->counter_stride) d->counter_stride = 2;
    if (!d->said_stride) d->said_stride = d->rows;
}

static sop_status check(const void *desc)
{
    const sop_advance_desc *d = desc;
    if (d->rows < 0 || d->groups < 1 || d->pages < 1 || d->page < 1 || d->steps < 1)
        return sop_fail(SOP_E_SHAPE,
                        "advance: rows=%lld groups=%lld pages=%lld page=%lld steps=%lld, must be "
                        ">= 0, 1, 1, 1, 1",
                        (long long)d->rows, (long long)d->groups, (long long)d->pages,
                        (long long)d->page, (long long)d->steps);
    if (d->counter_stride < 2 || d->slots_group < d->rows || d->said_stride < d->rows)
        return sop_fail(SOP_E_SHAPE,
                        "advance: rows of an output overlap: counter_stride=%lld slots_group=%lld "
                        "said_stride=%lld of %lld rows",
                        (long long)d->counter_stride, (long long)d->slots_group,
                        (long long)d->said_stride, (long long)d->rows);
    return SOP_OK;
}

/* [rows, groups, n] whose groups may lie farther apart than its rows */
static void grouped(sop_tensor *out, const sop_advance_desc *d, int64_t n, int64_t row,
                    int64_t group)
{
    *out = (sop_tensor){
        .dtype = SOP_I32, .ndim = 3, .shape = {d->rows, d->groups, n}, .stride = {row, group, 1}};
    if (d->rows > 0) out->bytes = 4 * (size_t)((d->rows - 1) * row + (d->groups - 1) * group + n);
}

static void view(const void *desc, int32_t role, sop_tensor *out)
{
    const sop_advance_desc *d = desc;
    *out = (sop_tensor){.dtype = -1};
    switch (role) {
    case SOP_ADVANCE_TABLE: grouped(out, d, d->pages, d->table_stride, d->table_group); break;
    case SOP_ADVANCE_SLOTS_OUT: grouped(out, d, 1, 1, d->slots_group); break;
    case SOP_ADVANCE_COUNTER:
    case SOP_ADVANCE_COUNTER_OUT: sop_view2(out, SOP_I32, d->rows, 2, d->counter_stride); break;
    case SOP_ADVANCE_SAID_OUT: sop_view2(out, SOP_I32, d->steps, d->rows, d->said_stride); break;
    case SOP_ADVANCE_COUNT:
    case SOP_ADVANCE_COUNT_OUT:
    case SOP_ADVANCE_LIVE: sop_view1(out, SOP_I32, 1); break;
    default: sop_view1(out, SOP_I32, d->rows); break;
    }
}

/* One sequence in eight stands at the end of its table; counters carry into their upper word. */
static void fill(const void *desc, uint64_t seed, int64_t live, const sop_operand *args)
{
    const sop_advance_desc *d = desc;
    int32_t *table = args[SOP_ADVANCE_TABLE].data, *counter = args[SOP_ADVANCE_COUNTER].data;
    for (int64_t i = 0; i < d->rows; i++) {
        const uint64_t r = sop_random(&seed);
        const int64_t end = d->pages * d->page - 1;
        ((int32_t *)args[SOP_ADVANCE_NEXT].data)[i] = (int32_t)(r >> 40) - 1;
        ((int32_t *)args[SOP_ADVANCE_POS].data)[i] =
            (int32_t)(r % 8 == 0 ? end : (int64_t)((r >> 8) % (uint64_t)(end + 1)));
        ((int32_t *)args[SOP_ADVANCE_KV_LEN].data)[i] = (int32_t)(r >> 44);
        counter[i * d->counter_stride] = r % 4 == 0 ? -1 : (int32_t)(r >> 33);
        counter[i * d->counter_stride + 1] = (int32_t)(r % 5);
        for (int64_t g = 0; g < d->groups; g++)
            for (int64_t p = 0; p < d->pages; p++)
                table[i * d->table_stride + g * d->table_group + p] =
                    (int32_t)(sop_random(&seed) % 1000) - 1;
    }
    if (live >= 0) *(int32_t *)args[SOP_ADVANCE_LIVE].data = (int32_t)live;
}

static void cost(const void *desc, sop_cost *out)
{
    const sop_advance_desc *d = desc;
    const double n = 4 * (double)d->rows;
    *out = (sop_cost){n, n * (5 + (double)d->groups) + 4, n * (6 + (double)d->groups) + 4};
}

static const char *takes_all(const void *desc)
{
    (void)desc;
    return NULL;
}

/* clang-format off */
static const sop_row rows[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "advance_cuda", "cuda", 0, SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_advance_cuda},
#endif
    {sizeof(sop_row), SOP_DEVICE_CPU, "advance_ref", "c", 0, SOP_ROW_REFERENCE | SOP_ROW_INVARIANT,
     .refuse = takes_all, .run = sop_advance_ref},
};
/* clang-format on */

static const char *const cases[] = {
    "rows=0",
    "rows=1",
    "rows=7 pages=3 page=16",
    "rows=5 groups=3 pages=4 page=8 table_stride=5 table_group=40 slots_group=9",
    "rows=64 groups=2 pages=64 steps=32 counter_stride=8 said_stride=64",
    "rows=1025 pages=2 steps=3",
    NULL,
};

const sop_op sop_op_advance = {
    .size = sizeof(sop_op),
    .desc_bytes = sizeof(sop_advance_desc),
    .name = "advance",
    .formula = "a decode step's inputs become those of the next",
    .fields = fields,
    .n_fields = SOP_N(fields),
    .roles = roles,
    .n_roles = SOP_N(roles),
    .rows = rows,
    .n_rows = SOP_N(rows),
    .cases = cases,
    .complete = complete,
    .check = check,
    .view = view,
    .fill = fill,
    .reference = sop_advance_reference,
    .cost = cost,
};
