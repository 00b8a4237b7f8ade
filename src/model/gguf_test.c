#include "model/gguf.h"

#include <inttypes.h>

#include "base/hash.h"
#include "model/file_test.h"

/* The GGUF of the test that runs; room for the largest. */
static struct {
    uint8_t b[1 << 17];
    size_t n;
} g;

static void put(const void *p, size_t n)
{
    if (g.n + n > sizeof g.b) abort();
    memcpy(g.b + g.n, p, n);
    g.n += n;
}

static void u32(uint32_t v)
{
    put(&v, sizeof v);
}

static void u64(uint64_t v)
{
    put(&v, sizeof v);
}

static void text_n(const char *s, size_t n)
{
    u64(n);
    put(s, n);
}

static void text(const char *s)
{
    text_n(s, strlen(s));
}

static void begin(uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    g.n = 0;
    put("GGUF", 4);
    u32(version);
    u64(n_tensors);
    u64(n_keys);
}

static void key(const char *name, uint32_t type)
{
    text(name);
    u32(type);
}

static void key_u32(const char *name, uint32_t v)
{
    key(name, SOP_META_U32);
    u32(v);
}

static void tensor(const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                   uint64_t offset)
{
    text(name);
    u32(n_dims);
    put(ne, n_dims * sizeof *ne);
    u32(type);
    u64(offset);
}

/* Padding to 32, then n bytes 0, 1, 2 ... */
static void data(size_t n)
{
    while (g.n % 32 != 0) put("", 1);
    for (size_t i = 0; i < n; i++) put(&(uint8_t){(uint8_t)i}, 1);
}

/* Parses the first n bytes, from a block of just that size, so that a sanitizer sees a read behind it. */
static sop_status parse_n(size_t n)
{
    uint8_t *copy = __real_malloc(n ? n : 1);
    sop_file *f = sop_file_create();
    if (!copy || !f) abort();
    memcpy(copy, g.b, n);
    sop_status s = sop_gguf_parse(f, copy, n, "test.gguf", 0);
    if (s == SOP_OK) s = sop_file_seal(f);
    if (s == SOP_OK) (void)walk(f);
    sop_file_close(f);
    free(copy);
    return s;
}

/* The file, which must be a good one; its tensors are in g. */
static sop_file *parsed(void)
{
    sop_file *f = sop_file_create();
    if (!f || sop_gguf_parse(f, g.b, g.n, "test.gguf", 0) != SOP_OK || sop_file_seal(f) != SOP_OK) {
        printf("%s\n", sop_last_error());
        abort();
    }
    return f;
}

static sop_status parse(void)
{
    return parse_n(g.n);
}

static const uint64_t four[] = {4, 1, 1, 1};

static void one_tensor(uint32_t n_dims, const uint64_t *ne, uint32_t type)
{
    begin(3, 1, 0);
    tensor("w", n_dims, ne, type, 0);
    data(64);
}

/* Every type of value, arrays, and three tensors; with_data false leaves the data away. */
static void whole_file(bool with_data)
{
    const uint64_t a[] = {4, 3, 2}, b[] = {64, 2};
    begin(3, 3, 16);
    key("u8", 0), put("\xff", 1);
    key("i8", 1), put("\xff", 1);
    key("u16", 2), put("\xff\xff", 2);
    key("i16", 3), put("\xfe\xff", 2);
    key_u32("u32", 4000000000u);
    key("i32", 5), u32((uint32_t)-5);
    key("f32", 6), put(&(float){1.5f}, 4);
    key("yes", 7), put("\1", 1);
    key("name", 8), text("ein Name");
    key("u64", 10), u64(UINT64_MAX);
    key("i64", 11), u64((uint64_t)-7);
    key("f64", 12), put(&(double){0.1}, 8);
    key("strings", 9), u32(8), u64(3), text("a"), text(""), text_n("b\0c", 3);
    key("numbers", 9), u32(3), u64(2), put("\1\0\xff\xff", 4);
    key("floats", 9), u32(6), u64(1), put(&(float){0.25f}, 4);
    key("empty", 9), u32(8), u64(0);
    tensor("a", 3, a, 0, 0);
    tensor("blk.0.b", 2, b, 8, 96);
    tensor("scalar", 0, a, 1, 256);
    if (with_data) data(258);
}

static void a_file_is_read_back(void)
{
    sop_tensor t;
    int64_t i = 0;
    double d = 0;
    bool yes = false;
    size_t n = 0;
    whole_file(true);
    sop_file *f = parsed();
    CHECK(sop_file_n_keys(f) == 16 && sop_file_n_tensors(f) == 3);
    CHECK(strcmp(sop_file_key(f, 4), "u32") == 0 && sop_file_key(f, 16) == NULL);
    CHECK(strcmp(sop_file_tensor_name(f, 1), "blk.0.b") == 0);
    CHECK(sop_file_tensor_name(f, 3) == NULL && sop_file_tensor_name(f, -1) == NULL);
    CHECK(sop_file_i64(f, "u8", &i) && i == 255);
    CHECK(sop_file_i64(f, "i8", &i) && i == -1);
    CHECK(sop_file_i64(f, "u16", &i) && i == 65535);
    CHECK(sop_file_i64(f, "i16", &i) && i == -2);
    CHECK(sop_file_i64(f, "u32", &i) && i == 4000000000);
    CHECK(sop_file_i64(f, "i32", &i) && i == -5);
    CHECK(sop_file_i64(f, "i64", &i) && i == -7);
    CHECK(sop_file_f64(f, "f32", &d) && d == 1.5);
    CHECK(sop_file_f64(f, "f64", &d) && d == 0.1);
    CHECK(sop_file_f64(f, "i32", &d) && d == -5);
    CHECK(sop_file_f64(f, "u64", &d) && d == 0x1p64);
    CHECK(sop_file_bool(f, "yes", &yes) && yes);
    CHECK(strcmp(sop_file_str(f, "name", &n), "ein Name") == 0 && n == 8);
    CHECK(sop_file_array(f, "strings") == 3 && sop_file_array(f, "numbers") == 2);
    CHECK(sop_file_array(f, "empty") == 0);
    CHECK(strcmp(sop_file_array_str(f, "strings", 0, &n), "a") == 0 && n == 1);
    CHECK(strcmp(sop_file_array_str(f, "strings", 1, &n), "") == 0 && n == 0);
    CHECK(memcmp(sop_file_array_str(f, "strings", 2, &n), "b\0c", 4) == 0 && n == 3);
    CHECK(sop_file_array_i64(f, "numbers", 0, &i) && i == 1);
    CHECK(sop_file_array_i64(f, "numbers", 1, &i) && i == -1);
    CHECK(sop_file_array_f64(f, "floats", 0, &d) && d == 0.25);

    CHECK(sop_file_tensor(f, "a", &t) && t.dtype == SOP_F32 && t.ndim == 3 && t.bytes == 96);
    CHECK(t.shape[0] == 2 && t.shape[1] == 3 && t.shape[2] == 4);
    CHECK(t.stride[0] == 12 && t.stride[1] == 4 && t.stride[2] == 1);
    CHECK(((const uint8_t *)t.data)[0] == 0 && ((const uint8_t *)t.data)[95] == 95);
    CHECK(sop_file_tensor(f, "blk.0.b", &t) && t.dtype == SOP_Q8_0 && t.bytes == 136);
    CHECK(t.shape[0] == 2 && t.shape[1] == 64 && t.stride[0] == 2 && t.stride[1] == 1);
    CHECK(((const uint8_t *)t.data)[0] == 96);
    CHECK(sop_file_tensor(f, "scalar", &t) && t.ndim == 0 && t.bytes == 2);
    CHECK(strcmp(sop_file_tensor_type(f, "scalar"), "F16") == 0);
    sop_file_close(f);
}

static void a_getter_says_no_to_an_absent_key_and_another_type(void)
{
    sop_tensor t;
    int64_t i = 42;
    double d = 42;
    bool yes = true;
    size_t n = 42;
    whole_file(true);
    sop_file *f = parsed();
    CHECK(!sop_file_i64(f, "none", &i) && !sop_file_i64(f, "name", &i));
    CHECK(!sop_file_i64(f, "f32", &i) && !sop_file_i64(f, "yes", &i));
    CHECK(!sop_file_i64(f, "u64", &i) && !sop_file_i64(f, "numbers", &i));
    CHECK(!sop_file_f64(f, "name", &d) && !sop_file_f64(f, "yes", &d));
    CHECK(!sop_file_bool(f, "u8", &yes));
    CHECK(!sop_file_str(f, "u8", &n) && !sop_file_str(f, "strings", &n));
    CHECK(sop_file_array(f, "u8") == -1 && sop_file_array(f, "none") == -1);
    CHECK(!sop_file_array_str(f, "strings", 3, &n) && !sop_file_array_str(f, "strings", -1, &n));
    CHECK(!sop_file_array_str(f, "numbers", 0, &n) && !sop_file_array_i64(f, "strings", 0, &i));
    CHECK(!sop_file_array_i64(f, "numbers", 2, &i) && !sop_file_array_f64(f, "empty", 0, &d));
    CHECK(!sop_file_tensor(f, "none", &t) && !sop_file_tensor_type(f, "none"));
    CHECK(i == 42 && d == 42 && yes && n == 42);
    sop_file_close(f);
}

static void every_type_has_the_size_that_superop_gives_it(void)
{
    const uint64_t ne[] = {256, 1, 1, 1};
    sop_tensor t;
    int known = 0, listed = 0;
    for (uint32_t type = 0; type < 64; type++) {
        begin(3, 1, 0);
        tensor("w", 1, ne, type, 0);
        data(2048);
        if (parse() != SOP_OK) continue;
        sop_file *f = parsed();
        CHECK(sop_file_tensor(f, "w", &t));
        known++;
        if (t.dtype >= 0) {
            CHECK(t.bytes == sop_dtype_row_bytes(t.dtype, 256));
            CHECK(strcasecmp(sop_dtype_text(t.dtype), sop_file_tensor_type(f, "w")) == 0);
            listed++;
        }
        sop_file_close(f);
    }
    CHECK(known == 34 && listed == 15);
}

static void a_type_that_superop_cannot_compute_with_is_listed(void)
{
    const uint64_t ne[] = {256, 2};
    sop_tensor t;
    begin(3, 1, 0);
    tensor("w", 2, ne, 23, 0);
    data(272);
    sop_file *f = parsed();
    CHECK(sop_file_tensor(f, "w", &t) && t.dtype == -1 && t.bytes == 272 && t.shape[1] == 256);
    CHECK(strcmp(sop_file_tensor_type(f, "w"), "IQ4_XS") == 0);
    sop_file_close(f);
    CHECK(parse_n(g.n - 1) == SOP_E_FORMAT && says("1 are missing"));
}

static void removed_and_unknown_types_are_refused(void)
{
    const uint32_t types[] = {4, 5, 31, 32, 33, 36, 37, 38, 99, 0x7fffffff, 0xffffffff};
    const uint64_t ne[] = {256};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        one_tensor(1, ne, types[i]);
        CHECK(parse() == SOP_E_UNSUPPORTED && says("tensor w has type"));
    }
}

/* ---- the head */

static void another_magic_or_version_is_refused(void)
{
    begin(3, 0, 0);
    CHECK(parse() == SOP_OK);
    begin(2, 0, 0);
    CHECK(parse() == SOP_OK);
    begin(1, 0, 0);
    CHECK(parse() == SOP_E_UNSUPPORTED && says("version 1, must be 2 or 3"));
    begin(4, 0, 0);
    CHECK(parse() == SOP_E_UNSUPPORTED && says("version 4"));
    begin(3, 0, 0);
    g.b[3] = 'X';
    CHECK(parse() == SOP_E_FORMAT && says("begins with 47 47 55 58"));
}

static void a_big_endian_file_is_called_so(void)
{
    begin(0x03000000, 0, 0);
    CHECK(parse() == SOP_E_UNSUPPORTED && says("a big-endian file (version 3)"));
}

static void absurd_counts_are_refused_before_memory_is_taken(void)
{
    const uint64_t counts[] = {UINT64_C(1) << 60, UINT64_C(1) << 40, UINT64_MAX, 1 << 21, 3};
    const uint64_t before = allocated_bytes;
    for (size_t i = 0; i < 5; i++) {
        begin(3, counts[i], 0);
        CHECK(parse() == SOP_E_FORMAT && says("tensors"));
        begin(3, 0, counts[i]);
        CHECK(parse() == SOP_E_FORMAT && says("keys"));
        begin(3, 0, 1);
        key("k", 9), u32(8), u64(counts[i]);
        CHECK(parse() == SOP_E_FORMAT && says("k"));
        begin(3, 0, 1);
        key("k", 9), u32(12), u64(counts[i]), u64(0), u64(0);
        CHECK(parse() == SOP_E_FORMAT && says("k"));
    }
    CHECK(allocated_bytes - before < 4000000);
}

/* ---- keys and strings */

static void a_string_longer_than_the_file_takes_no_memory(void)
{
    const uint64_t lengths[] = {1 << 30, (1 << 30) + 1, UINT64_C(1) << 63, UINT64_MAX, 129};
    for (size_t i = 0; i < 5; i++) {
        begin(3, 0, 1);
        key("k", 8);
        u64(lengths[i]);
        while (g.n < 160) put("x", 1);
        const uint64_t before = allocated_bytes;
        CHECK(parse() == SOP_E_FORMAT && says("k at byte"));
        CHECK(allocated_bytes - before < 1 << 20);
        begin(3, 0, 1);
        u64(lengths[i]);
        while (g.n < 160) put("x", 1);
        CHECK(parse() == SOP_E_FORMAT && says("a key at byte"));
    }
}

static void a_key_or_name_that_cannot_be_printed_is_refused(void)
{
    static char longest[65536];
    memset(longest, 'x', sizeof longest);
    begin(3, 0, 1);
    key("", 0), put("", 1);
    CHECK(parse() == SOP_E_FORMAT && says("a key before byte 32 is empty"));
    begin(3, 0, 1);
    text_n("a\0b", 3), u32(0), put("", 1);
    CHECK(parse() == SOP_E_FORMAT && says("control character"));
    begin(3, 0, 1);
    key("a\033[2J", 0), put("", 1);
    CHECK(parse() == SOP_E_FORMAT && says("control character"));
    begin(3, 0, 1);
    text_n(longest, 65536), u32(0), put("", 1);
    CHECK(parse() == SOP_E_FORMAT && says("65536 bytes, at most 65535"));
    begin(3, 0, 1);
    text_n(longest, 65535), u32(0), put("", 1);
    CHECK(parse() == SOP_OK);

    begin(3, 1, 0);
    tensor("", 1, four, 0, 0), data(16);
    CHECK(parse() == SOP_E_FORMAT && says("a tensor's name before byte 32 is empty"));
    begin(3, 1, 0);
    text_n("w\0", 2), u32(1), u64(4), u32(0), u64(0), data(16);
    CHECK(parse() == SOP_E_FORMAT && says("control character"));
    longest[64] = 0;
    begin(3, 1, 0);
    tensor(longest, 1, four, 0, 0), data(16);
    CHECK(parse() == SOP_E_FORMAT && says("64 bytes, at most 63"));
    begin(3, 1, 0);
    tensor(longest + 1, 1, four, 0, 0), data(16);
    CHECK(parse() == SOP_OK);
}

static void names_that_stand_there_twice_are_refused(void)
{
    begin(3, 0, 2);
    key_u32("a", 1);
    key_u32("a", 1);
    CHECK(parse() == SOP_E_FORMAT && says("key a stands there twice"));
    begin(3, 2, 0);
    tensor("w", 1, four, 0, 0);
    tensor("w", 1, four, 0, 32);
    data(64);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w stands there twice"));
}

static void names_that_were_made_to_collide_are_refused(void)
{
    enum { N = 600, SLOTS = 2048 }; /* the table of 600 names has 2048 */
    char name[17];
    begin(3, 0, N);
    for (uint32_t i = 0, n = 0; n < N; i++) {
        for (int k = 0; k < 8; k++) name[k] = (char)('a' + (i >> 4 * k & 15));
        name[8] = 0;
        if (sop_hash(name, 8, 0) % SLOTS != 0) continue;
        key(name, 0), put("", 1);
        n++;
    }
    CHECK(parse() == SOP_E_FORMAT && says("names were made to collide"));
    begin(3, 0, N);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        key(name, 0), put("", 1);
    }
    CHECK(parse() == SOP_OK);
}

static void values_of_no_known_type_are_refused(void)
{
    const uint32_t types[] = {13, 99, 0xffffffff};
    for (size_t i = 0; i < 3; i++) {
        begin(3, 0, 1);
        key("k", types[i]), u64(0);
        CHECK(parse() == SOP_E_FORMAT && says("key k has a value of type"));
        begin(3, 0, 1);
        key("k", 9), u32(types[i]), u64(0), u64(0);
        CHECK(parse() == SOP_E_FORMAT && says("key k has a value of type"));
    }
    begin(3, 0, 1);
    key("k", 9), u32(9), u64(1), u32(9), u64(1), u32(9), u64(1);
    CHECK(parse() == SOP_E_FORMAT && says("an array in an array"));
    begin(3, 0, 1);
    key("k", 7), put("\2", 1);
    CHECK(parse() == SOP_E_FORMAT && says("the byte 2 as a bool"));
    begin(3, 0, 1);
    key("k", 9), u32(7), u64(3), put("\0\1\xff", 3);
    CHECK(parse() == SOP_E_FORMAT && says("the byte 255 as a bool"));
}

static void an_alignment_is_a_power_of_two_and_holds_for_the_data(void)
{
    const uint32_t wrong[] = {0, 24, 33, 1u << 21, 1u << 31};
    const uint64_t ne[] = {8};
    sop_tensor t;
    for (size_t i = 0; i < 5; i++) {
        begin(3, 0, 1);
        key_u32("general.alignment", wrong[i]);
        CHECK(parse() == SOP_E_FORMAT && says("general.alignment is"));
    }
    begin(3, 0, 1);
    key("general.alignment", 10), u64(32);
    CHECK(parse() == SOP_E_FORMAT && says("has type 10, must be u32"));
    begin(3, 0, 1);
    key("general.alignment", 9), u32(4), u64(0);
    CHECK(parse() == SOP_E_FORMAT && says("must be u32"));
    begin(3, 2, 1);
    key_u32("general.alignment", 64);
    tensor("a", 1, ne, 0, 0);
    tensor("b", 1, ne, 0, 64);
    while (g.n % 64 != 0) put("", 1);
    data(96);
    sop_file *f = parsed();
    CHECK(sop_file_tensor(f, "b", &t) && ((const uint8_t *)t.data)[0] == 64);
    sop_file_close(f);
}

/* ---- tensors */

static void more_than_four_dimensions_are_refused_with_the_count(void)
{
    const uint64_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    one_tensor(5, ones, 0);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has 5 dimensions, at most 4"));
    one_tensor(9, ones, 0);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has 9 dimensions"));
    begin(3, 1, 0);
    text("w"), u32(UINT32_MAX), data(64);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has 4294967295 dimensions"));
    one_tensor(4, ones, 0);
    CHECK(parse() == SOP_OK);
}

static void a_product_of_dimensions_that_wraps_is_refused(void)
{
    const uint64_t p32 = UINT64_C(1) << 32, p62 = UINT64_C(1) << 62;
    const uint64_t shapes[][4] = {{1152, (UINT64_C(1) << 42) + 1, 1, 1},
                                  {p32, p32, 1, 1},
                                  {p32, p32, p32, p32},
                                  {p62, 1, 1, 1},
                                  {p62, 2, 2, 1},
                                  {INT64_MAX, 1, 1, 1}};
    const uint32_t types[] = {8, 0, 0, 0, 24, 27};
    const uint64_t before = allocated_bytes;
    for (size_t i = 0; i < 6; i++) {
        one_tensor(4, shapes[i], types[i]);
        CHECK(parse() == SOP_E_FORMAT && (i == 0 ? says("missing") : says("overflows 64 bits")));
    }
    /* Q8_0 with rows of 2^59 blocks: 34 bytes each wrap */
    const uint64_t blocks[] = {32, UINT64_C(1) << 59, 1, 1};
    one_tensor(4, blocks, 8);
    CHECK(parse() == SOP_E_FORMAT && says("overflows 64 bits"));
    CHECK(allocated_bytes - before < 1400000);
}

static void a_dimension_below_one_is_refused(void)
{
    const uint64_t zero[] = {4, 0}, first[] = {0, 4}, negative[] = {4, (uint64_t)-1};
    one_tensor(2, zero, 0);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has dimension 1 = 0"));
    one_tensor(2, first, 8);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has dimension 0 = 0"));
    one_tensor(2, negative, 0);
    CHECK(parse() == SOP_E_FORMAT && says("tensor w has dimension 1 = -1"));
}

static void rows_that_are_no_whole_blocks_are_refused(void)
{
    const uint64_t ne[] = {48, 2}, k[] = {128};
    one_tensor(2, ne, 8);
    CHECK(parse() == SOP_E_FORMAT && says("rows of 48 elements, Q8_0 needs a multiple of 32"));
    one_tensor(1, k, 12);
    CHECK(parse() == SOP_E_FORMAT && says("rows of 128 elements, Q4_K needs a multiple of 256"));
    one_tensor(0, k, 8); /* a scalar is one element */
    CHECK(parse() == SOP_E_FORMAT && says("rows of 1 elements"));
}

static void tensors_that_overlap_or_leave_a_gap_are_refused(void)
{
    const uint64_t offsets[] = {0, 16, 64, 33, UINT64_MAX - 31, UINT64_C(1) << 63};
    for (size_t i = 0; i < 6; i++) {
        begin(3, 2, 0);
        tensor("a", 1, four, 0, 0);
        tensor("b", 1, four, 0, offsets[i]);
        data(128);
        CHECK(parse() == SOP_E_FORMAT && says("tensor b lies at offset"));
        CHECK(says(offsets[i] < 32 ? "overlap" : "gap"));
    }
    begin(3, 1, 0);
    tensor("a", 1, four, 0, 32);
    data(64);
    CHECK(parse() == SOP_E_FORMAT && says("tensor a lies at offset 32, must be at 0 (gap)"));
}

static void data_that_is_not_all_there_is_refused_with_what_is_missing(void)
{
    const uint64_t huge[] = {UINT64_C(1) << 60};
    begin(3, 1, 0);
    tensor("w", 1, four, 0, 0);
    const size_t head_bytes = g.n;
    data(16);
    CHECK(parse() == SOP_OK);
    CHECK(parse_n(g.n - 1) == SOP_E_FORMAT && says("tensor w ends at byte 80") &&
          says("1 are missing"));
    CHECK(parse_n(head_bytes) == SOP_E_FORMAT && says("missing"));
    one_tensor(1, huge, 24);
    CHECK(parse() == SOP_E_FORMAT && says("missing"));
    /* the last tensor's padding may be absent, bytes behind it are never looked at */
    begin(3, 1, 0);
    tensor("w", 1, four, 0, 0);
    data(100);
    CHECK(parse() == SOP_OK);
}

/* ---- whole files */

static void a_file_cut_anywhere_is_refused(void)
{
    whole_file(true);
    const size_t n = g.n;
    for (size_t cut = 0; cut < n; cut++) CHECK(parse_n(cut) != SOP_OK);
    CHECK(parse_n(n) == SOP_OK);
}

static void a_flipped_bit_never_reads_outside_the_file(void)
{
    whole_file(false);
    const size_t head_bytes = g.n;
    int refused = 0;
    whole_file(true);
    for (size_t bit = 0; bit < 8 * head_bytes; bit++) {
        g.b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refused += parse() != SOP_OK;
        g.b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* what remains are other numbers and other letters */
    CHECK(refused > (int)head_bytes * 2);
}

static void memory_that_runs_out_is_a_status(void)
{
    const char *path = SOP_TEST_DATA "/tiny/llama/model.gguf";
    sop_file *f;
    int64_t needed = 0;
    for (int64_t i = 0; i < 200; i++) {
        n_allocations = 0;
        fails_at = i;
        const sop_status s = sop_file_open(path, &f);
        fails_at = -1;
        CHECK(s == SOP_OK || (s == SOP_E_NOMEM && f == NULL));
        CHECK(s != SOP_OK || n_allocations <= i);
        if (s == SOP_OK && needed == 0) needed = i;
        sop_file_close(f);
    }
    CHECK(needed > 5);
}

static void a_real_file_cut_at_each_percent_is_refused(void)
{
    const char *whole = SOP_TEST_DATA "/tiny/qwen2/model.gguf", *path = in_folder("cut.gguf");
    sop_file *f;
    size_t n;
    uint8_t *bytes = read_file(whole, &n);
    CHECK(sop_file_open(whole, &f) == SOP_OK);
    CHECK(sop_file_kind(f) == SOP_FILE_GGUF && sop_file_mapped_bytes(f) == n);
    (void)walk(f);
    sop_file_close(f);
    for (size_t percent = 0; percent < 100; percent++) {
        write_file(path, bytes, n * percent / 100);
        CHECK(sop_file_open(path, &f) != SOP_OK && f == NULL && says("cut.gguf"));
    }
    const size_t cuts[] = {n - 1, n - 4096, n / 2};
    for (size_t i = 0; i < 3; i++) {
        write_file(path, bytes, cuts[i]);
        CHECK(sop_file_open(path, &f) == SOP_E_FORMAT && says("are missing"));
    }
    (void)unlink(path);
    free(bytes);
}

static void what_is_no_regular_file_is_refused(void)
{
    sop_file *f;
    const char *path = in_folder("odd.gguf");
    CHECK(sop_file_open(path, &f) == SOP_E_IO && says("No such file"));
    write_file(path, "", 0);
    CHECK(sop_file_open(path, &f) == SOP_E_IO && says("empty"));
    (void)unlink(path);
    CHECK(mkfifo(path, 0600) == 0);
    CHECK(sop_file_open(path, &f) == SOP_E_IO && says("not a file"));
    (void)unlink(path);
    write_file(path, "GG", 2);
    CHECK(sop_file_open(path, &f) == SOP_E_FORMAT &&
          says("the magic at byte 0 needs 4 bytes, 2 are left"));
    (void)unlink(path);
}

static void forgetting_a_tensor_keeps_its_bytes(void)
{
    static uint8_t mine[3 * 65536];
    sop_file *f;
    sop_tensor t, other = {.data = mine, .bytes = sizeof mine};
    CHECK(sop_file_open(SOP_TEST_DATA "/tiny/llama/model.gguf", &f) == SOP_OK);
    CHECK(sop_file_tensor(f, "token_embd.weight", &t));
    const uint64_t sum = walk(f);
    sop_file_forget(f, &t);
    CHECK(walk(f) == sum);
    memset(mine, 7, sizeof mine);
    sop_file_forget(f, &other);
    size_t lost = 0;
    for (size_t i = 0; i < sizeof mine; i++) lost += mine[i] != 7;
    CHECK(lost == 0);
    sop_file_close(f);
}

/* ---- split files */

/* Shard no of count, with one tensor; both numbers as the file itself says them. */
static void shard(const char *path, uint16_t no, uint16_t count, uint32_t total, const char *name)
{
    begin(3, 1, 4);
    key("split.no", SOP_META_U16), put(&no, 2);
    key("split.count", SOP_META_U16), put(&count, 2);
    key_u32("split.tensors.count", total);
    key_u32(no == 0 ? "first" : "other", 1);
    tensor(name, 1, four, 0, 0);
    data(16);
    write_file(path, g.b, g.n);
}

static void the_first_shard_opens_all(void)
{
    sop_file *f;
    sop_tensor t;
    int64_t i;
    const char *one = in_folder("m-00001-of-00003.gguf"), *two = in_folder("m-00002-of-00003.gguf"),
               *three = in_folder("m-00003-of-00003.gguf");
    shard(one, 0, 3, 3, "a");
    shard(two, 1, 3, 3, "b");
    CHECK(sop_file_open(one, &f) == SOP_E_IO && says("m-00003-of-00003.gguf: No such file"));
    shard(three, 2, 3, 3, "c");
    CHECK(sop_file_open(one, &f) == SOP_OK);
    CHECK(sop_file_n_tensors(f) == 3 && sop_file_tensor(f, "c", &t) && t.bytes == 16);
    CHECK(sop_file_i64(f, "first", &i) && !sop_file_i64(f, "other", &i));
    CHECK(sop_file_mapped_bytes(f) == 3 * g.n);
    (void)walk(f);
    sop_file_close(f);

    CHECK(sop_file_open(two, &f) == SOP_E_FORMAT && says("shard 2 of 3, open the first"));
    shard(three, 1, 3, 3, "c");
    CHECK(sop_file_open(one, &f) == SOP_E_FORMAT && says("shard 2 of 3, its name 3 of 3"));
    shard(three, 2, 4, 3, "c");
    CHECK(sop_file_open(one, &f) == SOP_E_FORMAT && says("shard 3 of 4, its name 3 of 3"));
    shard(three, 2, 3, 3, "a");
    CHECK(sop_file_open(one, &f) == SOP_E_FORMAT &&
          says("00003.gguf: tensor a stands there twice"));
    shard(three, 2, 3, 3, "c");
    shard(one, 0, 3, 9, "a");
    CHECK(sop_file_open(one, &f) == SOP_E_FORMAT && says("hold 3 tensors") && says("says 9"));
    const char *loose = in_folder("loose.gguf");
    shard(loose, 0, 3, 3, "a");
    CHECK(sop_file_open(loose, &f) == SOP_E_FORMAT && says("must end in -00001-of-00003.gguf"));
    (void)unlink(loose);
    shard(one, 0, 65535, 3, "a");
    CHECK(sop_file_open(one, &f) == SOP_E_FORMAT && says("must end in -00001-of-65535.gguf"));
    (void)unlink(in_folder("m-00001-of-00003.gguf"));
    (void)unlink(in_folder("m-00002-of-00003.gguf"));
    (void)unlink(in_folder("m-00003-of-00003.gguf"));
}

int main(void)
{
    RUN(a_file_is_read_back);
    RUN(a_getter_says_no_to_an_absent_key_and_another_type);
    RUN(every_type_has_the_size_that_superop_gives_it);
    RUN(a_type_that_superop_cannot_compute_with_is_listed);
    RUN(removed_and_unknown_types_are_refused);
    RUN(another_magic_or_version_is_refused);
    RUN(a_big_endian_file_is_called_so);
    RUN(absurd_counts_are_refused_before_memory_is_taken);
    RUN(a_string_longer_than_the_file_takes_no_memory);
    RUN(a_key_or_name_that_cannot_be_printed_is_refused);
    RUN(names_that_stand_there_twice_are_refused);
    RUN(names_that_were_made_to_collide_are_refused);
    RUN(values_of_no_known_type_are_refused);
    RUN(an_alignment_is_a_power_of_two_and_holds_for_the_data);
    RUN(more_than_four_dimensions_are_refused_with_the_count);
    RUN(a_product_of_dimensions_that_wraps_is_refused);
    RUN(a_dimension_below_one_is_refused);
    RUN(rows_that_are_no_whole_blocks_are_refused);
    RUN(tensors_that_overlap_or_leave_a_gap_are_refused);
    RUN(data_that_is_not_all_there_is_refused_with_what_is_missing);
    RUN(a_file_cut_anywhere_is_refused);
    RUN(a_flipped_bit_never_reads_outside_the_file);
    RUN(memory_that_runs_out_is_a_status);
    RUN(a_real_file_cut_at_each_percent_is_refused);
    RUN(what_is_no_regular_file_is_refused);
    RUN(forgetting_a_tensor_keeps_its_bytes);
    RUN(the_first_shard_opens_all);
    (void)rmdir(in_folder(""));
    return test_report();
}
