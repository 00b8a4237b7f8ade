#include "model/safetensors.h"

#include "model/file_test.h"

/* The file of the test that runs: a header and data 0, 1, 2 ... */
static struct {
    uint8_t b[1 << 16];
    size_t n;
} g;

static void build_n(const char *header, size_t len, size_t n_data)
{
    const uint64_t n = len;
    if (8 + n + n_data > sizeof g.b) abort();
    memcpy(g.b, &n, 8);
    memcpy(g.b + 8, header, n);
    for (size_t i = 0; i < n_data; i++) g.b[8 + n + i] = (uint8_t)i;
    g.n = 8 + n + n_data;
}

/* Parses the first n bytes, from a block of just that size, so that a sanitizer sees a read behind it. */
static sop_status parse_n(size_t n)
{
    uint8_t *copy = __real_malloc(n ? n : 1);
    sop_file *f = sop_file_create();
    if (!copy || !f) abort();
    memcpy(copy, g.b, n);
    sop_status s = sop_safetensors_parse(f, copy, n, "x.safetensors", 0);
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
    if (!f || sop_safetensors_parse(f, g.b, g.n, "x.safetensors", 0) != SOP_OK ||
        sop_file_seal(f) != SOP_OK) {
        printf("%s\n", sop_last_error());
        abort();
    }
    return f;
}

static sop_status parse(const char *header, size_t n_data)
{
    build_n(header, strlen(header), n_data);
    return parse_n(g.n);
}

static const char three[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
    "\"none\":{\"shape\":[0,5],\"data_offsets\":[4,4],\"dtype\":\"F16\"},"
    "\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[16,19]}}   ";

static void a_file_is_read_back(void)
{
    sop_tensor t;
    build_n(three, strlen(three), 19);
    sop_file *f = parsed();
    CHECK(sop_file_n_tensors(f) == 4 && sop_file_n_keys(f) == 0);
    CHECK(sop_file_tensor(f, "b", &t) && t.dtype == SOP_BF16 && t.ndim == 2 && t.bytes == 12);
    CHECK(t.shape[0] == 2 && t.shape[1] == 3 && t.stride[0] == 3 && t.stride[1] == 1);
    CHECK(((const uint8_t *)t.data)[0] == 4 && ((const uint8_t *)t.data)[11] == 15);
    CHECK(sop_file_tensor(f, "a", &t) && t.dtype == SOP_F32 && t.ndim == 0 && t.bytes == 4);
    CHECK(sop_file_tensor(f, "none", &t) && t.dtype == SOP_F16 && t.bytes == 0 && t.shape[1] == 5);
    CHECK(sop_file_tensor(f, "q", &t) && t.dtype == SOP_F8 && t.bytes == 3);
    CHECK(strcmp(sop_file_tensor_type(f, "q"), "F8_E4M3") == 0);
    CHECK(!sop_file_tensor(f, "__metadata__", &t));
    sop_file_close(f);
    CHECK(parse("{}", 0) == SOP_OK);
}

static void a_header_length_is_compared_with_the_file(void)
{
    const uint64_t lengths[] = {0, 1, 7, 100000001, UINT64_C(1) << 63, UINT64_MAX, 0, 0};
    const uint64_t before = allocated_bytes;
    build_n(three, strlen(three), 19);
    const size_t n = g.n;
    for (size_t i = 0; i < 8; i++) {
        const uint64_t len = i < 6 ? lengths[i] : i == 6 ? n - 7 : n;
        memcpy(g.b, &len, 8);
        CHECK(parse_n(n) == SOP_E_FORMAT);
        CHECK(i == 2 ? says("JSON") : says("a header of"));
    }
    for (size_t cut = 0; cut < 8; cut++) CHECK(parse_n(cut) == SOP_E_FORMAT && says("at least 10"));
    CHECK(allocated_bytes - before < 1600000);
}

static void a_header_over_the_limit_is_not_read(void)
{
    const uint64_t len = 100000001;
    const char *path = in_folder("long.safetensors");
    sop_file *f;
    memcpy(g.b, &len, 8);
    memcpy(g.b + 8, "{}", 2);
    write_file(path, g.b, 10);
    CHECK(truncate(path, 8 + (off_t)len) == 0); /* a hole */
    CHECK(sop_file_open(path, &f) == SOP_E_FORMAT && says("a header of 100000001 bytes"));
    (void)unlink(path);
}

static void the_header_is_one_json_object_and_spaces(void)
{
    CHECK(parse(" {}", 0) == SOP_E_FORMAT && says("begins with 0x20"));
    CHECK(parse("[]", 0) == SOP_E_FORMAT && says("begins with 0x5b"));
    CHECK(parse("{}x", 0) == SOP_E_FORMAT && says("nothing more"));
    CHECK(parse("{}{}", 0) == SOP_E_FORMAT && says("nothing more"));
    CHECK(parse("{\"a\":1}", 0) == SOP_E_FORMAT && says("an object"));
    build_n("{}\0\0", 4, 0);
    CHECK(parse_n(g.n) == SOP_E_FORMAT);
}

/* A file of F32 tensors [n] from .. to, by name. */
static sop_status ranges(const char *a, int n_a, int from_a, int to_a, const char *b, int n_b,
                         int from_b, int to_b, size_t n_data)
{
    char header[400];
    (void)snprintf(header, sizeof header,
                   "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
                   "\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                   a, n_a, from_a, to_a, b, n_b, from_b, to_b);
    return parse(header, n_data);
}

static void tensors_that_overlap_or_leave_a_gap_are_refused_with_names(void)
{
    CHECK(ranges("k_proj", 16, 0, 64, "v_proj", 16, 64, 128, 128) == SOP_OK);
    CHECK(ranges("k_proj", 16, 64, 128, "v_proj", 16, 0, 64, 128) == SOP_OK);
    CHECK(ranges("k_proj", 16, 0, 64, "v_proj", 16, 0, 64, 64) == SOP_E_FORMAT);
    CHECK(says("overlap") && says("k_proj") && says("v_proj"));
    CHECK(ranges("k_proj", 16, 0, 64, "v_proj", 16, 72, 136, 136) == SOP_E_FORMAT);
    CHECK(says("gap between k_proj and v_proj"));
    CHECK(ranges("k_proj", 16, 8, 72, "v_proj", 16, 72, 136, 136) == SOP_E_FORMAT);
    CHECK(says("gap between the header and k_proj"));
    CHECK(ranges("k_proj", 16, 0, 64, "v_proj", 16, 60, 124, 124) == SOP_E_FORMAT);
    CHECK(says("overlap between k_proj and v_proj"));
    CHECK(ranges("w", 16, 0, 64, "w", 16, 64, 128, 128) == SOP_E_FORMAT);
    CHECK(says("tensor w stands there twice"));
}

static void a_shape_that_is_not_its_byte_range_is_refused(void)
{
    CHECK(parse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4) ==
          SOP_E_FORMAT);
    CHECK(says("tensor w has 32000000 bits by its shape and F32, its data is from byte 0 to 4"));
    CHECK(parse("{\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8) ==
              SOP_E_FORMAT &&
          says("128 bits"));
    CHECK(parse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8) ==
              SOP_E_FORMAT &&
          says("from byte 8 to 4"));
    /* four bits need whole bytes */
    CHECK(parse("{\"w\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1) == SOP_OK);
    CHECK(parse("{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1) ==
              SOP_E_FORMAT &&
          says("12 bits"));
}

static void a_shape_that_overflows_is_refused(void)
{
    const char *const shapes[] = {"9007199254740992,9007199254740992", "4294967296,4294967296",
                                  "0,9007199254740992,9007199254740992", "2147483648,2147483648,2"};
    char header[200];
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(header, sizeof header,
                       "{\"w\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[0,0]}}",
                       shapes[i]);
        CHECK(parse(header, 0) == SOP_E_FORMAT && says("overflows 64 bits"));
    }
}

static void only_natural_numbers_are_sizes(void)
{
    const char *const numbers[] = {"1e0",
                                   "1.0",
                                   "-1",
                                   "-0",
                                   "9007199254740993",
                                   "1152921504606846976",
                                   "99999999999999999999"};
    char header[200];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)snprintf(header, sizeof header,
                       "{\"w\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,1]}}",
                       numbers[i]);
        CHECK(parse(header, 1) == SOP_E_FORMAT && says("tensor w has the number"));
        (void)snprintf(header, sizeof header,
                       "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,%s]}}",
                       numbers[i]);
        CHECK(parse(header, 1) == SOP_E_FORMAT && says("tensor w has the number"));
    }
    CHECK(parse("{\"w\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1) ==
              SOP_E_FORMAT &&
          says("a number"));
}

static void a_tensor_has_its_three_fields_once(void)
{
    const char *const bad[] = {
        "{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":{}}}",
        "{\"w\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"w\":[]}",
        "{\"w\":{}}",
        "{\"w\":null}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(parse(bad[i], 1) == SOP_E_FORMAT);
    CHECK(parse("{\"w\":{\"dtype\":\"U9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1) ==
              SOP_E_UNSUPPORTED &&
          says("tensor w has the unknown dtype U9"));
}

static void names_that_cannot_be_printed_are_refused(void)
{
    const char *const bad[] = {"", "a\\u0000b", "a\\n", "\\u001b[2J", "\xc3"};
    char header[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(header, sizeof header,
                       "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", bad[i]);
        CHECK(parse(header, 1) == SOP_E_FORMAT);
    }
}

static void metadata_holds_strings_and_stands_there_once(void)
{
    CHECK(parse("{\"__metadata__\":{\"a\":\"b\",\"c\":\"\"}}", 0) == SOP_OK);
    CHECK(parse("{\"__metadata__\":{\"a\":1}}", 0) == SOP_E_FORMAT && says("a string"));
    CHECK(parse("{\"__metadata__\":[]}", 0) == SOP_E_FORMAT);
    CHECK(parse("{\"__metadata__\":{},\"__metadata__\":{}}", 0) == SOP_E_FORMAT && says("twice"));
}

static void data_of_another_length_is_refused(void)
{
    build_n(three, strlen(three), 19);
    CHECK(parse_n(g.n - 1) == SOP_E_FORMAT && says("tensor q ends at data byte 19") &&
          says("1 are missing"));
    build_n(three, strlen(three), 20);
    CHECK(parse_n(g.n) == SOP_E_FORMAT && says("1 bytes follow the last tensor"));
    CHECK(parse("{}", 1) == SOP_E_FORMAT && says("1 bytes follow"));
}

static void a_file_cut_anywhere_is_refused(void)
{
    build_n(three, strlen(three), 19);
    const size_t n = g.n;
    for (size_t cut = 0; cut < n; cut++) CHECK(parse_n(cut) == SOP_E_FORMAT);
}

static void a_flipped_bit_never_reads_outside_the_file(void)
{
    int refused = 0;
    build_n(three, strlen(three), 19);
    for (size_t bit = 0; bit < 8 * (8 + strlen(three)); bit++) {
        g.b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refused += parse_n(g.n) != SOP_OK;
        g.b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(refused > 8 * (int)strlen(three) / 2);
}

static void any_byte_in_the_header_is_survived(void)
{
    build_n(three, strlen(three), 19);
    for (size_t at = 8; at < 8 + strlen(three); at++) {
        const uint8_t was = g.b[at];
        for (int v = 0; v < 256; v++) {
            g.b[at] = (uint8_t)v;
            (void)parse_n(g.n);
        }
        g.b[at] = was;
    }
}

/* ---- folders */

static const char *config_of(const char *text)
{
    static char folder[256];
    (void)snprintf(folder, sizeof folder, "%s", in_folder("hf"));
    (void)mkdir(folder, 0700);
    write_file(in_folder("hf/config.json"), text, strlen(text));
    build_n(three, strlen(three), 19);
    write_file(in_folder("hf/model.safetensors"), g.b, g.n);
    return folder;
}

static void a_config_is_found_by_joined_keys(void)
{
    sop_file *f;
    int64_t i = 0;
    double d = 0;
    bool yes = false;
    size_t n = 0;
    const char *folder =
        config_of("{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"hidden_size\": 7,"
                  " \"eps\": 1e-06, \"theta\": 1000000.0, \"tie\": true, \"window\": null,"
                  " \"mixed\": [1, 2.5], \"odd\": [1, \"a\"], \"nested\": [[1]], \"none\": [],"
                  " \"objects\": [{\"a\": 1}], \"flags\": [true, false],"
                  " \"rope_parameters\": {\"full\": {\"rope_type\": \"linear\", \"factor\": 8.0}},"
                  " \"text_config\": {\"hidden_size\": 64, \"model_type\": \"gemma3_text\","
                  "   \"layers\": 2, \"layer_types\": [\"sliding_attention\", \"full \\u00e9\"]}}");
    CHECK(sop_file_open(folder, &f) == SOP_OK);
    CHECK(sop_file_kind(f) == SOP_FILE_HF && sop_file_n_tensors(f) == 4);
    CHECK(strcmp(sop_file_str(f, "model_type", &n), "gemma3") == 0 && n == 6);
    CHECK(sop_file_i64(f, "hidden_size", &i) && i == 7);
    CHECK(sop_file_i64(f, "text_config.hidden_size", &i) && i == 64);
    CHECK(sop_file_i64(f, "layers", &i) && i == 2);
    CHECK(sop_file_f64(f, "layers", &d) && d == 2);
    CHECK(sop_file_f64(f, "eps", &d) && d == 1e-6);
    CHECK(sop_file_f64(f, "theta", &d) && d == 1e6 && !sop_file_i64(f, "theta", &i));
    CHECK(sop_file_bool(f, "tie", &yes) && yes);
    CHECK(!sop_file_i64(f, "window", &i) && !sop_file_bool(f, "window", &yes));
    CHECK(sop_file_str(f, "window", &n) == NULL);
    CHECK(sop_file_array(f, "eos_token_id") == 2);
    CHECK(sop_file_array_i64(f, "eos_token_id", 1, &i) && i == 106);
    CHECK(sop_file_array_f64(f, "mixed", 0, &d) && d == 1);
    CHECK(sop_file_array_f64(f, "mixed", 1, &d) && d == 2.5);
    CHECK(sop_file_array(f, "none") == 0 && sop_file_array(f, "flags") == 2);
    CHECK(sop_file_array(f, "odd") == -1 && sop_file_array(f, "nested") == -1);
    CHECK(sop_file_array(f, "objects") == -1);
    CHECK(strcmp(sop_file_str(f, "rope_parameters.full.rope_type", &n), "linear") == 0);
    CHECK(sop_file_f64(f, "rope_parameters.full.factor", &d) && d == 8);
    CHECK(strcmp(sop_file_array_str(f, "layer_types", 0, &n), "sliding_attention") == 0);
    CHECK(strcmp(sop_file_array_str(f, "layer_types", 1, &n), "full \xc3\xa9") == 0 && n == 7);
    (void)walk(f);
    sop_file_close(f);
}

static void a_broken_config_is_refused(void)
{
    const char *const bad[] = {"[]",           "{",          "{\"a\":1,\"a\":2}", "{\"a\":1}}",
                               "{\"a\\n\":1}", "{\"a\":NaN}"};
    char longest[600];
    sop_file *f;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(sop_file_open(config_of(bad[i]), &f) == SOP_E_FORMAT && says("config.json"));
    }
    (void)snprintf(longest, sizeof longest, "{\"%0520d\":1}", 0);
    CHECK(sop_file_open(config_of(longest), &f) == SOP_E_FORMAT && says("more than 512 bytes"));
    (void)snprintf(longest, sizeof longest, "{\"%0300d\":{\"%0220d\":1}}", 0, 0);
    CHECK(sop_file_open(config_of(longest), &f) == SOP_E_FORMAT && says("more than 512 bytes"));
}

static void the_tiny_models_open(void)
{
    const char *const names[] = {"qwen2", "qwen3", "llama", "mistral", "gemma3"};
    char path[512];
    sop_file *f;
    sop_tensor t;
    int64_t i;
    for (size_t k = 0; k < 5; k++) {
        (void)snprintf(path, sizeof path, SOP_TEST_DATA "/tiny/%s/hf", names[k]);
        CHECK(sop_file_open(path, &f) == SOP_OK);
        CHECK(sop_file_tensor(f, "model.embed_tokens.weight", &t) && t.shape[1] == 64);
        CHECK(sop_file_i64(f, "hidden_size", &i) && i == 64);
        (void)walk(f);
        sop_file_close(f);
    }
}

static void both_formats_hold_the_same_bytes(void)
{
    sop_file *a, *b;
    sop_tensor x, y;
    CHECK(sop_file_open(SOP_TEST_DATA "/tiny/qwen3/hf/model.safetensors", &a) == SOP_OK);
    CHECK(sop_file_open(SOP_TEST_DATA "/tiny/qwen3/model.gguf", &b) == SOP_OK);
    CHECK(sop_file_tensor(a, "model.layers.1.mlp.down_proj.weight", &x));
    CHECK(sop_file_tensor(b, "blk.1.ffn_down.weight", &y));
    CHECK(x.dtype == SOP_BF16 && y.dtype == SOP_BF16 && x.bytes == y.bytes && x.ndim == y.ndim);
    CHECK(memcmp(x.shape, y.shape, sizeof x.shape) == 0 && x.shape[0] == 64 && x.shape[1] == 128);
    CHECK(memcmp(x.stride, y.stride, sizeof x.stride) == 0);
    CHECK(memcmp(x.data, y.data, x.bytes) == 0);
    sop_file_close(a);
    sop_file_close(b);
}

/* A folder with two shards, w in one.safetensors and v in two.safetensors, and this index. */
static sop_status open_indexed(const char *index, sop_file **f)
{
    const char *w = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    const char *v = "{\"v\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    const char *folder = config_of("{}");
    (void)unlink(in_folder("hf/model.safetensors"));
    build_n(w, strlen(w), 1);
    write_file(in_folder("hf/one.safetensors"), g.b, g.n);
    write_file(in_folder("outside.safetensors"), g.b, g.n);
    build_n(v, strlen(v), 2);
    write_file(in_folder("hf/two.safetensors"), g.b, g.n);
    write_file(in_folder("hf/model.safetensors.index.json"), index, strlen(index));
    return sop_file_open(folder, f);
}

static void shards_are_opened_by_the_index(void)
{
    sop_file *f;
    sop_tensor t;
    CHECK(open_indexed("{\"metadata\":{\"total_size\":3},\"weight_map\":"
                       "{\"v\":\"two.safetensors\",\"w\":\"one.safetensors\"}}",
                       &f) == SOP_OK);
    CHECK(sop_file_n_tensors(f) == 2 && sop_file_tensor(f, "v", &t) && t.bytes == 2);
    CHECK(sop_file_tensor(f, "w", &t) && t.bytes == 1);
    (void)walk(f);
    sop_file_close(f);
    CHECK(open_indexed("{\"weight_map\":{\"w\":\"two.safetensors\",\"v\":\"one.safetensors\"}}",
                       &f) == SOP_E_FORMAT &&
          says("tensor w is not in two.safetensors"));
    CHECK(open_indexed("{\"weight_map\":{\"w\":\"one.safetensors\",\"x\":\"two.safetensors\"}}",
                       &f) == SOP_E_FORMAT &&
          says("tensor x is not in two.safetensors"));
    CHECK(open_indexed("{\"weight_map\":{\"w\":\"six.safetensors\"}}", &f) == SOP_E_IO &&
          says("six.safetensors: No such file"));
    CHECK(open_indexed("{\"metadata\":{}}", &f) == SOP_E_FORMAT && says("there is no weight_map"));
    CHECK(open_indexed("{\"weight_map\":[]}", &f) == SOP_E_FORMAT && says("an object"));
    CHECK(open_indexed("{\"weight_map\":{\"w\":1}}", &f) == SOP_E_FORMAT && says("a string"));
}

static void an_index_reaches_no_file_outside_the_folder(void)
{
    const char *const names[] = {"../outside.safetensors",
                                 "/etc/x.safetensors",
                                 "a/one.safetensors",
                                 ".hidden.safetensors",
                                 "..",
                                 "",
                                 "one.bin",
                                 ".safetensors",
                                 "./one.safetensors",
                                 "one.safetensors\\n",
                                 "..\\\\one"};
    char index[200];
    sop_file *f;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(index, sizeof index, "{\"weight_map\":{\"w\":\"%s\"}}", names[i]);
        CHECK(open_indexed(index, &f) == SOP_E_FORMAT &&
              says("tensor w lies in a file whose name"));
    }
}

static void a_tensor_in_two_shards_is_refused(void)
{
    sop_file *f;
    const char *index = "{\"weight_map\":{\"w\":\"one.safetensors\",\"v\":\"dup.safetensors\"}}";
    const char *w = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    (void)config_of("{}");
    build_n(w, strlen(w), 1);
    write_file(in_folder("hf/dup.safetensors"), g.b, g.n);
    CHECK(open_indexed(index, &f) == SOP_E_FORMAT);
    CHECK(says("dup.safetensors: tensor w stands there twice"));
    (void)unlink(in_folder("hf/dup.safetensors"));
}

static void a_folder_without_a_part_is_refused(void)
{
    sop_file *f;
    const char *folder = config_of("{}");
    (void)unlink(in_folder("hf/model.safetensors"));
    (void)unlink(in_folder("hf/model.safetensors.index.json"));
    CHECK(sop_file_open(folder, &f) == SOP_E_IO && says("neither model.safetensors nor its index"));
    (void)unlink(in_folder("hf/config.json"));
    CHECK(sop_file_open(folder, &f) == SOP_E_IO && says("config.json: No such file"));
}

static void a_shard_cut_at_each_percent_is_refused(void)
{
    sop_file *f;
    size_t n;
    uint8_t *bytes = read_file(SOP_TEST_DATA "/tiny/qwen2/hf/model.safetensors", &n);
    const char *folder = config_of("{}"), *path = in_folder("hf/model.safetensors");
    for (size_t percent = 0; percent < 100; percent++) {
        write_file(path, bytes, n * percent / 100);
        CHECK(sop_file_open(folder, &f) != SOP_OK && f == NULL && says("model.safetensors"));
    }
    const size_t cuts[] = {n - 1, n - 4096, n / 2};
    for (size_t i = 0; i < 3; i++) {
        write_file(path, bytes, cuts[i]);
        CHECK(sop_file_open(folder, &f) == SOP_E_FORMAT && says("are missing"));
    }
    free(bytes);
}

static void memory_that_runs_out_is_a_status(void)
{
    sop_file *f;
    int64_t needed = 0;
    for (int64_t i = 0; i < 200; i++) {
        n_allocations = 0;
        fails_at = i;
        const sop_status s = sop_file_open(SOP_TEST_DATA "/tiny/llama/hf", &f);
        fails_at = -1;
        CHECK(s == SOP_OK || (s == SOP_E_NOMEM && f == NULL));
        CHECK(s != SOP_OK || n_allocations <= i);
        if (s == SOP_OK && needed == 0) needed = i;
        sop_file_close(f);
    }
    CHECK(needed > 5);
}

int main(void)
{
    RUN(a_file_is_read_back);
    RUN(a_header_length_is_compared_with_the_file);
    RUN(a_header_over_the_limit_is_not_read);
    RUN(the_header_is_one_json_object_and_spaces);
    RUN(tensors_that_overlap_or_leave_a_gap_are_refused_with_names);
    RUN(a_shape_that_is_not_its_byte_range_is_refused);
    RUN(a_shape_that_overflows_is_refused);
    RUN(only_natural_numbers_are_sizes);
    RUN(a_tensor_has_its_three_fields_once);
    RUN(names_that_cannot_be_printed_are_refused);
    RUN(metadata_holds_strings_and_stands_there_once);
    RUN(data_of_another_length_is_refused);
    RUN(a_file_cut_anywhere_is_refused);
    RUN(a_flipped_bit_never_reads_outside_the_file);
    RUN(any_byte_in_the_header_is_survived);
    RUN(a_config_is_found_by_joined_keys);
    RUN(a_broken_config_is_refused);
    RUN(the_tiny_models_open);
    RUN(both_formats_hold_the_same_bytes);
    RUN(shards_are_opened_by_the_index);
    RUN(an_index_reaches_no_file_outside_the_folder);
    RUN(a_tensor_in_two_shards_is_refused);
    RUN(a_folder_without_a_part_is_refused);
    RUN(a_shard_cut_at_each_percent_is_refused);
    RUN(memory_that_runs_out_is_a_status);
    (void)unlink(in_folder("hf/model.safetensors"));
    (void)unlink(in_folder("hf/config.json"));
    (void)unlink(in_folder("hf/one.safetensors"));
    (void)unlink(in_folder("hf/two.safetensors"));
    (void)unlink(in_folder("outside.safetensors"));
    (void)rmdir(in_folder("hf"));
    (void)rmdir(in_folder(""));
    return test_report();
}
