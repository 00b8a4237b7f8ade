#include "ops/linear/panels.h"

#include "core/op.h"

enum { R = SOP_PANEL_ROWS };

const char *sop_panels_refuse(const sop_linear_desc *d)
{
    if (d->x_dtype == SOP_F8) return "x is f8";
    for (int32_t j = 0; j < 3; j++) {
        if (!d->n[j]) continue;
        if (!(d->layouts[j] & SOP_LAYOUT_PANEL16))
            return "a weight is not packed in panels of 16 rows";
        if (!sop_panel_block_bytes(d->w_dtype[j])) return "a weight's format has no panels";
    }
    return NULL;
}

int64_t sop_panels_count(const sop_linear_desc *d)
{
    return (d->n[0] + R - 1) / R + (d->n[1] + R - 1) / R + (d->n[2] + R - 1) / R;
}

void sop_panels_init(sop_panels *p, const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    int64_t at = 0;
    *p = (sop_panels){.tokens = sop_live(call, SOP_LINEAR_LIVE, d->tokens), .k = d->k};
    for (int32_t j = 0; j < 3; at += d->n[j++]) {
        if (!d->n[j]) continue;
        p->part[p->n_parts++] = (struct sop_part){
            .w = call->args[SOP_LINEAR_W0 + j].data,
            .bias = d->bias >> j & 1 ? call->args[SOP_LINEAR_B0 + j].data : NULL,
            .first = p->n_panels,
            .n = d->n[j],
            .at = at,
            .panel_bytes = sop_panel_bytes(d->w_dtype[j], d->k),
            .dtype = d->w_dtype[j],
        };
        p->n_panels += (d->n[j] + R - 1) / R;
    }
}

static int64_t width(const sop_linear_desc *d)
{
    return d->n[0] + d->n[1] + d->n[2];
}

size_t sop_stage_y_bytes(const sop_linear_desc *d)
{
    return d->y_dtype == SOP_F32 ? 0 : (size_t)(d->tokens * width(d)) * 4;
}

struct tiles {
    const sop_call *call;
    int64_t tokens, widest;
    float *out;
};

static void fill_tiles(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct tiles *s = arg;
    const sop_linear_desc *d = s->call->desc;
    const void *x = s->call->args[SOP_LINEAR_X].data;
    const int64_t stop = end * s->widest < s->tokens ? end * s->widest : s->tokens;
    (void)worker;
    for (int64_t t = begin * s->widest, w; t < stop; t += w) {
        float *out = s->out + t * d->k;
        w = sop_tile_width(s->widest, stop - t);
        for (int64_t r = 0; r < w; r++) {
            const int64_t at = (t + r) * d->x_stride;
            if (d->x_dtype == SOP_F32)
                for (int64_t i = 0; i < d->k; i++) out[i * w + r] = ((const float *)x)[at + i];
            else
                for (int64_t i = 0; i < d->k; i++)
                    out[i * w + r] = (float)sop_load(x, d->x_dtype, at + i);
        }
    }
}

size_t sop_tiles_bytes(const sop_linear_desc *d)
{
    return d->tokens <= 1 && d->x_dtype == SOP_F32
               ? 0
               : ((size_t)(d->tokens * d->k) * 4 + 63) & ~(size_t)63;
}

const float *sop_tiles_fill(const sop_call *call, int64_t tokens, int64_t widest, float *scratch)
{
    const sop_linear_desc *d = call->desc;
    if (tokens <= 1 && d->x_dtype == SOP_F32) return call->args[SOP_LINEAR_X].data;
    /* 16384 values are a few us of one core: below that a fork costs more than it saves. */
    const int64_t tiles = (tokens + widest - 1) / widest;
    sop_parallel(call->queue, tiles, tokens * d->k <= 16384 ? tiles : 2, fill_tiles,
                 &(struct tiles){call, tokens, widest, scratch});
    return scratch;
}

struct stage {
    const sop_panels *p;
    const sop_call *call;
};

static void round_rows(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct stage *s = arg;
    const sop_linear_desc *d = s->call->desc;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < width(d); i++)
            sop_store(s->call->args[SOP_LINEAR_Y].data, d->y_dtype, t * d->y_stride + i,
                      (double)s->p->y[t * s->p->y_stride + i]);
}

void sop_stage_y(sop_panels *p, const sop_call *call, void *scratch)
{
    const sop_linear_desc *d = call->desc;
    p->y = d->y_dtype == SOP_F32 ? call->args[SOP_LINEAR_Y].data : scratch;
    p->y_stride = d->y_dtype == SOP_F32 ? d->y_stride : width(d);
}

void sop_stage_end(const sop_panels *p, const sop_call *call)
{
    const sop_linear_desc *d = call->desc;
    if (d->y_dtype == SOP_F32) return;
    sop_parallel(call->queue, p->tokens, 4, round_rows, &(struct stage){p, call});
}
