#include "base/test.h"
#include "core/op.h"
#include "ops/call_test.h"
#include "ops/ops.h"

static void run_all(const sop_embed_desc *d, const int32_t *ids, const void *table, void *y,
                    size_t y_bytes, void (*look)(const void *y))
{
    for (int32_t i = 0; i < sop_op_embed.n_rows; i++) {
        const sop_operand args[SOP_EMBED_ROLES] = {
            [SOP_EMBED_IDS] = {(void *)(uintptr_t)ids, 4 * (size_t)d->tokens},
            [SOP_EMBED_TABLE] = {(void *)(uintptr_t)table, 0},
            [SOP_EMBED_Y] = {y, y_bytes}};
        if (!row_takes(&sop_op_embed.rows[i], d)) continue;
        memset(y, 0xee, y_bytes);
        CHECK(run_row(&sop_op_embed, &sop_op_embed.rows[i], d, args, 2) == SOP_OK);
        look(y);
    }
}

static void zeros_outside(const void *y)
{
    const float *f = y;
    CHECK(f[0] == 0 && f[1] == 0 && f[2] == 6 && f[3] == 8 && f[4] == 0 && f[5] == 0);
}

static void an_id_outside_the_table_gives_zeros(void)
{
    const float table[] = {1, 2, 3, 4};
    const int32_t ids[] = {-1, 1, 2};
    float y[6];
    sop_embed_desc d = {.tokens = 3, .rows = 2, .dim = 2, .scale = 2};
    sop_op_embed.complete(&d);
    run_all(&d, ids, table, y, sizeof y, zeros_outside);
}

static void decoded(const void *y)
{
    const uint16_t *h = y;
    for (int i = 0; i < 32; i++) CHECK(sop_f16_to_f32(h[i]) == (float)(i - 16) * 0.5f);
}

static void a_block_format_is_decoded_into_another_type(void)
{
    /* two rows of q8_0 with a block of gap between them: scale 0.5, q = i - 16 in the second */
    uint8_t table[3][34] = {{0}};
    const uint16_t half = sop_f32_to_f16(0.5f);
    const int32_t ids[] = {1};
    uint16_t y[32];
    memcpy(table[2], &half, 2);
    for (int i = 0; i < 32; i++) table[2][2 + i] = (uint8_t)(i - 16);
    sop_embed_desc d = {.tokens = 1,
                        .rows = 2,
                        .dim = 32,
                        .table_stride = 2,
                        .w_dtype = SOP_Q8_0,
                        .y_dtype = SOP_F16};
    sop_op_embed.complete(&d);
    run_all(&d, ids, table, y, sizeof y, decoded);
}

static void rows_round_alike_in_every_format(void)
{
    static const int32_t formats[] = {SOP_F32,  SOP_F16,    SOP_BF16,   SOP_Q8_0,  SOP_Q4_0,
                                      SOP_Q4_1, SOP_Q5_0,   SOP_Q5_1,   SOP_Q4_K,  SOP_Q5_K,
                                      SOP_Q6_K, SOP_I8_128, SOP_F8_128, SOP_I4_128};
    static const int32_t results[] = {SOP_F32, SOP_F16, SOP_BF16};
    enum { DIM = 512, ROWS = 3 };
    static float table[ROWS * DIM], first[ROWS * DIM], y[ROWS * DIM];
    const int32_t ids[] = {2, 0, 1};
    const sop_row *c = row_named(&sop_op_embed, "embed_c");
    uint64_t state = 7;
    for (size_t i = 0; i < sizeof table; i++) /* a bit of the exponents is 0: all is finite */
        ((uint8_t *)table)[i] = (uint8_t)(sop_random(&state) >> 56 & (i % 2 ? 0xbf : 0xff));
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int k = 0; k < 9; k++) {
            const int64_t block = sop_dtype_block(formats[f]);
            sop_embed_desc d = {.tokens = ROWS,
                                .rows = ROWS,
                                .dim = block > 1 ? DIM : DIM - 5 * k,
                                .scale = k % 2 ? 25.3f : 1,
                                .w_dtype = formats[f],
                                .y_dtype = results[k % 3]};
            const sop_operand args[SOP_EMBED_ROLES] = {
                [SOP_EMBED_IDS] = {(void *)(uintptr_t)ids, sizeof ids},
                [SOP_EMBED_TABLE] = {table, sizeof table},
                [SOP_EMBED_Y] = {first, sizeof first}};
            sop_operand again[SOP_EMBED_ROLES];
            sop_op_embed.complete(&d);
            memset(first, 0, sizeof first);
            CHECK(run_row(&sop_op_embed, c, &d, args, 2) == SOP_OK);
            memcpy(again, args, sizeof again);
            again[SOP_EMBED_Y].data = y;
            for (int32_t i = 0; i < sop_op_embed.n_rows; i++) {
                const sop_row *row = &sop_op_embed.rows[i];
                if (!row_takes(row, &d) || row->traits & SOP_ROW_REFERENCE) continue;
                memset(y, 0, sizeof y);
                CHECK(run_row(&sop_op_embed, row, &d, again, 2) == SOP_OK);
                int same = memcmp(y, first, sizeof y) == 0;
                if (row->device == SOP_DEVICE_CUDA) { /* of zeros it may lose the sign */
                    same = 1;
                    for (int64_t at = 0; at < ROWS * d.dim; at++)
                        same &= sop_load(y, d.y_dtype, at) == sop_load(first, d.y_dtype, at);
                }
                if (!same) printf("%s w=%s\n", row->name, sop_dtype_text(formats[f]));
                CHECK(same);
            }
        }
}

static void a_row_that_is_no_whole_number_of_blocks_is_refused(void)
{
    sop_embed_desc d = {.tokens = 1, .rows = 2, .dim = 48, .w_dtype = SOP_Q8_0};
    sop_op_embed.complete(&d);
    CHECK(sop_op_embed.check(&d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "48") && strstr(sop_last_error(), "32"));
}

int main(void)
{
    RUN(an_id_outside_the_table_gives_zeros);
    RUN(a_block_format_is_decoded_into_another_type);
    RUN(rows_round_alike_in_every_format);
    RUN(a_row_that_is_no_whole_number_of_blocks_is_refused);
    return test_report();
}
