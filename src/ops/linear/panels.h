/* ops/linear/panels.h: what the rows that read packed weights share: the panels of up to three
 * weights numbered through, and where their sums go. */
#ifndef OPS_LINEAR_PANELS_H
#define OPS_LINEAR_PANELS_H

#include <string.h>

#include "ops/linear/pack.h"

typedef struct sop_panels {
    int64_t n_panels;
    int32_t n_parts;
    struct sop_part {
        const uint8_t *w;  /* [panels][panel_bytes] */
        const float *bias; /* [n] or NULL */
        int64_t first;     /* its first panel's number */
        int64_t n, at;     /* rows, and the first one's column of y */
        size_t panel_bytes;
        int32_t dtype;
    } part[3];
    float *y; /* where sums go: rows y_stride apart */
    int64_t tokens, k, y_stride;
} sop_panels;

/* Fill all but y and its stride. */
void sop_panels_init(sop_panels *p, const sop_call *call);
/* Why packed weights cannot be read, or NULL. */
const char *sop_panels_refuse(const sop_linear_desc *d);
int64_t sop_panels_count(const sop_linear_desc *d);

/* Panel i: its bytes, and its first column of y for token 0. */
typedef struct sop_panel {
    const uint8_t *w;
    const float *bias;
    float *y;
    int64_t columns; /* rows of the weight from here on; 16 or more but in its last panel */
    int32_t dtype;
} sop_panel;

static inline sop_panel sop_panel_at(const sop_panels *p, int64_t i)
{
    int32_t j = 0;
    while (j + 1 < p->n_parts && i >= p->part[j + 1].first) j++;
    const struct sop_part *part = &p->part[j];
    const int64_t n = i - part->first, row = n * SOP_PANEL_ROWS;
    return (sop_panel){part->w + (size_t)n * part->panel_bytes,
                       part->bias ? part->bias + row : NULL, p->y + part->at + row, part->n - row,
                       part->dtype};
}

/* 16 sums from y: the first `columns` of them, the others 0; and back, plus bias (or NULL). */
static inline void sop_sums_get(float *restrict sums, const float *restrict y, int64_t columns)
{
    if (columns >= SOP_PANEL_ROWS)
        memcpy(sums, y, SOP_PANEL_ROWS * sizeof *sums);
    else
        for (int i = 0; i < SOP_PANEL_ROWS; i++) sums[i] = i < columns ? y[i] : 0;
}

/* Fetch 16 sums of each of the n rows that follow row t: they lie far apart. */
static inline void sop_sums_fetch(const sop_panels *p, const float *y, int64_t t, int64_t n)
{
    for (int64_t r = t; r < t + n && r < p->tokens; r++) __builtin_prefetch(y + r * p->y_stride, 1);
}

static inline void sop_sums_put(float *restrict y, const float *restrict sums, int64_t columns,
                                const float *restrict bias)
{
    if (columns >= SOP_PANEL_ROWS && !bias)
        memcpy(y, sums, SOP_PANEL_ROWS * sizeof *sums);
    else if (columns >= SOP_PANEL_ROWS)
        for (int i = 0; i < SOP_PANEL_ROWS; i++) y[i] = sums[i] + bias[i];
    else
        for (int i = 0; i < columns; i++) y[i] = bias ? sums[i] + bias[i] : sums[i];
}

/* Tokens stand in tiles, as wide as a kernel takes: the width of the next one with so many left. */
static inline int64_t sop_tile_width(int64_t widest, int64_t left)
{
    if (left >= widest) return widest;
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* x as float32 in tiles: column i of token t + r of the tile that begins at t is at t * k + i * width
 * + r. Scratch of tokens * k floats; none for one row of float32, which is returned as it stands. */
size_t sop_tiles_bytes(const sop_linear_desc *d);
const float *sop_tiles_fill(const sop_call *call, int64_t tokens, int64_t widest, float *scratch);

/* Where y is not float32, the sums go to scratch first: point p->y, then round them into y. */
size_t sop_stage_y_bytes(const sop_linear_desc *d);
void sop_stage_y(sop_panels *p, const sop_call *call, void *scratch);
void sop_stage_end(const sop_panels *p, const sop_call *call);

#endif
