/* The vector functions against libm in double, on floats a prime step apart over the whole range. */
#include "ops/simd/vmath_avx2.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"
#include "core/cpu.h"

typedef __m256 fn8(__m256 x);

static double exp_d(double x)
{
    return exp(x);
}

static double tanh_d(double x)
{
    return tanh(x);
}

static double sigmoid_d(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double normal_d(double x)
{
    return 0.5 * erfc(-x / 1.4142135623730951);
}

/* Largest error in units of the last place of the right value, over floats of both signs up to most;
 * subnormal results count in 2^-149. */
static double worst_ulp(fn8 *f, double (*want)(double), float most, uint32_t step)
{
    double worst = 0;
    uint32_t end;
    memcpy(&end, &most, 4);
    for (uint32_t at = 0; at <= end; at += 8 * step) {
        float x[16], y[16];
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t bits = at + k * step;
            memcpy(&x[k], &bits, 4);
            x[8 + k] = -x[k];
        }
        _mm256_storeu_ps(y, f(_mm256_loadu_ps(x)));
        _mm256_storeu_ps(y + 8, f(_mm256_loadu_ps(x + 8)));
        for (int k = 0; k < 16; k++) {
            const double w = want((double)x[k]);
            int e;
            if (isnan(x[k]) || (isinf(y[k]) && w > 0x1.fffffep127)) continue;
            (void)frexp(w, &e);
            const double off = fabs((double)y[k] - w) / ldexp(1, e < -125 ? -149 : e - 24);
            if (!(off <= worst)) worst = off;
        }
    }
    return worst;
}

static float one(fn8 *f, float x)
{
    float y[8];
    _mm256_storeu_ps(y, f(_mm256_set1_ps(x)));
    return y[0];
}

static uint32_t step = 10007; /* a prime; SOP_TEST_STEP=1 goes through every float */

static void report(const char *name, double ulp)
{
    printf("%s: %.2f ulp\n", name, ulp);
}

static void exp_is_within_its_error(void)
{
    const double ulp = worst_ulp(sop_exp8, exp_d, 110, step);
    report("exp", ulp);
    CHECK(ulp < 0.9);
}

static void tanh_is_within_its_error(void)
{
    const double ulp = worst_ulp(sop_tanh8, tanh_d, 1e30f, step);
    report("tanh", ulp);
    CHECK(ulp < 1.4);
}

static void sigmoid_is_within_its_error(void)
{
    const double ulp = worst_ulp(sop_sigmoid8, sigmoid_d, 1e30f, step);
    report("sigmoid", ulp);
    CHECK(ulp < 2.5);
}

static void normal_is_within_its_error(void)
{
    const double ulp = worst_ulp(sop_normal8, normal_d, 1e30f, step);
    report("normal", ulp);
    CHECK(ulp < 6.5);
}

static void double_exp_is_within_its_error(void)
{
    double worst = 0;
    for (double x = -707.9; x < 709; x += 0.00173) {
        double y[4];
        _mm256_storeu_pd(y, sop_exp4d(_mm256_set1_pd(x)));
        const double off = fabs(y[3] - exp(x)) / (exp(x) * 0x1p-52);
        if (!(off <= worst)) worst = off;
    }
    report("double exp", worst);
    CHECK(worst < 1.6);
    double zero[4];
    _mm256_storeu_pd(zero, sop_exp4d(_mm256_set1_pd(-800)));
    CHECK(zero[0] == 0);
    _mm256_storeu_pd(zero, sop_exp4d(_mm256_set1_pd(0)));
    CHECK(zero[0] == 1);
}

static void extremes_are_right(void)
{
    CHECK(one(sop_exp8, INFINITY) == INFINITY && one(sop_exp8, 1e30f) == INFINITY);
    CHECK(one(sop_exp8, -INFINITY) == 0 && one(sop_exp8, -1e30f) == 0);
    CHECK(one(sop_exp8, 0) == 1 && isnan(one(sop_exp8, NAN)));
    CHECK(one(sop_tanh8, INFINITY) == 1 && one(sop_tanh8, -INFINITY) == -1);
    CHECK(isnan(one(sop_tanh8, NAN)) && signbit(one(sop_tanh8, -0.0f)));
    CHECK(one(sop_sigmoid8, INFINITY) == 1 && one(sop_sigmoid8, -INFINITY) == 0);
    CHECK(one(sop_sigmoid8, 0) == 0.5f && isnan(one(sop_sigmoid8, NAN)));
    CHECK(one(sop_normal8, INFINITY) == 1 && one(sop_normal8, -INFINITY) == 0);
    CHECK(isnan(one(sop_normal8, NAN)));
}

int main(void)
{
    if (!(sop_cpu_features() & SOP_CPU_AVX2)) {
        SKIP("vector functions", "needs avx2");
        return test_report();
    }
    const char *asked = getenv("SOP_TEST_STEP");
    if (asked) step = (uint32_t)strtoul(asked, NULL, 0);
    RUN(exp_is_within_its_error);
    RUN(tanh_is_within_its_error);
    RUN(sigmoid_is_within_its_error);
    RUN(normal_is_within_its_error);
    RUN(double_exp_is_within_its_error);
    RUN(extremes_are_right);
    return test_report();
}
