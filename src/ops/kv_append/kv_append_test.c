#include <sys/mman.h>

#include "base/test.h"
#include "core/f16.h"
#include "ops/call_test.h"
#include "ops/ops.h"

#define EACH_ROW(row) \
    for (const sop_row *row = sop_op_kv_append.rows; \
         row < sop_op_kv_append.rows + sop_op_kv_append.n_rows; row++)

static int append(const sop_row *row, const sop_kv_append_desc *d, const void *x,
                  const int32_t *slots, void *k_pool, void *v_pool)
{
    const sop_operand args[SOP_KV_APPEND_ROLES] = {
        [SOP_KV_APPEND_K] = {(void *)(uintptr_t)x, 0},
        [SOP_KV_APPEND_V] = {(void *)(uintptr_t)x, 0},
        [SOP_KV_APPEND_SLOTS] = {(void *)(uintptr_t)slots, 0},
        [SOP_KV_APPEND_K_POOL] = {k_pool, 0},
        [SOP_KV_APPEND_V_POOL] = {v_pool, 0},
    };
    if (!row_takes(row, d)) return 0;
    CHECK(run_row(&sop_op_kv_append, row, d, args, 2) == SOP_OK);
    return 1;
}

static void negative_slots_and_slots_beyond_the_pool_write_nothing(void)
{
    const float x[] = {1, 2, 3, 4, 5};
    const int32_t slots[] = {-1, 6, 2, INT32_MAX, INT32_MIN};
    sop_kv_append_desc d = {.tokens = 5, .k = 1, .pages = 2, .page = 3};
    sop_op_kv_append.complete(&d);
    EACH_ROW(row)
    {
        float k[8] = {9, 9, 9, 9, 9, 9, 9, 9}, v[8] = {9, 9, 9, 9, 9, 9, 9, 9};
        if (!append(row, &d, x, slots, k + 1, v + 1)) continue;
        for (int i = 0; i < 8; i++) CHECK(k[i] == (i == 3 ? 3 : 9) && v[i] == k[i]);
    }
}

static void rows_of_92_bytes_come_back_as_they_went_in(void)
{
    enum { T = 17, K = 46 };
    static float x[T * K];
    int32_t slots[T];
    static uint16_t k[2 * 16 * K], v[2 * 16 * K];
    sop_kv_append_desc d = {.tokens = T, .k = K, .pages = 2, .page = 16, .kv_dtype = SOP_BF16};
    sop_op_kv_append.complete(&d);
    for (int i = 0; i < T * K; i++) x[i] = sop_bf16_to_f32((uint16_t)(0x3f80 + i));
    for (int t = 0; t < T; t++) slots[t] = t;
    EACH_ROW(row)
    {
        memset(k, 0, sizeof k);
        if (!append(row, &d, x, slots, k, v)) continue;
        int bad = 0;
        for (int i = 0; i < T * K; i++) bad += k[i] != 0x3f80 + i || v[i] != k[i];
        for (int i = T * K; i < 32 * K; i++) bad += k[i] != 0;
        CHECK(bad == 0);
    }
}

static void a_nan_stays_one_in_every_type(void)
{
    float x[8];
    const uint32_t nan = 0x7f800001;
    const int32_t slot = 0;
    for (int i = 0; i < 8; i++) memcpy(x + i, &nan, 4);
    for (int32_t type = SOP_F16; type <= SOP_BF16; type++) {
        sop_kv_append_desc d = {.tokens = 1, .k = 8, .pages = 1, .kv_dtype = type};
        sop_op_kv_append.complete(&d);
        EACH_ROW(row)
        {
            uint16_t k[64 * 8], v[64 * 8];
            if (!append(row, &d, x, &slot, k, v)) continue;
            for (int i = 0; i < 8; i++)
                CHECK(row->device == SOP_DEVICE_CPU ? k[i] == (type == SOP_F16 ? 0x7e00 : 0x7fc0)
                                                    : isnan(sop_load(k, type, i)) != 0);
        }
    }
}

/* A page stride of 1,039,680 elements: page 2066 starts at 2,147,978,880, past 2^31. The pool is
 * address space only; two pages of it are touched. */
static void pages_past_two_to_the_31_elements_are_reached(void)
{
    enum { STRIDE = 1039680, PAGES = 2067 };
    const size_t bytes = (size_t)STRIDE * PAGES * 2;
    uint16_t *k = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (k == MAP_FAILED) {
        SKIP("pages_past_two_to_the_31_elements_are_reached", "no 4.3 GB of address space");
        return;
    }
    const float x[] = {1, 2, 3, 4};
    const int32_t slots[] = {2065 * 2, 2066 * 2 + 1};
    uint16_t v[2 * PAGES * 2];
    sop_kv_append_desc d = {
        .tokens = 2, .k = 2, .pages = PAGES, .page = 2, .kp_page = STRIDE, .kv_dtype = SOP_F16};
    sop_op_kv_append.complete(&d);
    EACH_ROW(row)
    {
        uint16_t *first = k + (size_t)2065 * STRIDE, *second = k + (size_t)2066 * STRIDE + 2;
        first[0] = first[1] = second[0] = second[1] = 0;
        if (!append(row, &d, x, slots, k, v)) continue;
        CHECK(first[0] == 0x3c00 && first[1] == 0x4000);   /* 1 2 */
        CHECK(second[0] == 0x4200 && second[1] == 0x4400); /* 3 4 */
    }
    (void)munmap(k, bytes);
}

static void codes_are_rounded_and_stop_at_their_ends(void)
{
    float x[] = {0.5f, 0.75f, -0.25f, 1e6f, -1e6f, 1.1f}, scale = 0.5f;
    static const int8_t i8[] = {1, 2, 0, 127, -127, 2};
    static const uint8_t f8[] = {0x38, 0x3c, 0xb0, 0x7e, 0xfe, 0x41};
    const int32_t slots[] = {0};
    EACH_ROW(row)
    {
        uint8_t k[6], v[6];
        sop_kv_append_desc d = {.tokens = 1, .k = 6, .pages = 1, .page = 1, .kv_dtype = SOP_I8};
        sop_operand args[SOP_KV_APPEND_ROLES] = {
            [SOP_KV_APPEND_K] = {x, 0},
            [SOP_KV_APPEND_V] = {x, 0},
            [SOP_KV_APPEND_K_SCALES] = {&scale, 0},
            [SOP_KV_APPEND_V_SCALES] = {&scale, 0},
            [SOP_KV_APPEND_SLOTS] = {(void *)(uintptr_t)slots, 0},
            [SOP_KV_APPEND_K_POOL] = {k, 0},
            [SOP_KV_APPEND_V_POOL] = {v, 0},
        };
        sop_op_kv_append.complete(&d);
        if (!row_takes(row, &d)) continue;
        CHECK(run_row(&sop_op_kv_append, row, &d, args, 1) == SOP_OK);
        CHECK(memcmp(k, i8, 6) == 0 && memcmp(v, i8, 6) == 0);
        d.kv_dtype = SOP_F8;
        CHECK(run_row(&sop_op_kv_append, row, &d, args, 1) == SOP_OK);
        CHECK(memcmp(k, f8, 6) == 0 && memcmp(v, f8, 6) == 0);
    }
}

int main(void)
{
    RUN(negative_slots_and_slots_beyond_the_pool_write_nothing);
    RUN(rows_of_92_bytes_come_back_as_they_went_in);
    RUN(a_nan_stays_one_in_every_type);
    RUN(pages_past_two_to_the_31_elements_are_reached);
    RUN(codes_are_rounded_and_stop_at_their_ends);
    return test_report();
}
