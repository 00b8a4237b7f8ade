/* What the rows for few tokens share: tiles of rows of up to three weights, one after another. */
#ifndef OPS_LINEAR_SKINNY_CUH
#define OPS_LINEAR_SKINNY_CUH

#include "ops/cuda/elements.cuh"

SOP_DEV int skinny_tiles(const int *n, int rows)
{
    return (n[0] + rows - 1) / rows + (n[1] + rows - 1) / rows + (n[2] + rows - 1) / rows;
}

/* The weight j of tile t, its first row, and the column of y of the weight's first row. */
SOP_DEV int skinny_part(const int *n, int rows, int t, int *row, int *at)
{
    int j = 0;
    *at = 0;
    for (; j < 2 && t >= (n[j] + rows - 1) / rows; j++) {
        t -= (n[j] + rows - 1) / rows;
        *at += n[j];
    }
    *row = t * rows;
    return j;
}

#endif
