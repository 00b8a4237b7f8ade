/* The tiles of a product with up to three weights side by side. */
#ifndef OPS_LINEAR_GEMM_TILES_CUH
#define OPS_LINEAR_GEMM_TILES_CUH

#include "ops/cuda/elements.cuh"

/* Tile order: groups of 16 row tiles, columns outside, rows inside: what 132 CTAs work on at one
 * time is 16 row tiles by about 8 column tiles, so x and w mostly come from L2. */
template <int CL> SOP_DEV void gemm_tile(int t, int n_mp, int n_nt, int *mp, int *nt)
{
    const int group = 16 / CL, per_group = group * n_nt;
    const int g = t / per_group, r = t % per_group, height = min(group, n_mp - g * group);
    *mp = g * group + r % height;
    *nt = r / height;
}

/* The weight j of column tile nt, its tile there, and the first column of y it has. */
template <int BN> SOP_DEV int gemm_part(const int *n, int *nt, int *at)
{
    int j = 0;
    *at = 0;
    for (; j < 2 && *nt >= (n[j] + BN - 1) / BN; j++) {
        *nt -= (n[j] + BN - 1) / BN;
        *at += n[j];
    }
    return j;
}

#endif
