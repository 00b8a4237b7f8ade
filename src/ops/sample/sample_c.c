/* Portable kernels of ops/sample/sample_fast.c. */
#include <math.h>

#include "ops/sample/sample.h"

static float largest(const float *z, int64_t n)
{
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (z[i] > max && z[i] < INFINITY) max = z[i];
    return max;
}

static void weights(const float *z, int64_t n, float low, double max, double inv_temperature,
                    double *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = z[i] >= low && z[i] < INFINITY ? exp(((double)z[i] - max) * inv_temperature) : 0;
}

sop_status sop_sample_f32_c(const sop_call *call)
{
    static const sop_sample_kernels kernels = {largest, weights};
    return sop_sample_fast(call, &kernels);
}
