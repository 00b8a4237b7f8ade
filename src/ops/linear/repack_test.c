#include "ops/linear/repack.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/test.h"
#include "core/f16.h"
#include "core/op.h"
#include "ops/linear/dequant.h"

enum { N = 24, K = 384 };

static uint64_t seed = 1;

/* The order in which AWQ's packer puts 8 columns into a word. */
static const int awq[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* Codes, zero points and scales of a weight of 4 bits, and its words in each layout. */
static struct {
    uint32_t code[N][K], zero[K / 128][N];
    uint16_t scales[K / 128 * N];
    uint32_t awq[K * N / 8], gptq[K / 8 * N];
    uint32_t awq_zeros[K / 128 * N / 8], gptq_zeros[K / 128 * N / 8], v2_zeros[K / 128 * N / 8];
} four;

static void make_four(int64_t groups)
{
    memset(&four, 0, sizeof four);
    for (int64_t i = 0; i < N; i++) {
        for (int64_t c = 0; c < K; c++) {
            four.code[i][c] = (uint32_t)(sop_random(&seed) >> 60);
            four.gptq[c / 8 * N + i] |= four.code[i][c] << 4 * (c % 8);
        }
        for (int64_t g = 0; g < groups; g++) {
            four.zero[g][i] = 1 + (uint32_t)(sop_random(&seed) >> 60) % 15; /* in all layouts */
            four.scales[g * N + i] = sop_f32_to_f16(0.01f + (float)(i * groups + g) * 0x1p-10f);
            four.gptq_zeros[g * N / 8 + i / 8] |= (four.zero[g][i] - 1) << 4 * (i % 8);
            four.v2_zeros[g * N / 8 + i / 8] |= four.zero[g][i] << 4 * (i % 8);
        }
    }
    for (int64_t j = 0; j < N / 8; j++)
        for (int e = 0; e < 8; e++) {
            for (int64_t c = 0; c < K; c++)
                four.awq[c * N / 8 + j] |= four.code[8 * j + awq[e]][c] << 4 * e;
            for (int64_t g = 0; g < groups; g++)
                four.awq_zeros[g * N / 8 + j] |= four.zero[g][8 * j + awq[e]] << 4 * e;
        }
}

/* Weights that differ from the formula. */
static int wrong(const uint8_t *blocks, int64_t group)
{
    int bad = 0;
    for (int64_t i = 0; i < N; i++) {
        float w[K];
        sop_dequant_row(SOP_I4_128, blocks + (size_t)i * sop_dtype_row_bytes(SOP_I4_128, K), K, w);
        for (int64_t c = 0; c < K; c++) {
            const int64_t g = c / group;
            const int q = (int)four.code[i][c] - (int)four.zero[g][i];
            bad += w[c] != sop_f16_to_f32(four.scales[g * N + i]) * (float)q;
        }
    }
    return bad;
}

static void awq_and_gptq_keep_each_weight_to_the_bit(void)
{
    static uint8_t a[N * K / 128 * 68], b[sizeof a];
    for (int64_t group = 128; group <= K; group += 256) {
        int32_t group_of[K];
        make_four(K / group);
        for (int32_t c = 0; c < K; c++) group_of[c] = c / (int32_t)group;
        CHECK(sop_repack_int4(SOP_INT4_AWQ, four.awq, four.awq_zeros, four.scales, NULL, N, K,
                              group, a) == SOP_OK);
        CHECK(wrong(a, group) == 0);
        CHECK(sop_repack_int4(SOP_INT4_GPTQ, four.gptq, four.gptq_zeros, four.scales, group_of, N,
                              K, group, b) == SOP_OK);
        CHECK(memcmp(a, b, sizeof a) == 0);
        memset(b, 0xff, sizeof b);
        CHECK(sop_repack_int4(SOP_INT4_GPTQ_V2, four.gptq, four.v2_zeros, four.scales, NULL, N, K,
                              group, b) == SOP_OK);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

static void a_zero_point_of_16_is_kept(void)
{
    static uint8_t a[N * K / 128 * 68];
    float w[K];
    make_four(1);
    memset(four.gptq_zeros, 0xff, sizeof four.gptq_zeros);
    CHECK(sop_repack_int4(SOP_INT4_GPTQ, four.gptq, four.gptq_zeros, four.scales, NULL, N, K, K,
                          a) == SOP_OK);
    sop_dequant_row(SOP_I4_128, a, K, w);
    CHECK(w[5] == sop_f16_to_f32(four.scales[0]) * ((float)four.code[0][5] - 16));
}

static void columns_out_of_order_are_refused(void)
{
    static uint8_t a[N * K / 128 * 68];
    int32_t group_of[K];
    make_four(3);
    for (int32_t c = 0; c < K; c++) group_of[c] = c / 128;
    group_of[200] = 2;
    CHECK(sop_repack_int4(SOP_INT4_GPTQ, four.gptq, four.gptq_zeros, four.scales, group_of, N, K,
                          128, a) == SOP_E_UNSUPPORTED);
    CHECK(strstr(sop_last_error(), "200") != NULL);
    CHECK(sop_repack_int4(SOP_INT4_AWQ, four.awq, four.awq_zeros, four.scales, NULL, N, K, 64, a) ==
          SOP_E_SHAPE);
    CHECK(sop_repack_int4(SOP_INT4_AWQ, four.awq, four.awq_zeros, four.scales, NULL, N - 1, K, 128,
                          a) == SOP_E_SHAPE);
}

/* e4m3 by its definition. */
static float e4m3(int q)
{
    const int e = q >> 3 & 15, m = q & 7;
    const float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return q & 0x80 ? -v : v;
}

/* A scale a row, one for 128 x 128, one of all. */
static void bytes_keep_their_scales(void)
{
    static const int64_t shares[3][2] = {{1, K}, {16, 128}, {N, K}};
    static uint8_t q[N * K], out[N * K / 128 * 132];
    static float scales[N * K / 128];
    for (int i = 0; i < N * K; i++) {
        q[i] = (uint8_t)sop_random(&seed);
        if ((q[i] & 0x7f) == 0x7f) q[i] = 0;
    }
    for (int i = 0; i < N * K / 128; i++) scales[i] = 0.1f + 0.3f * (float)i;
    for (int f8 = 0; f8 < 2; f8++)
        for (int s = 0; s < 3; s++) {
            const int32_t dtype = f8 ? SOP_F8_128 : SOP_I8_128;
            const int64_t tall = shares[s][0], wide = shares[s][1];
            int bad = 0;
            CHECK(sop_repack_8(dtype, q, scales, N, K, tall, wide, out) == SOP_OK);
            for (int64_t i = 0; i < N; i++) {
                float w[K];
                sop_dequant_row(dtype, out + (size_t)i * sop_dtype_row_bytes(dtype, K), K, w);
                for (int64_t c = 0; c < K; c++) {
                    const float d = scales[i / tall * (K / wide) + c / wide];
                    const int b = q[i * K + c];
                    bad += w[c] != d * (f8 ? e4m3(b) : (float)(int8_t)b);
                }
            }
            CHECK(bad == 0);
        }
    q[2 * K + 300] = 0xff;
    CHECK(sop_repack_8(SOP_I8_128, q, scales, N, K, 1, K, out) == SOP_OK);
    CHECK(sop_repack_8(SOP_F8_128, q, scales, N, K, 1, K, out) == SOP_E_FORMAT);
    CHECK(strstr(sop_last_error(), "[2, 300]") != NULL);
    CHECK(sop_repack_8(SOP_F8_128, q, scales, N, 200, 1, 200, out) == SOP_E_SHAPE);
    CHECK(sop_repack_8(SOP_Q8_0, q, scales, N, K, 1, K, out) == SOP_E_ARG);
}

int main(void)
{
    RUN(awq_and_gptq_keep_each_weight_to_the_bit);
    RUN(a_zero_point_of_16_is_kept);
    RUN(columns_out_of_order_are_refused);
    RUN(bytes_keep_their_scales);
    return test_report();
}
