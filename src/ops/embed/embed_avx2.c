/* Any format, 8 elements a step from the table into y. Blocks are taken apart by linear's reader and
 * multiplied out here: products and scales are exact in 24 bits, so each element rounds as the
 * portable row's. A token is a task. */
#include <string.h>

#include "core/op.h"
#include "ops/embed/embed.h"
#include "ops/linear/dequant.h"
#include "ops/simd/avx2.h"

static void put_plain(const sop_embed_desc *d, const char *row, char *y)
{
    const size_t w_bytes = sop_dtype_bytes(d->w_dtype), y_bytes = sop_dtype_bytes(d->y_dtype);
    const __m256 scale = _mm256_set1_ps(d->scale);
    for (int64_t at = 0; at < d->dim; at += 8) {
        const size_t i = (size_t)(at + 8 <= d->dim ? at : d->dim - 8); /* the last 8 may overlap */
        sop_encode8(y + i * y_bytes, d->y_dtype,
                    _mm256_mul_ps(scale, sop_decode8(row + i * w_bytes, d->w_dtype)));
    }
}

static void put_blocks(const sop_embed_desc *d, const char *row, char *y)
{
    const size_t w_bytes = sop_dtype_bytes(d->w_dtype), step = 8 * sop_dtype_bytes(d->y_dtype);
    const __m256 scale = _mm256_set1_ps(d->scale);
    const int64_t n = d->dim / sop_dtype_block(d->w_dtype);
    for (int64_t b = 0; b < n; b++) {
        sop_block o;
        sop_block_read(d->w_dtype, row + (size_t)b * w_bytes, &o);
        const __m256 zero = _mm256_set1_ps((float)o.zero);
        for (int32_t i = 0; i < o.n; i += 8, y += step) {
            const int32_t g = i / o.group;
            const __m256 ds = _mm256_set1_ps(o.d * (float)o.s[g]);
            const __m256 mt = _mm256_set1_ps(o.m * (float)o.t[g]);
            const __m256 w = _mm256_fmadd_ps(ds, _mm256_sub_ps(_mm256_loadu_ps(o.q + i), zero), mt);
            sop_encode8(y, d->y_dtype, _mm256_mul_ps(scale, w));
        }
    }
}

static void tokens(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const sop_call *call = arg;
    const sop_embed_desc *d = call->desc;
    const int32_t *ids = call->args[SOP_EMBED_IDS].data;
    const size_t y_bytes = sop_dtype_bytes(d->y_dtype), w_bytes = sop_dtype_bytes(d->w_dtype);
    const int32_t plain = sop_dtype_block(d->w_dtype) == 1;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        char *y = (char *)call->args[SOP_EMBED_Y].data + (size_t)(t * d->y_stride) * y_bytes;
        if (ids[t] < 0 || ids[t] >= d->rows) {
            memset(y, 0, (size_t)d->dim * y_bytes);
            continue;
        }
        const char *row = (const char *)call->args[SOP_EMBED_TABLE].data +
                          (size_t)(ids[t] * d->table_stride) * w_bytes;
        plain ? put_plain(d, row, y) : put_blocks(d, row, y);
    }
}

sop_status sop_embed_avx2(const sop_call *call)
{
    const sop_embed_desc *d = call->desc;
    sop_parallel(call->queue, sop_live(call, SOP_EMBED_LIVE, d->tokens), 8, tokens, call);
    return SOP_OK;
}
