/* The reference. A block format's element is the float that its formula rounds to: ops/linear proves
 * that decoding. */
#include <math.h>

#include "core/op.h"
#include "ops/embed/embed.h"
#include "ops/linear/dequant.h"

sop_status sop_embed_reference(const sop_call *call, const sop_judge *judge)
{
    const sop_embed_desc *d = call->desc;
    const int32_t *ids = call->args[SOP_EMBED_IDS].data;
    const char *table = call->args[SOP_EMBED_TABLE].data;
    const int64_t tokens = sop_live(call, SOP_EMBED_LIVE, d->tokens);
    const int64_t block = sop_dtype_block(d->w_dtype);
    for (int64_t t = 0; t < tokens; t++) {
        const int inside = ids[t] >= 0 && ids[t] < d->rows;
        for (int64_t b = 0; b < d->dim / block; b++) {
            float w[256] = {0};
            if (inside)
                sop_dequant_row(d->w_dtype,
                                table + (size_t)(ids[t] * d->table_stride + b) *
                                            sop_dtype_bytes(d->w_dtype),
                                block, w);
            for (int64_t i = 0; i < block; i++) {
                const double y = (double)d->scale * (double)w[i];
                /* one product */
                sop_put(call, judge, SOP_EMBED_Y, d->y_dtype, t * d->y_stride + b * block + i,
                        t * d->dim + b * block + i, y, SOP_U32 * fabs(y));
            }
        }
    }
    return SOP_OK;
}

sop_status sop_embed_ref(const sop_call *call)
{
    return sop_embed_reference(call, NULL);
}
