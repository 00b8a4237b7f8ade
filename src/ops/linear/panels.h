/* ops/linear/panels.h: what the rows that read packed weights share: the panels of up to three
 * weights numbered through, and where their sums go. */
#ifndef OPS_LINEAR_PANELS_H
#define OPS_LINEAR_PANELS_H

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

/* The weight that has panel i. */
static inline const struct sop_part *sop_panels_find(const sop_panels *p, int64_t i)
{
    int32_t j = 0;
    while (j + 1 < p->n_parts && i >= p->part[j + 1].first) j++;
    return &p->part[j];
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
