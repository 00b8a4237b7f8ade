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
    const float *x; /* rows of x as float32, x_stride apart; NULL where they are quantised */
    float *y;       /* where sums go: rows y_stride apart */
    int64_t tokens, k, x_stride, y_stride;
} sop_panels;

/* Fill all but x, y and their strides. */
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

/* Scratch of a type that is not float32: bytes of x and y as float32, 0 where they are so already. */
size_t sop_stage_x_bytes(const sop_linear_desc *d);
size_t sop_stage_y_bytes(const sop_linear_desc *d);
/* Point p->x and p->y at the operands or at the scratch, with x in it. */
void sop_stage_x(sop_panels *p, const sop_call *call, void *scratch);
void sop_stage_y(sop_panels *p, const sop_call *call, void *scratch);
/* Round the sums into y, when they are not there already. */
void sop_stage_end(const sop_panels *p, const sop_call *call);

#endif
