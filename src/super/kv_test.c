#include "super/kv.h"

#include <stdbool.h>
#include <string.h>

#include "base/test.h"
#include "sop/device.h"

static sop_device *device;
static sop_queue *queue;

static sop_kv *make(const sop_kv_layer *layers, int32_t n, int32_t seqs, int64_t ctx,
                    int64_t tokens)
{
    const sop_kv_spec spec = {.layers = layers,
                              .n_layers = n,
                              .dtype = SOP_F32,
                              .max_seqs = seqs,
                              .max_step = 64,
                              .ctx = ctx,
                              .tokens = tokens};
    sop_kv *kv = NULL;
    CHECK(sop_kv_create(device, &spec, false, &kv) == SOP_OK);
    return kv;
}

static const sop_kv_layer plain = {.heads = 1, .k = 2, .v = 2};

static void append(sop_kv *kv, int32_t seq, int64_t n)
{
    CHECK(sop_kv_reserve(kv, queue, seq, n) == SOP_OK);
    sop_kv_commit(kv, seq, n);
}

static int64_t free_pages(const sop_kv *kv, int32_t group)
{
    int64_t f, all;
    sop_kv_page_counts(kv, group, &f, &all);
    return f;
}

static void slots_follow_the_page_list(void)
{
    sop_kv *kv = make(&plain, 1, 2, 256, 512);
    int32_t a, b = -1;
    CHECK(sop_kv_open(kv, &a) == SOP_OK && sop_kv_open(kv, &b) == SOP_OK);
    append(kv, a, 64);
    append(kv, b, 1);
    append(kv, a, 1); /* takes a page after b's */
    CHECK(sop_kv_slot(kv, 0, a, 0) == 0 && sop_kv_slot(kv, 0, a, 63) == 63);
    CHECK(sop_kv_slot(kv, 0, b, 0) == 64);
    CHECK(sop_kv_slot(kv, 0, a, 64) == 128);
    int32_t table[8] = {-7, -7, -7};
    sop_kv_table(kv, 0, a, table);
    CHECK(table[0] == 0 && table[1] == 2 && table[2] == -7);
    sop_kv_destroy(kv);
}

static void every_page_comes_back_exactly_once(void)
{
    sop_kv *kv = make(&plain, 1, 3, 640, 1280);
    const int64_t all = free_pages(kv, 0);
    for (int round = 0; round < 50; round++) {
        int32_t s[3];
        for (int i = 0; i < 3; i++) CHECK(sop_kv_open(kv, &s[i]) == SOP_OK);
        append(kv, s[0], 1 + round * 7 % 60);
        append(kv, s[1], 64);
        CHECK(sop_kv_reserve(kv, queue, s[2], 64) == SOP_OK);
        sop_kv_rollback(kv, s[2]);
        append(kv, s[1], 2);
        CHECK(sop_kv_truncate(kv, s[1], 3) == SOP_OK);
        for (int i = 0; i < 3; i++) sop_kv_close(kv, s[(i + round) % 3]);
        CHECK(free_pages(kv, 0) == all);
    }
    sop_kv_destroy(kv);
}

static void a_prompt_over_the_context_is_refused_with_both_numbers(void)
{
    sop_kv *kv = make(&plain, 1, 1, 100, 100);
    int32_t s;
    CHECK(sop_kv_open(kv, &s) == SOP_OK);
    append(kv, s, 60);
    CHECK(sop_kv_reserve(kv, queue, s, 41) == SOP_E_LIMIT);
    CHECK(strstr(sop_last_error(), "60 tokens and 41") && strstr(sop_last_error(), "100"));
    CHECK(sop_kv_reserve(kv, queue, s, 40) == SOP_OK);
    sop_kv_destroy(kv);
}

static void without_pages_nothing_has_changed(void)
{
    sop_kv *kv = make(&plain, 1, 3, 640, 64); /* 1 page and one to waste for each sequence: 4 */
    int32_t a, b = -1;
    CHECK(sop_kv_open(kv, &a) == SOP_OK && sop_kv_open(kv, &b) == SOP_OK);
    append(kv, a, 64);
    append(kv, a, 64);
    append(kv, b, 10);
    CHECK(free_pages(kv, 0) == 1);
    CHECK(sop_kv_reserve(kv, queue, a, 64 + 1) == SOP_E_LIMIT);
    CHECK(free_pages(kv, 0) == 1 && sop_kv_length(kv, a) == 128);
    CHECK(sop_kv_reserve(kv, queue, a, 64) == SOP_OK);
    sop_kv_destroy(kv);
}

static void a_fork_copies_a_shared_page_before_it_writes(void)
{
    sop_kv *kv = make(&plain, 1, 3, 256, 512);
    const int64_t all = free_pages(kv, 0);
    int32_t a, b = -1;
    CHECK(sop_kv_open(kv, &a) == SOP_OK);
    append(kv, a, 5);
    float *k = sop_kv_pool(kv, 0, 0).data;
    k[2 * sop_kv_slot(kv, 0, a, 4)] = 7;
    CHECK(sop_kv_fork(kv, a, &b) == SOP_OK);
    CHECK(sop_kv_slot(kv, 0, b, 4) == sop_kv_slot(kv, 0, a, 4));
    append(kv, b, 1);
    CHECK(sop_kv_slot(kv, 0, b, 0) != sop_kv_slot(kv, 0, a, 0));
    CHECK(k[2 * sop_kv_slot(kv, 0, b, 4)] == 7);
    append(kv, a, 1); /* alone on its page again: no copy */
    CHECK(sop_kv_slot(kv, 0, a, 0) == 0);
    sop_kv_close(kv, a);
    sop_kv_close(kv, b);
    CHECK(free_pages(kv, 0) == all);
    sop_kv_destroy(kv);
}

static void a_windowed_group_gives_pages_back_and_keeps_its_window(void)
{
    const sop_kv_layer layers[3] = {plain, {.heads = 1, .k = 2, .v = 2, .window = 100}, plain};
    sop_kv *kv = make(layers, 3, 1, 4096, 4096);
    int32_t s;
    CHECK(sop_kv_n_groups(kv) == 2 && sop_kv_group(kv, 1) != sop_kv_group(kv, 2));
    const int32_t g = sop_kv_group(kv, 1);
    CHECK(sop_kv_pages(kv, g) < 8);
    CHECK(sop_kv_open(kv, &s) == SOP_OK);
    int32_t table[64];
    for (int64_t n = 0; n + 64 <= 4096; n += 64) {
        append(kv, s, 64);
        sop_kv_table(kv, g, s, table);
        /* the next query, at n + 64, sees from n + 64 - 99 on */
        const int64_t first = n + 64 - 99 > 0 ? (n + 64 - 99) / SOP_KV_PAGE : 0;
        for (int64_t p = 0; p <= n / SOP_KV_PAGE; p++) CHECK((table[p] >= 0) == (p >= first));
    }
    CHECK(sop_kv_truncate(kv, s, 4090) == SOP_OK);
    CHECK(sop_kv_truncate(kv, s, 1000) == SOP_E_ARG);
    CHECK(sop_kv_length(kv, s) == 4090);
    const int64_t all = sop_kv_pages(kv, g);
    CHECK(sop_kv_truncate(kv, s, 0) == SOP_OK && free_pages(kv, g) == all);
    append(kv, s, 64);
    sop_kv_table(kv, g, s, table);
    CHECK(table[0] >= 0 && free_pages(kv, g) == all - 1);
    sop_kv_destroy(kv);
}

static void codes_take_half_the_memory_and_have_scales(void)
{
    const sop_kv_layer layers[2] = {{.heads = 3, .k = 64, .v = 32}, {.heads = 1, .k = 16, .v = 16}};
    sop_kv_spec spec = {.layers = layers,
                        .n_layers = 2,
                        .dtype = SOP_F16,
                        .max_seqs = 2,
                        .max_step = 64,
                        .ctx = 1024,
                        .tokens = 2048};
    size_t halves, codes, host;
    sop_kv *kv;
    CHECK(sop_kv_bytes(&spec, &halves, &host) == SOP_OK);
    spec.dtype = SOP_I8;
    CHECK(sop_kv_bytes(&spec, &codes, &host) == SOP_OK && host == 0);
    CHECK(codes == halves / 2 + 2 * (3 + 1) * sizeof(float));
    CHECK(sop_kv_create(device, &spec, false, &kv) == SOP_OK);
    const sop_operand a = sop_kv_scales(kv, 0, 1), b = sop_kv_scales(kv, 1, 0);
    CHECK(a.bytes == 12 && b.bytes == 4 && (char *)a.data + 12 == (char *)b.data);
    sop_kv_destroy(kv);
    spec.dtype = SOP_F16;
    CHECK(sop_kv_create(device, &spec, false, &kv) == SOP_OK);
    CHECK(!sop_kv_scales(kv, 0, 0).data);
    sop_kv_destroy(kv);
}

static void a_window_takes_the_same_memory_however_long_the_context_is(void)
{
    const sop_kv_layer layers[2] = {{.heads = 2, .k = 64, .v = 64, .window = 512}, plain};
    sop_kv_spec spec = {.layers = layers,
                        .n_layers = 1,
                        .dtype = SOP_F16,
                        .max_seqs = 4,
                        .max_step = 256,
                        .ctx = 4096,
                        .tokens = 4 * 4096};
    size_t at_4k, at_128k, host;
    CHECK(sop_kv_bytes(&spec, &at_4k, &host) == SOP_OK);
    spec.ctx = 131072;
    spec.tokens = 4 * 131072;
    CHECK(sop_kv_bytes(&spec, &at_128k, &host) == SOP_OK);
    /* pages of the window, of a step and two more, of K and V, for each sequence */
    CHECK(at_4k == at_128k && at_4k == (size_t)4 * (8 + 4 + 2) * 2 * (2 * 64 * 64) * 2);
}

/* ---- on the host ---- */

static const sop_kv_layer both[2] = {{.heads = 1, .k = 2, .v = 2},
                                     {.heads = 1, .k = 2, .v = 2, .window = 100}};

static sop_kv *make_hosted(int32_t seqs, int64_t tokens, int64_t host_pages)
{
    const sop_kv_spec spec = {.layers = both,
                              .n_layers = 2,
                              .dtype = SOP_F32,
                              .max_seqs = seqs,
                              .max_step = 64,
                              .ctx = 1024,
                              .tokens = tokens,
                              .host_bytes = (size_t)host_pages * 2 * 2 * SOP_KV_PAGE * 8};
    sop_kv *kv = NULL;
    CHECK(sop_kv_create(device, &spec, false, &kv) == SOP_OK);
    return kv;
}

static float *key(const sop_kv *kv, int32_t layer, int32_t seq, int64_t at)
{
    float *pool = sop_kv_pool(kv, layer, at & 1).data;
    return pool + 2 * sop_kv_slot(kv, sop_kv_group(kv, layer), seq, at);
}

/* Every position of a sequence that its layers still have: written, or compared. */
static bool marked(const sop_kv *kv, int32_t seq, float mark, bool write)
{
    for (int32_t l = 0; l < 2; l++) {
        const int64_t length = sop_kv_length(kv, seq), first = l && length > 100 ? length - 99 : 0;
        for (int64_t at = first; at < length; at++) {
            const float want = mark + (float)(1000 * l + at);
            if (write) *key(kv, l, seq, at) = want;
            if (*key(kv, l, seq, at) != want) return false;
        }
    }
    return true;
}

static void grow_marked(sop_kv *kv, int32_t seq, int64_t n, float mark)
{
    for (; n > 0; n -= 64) append(kv, seq, n < 64 ? n : 64);
    (void)marked(kv, seq, mark, true);
}

static void a_sequence_on_the_host_comes_back_as_it_was(void)
{
    sop_kv *kv = make_hosted(2, 512, 16); /* 8 pages and 2 */
    const int64_t all = free_pages(kv, 0);
    int32_t a, b = -1;
    uint64_t out, in;
    CHECK(sop_kv_open(kv, &a) == SOP_OK && sop_kv_open(kv, &b) == SOP_OK);
    grow_marked(kv, a, 400, 1e4f);
    CHECK(!sop_kv_fits(kv, b, 400) && sop_kv_reserve(kv, queue, b, 400) == SOP_E_LIMIT);
    CHECK(sop_kv_offload(kv, a) == SOP_OK && sop_kv_is_away(kv, a));
    CHECK(sop_kv_offload(kv, a) == SOP_OK); /* it is there */
    CHECK(sop_kv_fits(kv, b, 400));
    grow_marked(kv, b, 400, 2e4f); /* on a's pages */
    CHECK(!sop_kv_fits(kv, a, 1) && sop_kv_restore(kv, a) == SOP_E_LIMIT);
    CHECK(strstr(sop_last_error(), "7 pages from the host, 3 of 10 are free"));
    CHECK(marked(kv, b, 2e4f, false));
    CHECK(sop_kv_offload(kv, b) == SOP_OK);
    append(kv, a, 1); /* brings it back */
    *key(kv, 0, a, 400) = 1e4f + 400;
    *key(kv, 1, a, 400) = 1e4f + 1400;
    CHECK(!sop_kv_is_away(kv, a) && marked(kv, a, 1e4f, false));
    sop_kv_close(kv, a);
    CHECK(sop_kv_restore(kv, b) == SOP_OK && marked(kv, b, 2e4f, false));
    CHECK(sop_kv_truncate(kv, b, 390) == SOP_OK && sop_kv_length(kv, b) == 390);
    sop_kv_moved(kv, &out, &in);
    CHECK(out == in && out == 2 * (7 + 3));
    sop_kv_close(kv, b);
    CHECK(free_pages(kv, 0) == all);
    sop_kv_destroy(kv);
}

static void what_others_share_stays_on_the_device(void)
{
    sop_kv *kv = make_hosted(3, 1024, 16);
    int32_t a, b = -1;
    CHECK(sop_kv_open(kv, &a) == SOP_OK);
    grow_marked(kv, a, 130, 1e4f);
    CHECK(sop_kv_fork(kv, a, &b) == SOP_OK);
    append(kv, b, 1); /* a page of its own */
    const int64_t before = free_pages(kv, 0);
    CHECK(sop_kv_offload(kv, a) == SOP_OK && marked(kv, b, 1e4f, false) == false);
    *key(kv, 0, b, 130) = 1e4f + 130;
    *key(kv, 1, b, 130) = 1e4f + 1130;
    CHECK(marked(kv, b, 1e4f, false));
    CHECK(sop_kv_reserve(kv, queue, b, 64) == SOP_OK); /* waits for nothing */
    sop_kv_rollback(kv, b);
    CHECK(sop_kv_fork(kv, a, &a) == SOP_OK); /* the copy; it brings a back */
    CHECK(free_pages(kv, 0) == before && marked(kv, a, 1e4f, false));
    sop_kv_destroy(kv);
}

static void a_full_host_refuses_with_the_numbers(void)
{
    sop_kv *kv = make_hosted(2, 1024, 5);
    int32_t a, b = -1;
    CHECK(sop_kv_open(kv, &a) == SOP_OK && sop_kv_open(kv, &b) == SOP_OK);
    grow_marked(kv, a, 200, 1e4f);
    grow_marked(kv, b, 100, 2e4f);
    CHECK(sop_kv_offload(kv, a) == SOP_OK);
    CHECK(sop_kv_offload(kv, b) == SOP_E_LIMIT);
    CHECK(strstr(sop_last_error(), "2 pages to the host, 1 of 5 are free there"));
    CHECK(!sop_kv_is_away(kv, b) && marked(kv, b, 2e4f, false));
    CHECK(sop_kv_truncate(kv, a, 0) == SOP_OK && sop_kv_offload(kv, b) == SOP_OK);
    sop_kv_close(kv, b);
    grow_marked(kv, a, 300, 3e4f);
    CHECK(sop_kv_offload(kv, a) == SOP_OK); /* all 5 places were given back */
    sop_kv_destroy(kv);
    kv = make_hosted(1, 1024, 0);
    CHECK(sop_kv_open(kv, &a) == SOP_OK);
    append(kv, a, 1);
    CHECK(sop_kv_offload(kv, a) == SOP_E_LIMIT && strstr(sop_last_error(), "0 of 0"));
    sop_kv_destroy(kv);
}

int main(void)
{
    CHECK(sop_device_cpu(1, &device) == SOP_OK);
    CHECK(device->ops->queue_create(device, &queue) == SOP_OK);
    RUN(slots_follow_the_page_list);
    RUN(every_page_comes_back_exactly_once);
    RUN(a_prompt_over_the_context_is_refused_with_both_numbers);
    RUN(without_pages_nothing_has_changed);
    RUN(a_fork_copies_a_shared_page_before_it_writes);
    RUN(a_windowed_group_gives_pages_back_and_keeps_its_window);
    RUN(codes_take_half_the_memory_and_have_scales);
    RUN(a_window_takes_the_same_memory_however_long_the_context_is);
    RUN(a_sequence_on_the_host_comes_back_as_it_was);
    RUN(what_others_share_stays_on_the_device);
    RUN(a_full_host_refuses_with_the_numbers);
    device->ops->queue_destroy(queue);
    sop_device_destroy(device);
    return test_report();
}
