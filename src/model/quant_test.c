/* Small checkpoints made in memory: what they say, and what is refused. Whole models are in model_test. */
#include "model/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/test.h"
#include "core/f16.h"
#include "model/file_index.h"
#include "model/safetensors.h"
#include "ops/linear/dequant.h"

/* A safetensors file in the making. */
static struct {
    char header[2048];
    uint8_t data[1 << 16], file[1 << 17];
    size_t at, n_data;
} made;

static void begin(void)
{
    made.at = made.n_data = 0;
}

static void add(const char *name, const char *dtype, int64_t rows, int64_t cols, const void *data,
                size_t bytes)
{
    made.at += (size_t)snprintf(
        made.header + made.at, sizeof made.header - made.at,
        "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld,%lld],\"data_offsets\":[%zu,%zu]}",
        made.at ? ',' : '{', name, dtype, (long long)rows, (long long)cols, made.n_data,
        made.n_data + bytes);
    memcpy(made.data + made.n_data, data, bytes);
    made.n_data += bytes;
}

/* The file with a config.json; NULL when either is refused. */
static sop_file *file_of(const char *config)
{
    sop_file *f = sop_file_create();
    uint64_t n = made.at + 1;
    (void)snprintf(made.header + made.at, sizeof made.header - made.at, "}");
    memcpy(made.file, &n, 8);
    memcpy(made.file + 8, made.header, n);
    memcpy(made.file + 8 + n, made.data, made.n_data);
    f->kind = SOP_FILE_HF;
    CHECK(sop_config_parse(f, config, strlen(config), "config.json") == SOP_OK);
    CHECK(sop_safetensors_parse(f, made.file, 8 + n + made.n_data, "x", 0) == SOP_OK);
    CHECK(sop_file_seal(f) == SOP_OK);
    return f;
}

/* Row i of a.weight, as floats. */
static sop_status read_row(const char *config, int64_t i, float *out)
{
    sop_file *f = file_of(config);
    sop_quant q;
    sop_tensor t;
    void *own = NULL;
    sop_status status = sop_quant_config(f, &q);
    if (status == SOP_OK) status = sop_quant_read(f, &q, "a.weight", &own);
    if (status == SOP_OK) {
        CHECK(sop_quant_find(f, &q, "a.weight", &t));
        sop_dequant_row(t.dtype, (char *)own + (size_t)i * sop_dtype_row_bytes(t.dtype, t.shape[1]),
                        t.shape[1], out);
    }
    free(own);
    sop_file_close(f);
    return status;
}

static bool refused(const char *config, sop_status status, const char *words)
{
    float row[1024];
    const bool same = read_row(config, 0, row) == status && strstr(sop_last_error(), words);
    if (!same) printf("%s\n", sop_last_error());
    return same;
}

enum { N = 8, K = 128 };

/* [8, 128] of 4 bits: codes 0, 5, 15, 8, 9, then 0; one scale; zeros as they are stored. */
static void four(bool awq, float scale, uint32_t zeros)
{
    static const uint32_t codes[5] = {0, 5, 15, 8, 9};
    uint32_t q[K * N / 8] = {0}, z = zeros;
    uint16_t s[N];
    for (int c = 0; c < 5; c++) /* all eight rows alike, so that their order counts for nothing */
        for (int i = 0; i < N; i++) {
            if (awq)
                q[c] |= codes[c] << 4 * i;
            else
                q[c / 8 * N + i] |= codes[c] << 4 * (c % 8);
        }
    for (int i = 0; i < N; i++) s[i] = sop_f32_to_f16(scale);
    begin();
    add("a.qweight", "I32", awq ? K : K / 8, awq ? N / 8 : N, q, sizeof q);
    add("a.qzeros", "I32", 1, N / 8, &z, sizeof z);
    add("a.scales", "F16", 1, N, s, sizeof s);
}

#define CONFIG(text) "{\"quantization_config\":{" text "}}"
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128"
#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128"

static void a_zero_point_of_zero_stays_zero_in_awq(void)
{
    float row[K];
    four(true, 0.5f, 0);
    CHECK(read_row(CONFIG(AWQ), 3, row) == SOP_OK);
    CHECK(row[0] == 0 && row[1] == 2.5f && row[2] == 7.5f);
}

static void symmetric_zeros_are_8_under_either_convention(void)
{
    const float tenth = sop_f16_to_f32(sop_f32_to_f16(0.1f));
    static const char *const formats[] = {
        CONFIG(GPTQ ",\"sym\":true,\"checkpoint_format\":\"gptq\""),
        CONFIG(GPTQ ",\"sym\":true,\"checkpoint_format\":\"gptq_v2\"")};
    float row[K];
    for (int i = 0; i < 2; i++)
        for (uint32_t stored = 0x77777777; stored <= 0x88888888; stored += 0x11111111) {
            four(false, 0.1f, stored);
            CHECK(read_row(formats[i], 7, row) == SOP_OK && row[3] == 0 && row[4] == tenth);
        }
    four(false, 0.1f, 0x88888878);
    CHECK(refused(formats[0], SOP_E_FORMAT, "zero point 1 is stored as 7, must be 7 or 8"));
}

static void zeros_of_v1_are_less_1_and_those_of_v2_are_not(void)
{
    float row[K];
    four(false, 0.5f, 0x44444444);
    CHECK(read_row(CONFIG(GPTQ ",\"sym\":false"), 0, row) == SOP_OK && row[1] == 0);
    CHECK(read_row(CONFIG(GPTQ ",\"checkpoint_format\":\"gptq_v2\""), 0, row) == SOP_OK &&
          row[1] == 0.5f);
    four(false, 0.5f, 0x44f44444);
    CHECK(refused(CONFIG(GPTQ), SOP_E_UNSUPPORTED, "zero point 5 is stored as 15"));
}

static void columns_out_of_the_order_of_their_groups_are_refused(void)
{
    int32_t order[K] = {0};
    four(false, 1, 0x77777777);
    add("a.g_idx", "I32", 1, K, order, sizeof order);
    float row[K];
    CHECK(read_row(CONFIG(GPTQ ",\"desc_act\":true"), 0, row) == SOP_OK); /* yet in order */
    four(false, 1, 0x77777777);
    order[77] = 1;
    add("a.g_idx", "I32", 1, K, order, sizeof order);
    CHECK(refused(CONFIG(GPTQ ",\"desc_act\":true"), SOP_E_UNSUPPORTED,
                  "column 77 is of group 1, must be of 0"));
    four(false, 1, 0x77777777);
    CHECK(refused(CONFIG(GPTQ ",\"desc_act\":true"), SOP_E_UNSUPPORTED, "a.g_idx is missing"));
}

static void what_the_blocks_cannot_say_is_refused_with_the_numbers(void)
{
    static const struct {
        const char *config, *words;
    } not_ours[] = {
        {CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32"), "groups of 32 columns"},
        {CONFIG("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":128"), "8 bits"},
        {CONFIG(AWQ ",\"version\":\"gemv\""), "\"gemv\""},
        {CONFIG(GPTQ ",\"checkpoint_format\":\"marlin\""), "\"marlin\""},
        {CONFIG("\"quant_method\":\"bitsandbytes\""), "\"bitsandbytes\""},
        {CONFIG("\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\""),
         "\"marlin-24\""},
        {CONFIG("\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
                "\"config_groups\":{\"group_0\":{\"weights\":{\"symmetric\":false}}}"),
         "pack-quantized with zero points"},
        {CONFIG("\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]"),
         "64 rows and 64 columns"}};
    four(true, 1, 0);
    for (size_t i = 0; i < sizeof not_ours / sizeof *not_ours; i++)
        CHECK(refused(not_ours[i].config, SOP_E_UNSUPPORTED, not_ours[i].words));
    /* 21.5 groups: the last one is short */
    static uint32_t q[2752];
    const uint32_t z[22] = {0};
    const uint16_t s[22 * 8] = {0};
    begin();
    add("a.qweight", "I32", 2752, 1, q, sizeof q);
    add("a.qzeros", "I32", 22, 1, z, sizeof z);
    add("a.scales", "F16", 22, 8, s, sizeof s);
    CHECK(refused(CONFIG(AWQ), SOP_E_UNSUPPORTED, "[8, 2752]"));
    four(true, 1, 0);
    made.at -= strlen("[1,8],\"data_offsets\":[516,532]}") + strlen("\"shape\":");
    made.at += (size_t)snprintf(made.header + made.at, sizeof made.header - made.at,
                                "\"shape\":[8,1],\"data_offsets\":[516,532]}");
    CHECK(refused(CONFIG(AWQ), SOP_E_FORMAT, "a.scales is missing or not [1, 8]"));
    const float third[N] = {1.0f / 3};
    uint32_t codes[K] = {0}, zero = 0;
    begin();
    add("a.qweight", "I32", K, 1, codes, sizeof codes);
    add("a.qzeros", "I32", 1, 1, &zero, sizeof zero);
    add("a.scales", "F32", 1, N, third, sizeof third);
    CHECK(refused(CONFIG(AWQ), SOP_E_UNSUPPORTED, "scale 0 is 0.333333343, no f16"));
}

static void scales_of_8_bits_are_one_a_row_or_a_block(void)
{
    static uint8_t q[130 * 256];
    float row[256], scales[130];
    for (int i = 0; i < 130 * 256; i++) q[i] = (uint8_t)(i % 7);
    for (int i = 0; i < 130; i++) scales[i] = 1 + (float)i;
    begin();
    add("a.weight", "I8", 130, 256, q, sizeof q);
    add("a.weight_scale", "F32", 130, 1, scales, sizeof scales);
    CHECK(read_row("{}", 129, row) == SOP_OK);
    for (int c = 0; c < 256; c++) CHECK(row[c] == 130 * (float)((129 * 256 + c) % 7));
    begin();
    add("a.weight", "I8", 130, 256, q, sizeof q);
    add("a.weight_scale_inv", "F32", 2, 2, scales, 16);
    CHECK(read_row(CONFIG("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]"), 129, row) ==
          SOP_OK);
    for (int c = 0; c < 256; c++)
        CHECK(row[c] == (c < 128 ? 3.0f : 4.0f) * (float)((129 * 256 + c) % 7));
    CHECK(refused("{}", SOP_E_FORMAT, "[130, 256] and has scales [2, 2]"));
    begin();
    add("a.weight", "F8_E4M3", 130, 256, q, sizeof q);
    add("a.weight_scale", "F32", 1, 1, scales, 4);
    CHECK(read_row("{}", 129, row) == SOP_OK && row[0] == 5 * 0x1p-9f); /* code 5: subnormal */
}

static void bytes_without_a_meaning_are_refused(void)
{
    static uint8_t q[2 * 128];
    const float scales[2] = {1, 1}, bad[2] = {1, NAN};
    const int8_t zeros[2] = {0, 3};
    q[128 + 9] = 0xff;
    begin();
    add("a.weight", "F8_E4M3", 2, 128, q, sizeof q);
    add("a.weight_scale", "F32", 2, 1, scales, sizeof scales);
    CHECK(refused("{}", SOP_E_FORMAT, "a.weight: repack: weight [1, 9] is NaN"));
    begin();
    add("a.weight", "I8", 2, 128, q, sizeof q);
    add("a.weight_scale", "F32", 2, 1, bad, sizeof bad);
    CHECK(refused("{}", SOP_E_FORMAT, "a.weight_scale: scale 1 is nan"));
    begin();
    add("a.weight", "I8", 2, 128, q, sizeof q);
    add("a.weight_scale", "F32", 2, 1, scales, sizeof scales);
    add("a.weight_zero_point", "I8", 2, 1, zeros, sizeof zeros);
    CHECK(refused("{}", SOP_E_UNSUPPORTED, "a zero point other than 0"));
    begin();
    add("a.weight", "I8", 4, 64, q, sizeof q);
    CHECK(refused("{}", SOP_E_UNSUPPORTED, "rows of 64 numbers"));
    begin();
    add("a.weight", "F8_E4M3", 2, 128, q, sizeof q);
    CHECK(refused("{}", SOP_E_FORMAT, "is F8_E4M3 and has neither"));
}

int main(void)
{
    RUN(a_zero_point_of_zero_stays_zero_in_awq);
    RUN(symmetric_zeros_are_8_under_either_convention);
    RUN(zeros_of_v1_are_less_1_and_those_of_v2_are_not);
    RUN(columns_out_of_the_order_of_their_groups_are_refused);
    RUN(what_the_blocks_cannot_say_is_refused_with_the_numbers);
    RUN(scales_of_8_bits_are_one_a_row_or_a_block);
    RUN(bytes_without_a_meaning_are_refused);
    return test_report();
}
