/* Portable, any format: rows are decoded straight into f32 results, other types go through 256
 * floats at a time. A token is a task. */
#include <string.h>

#include "core/op.h"
#include "ops/embed/embed.h"
#include "ops/linear/dequant.h"

/* Elements at a time: a whole number of blocks of every format. */
enum { PIECE = 256 };

static void put_row(const sop_embed_desc *d, const char *row, char *y)
{
    const int64_t block = sop_dtype_block(d->w_dtype);
    const size_t y_bytes = sop_dtype_bytes(d->y_dtype);
    float piece[PIECE];
    for (int64_t i = 0; i < d->dim; i += PIECE) {
        const int64_t n = d->dim - i < PIECE ? d->dim - i : PIECE;
        float *w = d->y_dtype == SOP_F32 ? (float *)(void *)y + i : piece;
        sop_dequant_row(d->w_dtype, row + (size_t)(i / block) * sop_dtype_bytes(d->w_dtype), n, w);
        if (d->scale != 1)
            for (int64_t j = 0; j < n; j++) w[j] *= d->scale;
        if (w == piece)
            for (int64_t j = 0; j < n; j++)
                sop_store(y + (size_t)i * y_bytes, d->y_dtype, j, (double)w[j]);
    }
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_embed_desc *d = call->desc;
    const int32_t *ids = call->args[SOP_EMBED_IDS].data;
    const size_t y_bytes = sop_dtype_bytes(d->y_dtype), w_bytes = sop_dtype_bytes(d->w_dtype);
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        char *y = (char *)call->args[SOP_EMBED_Y].data + (size_t)(t * d->y_stride) * y_bytes;
        const char *table = call->args[SOP_EMBED_TABLE].data;
        if (ids[t] < 0 || ids[t] >= d->rows)
            memset(y, 0, (size_t)d->dim * y_bytes);
        else
            put_row(d, table + (size_t)(ids[t] * d->table_stride) * w_bytes, y);
    }
}

sop_status sop_embed_c(const sop_call *call)
{
    const sop_embed_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_EMBED_LIVE, d->tokens), 8, tokens, call);
    return SOP_OK;
}
